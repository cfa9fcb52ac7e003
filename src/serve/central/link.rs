//! An agent is there: one live link for each node, its facts, checks, heartbeats and tasks.

use super::{
    Central, OperateError, PlaneError,
    checks::Asking,
    enrol::{check_version, honours, shown},
    link_hello::arrive,
    lock,
};
use meshd_model::fleet::{Actor, AuditContext, Certificate, Event, EventKind, LinkState};
use meshd_proto::{FromAgent, FromCentral, Heartbeat, Hello, Task, TaskAction, TaskId, TaskOutcome, Welcome};
use meshd_store::StoreError;
use meshd_trust::Peer;
use meshd_types::{BootSessionId, NodeId, SystemUuid, Timestamp};
use std::{collections::BTreeMap, net::IpAddr, sync::Mutex, time::Duration};
use tokio::sync::{mpsc, oneshot};

/// How long a live link has to answer a probe. A LAN answers in milliseconds; a busy machine may need a second.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Names one connection; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId {
    node: NodeId,
    number: u64,
}

/// What central wants of a link.
#[derive(Debug)]
pub enum LinkCommand {
    /// Send this.
    Send(FromCentral),
    /// Tell the node what is wanted of one virtual machine, or of all.
    Vms(Option<SystemUuid>),
    /// Ping, and fire when the node has answered.
    Probe(oneshot::Sender<()>),
    /// End the link, for this reason.
    Close(String),
}

/// All links.
#[derive(Default)]
pub(super) struct Links(pub(super) Mutex<LinksInner>);

#[derive(Default)]
pub(super) struct LinksInner {
    pub(super) live: BTreeMap<NodeId, LinkEntry>,
    /// Monotonic time of the last sign of life, also of nodes whose link is down.
    heard: BTreeMap<NodeId, Duration>,
    tasks: BTreeMap<TaskId, Outstanding>,
    next: u64,
    /// Who waits for the checks of a node, and how many ever did.
    pub(super) asking: Vec<Asking>,
    pub(super) asked: u64,
}

pub(super) struct LinkEntry {
    number: u64,
    pub(super) certificate: Certificate,
    /// The boot that it speaks for.
    pub(super) session: BootSessionId,
    /// The version that its agent speaks.
    version: u16,
    /// When its checks were told last, or when it began; by the clock that never jumps.
    checked: Duration,
    state: LinkState,
    pub(super) commands: mpsc::Sender<LinkCommand>,
}

struct Outstanding {
    task: Task,
    done: Option<oneshot::Sender<TaskOutcome>>,
}

impl LinkId {
    /// Whose it is.
    pub fn node(self) -> NodeId {
        self.node
    }
}

impl Central {
    /// A link begins. An older one of the same node ends.
    pub async fn link_up(
        &self,
        peer: &Peer,
        hello: Hello,
        from: IpAddr,
        commands: mpsc::Sender<LinkCommand>,
    ) -> Result<(LinkId, Welcome), PlaneError> {
        check_version(hello.version)?;
        if peer.expired {
            return Err(PlaneError::StaleCertificate);
        }
        let shown = shown(peer);
        let node = self.honoured(peer.node, &shown)?;
        if hello.node != peer.node || node.boot != Some(hello.session) {
            return Err(PlaneError::Unauthorized);
        }
        let (now, session, version) = (self.now(), hello.session, hello.version);
        // Before the commit, so that the watch does not call a node silent that is just being written down.
        self.touch(peer.node);
        self.store
            .commit(|tx| {
                // Again, where nothing can come between: a newer certificate or boot may have been stored meanwhile.
                let current =
                    tx.node(peer.node).is_some_and(|node| honours(node, &shown) && node.boot == Some(hello.session));
                if !current {
                    return Err(PlaneError::Unauthorized);
                }
                arrive(tx, peer, hello, from, now);
                Ok(())
            })
            .await?;
        self.reconsider_soon(peer.node);
        let (id, due) = self.register(peer, session, version, commands.clone(), now);
        // An operator may have spoken between the commit and now, when there was no link to cut yet.
        if self.honoured(peer.node, &shown).is_err() {
            self.cut_off(peer.node, "its certificate was revoked");
            return Err(PlaneError::Unauthorized);
        }
        let _ = commands.try_send(LinkCommand::Send(self.roots_for(&peer.serial)));
        self.job_node_linked(peer.node, session).await;
        for task in due {
            // The link was just made: if it is gone again, its tasks wait for the next one.
            let _ = commands.try_send(LinkCommand::Send(FromCentral::Task(task)));
        }
        let _ = commands.try_send(LinkCommand::Vms(None));
        let heartbeat_s = u32::try_from(self.site().agent.heartbeat.as_secs()).unwrap_or(30);
        // An agent of the version before knows no other number than its own.
        Ok((id, Welcome { version, heartbeat_s, now: Some(now) }))
    }

