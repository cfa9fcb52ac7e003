//! `meshd overlay cat`: prints one rendered file, with placeholders for secrets.

use super::comparison_side::Side;
use crate::cli::{
    Context, Failure,
    output::writer::{ForeignOutput, RawOutput},
};
use clap::Args;
use meshd_config::suggest;
use meshd_image::overlay::{Kind, RenderedFile};

#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(in crate::cli) struct Cat {
    /// Node ID or name
    #[arg(required_unless_present = "profile", conflicts_with = "profile")]
    node: Option<String>,
    /// Path on the node
    #[arg(required = true)]
    path: String,
    /// Profile to render, offline
    #[arg(long, value_name = "P")]
    profile: Option<String>,
    #[command(flatten)]
    raw: RawOutput,
}

impl Cat {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let side = match (&self.node, &self.profile) {
            (Some(node), _) => Side::node(context, node)?,
            (None, profile) => Side::profile(context, profile.as_deref().unwrap_or_default())?,
        };
        let path = format!("/{}", self.path.trim_start_matches('/'));
        let file = side.file(&path).ok_or_else(|| {
            let paths: Vec<String> = side.files.iter().map(|file| file.path.to_string()).collect();
            let near = suggest(&path, paths.iter().map(String::as_str));
            Failure::new(format!("{} has no file {path}", side.name), near)
        })?;
        for note in &side.notes {
            message!("note: {note}");
        }
        if let Some(what) = note(file) {
            message!("{path}: {what}");
        }
        let mut output = ForeignOutput::new(self.raw);
        match &file.kind {
            Kind::Link(target) => output.out(format!("{target}\n").as_bytes())?,
            _ => output.out(file.content().map_or(&[], |bytes| bytes))?,
        }
        output.end();
        Ok(())
    }
}

/// Returns the properties of a file that its content does not show, such as mode and owner.
fn note(file: &RenderedFile) -> Option<String> {
    let by =
        if file.origins.is_empty() { String::new() } else { format!(", from {}", file.origin()) };
    let (user, group) = file.owner;
    let how = format!("{:04o} {user}:{group}{by}", file.mode);
    Some(match &file.kind {
        Kind::File(_) => how,
        Kind::Secret(_) => format!("{how}; placeholders replace its secrets"),
        Kind::Agent => format!("{how}; the agent, {}", file.digest),
        Kind::MeshInit => format!("{how}; stage 1, {}", file.digest),
        Kind::Link(_) => format!("a link{by}, to"),
        Kind::Directory => format!("a folder {how}"),
    })
}
