//! One side of a comparison, or the one place that a file is printed from: a node, a profile, or a profile rendered with
//! other overlays.

use super::{super::render::Renderer, of_node};
use crate::catalog::overlay::read_overlays;
use crate::cli::{Context, Failure, profile, render::overlays};
use crate::overlay::{Kind, RenderedFile, read_targz};
use bytes::Bytes;
use std::path::Path;

/// The files of one rendering, in the order of paths.
pub(super) struct Side {
    /// What it is, for people.
    pub(super) name: String,
    pub(super) files: Vec<RenderedFile>,
    pub(super) notes: Vec<String>,
}

impl Side {
    /// What meshd would give a node now.
    pub(super) fn node(context: &Context, node: &str) -> Result<Self, Failure> {
        let (bytes, generation) = of_node(context, node)?;
        let files = read_targz(&bytes).map_err(|error| {
            Failure::new(format!("the overlay of {node} cannot be read: {error}"), "is meshd of the same version?")
        })?;
        let generation: String = generation.chars().take(12).collect();
        Ok(Side { name: format!("node {node}, generation {generation}"), files, notes: Vec::new() })
    }

    /// What a node of a profile would get.
    pub(super) fn profile(context: &Context, name: &str) -> Result<Self, Failure> {
        Self::rendered(context, name, None)
    }

    /// The same with the overlays of another folder.
    pub(super) fn with_overlays(context: &Context, name: &str, overlays_dir: &Path) -> Result<Self, Failure> {
        Self::rendered(context, name, Some(overlays_dir))
    }

    fn rendered(context: &Context, name: &str, overlays_dir: Option<&Path>) -> Result<Self, Failure> {
        let site = context.site()?;
        let mut overlays = match overlays_dir {
            Some(dir) => read_overlays(dir)?,
            None => overlays(&site)?,
        };
        overlays.secret_marks = super::super::render::marks(&site);
        let profile = profile::find(&site, name)?;
        let mut renderer = Renderer::new(&site, overlays).with_agent();
        let files = renderer.render(profile, None)?.files;
        let with = overlays_dir.map(|dir| format!(" with {}", dir.display())).unwrap_or_default();
        Ok(Side { name: format!("profile {}{with}", profile.name), files, notes: renderer.notes })
    }

    pub(super) fn file(&self, path: &str) -> Option<&RenderedFile> {
        self.files.iter().find(|file| file.path.to_string() == path)
    }
}

/// What can be printed of a file. The agent of a profile's rendering is only known by its digest.
pub(super) fn content(file: &RenderedFile) -> Option<Bytes> {
    match &file.kind {
        Kind::File(bytes) | Kind::Secret(bytes) => Some(bytes.clone()),
        Kind::Agent | Kind::Link(_) | Kind::Directory => None,
    }
}
