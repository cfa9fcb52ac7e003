//! Joins an operator and a node at the console of a virtual machine.
//!
//! meshd requests the console over the link, and the node opens a separate connection. Buffers are bounded: a slow operator delays only that
//! connection, and the node drops output and reports the gap.

use crate::{
    links::LinkCommand,
    workloads::{
        Workloads,
        vms::{VmError, story},
    },
};
use bytes::Bytes;
use meshd_model::fleet::{AuditContext, EventKind};
use meshd_proto::{
    FromCentral,
    vm::{ConsoleId, ConsoleNote, ConsoleOrder},
};
use meshd_store::StoreError;
use meshd_trust::Peer;
use meshd_types::{NodeId, SystemUuid};
use std::{collections::BTreeMap, time::Duration};
use tokio::sync::mpsc;

/// Maximum number of open consoles of a site.
const MAX_CONSOLES: usize = 256;
/// Timeout for the node's connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Pieces that wait for an operator.
const SHOWN: usize = 16;
/// Pieces of typing that wait for a node.
const TYPED: usize = 64;

/// Open and requested consoles.
pub(super) type Consoles = BTreeMap<ConsoleId, PendingConsole>;

pub(super) struct PendingConsole {
    node: NodeId,
    /// The node's end, until the node takes it. The console is open while the other ends exist.
    end: Option<NodeEnd>,
    operator: mpsc::WeakSender<Bytes>,
}

/// A piece of console output.
#[derive(Debug)]
pub enum ConsoleFrame {
    /// Output of the guest.
    Bytes(Bytes),
    /// A note to the operator.
    Note(ConsoleNote),
}

/// The operator's end.
#[derive(Debug)]
pub struct ConsoleSession {
    /// Output; ends when the node closes the connection.
    pub shown: mpsc::Receiver<ConsoleFrame>,
    /// Input for the guest.
    pub typed: mpsc::Sender<Bytes>,
}

/// The node's end.
#[derive(Debug)]
pub struct NodeEnd {
    /// Output of the guest.
    pub shown: mpsc::Sender<ConsoleFrame>,
    /// Input; ends when the operator closes the console.
    pub typed: mpsc::Receiver<Bytes>,
}

/// Why a console does not open.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// The node has no such virtual machine.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// No node has it.
    #[error("cannot open the console of virtual machine {0}: it has no node; start it first")]
    Unplaced(SystemUuid),
    /// Its node has no link.
    #[error("cannot open the console: node {0} has no link; retry when it is online")]
    NotLinked(NodeId),
    /// Its node did not connect it.
    #[error("cannot open the console: node {node} did not connect it within {} s; look at the log of its agent", ANSWER_TIMEOUT.as_secs())]
    NoAnswer { node: NodeId },
    /// Too many consoles are open.
    #[error("cannot open the console: {MAX_CONSOLES} are open; close one first")]
    TooMany,
    /// The store cannot be written.
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

impl Workloads {
    /// Opens a console: `history` bytes of past output, and with `follow` new output. With `by` the operator may type, which is recorded.
    pub async fn open_console(
        &self,
        uuid: SystemUuid,
        history: u64,
        follow: bool,
        by: Option<&AuditContext>,
    ) -> Result<ConsoleSession, ConsoleError> {
        let node = self.whose_console(uuid)?;
        let link = self.links.commands(node);
        let link = link.ok_or(ConsoleError::NotLinked(node))?;
        if let Some(by) = by {
            self.record_console(uuid, node, by).await?;
        }
        let console = ConsoleId(u64::from_be_bytes(self.env.random()));
        let ((show, mut shown), (typed, typing)) = (mpsc::channel(SHOWN), mpsc::channel(TYPED));
        {
            let mut all = self.consoles.lock();
            // The operator has left.
            all.retain(|_, waiting| waiting.operator.upgrade().is_some());
            if all.len() >= MAX_CONSOLES {
                return Err(ConsoleError::TooMany);
            }
            let end = Some(NodeEnd { shown: show, typed: typing });
            all.insert(console, PendingConsole { node, end, operator: typed.downgrade() });
        }
        let order = FromCentral::Console(ConsoleOrder { console, uuid, history, follow });
        let asked = async {
            link.send(LinkCommand::Send(order)).await.ok()?;
            shown.recv().await
        };
        let first = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
        if !matches!(first, Ok(Some(_))) {
            self.consoles.lock().remove(&console);
            return Err(ConsoleError::NoAnswer { node });
        }
        Ok(ConsoleSession { shown, typed })
    }

    /// Takes the node's end of a requested console; each once.
    pub fn bring_console(&self, peer: &Peer, console: ConsoleId) -> Option<NodeEnd> {
        let mut all = self.consoles.lock();
        let waiting = all.get_mut(&console).filter(|waiting| waiting.node == peer.node)?;
        waiting.end.take()
    }

    fn whose_console(&self, uuid: SystemUuid) -> Result<NodeId, ConsoleError> {
        if let Some(node) = self.env.store.read(|model| model.vm(uuid).map(|vm| vm.node())) {
            // Another node that says that it has it is not given what an operator types for this one.
            return node.ok_or(ConsoleError::Unplaced(uuid));
        }
        let stranger = self.orphan_vms().into_iter().find(|(_, report)| report.uuid == uuid).map(|(node, _)| node);
        Ok(stranger.ok_or_else(|| VmError::None(uuid.to_string()))?)
    }

    async fn record_console(&self, uuid: SystemUuid, node: NodeId, by: &AuditContext) -> Result<(), StoreError> {
        let now = self.env.now();
        self.env
            .store
            .commit(|tx| {
                let detail = "somebody sits at its console".to_owned();
                let event = match tx.vm(uuid) {
                    Some(vm) => story(vm, node, EventKind::VmConsole, by, detail, now),
                    None => meshd_model::fleet::Event::new(now, by, EventKind::VmConsole, format!("{uuid}: {detail}"))
                        .of_node(node),
                };
                tx.event(event);
                Ok(())
            })
            .await
    }
}