    fn register(
        &self,
        peer: &Peer,
        session: BootSessionId,
        version: u16,
        commands: mpsc::Sender<LinkCommand>,
        now: Timestamp,
    ) -> (LinkId, Vec<Task>) {
        let mut links = lock(&self.links.0);
        links.next += 1;
        let number = links.next;
        links.heard.insert(peer.node, self.clock.monotonic());
        let state = LinkState { since: Some(now), heard: Some(now), heartbeat: None };
        let live = LinkEntry {
            number,
            certificate: shown(peer),
            session,
            version,
            checked: self.clock.monotonic(),
            state,
            commands,
        };
        if let Some(old) = links.live.insert(peer.node, live) {
            let _ = old.commands.try_send(LinkCommand::Close("the node has a newer link".to_owned()));
        }
        // Its outcome is waited for after it has expired, too; the agent does not start it then.
        links.tasks.retain(|_, outstanding| {
            let Task { expires_at, action, .. } = &outstanding.task;
            expires_at.after(action.window().saturating_sub(action.ttl())) > now
        });
        let due = links.tasks.values().filter(|outstanding| outstanding.task.node == peer.node);
        (LinkId { node: peer.node, number }, due.map(|outstanding| outstanding.task.clone()).collect())
    }

    /// A node said something on its link.
    pub async fn link_message(&self, link: LinkId, message: FromAgent) -> Result<Option<FromCentral>, PlaneError> {
        let (shown, session) = self.heard(link).ok_or(PlaneError::Unauthorized)?;
        match message {
            FromAgent::Hello(_) => Err(PlaneError::BadRequest("a second hello on one link".to_owned())),
            FromAgent::Heartbeat(heartbeat) => {
                let idle = heartbeat.workloads == 0;
                self.heartbeat(link, heartbeat);
                self.notify_unsettled(link.node);
                if idle {
                    self.drained(link.node).await?;
                }
                Ok(None)
            }
            FromAgent::Checks(report) => self.checked(link, session, *report).await.map(|()| None),
            FromAgent::TaskDone { task, outcome } => {
                self.task_done(link.node, task, outcome).await?;
                Ok(Some(FromCentral::Acknowledged { task }))
            }
            FromAgent::Vm(news) => {
                self.vm_news(link.node, news).await?;
                Ok(None)
            }
            FromAgent::Job(news) => self.job_news(link, news).await,
            FromAgent::Renewed => self.renewed(link.node, &shown).await.map(|()| None),
            FromAgent::Renew { csr_pem } => {
                self.renew_for(link.node, &shown, &csr_pem).await.map(|issued| Some(FromCentral::Certificate(issued)))
            }
        }
    }

    /// A link is over. Silence counts from its last sign of life; the phase changes only after `offline_after`.
    pub async fn link_down(&self, link: LinkId) {
        let heard = {
            let mut links = lock(&self.links.0);
            if links.live.get(&link.node).is_none_or(|live| live.number != link.number) {
                return;
            }
            links.live.remove(&link.node).and_then(|live| live.state.heard)
        };
        let Some(heard) = heard else { return };
        let seen = self.store.commit(|tx| {
            tx.edit_node(link.node, |node| node.last_seen = node.last_seen.max(heard));
            Ok::<_, StoreError>(())
        });
        if let Err(error) = seen.await {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot record when a node was last seen");
        }
    }

