//! Entries of an overlay: files, templates, links and folders.

use super::{System, template::TemplateInputs, variable::Variable};
use bytes::Bytes;
use meshd_types::{SafePath, VarName};
use std::collections::BTreeMap;

/// Path of the agent on a node, the only path that permits `source = "agent"`. meshd provides the
/// content.
pub const AGENT_PATH: &str = "/usr/bin/mesh-agent";

/// Maximum number of files, links and folders of one overlay.
pub(super) const MAX_ENTRIES: usize = 4096;
/// Maximum file size, in bytes. Larger software belongs into packages or bundles.
pub(super) const MAX_FILE: u64 = 4 << 20;
/// Maximum overlay size, in bytes.
pub(super) const MAX_OVERLAY: u64 = 16 << 20;
/// Entries by path.
pub type Entries = BTreeMap<SafePath, OverlayEntry>;

/// Position of a declaration, for faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// Path relative to the overlay's folder.
    pub file: String,
    /// Line from 1; 0 for the whole file.
    pub line: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayEntry {
    pub source: Source,
    /// Permission bits.
    pub mode: u32,
    /// User and group ID.
    pub owner: (u64, u64),
    /// Appends to earlier overlays.
    pub append: bool,
    /// Intentionally replaces a file of another mode, owner or kind.
    pub replace: bool,
    /// The only system that gets the entry; `None` for all.
    pub system: Option<System>,
    pub location: SourceLocation,
}

/// Source of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(Bytes),
    Template {
        text: String,
        /// Path of the template relative to the overlay's folder, for faults.
        file: String,
        /// Omit the file if it renders to white space.
        omit_empty: bool,
        uses: TemplateInputs,
    },
    /// The agent's binary, which the renderer adds.
    Agent,
    /// A symbolic link to this target.
    Link(String),
    /// A folder with its own mode or owner, or an empty folder.
    Directory,
}

impl OverlayEntry {
    /// Returns whether nodes of a system get the entry.
    pub fn is_for(&self, system: System) -> bool {
        self.system.is_none_or(|only| only == system)
    }

    /// Returns whether the entry is the same on every node, unless another overlay changes it.
    pub fn is_plain(&self) -> bool {
        !self.append && matches!(self.source, Source::File(_) | Source::Link(_) | Source::Directory)
    }
}

impl Source {
    /// Returns the first secret that a template uses.
    pub fn secret<'a>(&'a self, variables: &BTreeMap<VarName, Variable>) -> Option<&'a VarName> {
        let Source::Template { uses, .. } = self else { return None };
        uses.vars.iter().find(|name| variables.get(*name).is_some_and(|variable| variable.secret))
    }
}
