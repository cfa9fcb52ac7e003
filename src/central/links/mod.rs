//! One live link for each node: commands to it, its heartbeats and checks, ordered actions, and the
//! deadline after which it is offline.
//!
//! | module | content |
//! | --- | --- |
//! | `actions` | actions of operations: sent, repeated at the next link, answered |
//! | `checks` | readiness checks: requested, reported, compared with the approved units |
//! | `consoles` | connections of users to programs on nodes: VM consoles, shells, input of tasks |
//! | `heartbeat_deadlines` | nodes that fall silent become offline |
//! | `recent_link` | nodes that were online a moment ago, and whether their reboot was announced |
//! | `shell_limits` | limits of shells, and the terminals of their users |
//! | `section_progress` | which entries of each section a link has sent, and which of them its node has taken |
//! | `severed_links` | ends the links of nodes without credentials, and forgets their reports |
//! | `stale_checks` | nodes whose checks are too old become degraded |

mod actions;
mod checks;
mod consoles;
mod heartbeat_deadlines;
mod recent_link;
mod section_progress;
mod shell_limits;
mod severed_links;
mod stale_checks;

pub(crate) use checks::compare_units;
pub use checks::doctor_report;
pub use consoles::{ConnectError, ConsoleFrame, ConsoleInput, ConsoleSession, NodeConsole};
pub use heartbeat_deadlines::WATCH_INTERVAL;
pub(crate) use recent_link::{announce_end, withdraw_end};
pub(crate) use shell_limits::end_detail;
pub use shell_limits::{ShellLimits, ShellTerminal};

use crate::{
    environment::{Environment, alarms::log_failure},
    locks::{DEADLINES, Leaf, Ordered},
    reported_work::ReportedWork,
};
use checks::PendingCheck;
use consoles::Consoles;
use heartbeat_deadlines::Timers;
use meshd_model::fleet::{Certificate, LinkState};
use meshd_proto::{ActionId, ActionOrder, DrainReport, FromCentral, Heartbeat, Section, Usage};
use meshd_store::StoreError;
use meshd_types::{BootSessionId, NodeId, SystemUuid, TaskId, Timestamp};
use section_progress::SectionProgress;
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};
use tokio::sync::{Notify, mpsc, oneshot};

/// Timeout of a probe. A LAN answers in milliseconds; a busy machine may need a second.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Identifies one connection; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId {
    node: NodeId,
    number: u64,
}

/// A command for a link.
#[derive(Debug)]
pub enum LinkCommand {
    Send(FromCentral),
    /// Send the desired state of this part of the node, as it is at that moment: the newest state
    /// is sent last.
    Spec(SpecPart),
    /// Ping, and fire when the node has answered.
    Probe(oneshot::Sender<()>),
    /// End the link, for this reason.
    Close(String),
}

/// A part of the desired state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecPart {
    All,
    Vm(SystemUuid),
    Task(TaskId),
    /// All replicas of containers.
    Containers,
    Drain,
}

/// Why an order that needs a node's link, or needs it to be down, is refused.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("node {node} still answers on its link")]
    StillLinked { node: NodeId },
    #[error("cannot {order} node {node}: it has no link")]
    NotLinked { node: NodeId, order: LinkOrder },
    #[error("cannot {order} node {node}: no answer within {seconds} s")]
    NoAnswer { node: NodeId, order: LinkOrder, seconds: u64 },
}

meshd_types::hints!(LinkError {
    LinkError::StillLinked { .. } => "switch its machine off, then retry";
    LinkError::NotLinked { node, .. } => "see `meshd node timeline {node}`, or cut its power: meshd node power cycle {node}";
    LinkError::NoAnswer { .. } => "look at its console";
});

/// An order that a node carries out over its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOrder {
    Reboot,
    RunChecks,
}

impl fmt::Display for LinkOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkOrder::Reboot => "reboot",
            LinkOrder::RunChecks => "run the checks of",
        })
    }
}

