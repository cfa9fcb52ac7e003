//! Connects an operator to the console of a VM.
//!
//! meshd requests the console over the link, and the node opens a separate connection. Buffers are
//! bounded: a slow operator delays only that connection, and the node drops output and reports the
//! gap.

use crate::{
    links::LinkCommand,
    vms::{Vms, error::VmError, lifecycle::vm_event},
};
use bytes::Bytes;
use meshd_model::fleet::{AuditContext, EventKind};
use meshd_proto::{
    FromCentral,
    vm::{ConsoleId, ConsoleNote, ConsoleOrder},
};
use meshd_store::StoreError;
use meshd_trust::Peer;
use meshd_types::{NodeId, SystemUuid, failpoint};
use std::{collections::BTreeMap, time::Duration};
use tokio::sync::mpsc;

/// Maximum number of open consoles of a site.
const MAX_CONSOLES: usize = 256;
/// Timeout for the node's connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of queued pieces of output.
const OUTPUT_QUEUE: usize = 16;
/// Maximum number of queued pieces of input.
const INPUT_QUEUE: usize = 64;

/// Open and requested consoles.
pub(super) type Consoles = BTreeMap<ConsoleId, PendingConsole>;

pub(super) struct PendingConsole {
    node: NodeId,
    /// The node's side, until the node takes it. The console is open while the operator's side
    /// exists.
    node_console: Option<NodeConsole>,
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

/// The operator's side of a console.
#[derive(Debug)]
pub struct ConsoleSession {
    /// Output; ends when the node closes the connection.
    pub output: mpsc::Receiver<ConsoleFrame>,
    /// Input for the guest.
    pub input: mpsc::Sender<Bytes>,
}

/// The node's side of a console.
#[derive(Debug)]
pub struct NodeConsole {
    /// Output of the guest.
    pub output: mpsc::Sender<ConsoleFrame>,
    /// Input; ends when the operator closes the console.
    pub input: mpsc::Receiver<Bytes>,
}

/// Why a console does not open.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error("cannot open the console of VM {0}: it has no node")]
    Unplaced(SystemUuid),
    #[error("cannot open the console: node {0} has no link")]
    NotLinked(NodeId),
    #[error("cannot open the console: node {node} did not connect it within {} s", ANSWER_TIMEOUT.as_secs())]
    NoAnswer { node: NodeId },
    #[error("cannot open the console: {MAX_CONSOLES} are open")]
    TooMany,
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(ConsoleError {
    ConsoleError::Unplaced(_) => "start it first";
    ConsoleError::NotLinked(_) => "retry when it is online";
    ConsoleError::NoAnswer { .. } => "look at the log of its agent";
    ConsoleError::TooMany => "close one first";
    @source ConsoleError::Vm(source) => source;
});

impl Vms {
    /// Opens a console: `history` bytes of past output, and with `follow` new output. With `audit`,
    /// the operator may send input, and the opening is recorded.
    pub async fn open_console(
        &self,
        uuid: SystemUuid,
        history: u64,
        follow: bool,
        audit: Option<&AuditContext>,
    ) -> Result<ConsoleSession, ConsoleError> {
        let node = self.console_node(uuid)?;
        let link = self.links.commands(node);
        let link = link.ok_or(ConsoleError::NotLinked(node))?;
        if let Some(audit) = audit {
            self.record_console(uuid, node, audit).await?;
        }
        let console = ConsoleId(u64::from_be_bytes(self.env.random()));
        let ((output_sender, mut output), (input, input_receiver)) =
            (mpsc::channel(OUTPUT_QUEUE), mpsc::channel(INPUT_QUEUE));
        {
            let mut all = self.consoles.lock();
            // Consoles without an operator are closed.
            all.retain(|_, pending| pending.operator.upgrade().is_some());
            if all.len() >= MAX_CONSOLES {
                return Err(ConsoleError::TooMany);
            }
            let node_console = Some(NodeConsole { output: output_sender, input: input_receiver });
            all.insert(console, PendingConsole { node, node_console, operator: input.downgrade() });
        }
        let order = FromCentral::Console(ConsoleOrder { console, uuid, history, follow });
        let first_frame = async {
            link.send(LinkCommand::Send(order)).await.ok()?;
            output.recv().await
        };
        let first = tokio::time::timeout(ANSWER_TIMEOUT, first_frame).await;
        if !matches!(first, Ok(Some(_))) {
            self.consoles.lock().remove(&console);
            return Err(ConsoleError::NoAnswer { node });
        }
        Ok(ConsoleSession { output, input })
    }

    /// Takes the node's side of a requested console. Returns it once.
    pub fn accept_console(&self, peer: &Peer, console: ConsoleId) -> Option<NodeConsole> {
        let mut all = self.consoles.lock();
        let pending = all
            .get_mut(&console)
            .filter(|pending| pending.node == peer.node || !failpoint::defends("console-node"))?;
        pending.node_console.take()
    }

    fn console_node(&self, uuid: SystemUuid) -> Result<NodeId, ConsoleError> {
        if let Some(node) = self.env.store.read(|model| model.vm(uuid).map(|vm| vm.node())) {
            // A node that wrongly reports the VM must not receive the operator's input.
            return node.ok_or(ConsoleError::Unplaced(uuid));
        }
        let orphan_node = self
            .orphan_vms()
            .into_iter()
            .find(|(_, report)| report.uuid == uuid)
            .map(|(node, _)| node);
        Ok(orphan_node.ok_or_else(|| VmError::None(uuid.to_string()))?)
    }

    async fn record_console(
        &self,
        uuid: SystemUuid,
        node: NodeId,
        audit: &AuditContext,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let detail = "an operator opened its console".to_owned();
            let event = match tx.vm(uuid) {
                Some(vm) => vm_event(vm, node, EventKind::VmConsole, audit, detail, now),
                None => meshd_model::fleet::Event::new(
                    now,
                    audit,
                    EventKind::VmConsole,
                    format!("{uuid}: {detail}"),
                )
                .of_node(node),
            };
            tx.event(event);
            Ok(())
        });
        stored.await
    }
}
