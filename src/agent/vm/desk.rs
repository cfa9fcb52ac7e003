//! Between the link and the machines of this node: takes what the central node wishes, as often as it says so, and sees to it in a task
//! of its own, so that nothing slow ever holds up the link; tells where all stand, again at each change, but not faster than somebody
//! can read.

use super::{Places, StartError, Vms, launch, sitting, volumes::Volumes};
use crate::{
    id::{Digest, SystemUuid},
    wire::{
        AgentConfig,
        vm::{
            ConsoleOrder, MAX_VMS, Nic, VmFailure, VmFetching, VmNews, VmOrder, VmRefusal, VmReport, VmSpec, VmState,
            VmWant,
        },
    },
};
use rustls::ClientConfig;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

/// Shortest time between two reports: what changes faster is told together.
const PAUSE: Duration = Duration::from_millis(500);
/// How often the progress of a fetch is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often volumes that nobody names are looked for; a central node that was away has said its wishes by then.
const PRUNE: Duration = Duration::from_secs(600);
/// News that wait for the link.
const NEWS: usize = 64;
/// Consoles that are brought at once; more are not.
const MAX_SITTINGS: usize = 32;

/// As whom, and to whom, this node calls.
#[derive(Clone, Debug)]
pub struct Way {
    /// Where the central node is.
    pub config: AgentConfig,
    /// The node's certificate, and whom it trusts.
    pub tls: Arc<ClientConfig>,
}

/// The desk of one node. Dropped, it lets go of all machines, and they run on.
#[derive(Debug)]
pub struct Desk {
    asked: mpsc::UnboundedSender<Asked>,
    way: watch::Sender<Option<Way>>,
    reports: watch::Receiver<Vec<VmReport>>,
    news: mpsc::Receiver<VmNews>,
    cards: watch::Receiver<Vec<Nic>>,
    /// The reports have changed and are not told.
    is_due: bool,
    told_at: Option<Instant>,
    _clerk: JoinSet<()>,
}

#[derive(Debug)]
enum Asked {
    Vm(VmOrder),
    Console(ConsoleOrder),
}

impl Desk {
    /// Takes over every machine that has a folder below `folder`.
    pub fn open(folder: &Path, places: Places) -> Self {
        let (asked, orders) = mpsc::unbounded_channel();
        let (tell, news) = mpsc::channel(NEWS);
        let way = watch::Sender::new(None);
        let volumes = Volumes::new(&places.images, &places.root, way.subscribe());
        let clerk = Clerk {
            vms: Vms::open(folder, places),
            volumes,
            way: way.subscribe(),
            waiting: BTreeMap::new(),
            faults: BTreeMap::new(),
            leaving: BTreeSet::new(),
            releases: JoinSet::new(),
            sittings: JoinSet::new(),
            told: watch::Sender::new(Vec::new()),
            cards: watch::Sender::new(Vec::new()),
            tell,
        };
        clerk.publish();
        let (reports, cards) = (clerk.told.subscribe(), clerk.cards.subscribe());
        let mut task = JoinSet::new();
        task.spawn(clerk.run(orders));
        Desk { asked, way, reports, news, cards, is_due: false, told_at: None, _clerk: task }
    }

    /// The way to the central node, from now on.
    pub fn way(&self, way: Way) {
        self.way.send_replace(Some(way));
    }

    /// Sees to it that a machine is as it shall be.
    pub fn order(&self, order: VmOrder) {
        // One that failed is seen where its task is missed: nothing is reported any more.
        let _ = self.asked.send(Asked::Vm(order));
    }

    /// Brings a console to the central node.
    pub fn console(&self, order: ConsoleOrder) {
        let _ = self.asked.send(Asked::Console(order));
    }

    /// Network cards of all machines that are here.
    pub fn cards(&self) -> watch::Receiver<Vec<Nic>> {
        self.cards.clone()
    }

    /// Where all stand.
    pub fn all(&mut self) -> VmNews {
        (self.is_due, self.told_at) = (false, Some(Instant::now()));
        VmNews::All { vms: self.reports.borrow_and_update().clone() }
    }