/// The live links of all nodes, with the heartbeat deadline of each.
pub struct Links {
    env: Arc<Environment>,
    reported: Arc<ReportedWork>,
    inner: Leaf<LinksInner>,
    consoles: Leaf<Consoles>,
    deadlines: Ordered<DEADLINES, Timers>,
    /// Wakes those who wait for the outcome of an action.
    answered: Arc<Notify>,
}

/// A copy of the state of a link.
pub(crate) struct LinkedNode {
    pub(crate) node: NodeId,
    pub(crate) session: BootSessionId,
    pub(crate) certificate: Certificate,
    pub(crate) commands: mpsc::Sender<LinkCommand>,
}

#[derive(Default)]
struct LinksInner {
    entries: BTreeMap<NodeId, LinkEntry>,
    /// The last signs of life, also of nodes without a link.
    last_alive: BTreeMap<NodeId, LastAlive>,
    actions: BTreeMap<ActionId, OutstandingAction>,
    next: u64,
    pending_checks: Vec<PendingCheck>,
    /// Number of the last request for checks.
    last_check_request: u64,
}

/// The last sign of life of a node since the start of meshd.
#[derive(Clone, Copy, Default)]
struct LastAlive {
    /// Monotonic time.
    at: Duration,
    /// The node has had a link, and not only received a certificate.
    was_linked: bool,
}

struct LinkEntry {
    number: u64,
    certificate: Certificate,
    /// The node's boot session.
    session: BootSessionId,
    /// Monotonic time of the last reported checks, or of the start of the link.
    checked: Duration,
    state: LinkState,
    commands: mpsc::Sender<LinkCommand>,
    sections: BTreeMap<Section, SectionProgress>,
    /// The last report of drain hooks.
    drain: Option<DrainReport>,
    /// Monotonic time of the last reported utilisation.
    usage: Option<(Duration, Usage)>,
    /// A part of the desired state was not sent, because the disk refused it.
    has_unsent_spec: bool,
}

struct OutstandingAction {
    order: ActionOrder,
    /// The boot session in which the node executes the action.
    session: Option<BootSessionId>,
    /// The action is in the queue of a link, or was sent.
    is_sent: bool,
    /// Monotonic time at which its operation stored it, or of the start of meshd.
    added_at: Duration,
}

impl LinkId {
    pub fn node(self) -> NodeId {
        self.node
    }
}

impl Links {
    pub(crate) fn new(env: Arc<Environment>, reported: Arc<ReportedWork>) -> Self {
        Links {
            env,
            reported,
            inner: Leaf::default(),
            consoles: Leaf::default(),
            deadlines: Ordered::default(),
            answered: Arc::default(),
        }
    }

    /// The queue of commands of a node's link.
    pub(crate) fn commands(&self, node: NodeId) -> Option<mpsc::Sender<LinkCommand>> {
        self.inner.lock().entries.get(&node).map(|entry| entry.commands.clone())
    }

    /// Queues a command for a linked node. A full queue drops the command: use it for commands that
    /// are repeated.
    pub(crate) fn try_send(&self, node: NodeId, command: LinkCommand) {
        if let Some(commands) = self.commands(node) {
            let _ = commands.try_send(command);
        }
    }

    pub(crate) fn linked_nodes(&self) -> Vec<LinkedNode> {
        let linked_node = |(node, entry): (&NodeId, &LinkEntry)| LinkedNode {
            node: *node,
            session: entry.session,
            certificate: entry.certificate.clone(),
            commands: entry.commands.clone(),
        };
        self.inner.lock().entries.iter().map(linked_node).collect()
    }

    /// Replaces the certificate of a node's link after a renewal. A link that was opened meanwhile
    /// has another certificate and stays unchanged.
    pub(crate) fn replace_certificate(
        &self,
        node: NodeId,
        current_certificate: &Certificate,
        newest: Certificate,
    ) {
        if let Some(entry) = self
            .inner
            .lock()
            .entries
            .get_mut(&node)
            .filter(|entry| entry.certificate == *current_certificate)
        {
            entry.certificate = newest;
        }
    }

