//! Connects a user to a program on a node: a VM console, a shell, the input of a task, the log of a
//! container.
//!
//! meshd requests the connection over the link, and the node opens a separate one. Buffers are
//! bounded: a slow user delays only that connection.

use super::{LinkCommand, Links};
use bytes::Bytes;
use meshd_proto::{
    FromCentral,
    shell::InputNote,
    vm::{ConsoleId, ConsoleNote},
};
use meshd_trust::Peer;
use meshd_types::{NodeId, failpoint};
use std::{collections::BTreeMap, time::Duration};
use tokio::sync::mpsc;

/// Maximum number of open consoles of a site, with shells and inputs.
const MAX_CONSOLES: usize = 256;
/// Timeout for the node's connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for the node to read the user's last input after the user has left. A shell ends at once:
/// its user may have lost the permission to run what is queued.
const LINGER: Duration = Duration::from_secs(60);
/// Maximum number of queued pieces of output.
const OUTPUT_QUEUE: usize = 16;
/// Maximum number of queued pieces of input.
const INPUT_QUEUE: usize = 64;

/// Open and requested consoles.
pub(super) type Consoles = BTreeMap<ConsoleId, PendingConsole>;

pub(super) struct PendingConsole {
    node: NodeId,
    /// The node's side, until the node takes it. The console is open while the user's side exists.
    node_console: Option<NodeConsole>,
    user: mpsc::WeakSender<ConsoleInput>,
}

/// A piece of console output.
#[derive(Debug)]
pub enum ConsoleFrame {
    /// Output of the program.
    Bytes(Bytes),
    /// A note to the user.
    Note(ConsoleNote),
}

/// A piece of console input.
#[derive(Debug)]
pub enum ConsoleInput {
    Bytes(Bytes),
    Note(InputNote),
}

/// The user's side of a console.
#[derive(Debug)]
pub struct ConsoleSession {
    /// Output; ends when the node closes the connection.
    pub output: mpsc::Receiver<ConsoleFrame>,
    /// Input for the program.
    pub input: mpsc::Sender<ConsoleInput>,
}

/// The node's side of a console.
#[derive(Debug)]
pub struct NodeConsole {
    /// Output of the program.
    pub output: mpsc::Sender<ConsoleFrame>,
    /// Input; ends when the user closes the console.
    pub input: mpsc::Receiver<ConsoleInput>,
    /// Time for queued input after the user has left.
    pub linger: Duration,
}

/// Why a node does not connect a console, a shell or an input.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot open the console: node {0} has no link")]
    NotLinked(NodeId),
    #[error("cannot open the console: node {node} did not connect it within {} s", ANSWER_TIMEOUT.as_secs())]
    NoAnswer { node: NodeId },
    #[error("cannot open the console: {MAX_CONSOLES} are open")]
    TooMany,
}

meshd_types::hints!(ConnectError {
    ConnectError::NotLinked(_) => "retry when it is online";
    ConnectError::NoAnswer { .. } => "look at the log of its agent; an older agent needs a boot of the node first";
    ConnectError::TooMany => "close one first";
});

fn linger_of(order: &FromCentral) -> Duration {
    match order {
        FromCentral::Shell(_) | FromCentral::GuestShell(_) | FromCentral::ContainerExec(_) => {
            Duration::ZERO
        }
        _ => LINGER,
    }
}

impl Links {
    /// Returns an error unless a console of the node can be requested.
    pub(crate) fn check_console(&self, node: NodeId) -> Result<(), ConnectError> {
        let is_full = {
            let mut all = self.consoles.lock();
            // Consoles without a user are closed.
            all.retain(|_, pending| pending.user.upgrade().is_some());
            all.len() >= MAX_CONSOLES
        };
        match self.is_linked(node) {
            false => Err(ConnectError::NotLinked(node)),
            true if is_full => Err(ConnectError::TooMany),
            true => Ok(()),
        }
    }

    /// Requests a console from a node, and waits until the node has connected it.
    pub(crate) async fn open_console(
        &self,
        node: NodeId,
        order: impl FnOnce(ConsoleId) -> FromCentral,
    ) -> Result<ConsoleSession, ConnectError> {
        self.check_console(node)?;
        let link = self.commands(node).ok_or(ConnectError::NotLinked(node))?;
        let console = ConsoleId(u64::from_be_bytes(self.env.random()));
        let ((output_sender, mut output), (input, input_receiver)) =
            (mpsc::channel(OUTPUT_QUEUE), mpsc::channel(INPUT_QUEUE));
        let order = order(console);
        let linger = linger_of(&order);
        let node_console =
            Some(NodeConsole { output: output_sender, input: input_receiver, linger });
        let pending = PendingConsole { node, node_console, user: input.downgrade() };
        self.consoles.lock().insert(console, pending);
        let first_frame = async {
            link.send(LinkCommand::Send(order)).await.ok()?;
            output.recv().await
        };
        let first = tokio::time::timeout(ANSWER_TIMEOUT, first_frame).await;
        if !matches!(first, Ok(Some(_))) {
            self.consoles.lock().remove(&console);
            return Err(ConnectError::NoAnswer { node });
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
}
