//! An operator spoke.

use super::{
    ApiTokenError, Central, JobError, RenderError, RollbackError, boot_stalls, node_boot_settings::OrderError,
    node_lifecycle::acknowledge, script::phase_event, slots::SlotError, vms::VmError,
};
use meshd_model::{
    boot::Endpoint,
    fleet::{AuditContext, ConditionKind, Node, Phase, PhaseChange, UnlawfulTransition},
};
use meshd_proto::{TaskAction, TaskOutcome};
use meshd_store::StoreError;
use meshd_types::{MacAddr, NodeId};
use std::{net::Ipv4Addr, sync::Arc};

/// Why an operator's word was not followed. Nothing has changed then; but where the store could not be written, it may have: look at
/// what is, and say it again.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// No such node.
    #[error("there is no node `{name}`; `meshd node list` shows those that there are")]
    NoNode {
        /// What was asked for.
        name: String,
    },
    /// Several nodes have this name.
    #[error("several nodes are called `{name}`; use the node ID")]
    Ambiguous {
        /// What was asked for.
        name: String,
    },
    /// A node cannot take its own place.
    #[error("{node} is the old hardware and the new; name two nodes")]
    SameNode {
        /// Which.
        node: NodeId,
    },
    /// Hardware that is to be replaced runs.
    #[error("node {node} still answers on its link; switch the old hardware off first, or remove the node")]
    StillLinked {
        /// Which.
        node: NodeId,
    },
    /// A network card that a node is to have is another one's.
    #[error("cannot accept NIC {mac} for node {node}: it belongs to {holder}")]
    NicTaken {
        /// Which node.
        node: NodeId,
        /// Which card.
        mac: MacAddr,
        /// Whose it is.
        holder: String,
    },
    /// A node that is to be fenced was heard of a moment ago.
    #[error("cannot fence node {node}: it was heard of {seconds} s ago; switch it off and retry after {wait} s")]
    StillHeard {
        /// Which.
        node: NodeId,
        /// Seconds since.
        seconds: u64,
        /// Seconds of silence that are left.
        wait: u64,
    },
    /// No such profile.
    #[error("there is no profile `{profile}`; there are: {known}")]
    NoProfile {
        /// What was asked for.
        profile: String,
        /// What there is.
        known: String,
    },
    /// Something that a node cannot be told.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A job cannot be run, or is not there.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A token of the admin plane.
    #[error(transparent)]
    ApiToken(#[from] ApiTokenError),
    /// What it would boot cannot be made, or is not there.
    #[error(transparent)]
    Render(#[from] Arc<RenderError>),
    /// A profile cannot be rolled back.
    #[error(transparent)]
    Rollback(#[from] RollbackError),
    /// A virtual machine.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// A slot.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The phase does not allow it.
    #[error(transparent)]
    Unlawful(#[from] UnlawfulTransition),
    /// The node's link is down.
    #[error("node {node} has no link, so it cannot be told to reboot; power-cycle it")]
    NotLinked {
        /// Which.
        node: NodeId,
    },
    /// The node did not answer.
    #[error("node {node} did not say that it reboots within {seconds} s; look at its console")]
    NoAnswer {
        /// Which.
        node: NodeId,
        /// How long it had.
        seconds: u64,
    },
    /// The node refused or failed.
    #[error("node {node} did not do it: {reason}")]
    TaskFailed {
        /// Which.
        node: NodeId,
        /// In its own words.
        reason: String,
    },
    /// The store cannot be written.
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

impl Central {
    /// The node that an operator means: by ID, else by name.
    pub fn resolve(&self, name: &str) -> Result<NodeId, OperateError> {
        self.store.read(|model| {
            if let Some(node) = name.parse().ok().and_then(|id| model.node(id)) {
                return Ok(node.id);
            }
            let mut called = model.nodes().filter(|node| node.name == name && node.phase != Phase::Removed);
            match (called.next(), called.next()) {
                (Some(node), None) => Ok(node.id),
                (Some(_), Some(_)) => Err(OperateError::Ambiguous { name: name.to_owned() }),
                (None, _) => Err(OperateError::NoNode { name: name.to_owned() }),
            }
        })
    }

    /// Lets a node in. If it waits on a pending connection it goes on at once. Approving again takes
    /// its units and other parts as they are now.
    pub async fn approve(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        self.approve_at(id, false, by).await
    }

    /// The same; a node that was `moved` may be plugged in anywhere, and its next enrolment says where it is.
    pub async fn approve_at(&self, id: NodeId, moved: bool, by: &AuditContext) -> Result<Node, OperateError> {
        let now = self.now();
        let node = self
            .store
            .commit(|tx| {
                let mut node = tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
                if matches!(node.phase, Phase::Discovered | Phase::Rejected) {
                    let change = node.change(PhaseChange::Approve)?;
                    tx.put_node(node.clone());
                    phase_event(tx, id, node.boot, change, by, now);
                } else if !node.phase.is_admitted() {
                    node.change(PhaseChange::Approve)?;
                } else {
                    acknowledge(tx, id, moved, by, now);
                    node = tx.node(id).cloned().unwrap_or(node);
                }
                Ok::<_, OperateError>(node)
            })
            .await?;
        meshd_types::fail::point("order-committed");
        self.decided();
        Ok(node)
    }

    /// Lets a quarantined node boot again; what it did before counts for no loop any more. It is asking all the while, and
    /// goes on by itself.
    pub async fn release(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let now = self.now();
        self.store
            .commit(|tx| {
                let mut node = tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
                let change = node.release(now)?;
                tx.put_node(node);
                phase_event(tx, id, None, change, by, now);
                for over in [ConditionKind::BootLoop, ConditionKind::BootStalled] {
                    boot_stalls::clear(tx, id, over, by, now);
                }
                tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })
            })
            .await
    }

    /// Tells a node to reboot, over its link. Returns when the node has said that it does.
    pub async fn reboot(&self, id: NodeId, by: &AuditContext) -> Result<(), OperateError> {
        self.spare(id, by)?;
        if self.link_state(id).since.is_none() {
            return Err(OperateError::NotLinked { node: id });
        }
        let no_answer = OperateError::NoAnswer { node: id, seconds: TaskAction::Reboot.window().as_secs() };
        match self.run_task(id, TaskAction::Reboot, by).await?.ok_or(no_answer)? {
            TaskOutcome::Done => self.reboot_ordered(id).await,
            TaskOutcome::Refused { reason } | TaskOutcome::Failed { reason } => {
                Err(OperateError::TaskFailed { node: id, reason })
            }
        }
    }

    /// The boot that ends now ends by an operator's word: that is no failure of it.
    async fn reboot_ordered(&self, id: NodeId) -> Result<(), OperateError> {
        self.store
            .commit(|tx| {
                if let Some(session) = tx.node(id).and_then(|node| node.boot) {
                    tx.edit_session(session, |session| session.reboot_ordered = true);
                }
                Ok(())
            })
            .await
    }

    /// Where this node would be told that the central node is: the first segment's address, for renders by an operator.
    pub fn endpoint(&self, address: Ipv4Addr) -> Endpoint {
        Endpoint { address, http_port: self.site().http.port }
    }
}