    /// Opens a link in place of an older one of the same node. Returns the actions that the node
    /// has not answered.
    pub(crate) fn register(
        &self,
        node: NodeId,
        certificate: Certificate,
        session: BootSessionId,
        commands: mpsc::Sender<LinkCommand>,
        now: Timestamp,
    ) -> (LinkId, Vec<ActionOrder>) {
        let mut links = self.inner.lock();
        links.next += 1;
        let number = links.next;
        links.last_alive.insert(node, LastAlive { at: self.env.monotonic(), was_linked: true });
        let state = LinkState { since: Some(now), last_message_at: Some(now), heartbeat: None };
        let sections = BTreeMap::new();
        let entry = LinkEntry {
            number,
            certificate,
            session,
            checked: self.env.monotonic(),
            state,
            commands,
            sections,
            drain: None,
            usage: None,
            has_unsent_spec: false,
        };
        if let Some(old) = links.entries.insert(node, entry) {
            let _ =
                old.commands.try_send(LinkCommand::Close("the node has a newer link".to_owned()));
        }
        // An expired action still needs its outcome; the agent does not start it.
        let monotonic = self.env.monotonic();
        links.actions.retain(|_, outstanding| {
            let age = monotonic.saturating_sub(outstanding.added_at);
            age < outstanding.order.action.window()
        });
        let is_due = |outstanding: &&mut OutstandingAction| {
            outstanding.order.node == node
                && outstanding.session.is_none_or(|ordered| ordered == session)
        };
        let due = links.actions.values_mut().filter(is_due).map(|outstanding| {
            outstanding.is_sent = true;
            outstanding.order.clone()
        });
        (LinkId { node, number }, due.collect())
    }

    /// Closes a link. Silence counts from its last message; the phase changes only after
    /// `offline_after`.
    pub async fn link_down(&self, link: LinkId) {
        let last_message = {
            let mut links = self.inner.lock();
            if links.entries.get(&link.node).is_none_or(|entry| entry.number != link.number) {
                return;
            }
            links.entries.remove(&link.node).and_then(|entry| entry.state.last_message_at)
        };
        let Some(last_message) = last_message else { return };
        let seen = self.env.store.commit(|tx| {
            tx.edit_node(link.node, |node| node.last_seen = node.last_seen.max(last_message));
            Ok::<_, StoreError>(())
        });
        log_failure(seen.await, "cannot record when a node was last seen");
    }

    /// Probes the node's link and closes a silent one, so that it does not delay a power-cycled
    /// node.
    pub(crate) async fn probe(&self, node: NodeId) -> bool {
        let Some(commands) = self.commands(node) else { return false };
        let (answered, answer) = oneshot::channel();
        if commands.send(LinkCommand::Probe(answered)).await.is_err() {
            return false;
        }
        if matches!(tokio::time::timeout(PROBE_TIMEOUT, answer).await, Ok(Ok(()))) {
            return true;
        }
        let _ = commands.try_send(LinkCommand::Close("the node does not answer".to_owned()));
        false
    }

    /// Records a sign of life without a link: the node received a certificate.
    pub(crate) fn touch(&self, node: NodeId) {
        let now = self.env.monotonic();
        self.inner.lock().last_alive.entry(node).or_default().at = now;
        self.arm_timer(node, now);
    }

    pub(crate) fn record_message(&self, link: LinkId) -> Option<(Certificate, BootSessionId)> {
        let now = self.env.now();
        let mut links = self.inner.lock();
        let entry =
            links.entries.get_mut(&link.node).filter(|entry| entry.number == link.number)?;
        entry.state.last_message_at = Some(now);
        let current_certificate = entry.certificate.clone();
        let session = entry.session;
        let monotonic = self.env.monotonic();
        links.last_alive.insert(link.node, LastAlive { at: monotonic, was_linked: true });
        drop(links);
        self.arm_timer(link.node, monotonic);
        Some((current_certificate, session))
    }

