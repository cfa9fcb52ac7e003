//! The result of a rendering: files, links and folders with their origin.

use crate::catalog::overlay::Layer;
use bytes::Bytes;
use meshd_types::{Digest, SafePath};
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedFile {
    /// Path on the node.
    pub path: SafePath,
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// User and group ID.
    pub owner: (u64, u64),
    /// Overlays that provide the content: the last writer, the overlays that append, or all whose
    /// declarations meshd joins.
    pub origins: Vec<Origin>,
    /// Digest of the content, or of a link's target. The digest of a secret file changes with its
    /// secrets and does not reveal them.
    pub digest: Digest,
    /// Size of the content in bytes.
    pub size: u64,
}

impl RenderedFile {
    /// Returns the origins as text: `base, mpi`.
    pub fn origin(&self) -> String {
        self.origins.iter().map(Origin::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Returns the content with placeholders for secrets. `None` for programs, which have a digest
    /// only.
    pub fn content(&self) -> Option<&Bytes> {
        match &self.kind {
            Kind::File(bytes) | Kind::Secret(bytes) => Some(bytes),
            Kind::Agent | Kind::MeshInit | Kind::Link(_) | Kind::Directory => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File(Bytes),
    /// A file with secrets, with placeholders. The real file is created at delivery.
    Secret(Bytes),
    Agent,
    /// The first program of an Alpine node: stage 1 under another name.
    MeshInit,
    /// A symbolic link to this target.
    Link(String),
    Directory,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::File(_) | Kind::Secret(_) | Kind::Agent | Kind::MeshInit => "file",
            Kind::Link(_) => "link",
            Kind::Directory => "directory",
        })
    }
}

/// Origin of a rendered file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An overlay of the profile, of a group, or of the node.
    Overlay(Layer),
    /// Generated from declarations of these overlays.
    Generated,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Overlay(layer) => layer.fmt(f),
            Origin::Generated => f.pad("(meshd)"),
        }
    }
}
