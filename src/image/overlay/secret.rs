//! Files that contain secrets: a storable description, and the real content for one boot.

use super::{
    merge::{Piece, joined},
    values::with_secrets,
};
use crate::catalog::{
    Secrets,
    overlay::{Overlay, Source, Templates},
};
use bytes::Bytes;
use meshd_config::Fault;
use meshd_types::{Digest, SafePath, Secret, VarName};
use minijinja::Value;
use std::collections::BTreeMap;

/// Description of a file with secrets. Contains no secret.
#[derive(Debug, Clone)]
pub struct SecretFile {
    path: SafePath,
    pieces: Vec<Part>,
    uses: Vec<VarName>,
}

#[derive(Debug, Clone)]
enum Part {
    Text(Bytes),
    Template { templates: Templates, file: String, values: Value },
}

/// Reduces a fault to its position. The template's error may contain the secret, and faults are
/// logged.
fn without_value(fault: Fault) -> Fault {
    let message = "cannot be rendered with the value that one of its secrets has".to_owned();
    let hint = "the error is hidden, because it may contain the secret; try the template with a test value".to_owned();
    Fault { message, hint, ..fault }
}

/// A file with secrets for one boot of one node.
#[derive(Debug)]
pub struct Delivered {
    /// Path on the node.
    pub path: SafePath,
    pub content: Secret<Bytes>,
}

impl SecretFile {
    pub(super) fn new(
        path: &SafePath,
        pieces: &[Piece<'_>],
        layers: &[&Overlay],
        values: &[Value],
    ) -> Self {
        let mut uses = Vec::new();
        let mut part = |piece: &Piece<'_>| {
            let overlay = layers[piece.layer];
            match &piece.entry.source {
                Source::File(bytes) => Some(Part::Text(bytes.clone())),
                Source::Template { file, uses: names, .. } => {
                    let secret = |name: &&VarName| {
                        overlay.variables.get(*name).is_some_and(|variable| variable.secret)
                    };
                    uses.extend(names.vars.iter().filter(secret).cloned());
                    let templates = overlay.templates.clone();
                    let values = values[piece.layer].clone();
                    Some(Part::Template { templates, file: file.clone(), values })
                }
                Source::Agent | Source::Link(_) | Source::Directory => None,
            }
        };
        let pieces = pieces.iter().filter_map(&mut part).collect();
        SecretFile { path: path.clone(), pieces, uses }
    }

    /// Path on the node.
    pub(super) fn path(&self) -> &SafePath {
        &self.path
    }

    /// Digest over the content with placeholders and the marks of the secrets.
    pub(super) fn digest(&self, shown: Digest, marks: &BTreeMap<VarName, Digest>) -> Digest {
        let marks = self.uses.iter().filter_map(|name| marks.get(name));
        Digest::of_fields(
            [shown.0.as_slice()].into_iter().chain(marks.map(|mark| mark.0.as_slice())),
        )
    }

    /// Renders the file with secrets.
    ///
    /// # Errors
    /// A template that fails only with the real value: a fault with file and line, without the
    /// template's error.
    pub fn make(&self, secrets: &Secrets) -> Result<Delivered, Fault> {
        let mut whole = Bytes::new();
        for piece in &self.pieces {
            let text = match piece {
                Part::Text(bytes) => bytes.clone(),
                Part::Template { templates, file, values } => {
                    let used = secrets.iter().filter(|(name, _)| self.uses.contains(name));
                    Bytes::from(
                        templates
                            .render(file, &with_secrets(values, used))
                            .map_err(without_value)?,
                    )
                }
            };
            whole = joined(&whole, &text);
        }
        Ok(Delivered { path: self.path.clone(), content: Secret::new(whole) })
    }
}
