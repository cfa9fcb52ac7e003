//! Reads of nodes and their boots, all as of one moment.
//!
//! | module | content |
//! | --- | --- |
//! | `boot_paths` | boots with what precedes them, and boots to compare them with |

mod boot_paths;

pub use boot_paths::ComparedBoot;

use super::NodeOps;
use crate::vms::active_work;
use meshd_model::{
    fleet::{BootSession, Node},
    operations::{NodeOperation, Operation},
    work::task::Task,
};
use meshd_store::Model;
use meshd_types::{MacAddr, NodeId, OperationId};

/// The machines of the site: nodes and boots.
#[derive(Clone, Copy)]
pub struct Fleet<'a>(&'a Model);

/// A node, with the records that belong to it.
#[derive(Clone, Copy)]
pub struct NodeRecords<'a> {
    pub node: &'a Node,
    model: &'a Model,
}

impl NodeOps {
    /// Reads nodes and boots. Changes wait meanwhile, so keep it short.
    pub fn read<R>(&self, read: impl FnOnce(Fleet<'_>) -> R) -> R {
        self.env.store.read(|model| read(Fleet(model)))
    }

    /// Returns a copy of a node; `None` if there is no such node.
    pub fn node(&self, id: NodeId) -> Option<Node> {
        self.env.store.read(|model| model.node(id).cloned())
    }
}

impl<'a> Fleet<'a> {
    /// Reads a model without a central node.
    pub fn new(model: &'a Model) -> Self {
        Fleet(model)
    }

    /// All nodes, by ID.
    pub fn nodes(self) -> impl Iterator<Item = NodeRecords<'a>> {
        self.0.nodes().map(move |node| NodeRecords { node, model: self.0 })
    }

    pub fn node(self, id: NodeId) -> Option<NodeRecords<'a>> {
        self.0.node(id).map(|node| NodeRecords { node, model: self.0 })
    }

    /// The newest boot of every MAC address.
    pub fn newest_boots(self) -> impl Iterator<Item = &'a BootSession> {
        self.0.newest_sessions()
    }

    /// The boots of a NIC, the newest first.
    pub fn boots_of_nic(self, mac: MacAddr) -> impl Iterator<Item = &'a BootSession> {
        self.0.sessions_of(mac)
    }

    /// All operations, the newest first.
    pub fn operations(self) -> impl Iterator<Item = &'a Operation> {
        self.0.operations().rev()
    }

    /// The record of a node in an operation.
    pub fn node_operation(self, id: OperationId, node: NodeId) -> Option<&'a NodeOperation> {
        self.0.node_operation(id, node)
    }

    /// The node that boots: the one that the script step found, or that of the NIC.
    pub fn node_of_boot(self, boot: &BootSession) -> Option<&'a Node> {
        boot.node.and_then(|id| self.0.node(id)).or_else(|| self.0.node_of_mac(boot.mac))
    }

    /// All tasks of the site.
    pub fn tasks(self) -> impl Iterator<Item = &'a Task> {
        self.0.tasks()
    }

    /// Number of boots on record.
    pub fn boot_count(self) -> usize {
        self.0.session_count()
    }

    /// Number of unapproved and removed nodes.
    pub fn unknown_count(self) -> usize {
        self.0.unknown_count()
    }
}

impl<'a> NodeRecords<'a> {
    /// The boot that the phase of the node describes.
    pub fn boot(self) -> Option<&'a BootSession> {
        self.model.boot_of(self.node)
    }

    /// All boots of the node on record, the newest first.
    pub fn boots(self) -> Vec<&'a BootSession> {
        self.model.boots_of(self.node)
    }

    /// The work that keeps the node from going idle, as texts.
    pub fn active_work(self) -> Vec<String> {
        active_work(self.model, self.node.id)
    }
}