    /// True if the node's link answers. One that does not is closed: a power-cycled node must not be held up by it.
    pub(super) async fn probe(&self, node: NodeId) -> bool {
        let commands = lock(&self.links.0).live.get(&node).map(|live| live.commands.clone());
        let Some(commands) = commands else { return false };
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

    /// Sends a task to a node whose link is up, and waits for its outcome.
    pub(super) async fn run_task(
        &self,
        node: NodeId,
        action: TaskAction,
        by: &AuditContext,
    ) -> Result<Option<TaskOutcome>, StoreError> {
        let id = TaskId(u64::from_be_bytes(self.random()));
        let (done, outcome) = oneshot::channel();
        let now = self.now();
        let window = action.window();
        let task = Task { task: id, node, expires_at: now.after(action.ttl()), action };
        let detail = format!("task {}: {:?}", id.0, task.action);
        self.store
            .commit(|tx| {
                tx.event(Event::new(now, by, EventKind::Task, detail).of_node(node));
                Ok::<_, StoreError>(())
            })
            .await?;
        let commands = {
            let mut links = lock(&self.links.0);
            links.tasks.insert(id, Outstanding { task: task.clone(), done: Some(done) });
            links.live.get(&node).map(|live| live.commands.clone())
        };
        if let Some(commands) = commands {
            let _ = commands.send(LinkCommand::Send(FromCentral::Task(task))).await;
        }
        Ok(tokio::time::timeout(window, outcome).await.ok().and_then(Result::ok))
    }

    async fn task_done(&self, node: NodeId, id: TaskId, outcome: TaskOutcome) -> Result<(), PlaneError> {
        let is_its = |outstanding: &Outstanding| outstanding.task.node == node;
        if !lock(&self.links.0).tasks.get(&id).is_some_and(is_its) {
            return Ok(());
        }
        let event = Event::new(self.now(), Actor::Node, EventKind::Task, format!("task {}: {outcome:?}", id.0));
        self.store
            .commit(|tx| {
                tx.event(event.of_node(node));
                Ok::<_, StoreError>(())
            })
            .await?;
        // Only now: said again before it is on the disk, it would be acknowledged.
        let done = lock(&self.links.0).tasks.remove(&id).and_then(|outstanding| outstanding.done);
        if let Some(done) = done {
            let _ = done.send(outcome);
        }
        Ok(())
    }

    /// A sign of life outside of a link: the node was just given a certificate.
    pub(super) fn touch(&self, node: NodeId) {
        let now = self.clock.monotonic();
        lock(&self.links.0).heard.insert(node, now);
        self.watch_over(node, now);
    }

    fn heard(&self, link: LinkId) -> Option<(Certificate, BootSessionId)> {
        let now = self.now();
        let mut links = lock(&self.links.0);
        let live = links.live.get_mut(&link.node).filter(|live| live.number == link.number)?;
        live.state.heard = Some(now);
        let (shown, session) = (live.certificate.clone(), live.session);
        let monotonic = self.clock.monotonic();
        links.heard.insert(link.node, monotonic);
        drop(links);
        self.watch_over(link.node, monotonic);
        Some((shown, session))
    }

    fn heartbeat(&self, link: LinkId, heartbeat: Heartbeat) {
        if let Some(live) = lock(&self.links.0).live.get_mut(&link.node) {
            live.state.heartbeat = Some(heartbeat);
        }
    }

    /// Whether the node's link is up, and its last heartbeat.
    pub fn link_state(&self, node: NodeId) -> LinkState {
        lock(&self.links.0).live.get(&node).map(|live| live.state.clone()).unwrap_or_default()
    }

    /// Refuses what a node has to be gone for if it has another link than `silent`, which did not answer: it has come back since.
    /// Asked inside of the transaction that takes its credentials.
    pub(super) fn no_newer_link(&self, node: NodeId, silent: Option<u64>) -> Result<(), OperateError> {
        let newer = self.link_number(node).is_some_and(|number| Some(number) != silent);
        if newer { Err(OperateError::StillLinked { node }) } else { Ok(()) }
    }

    /// Which of all links is a node's.
    pub(super) fn link_number(&self, node: NodeId) -> Option<u64> {
        lock(&self.links.0).live.get(&node).map(|live| live.number)
    }

    /// When each linked node was last heard of.
    pub(super) fn last_heard(&self) -> BTreeMap<NodeId, Timestamp> {
        let links = lock(&self.links.0);
        links.live.iter().filter_map(|(node, live)| Some((*node, live.state.heard?))).collect()
    }

    /// The last heartbeat of each node that is linked and sent one.
    pub fn heartbeats(&self) -> Vec<Heartbeat> {
        lock(&self.links.0).live.values().filter_map(|live| live.state.heartbeat.clone()).collect()
    }

    /// How many nodes are linked.
    pub fn link_count(&self) -> usize {
        lock(&self.links.0).live.len()
    }

    /// How long nothing was heard of a node. What was before the start of this process does not count (LC-6).
    pub(super) fn silence(&self, node: NodeId) -> Duration {
        let heard = lock(&self.links.0).heard.get(&node).copied().unwrap_or(self.started);
        self.clock.monotonic().saturating_sub(heard)
    }

    /// True if the node had a link since the start of this process.
    pub(super) fn was_linked(&self, node: NodeId) -> bool {
        lock(&self.links.0).heard.contains_key(&node)
    }

    /// Nodes whose link stands, whose agent speaks this version or a later one, and whose checks were not told for so long.
    pub(super) fn unchecked_for(&self, patience: Duration, version: u16) -> Vec<NodeId> {
        let now = self.clock.monotonic();
        let links = lock(&self.links.0);
        let old = |live: &LinkEntry| live.version >= version && now.saturating_sub(live.checked) > patience;
        links.live.iter().filter(|(_, live)| old(live)).map(|(node, _)| *node).collect()
    }

    /// A node's checks were told.
    pub(super) fn is_checked(&self, node: NodeId) {
        let now = self.clock.monotonic();
        if let Some(live) = lock(&self.links.0).live.get_mut(&node) {
            live.checked = now;
        }
    }

    /// Ends a node's link.
    pub(super) fn close_link(&self, node: NodeId, reason: &str) {
        if let Some(live) = lock(&self.links.0).live.get(&node) {
            let _ = live.commands.try_send(LinkCommand::Close(reason.to_owned()));
        }
    }

    /// Ends a node's link so that nothing of it counts from now on, whether or not it is there to hear it.
    pub(super) fn sever_link(&self, node: NodeId, reason: &str) {
        let mut links = lock(&self.links.0);
        links.tasks.retain(|_, outstanding| outstanding.task.node != node);
        if let Some(live) = links.live.remove(&node) {
            // A full queue does not save it: without its sender the link ends too.
            let _ = live.commands.try_send(LinkCommand::Close(reason.to_owned()));
        }
        // What was heard of it says nothing of who comes next.
        links.heard.remove(&node);
    }
}
