//! The present state of nodes, which a step reads.

use super::{BootKey, EndedProgram, NodeSettings};
use crate::{
    fleet::{Generation, LabelValue, Phase},
    operations::NodeOrder,
};
use meshd_types::{GroupName, NodeId};

/// An order of the rollout that a node refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedOrder {
    pub order: NodeOrder,
    pub reason: String,
}

/// The present state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePresent {
    pub phase: Phase,
    pub is_linked: bool,
    /// Checks of this boot are known, and none fails.
    pub passes: bool,
    /// Profile and pin at present, and the running generation.
    pub settings: NodeSettings,
    /// Generation that the node boots next.
    pub next: Option<Generation>,
    /// `next` is not known yet: the site or the node has changed.
    pub is_next_stale: bool,
    /// The boot that the phase describes.
    pub boot: BootKey,
    /// The boot loop of the node, in words.
    pub boot_loop: Option<String>,
    pub has_work: bool,
    /// An order is being given to the node, or waits for it.
    pub is_ordering: bool,
    /// A reboot or a power cut of the node is not finished.
    pub is_rebooting: bool,
    /// Value of the label that names failure domains.
    pub domain: Option<LabelValue>,
    /// The last refused order of the rollout.
    pub refusal: Option<RefusedOrder>,
    /// The generation of the node that its goal names: a goal of its profile has one when the node
    /// was pinned to it.
    pub goal: Option<Generation>,
    /// The program of the rollout for the node has not begun: as many others as may run do.
    pub is_program_queued: bool,
    /// The program of the rollout that ended last for the node.
    pub ended: Option<EndedProgram>,
}

impl NodePresent {
    /// True if the node runs what its settings demand, with a link, and no check fails. A node
    /// without netboot reports no generation.
    pub(super) fn runs_next(&self) -> bool {
        let is_other = |booted| self.next != Some(booted);
        self.is_linked && self.passes && !self.settings.booted.is_some_and(is_other)
    }

    /// Returns the reason of a refusal of an order of this kind.
    pub(super) fn refused(&self, order: &NodeOrder) -> Option<&str> {
        let refusal = self.refusal.as_ref().filter(|refusal| refusal.order == *order)?;
        Some(&refusal.reason)
    }
}

/// Reads the present state of nodes.
pub trait Inventory {
    /// Returns the state of a node; `None` if it was removed.
    fn node(&self, id: NodeId) -> Option<NodePresent>;

    /// True if the node is known and not removed.
    fn exists(&self, id: NodeId) -> bool;

    /// True if the node is online with a link, no order takes it out of service, and no other
    /// rollout has it in progress.
    fn serves(&self, id: NodeId) -> bool;

    /// Returns the members of a group; `None` if there is no such group.
    fn group(&self, name: &GroupName) -> Option<Vec<NodeId>>;
}