    /// Machines that run, or are about to.
    pub fn workloads(&self) -> u32 {
        let count = self.reports.borrow().iter().filter(|report| is_work(report.state)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The next that there is to tell. Cancel-safe.
    pub async fn news(&mut self) -> VmNews {
        loop {
            let due_at = self.told_at.map_or_else(Instant::now, |at| at + PAUSE);
            tokio::select! {
                Some(news) = self.news.recv() => return news,
                () = sleep_until(due_at), if self.is_due => return self.all(),
                changed = self.reports.changed(), if !self.is_due => match changed {
                    Ok(()) => self.is_due = true,
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }
}

fn is_work(state: VmState) -> bool {
    state.is_live() || state == VmState::Waiting
}

/// A machine that shall run, by which number, and how long a restart leaves its guest.
#[derive(Clone, Debug)]
struct Run {
    spec: Box<VmSpec>,
    start: u32,
    grace: Duration,
}

struct Clerk {
    vms: Vms,
    volumes: Volumes,
    way: watch::Receiver<Option<Way>>,
    /// Those that wait for their volumes, or for their own release.
    waiting: BTreeMap<SystemUuid, Run>,
    /// Why an order was not followed of a machine that is otherwise as it is.
    faults: BTreeMap<SystemUuid, VmFailure>,
    /// Those that are being released.
    leaving: BTreeSet<SystemUuid>,
    releases: JoinSet<(SystemUuid, Result<(), String>)>,
    sittings: JoinSet<()>,
    told: watch::Sender<Vec<VmReport>>,
    cards: watch::Sender<Vec<Nic>>,
    tell: mpsc::Sender<VmNews>,
}

impl Clerk {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Asked>) {
        let mut changes = self.vms.changes();
        let (mut look, mut prune) = (interval(LOOK), interval(PRUNE));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        prune.set_missed_tick_behavior(MissedTickBehavior::Delay);
        prune.reset();
        loop {
            tokio::select! {
                asked = orders.recv() => match asked {
                    None => return,
                    Some(Asked::Vm(order)) => self.follow(order).await,
                    Some(Asked::Console(order)) => self.bring(order),
                },
                (digest, fetched) = self.volumes.next() => self.fetched(digest, fetched).await,
                Some(released) = self.releases.join_next() => match released {
                    Ok((uuid, released)) => self.released(uuid, released).await,
                    Err(error) => tracing::error!(%error, "a release failed"),
                },
                Some(_) = self.sittings.join_next() => continue,
                Ok(()) = changes.changed() => {}
                _ = look.tick(), if !self.waiting.is_empty() => {}
                _ = prune.tick() => self.prune(),
            }
            self.publish();
        }
    }

    async fn follow(&mut self, VmOrder { uuid, want }: VmOrder) {
        match want {
            VmWant::Run { spec, start, grace_s } if spec.uuid == uuid => {
                self.start(Run { spec, start, grace: Duration::from_secs(grace_s.into()) }).await;
            }
            VmWant::Run { spec, .. } => tracing::error!(%uuid, named = %spec.uuid, "an order names two machines"),
            VmWant::Stop { grace_s } => {
                self.faults.remove(&uuid);
                self.waiting.remove(&uuid);
                self.prune();
                let works = self.vms.watch(uuid).is_some_and(|report| is_work(report.borrow().state));
                if works && !self.leaving.contains(&uuid) {
                    self.vms.stop(uuid, Duration::from_secs(grace_s.into())).await;
                }
            }
            VmWant::Release => {
                self.faults.remove(&uuid);
                self.waiting.remove(&uuid);
                if self.leaving.insert(uuid) {
                    let release = self.vms.releasing(uuid);
                    self.releases.spawn(async move { (uuid, release.await.map_err(|error| error.reason)) });
                }
            }
        }
    }

    async fn start(&mut self, run: Run) {
        let uuid = run.spec.uuid;
        if self.vms.started_by(uuid) == Some(run.start) && !self.leaving.contains(&uuid) {
            self.waiting.remove(&uuid);
            return;
        }
        let missing: Vec<Digest> = self.missing(&run.spec);
        if self.leaving.contains(&uuid) || !missing.is_empty() {
            missing.into_iter().for_each(|digest| self.volumes.fetch(digest));
            self.waiting.insert(uuid, run);
            return;
        }
        self.waiting.remove(&uuid);
        self.begin(run).await;
    }

    fn missing(&self, spec: &VmSpec) -> Vec<Digest> {
        spec.files().map(|(_, digest)| digest).filter(|digest| !self.volumes.has(digest)).collect()
    }

    async fn begin(&mut self, Run { spec, start, grace }: Run) {
        let uuid = spec.uuid;
        self.faults.remove(&uuid);
        let known = self.vms.watch(uuid).map(|report| report.borrow().state);
        let begun = match known {
            None if self.vms.reports().len() >= MAX_VMS => {
                // It cannot even be reported.
                return tracing::error!(vm = %spec.name, "a node has at most {MAX_VMS} virtual machines");
            }
            Some(state) if is_work(state) && self.vms.specs().any(|known| *known == *spec) => {
                self.vms.restart(uuid, grace, start).await;
                Ok(())
            }
            _ => self.vms.start(&spec, start).await,
        };
        match begun {
            Ok(()) => {}
            Err(StartError::Refused { refusals, .. }) => self.refuse(&spec, start, &refusals).await,
            // Said again, it is looked at again.
            Err(error) => {
                tracing::warn!(vm = %spec.name, %error, "not started");
                let failure = VmFailure { detail: error.to_string(), ..launch::refused(&[]) };
                self.faults.insert(uuid, failure);
            }
        }
    }

    async fn refuse(&mut self, spec: &VmSpec, start: u32, refusals: &[VmRefusal]) {
        let failure = launch::refused(refusals);
        tracing::warn!(vm = %spec.name, reason = failure.detail, "the node cannot run a virtual machine");
        if let Err(error) = self.vms.refuse(spec, start, failure).await {
            tracing::error!(vm = %spec.name, %error, "a refusal is not kept");
        }
    }

    async fn fetched(&mut self, digest: Digest, fetched: Result<(), VmRefusal>) {
        let wants = |run: &&Run| run.spec.files().any(|(_, file)| file == digest);
        let runs: Vec<Run> = self.waiting.values().filter(wants).cloned().collect();
        for run in runs {
            match &fetched {
                Ok(()) => self.start(run).await,
                Err(refusal) => {
                    self.waiting.remove(&run.spec.uuid);
                    let name = run.spec.files().find(|(_, file)| *file == digest).map_or("", |(name, _)| name.as_str());
                    let detail = format!("volume {name}: {}", refusal.detail);
                    self.refuse(&run.spec, run.start, &[VmRefusal { reason: refusal.reason, detail }]).await;
                }
            }
        }
    }

    async fn released(&mut self, uuid: SystemUuid, released: Result<(), String>) {
        self.leaving.remove(&uuid);
        let news = match released {
            Ok(()) => {
                self.vms.forget(uuid);
                VmNews::Released { uuid }
            }
            Err(reason) => VmNews::ReleaseBlocked { uuid, reason },
        };
        self.prune();
        // A link that does not take it asks for it again when it is back.
        let _ = self.tell.try_send(news);
        if let Some(run) = self.waiting.get(&uuid).cloned() {
            self.start(run).await;
        }
    }

    fn prune(&mut self) {
        let specs = self.vms.specs().chain(self.waiting.values().map(|run| &*run.spec));
        let named: BTreeSet<Digest> = specs.flat_map(|spec| spec.files().map(|(_, digest)| digest)).collect();
        self.volumes.keep_only(&named);
    }

    fn bring(&mut self, order: ConsoleOrder) {
        let way = self.way.borrow().clone();
        match way {
            Some(way) if self.sittings.len() < MAX_SITTINGS => {
                let console = self.vms.console(order.uuid);
                self.sittings.spawn(sitting::bring(way, order, console));
            }
            _ => tracing::warn!(uuid = %order.uuid, "no more than {MAX_SITTINGS} consoles are brought at once"),
        }
    }

    /// Tells where all stand, if that is new.
    fn publish(&self) {
        let cards: Vec<Nic> = self.vms.specs().flat_map(|spec| spec.nics.clone()).collect();
        self.cards.send_if_modified(|told| {
            *told != cards && {
                *told = cards;
                true
            }
        });
        let mut all: BTreeMap<SystemUuid, VmReport> =
            self.vms.reports().into_iter().map(|report| (report.uuid, report)).collect();
        for (uuid, run) in &self.waiting {
            let report = all.entry(*uuid).or_insert_with(|| fresh(&run.spec));
            if !report.state.is_live() {
                report.state = VmState::Starting;
                report.fetching = Some(self.volumes.progress(run.spec.files().map(|(_, digest)| digest)));
            }
        }
        for (uuid, fault) in &self.faults {
            if let Some(report) = all.get_mut(uuid) {
                report.failure = Some(fault.clone());
            }
        }
        let all: Vec<VmReport> = all.into_values().take(MAX_VMS).collect();
        self.told.send_if_modified(|told| {
            let is_new = *told != all;
            *told = all;
            is_new
        });
    }
}

fn fresh(spec: &VmSpec) -> VmReport {
    let (uuid, name) = (spec.uuid, spec.name.clone());
    VmReport { uuid, name, state: VmState::Starting, failure: None, restarts: 0, fetching: Some(VmFetching::default()) }
}