    pub(crate) fn record_heartbeat(&self, link: LinkId, mut heartbeat: Heartbeat) {
        let usage = heartbeat.usage.take().map(|usage| (self.env.monotonic(), usage));
        if let Some(entry) = self.inner.lock().entries.get_mut(&link.node) {
            entry.state.heartbeat = Some(heartbeat);
            entry.usage = usage.or(entry.usage.take());
        }
    }

    pub fn is_linked(&self, node: NodeId) -> bool {
        self.inner.lock().entries.contains_key(&node)
    }

    pub fn link_state(&self, node: NodeId) -> LinkState {
        self.inner.lock().entries.get(&node).map(|entry| entry.state.clone()).unwrap_or_default()
    }

    /// Refuses an operation that needs the node to be gone, if it has a newer link than the silent
    /// one. Called inside the transaction that revokes its credentials.
    pub(crate) fn check_no_newer_link(
        &self,
        node: NodeId,
        silent: Option<u64>,
    ) -> Result<(), LinkError> {
        let newer = self.link_number(node).is_some_and(|number| Some(number) != silent);
        if newer { Err(LinkError::StillLinked { node }) } else { Ok(()) }
    }

    /// Returns the number of the node's link.
    pub(crate) fn link_number(&self, node: NodeId) -> Option<u64> {
        self.inner.lock().entries.get(&node).map(|entry| entry.number)
    }

    /// The time of the last message of each linked node.
    pub(crate) fn last_message_times(&self) -> BTreeMap<NodeId, Timestamp> {
        let links = self.inner.lock();
        links
            .entries
            .iter()
            .filter_map(|(node, entry)| Some((*node, entry.state.last_message_at?)))
            .collect()
    }

    /// The last heartbeat of each linked node.
    pub fn heartbeats(&self) -> Vec<Heartbeat> {
        self.inner
            .lock()
            .entries
            .values()
            .filter_map(|entry| entry.state.heartbeat.clone())
            .collect()
    }

    /// The utilisation that linked nodes reported within `max_age`.
    pub(crate) fn recent_usage(&self, max_age: Duration) -> Vec<(NodeId, Usage)> {
        let now = self.env.monotonic();
        let links = self.inner.lock();
        let usage = links.entries.iter().filter_map(|(node, entry)| {
            let (at, usage) = entry.usage.as_ref()?;
            (now.saturating_sub(*at) <= max_age).then(|| (*node, usage.clone()))
        });
        usage.collect()
    }

    pub fn link_count(&self) -> usize {
        self.inner.lock().entries.len()
    }

    /// Returns the time since the node's last sign of life, at most since the start of meshd
    /// (LC-6).
    pub(crate) fn silence(&self, node: NodeId) -> Duration {
        let last_alive =
            self.inner.lock().last_alive.get(&node).map_or(self.env.started, |alive| alive.at);
        self.env.monotonic().saturating_sub(last_alive)
    }

    /// Linked nodes whose last checks are older than `max_age`.
    pub(crate) fn unchecked_for(&self, max_age: Duration) -> Vec<NodeId> {
        let now = self.env.monotonic();
        let links = self.inner.lock();
        let old = |entry: &LinkEntry| now.saturating_sub(entry.checked) > max_age;
        links.entries.iter().filter(|(_, entry)| old(entry)).map(|(node, _)| *node).collect()
    }

    /// Records the time of reported checks.
    pub(crate) fn record_check_time(&self, node: NodeId) {
        let now = self.env.monotonic();
        if let Some(entry) = self.inner.lock().entries.get_mut(&node) {
            entry.checked = now;
        }
    }

    /// Asks a node's link to close.
    pub(crate) fn close_link(&self, node: NodeId, reason: &str) {
        self.try_send(node, LinkCommand::Close(reason.to_owned()));
    }

    /// Makes a node's link send a part of the desired state. If the queue is full, the next
    /// heartbeat repeats unsettled states.
    pub(crate) fn notify_node(&self, node: NodeId, part: SpecPart) {
        self.try_send(node, LinkCommand::Spec(part));
    }
}
