//! What an operator says of what nodes boot, and what is answered to it.

use crate::config::Fault;
use crate::fleet::{Generation, GenerationDiff, Given, Revised};
use crate::id::{VarName, Vars};
use serde::{Deserialize, Serialize};

/// Body of `assign-profile`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignProfile {
    /// The profile's name, as somebody typed it.
    pub profile: String,
}

/// Body of `vars`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeVars {
    /// Variables to set.
    pub set: Vars,
    /// Variables to remove.
    pub unset: Vec<VarName>,
}

/// Body of `boot-once`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BootOnce {
    /// The profile's name, as somebody typed it.
    pub profile: Option<String>,
    /// Kernel arguments on top of the profile's.
    pub kernel_args: Vec<String>,
    /// Take back what was ordered.
    pub clear: bool,
}

/// Body of `pin`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pin {
    /// A generation or the beginning of its digest; what the node runs unless it is named.
    pub generation: Option<String>,
    /// Let it go.
    pub off: bool,
}

/// Body of `replace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// The node that takes the place of the old one: ID or name.
    pub new: String,
}

/// What came of a replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// The new node.
    pub node: super::view::NodeView,
    /// What the site file says of the old hardware and nothing has taken over, for people.
    pub left: Vec<String>,
}

/// One generation of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationView {
    /// Which, of what, when.
    #[serde(flatten)]
    pub given: Given,
    /// The node runs it.
    pub runs: bool,
    /// The node would boot it now.
    pub next: bool,
    /// The node is pinned to it.
    pub pinned: bool,
    /// All of it is kept: it can be compared, and booted again.
    pub kept: bool,
}

/// What a node runs against what it would boot now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffView {
    /// What it runs.
    pub runs: Generation,
    /// What it would boot now.
    pub next: Generation,
    /// How they differ.
    pub diff: GenerationDiff,
}

/// Body of `rollback`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rollback {
    /// A generation of the profile or the beginning of its digest; the one before what its nodes boot unless it is named.
    pub to: Option<String>,
    /// Its nodes boot what the site file says again.
    pub off: bool,
}

/// One revision of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionView {
    /// Which, and since when.
    #[serde(flatten)]
    pub revised: Revised,
    /// Nodes of the profile boot it.
    pub boots: bool,
    /// It is what site file, overlays and image say.
    pub filed: bool,
    /// The profile was rolled back to it.
    pub held: bool,
}

/// What came of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadView {
    /// Why it was refused; empty when it was not.
    pub faults: Vec<Fault>,
    /// False when everything is as it was.
    pub changed: bool,
    /// Keys of `site.toml` that differ and need a restart.
    pub restart: Vec<String>,
}
