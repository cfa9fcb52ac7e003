//! The result of a rendering: files, links and folders with their origin.

use crate::catalog::overlay::Layer;
use bytes::Bytes;
use meshd_types::{Digest, SafePath};
use std::fmt;

/// One file, link or folder of a rendered overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedFile {
    /// Where on the node.
    pub path: SafePath,
    /// What it is, and its content.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// User and group number.
    pub owner: (u64, u64),
    /// Who brought it, after everyone earlier lost; several where later ones appended, or where meshd joins what they declare.
    pub origins: Vec<Origin>,
    /// Digest of the content, or of a link's target. That of a secret file changes with its secrets and does not tell them.
    pub digest: Digest,
    /// Size of the content in bytes.
    pub size: u64,
}

impl RenderedFile {
    /// Who brought it, for people: `base, mpi`.
    pub fn origin(&self) -> String {
        self.origins.iter().map(Origin::to_string).collect::<Vec<_>>().join(", ")
    }

    /// What may be shown of a file's content; placeholders stand for secrets. `None` for the agent, which is known by its digest.
    pub fn content(&self) -> Option<&Bytes> {
        match &self.kind {
            Kind::File(bytes) | Kind::Secret(bytes) => Some(bytes),
            Kind::Agent | Kind::Link(_) | Kind::Directory => None,
        }
    }
}

/// What a rendered file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A file with this content.
    File(Bytes),
    /// A file with secrets: this is what may be shown of it. The file itself is made when a node's overlay is delivered.
    Secret(Bytes),
    /// The agent's binary.
    Agent,
    /// A symbolic link to this target.
    Link(String),
    /// A folder.
    Directory,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::File(_) | Kind::Secret(_) | Kind::Agent => "file",
            Kind::Link(_) => "link",
            Kind::Directory => "directory",
        })
    }
}

/// Where a rendered file comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An overlay of the profile, of a group, or of the node.
    Overlay(Layer),
    /// Made from what overlays declare: those that are named after it.
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
