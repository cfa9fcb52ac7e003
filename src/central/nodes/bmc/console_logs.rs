//! Writes the serial consoles of booting machines into the logs of their boots: firmware, loader,
//! kernel, and a panic. An operator who opens the console ends its recorder; it starts again later.
//!
//! A machine that was switched on has no boot session before its first packet: its text waits until
//! then.

use super::console_text::ConsoleText;
use crate::{
    environment::bmcs::{BmcOwner, RecordedConsole, ResolvedBmc, resolve},
    links::WATCH_INTERVAL,
    nodes::{NodeOps, operations::starting_machines},
};
use bytes::Bytes;
use meshd_model::{
    fleet::{BootSession, BootStatus, LONGEST_BOOT, Phase},
    operations::BmcFailure,
};
use meshd_store::Model;
use meshd_types::{Basis, BootSessionId, NodeId, Timestamp};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{self, JoinSet},
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

/// Interval in which recorded text is stored.
const STORE_INTERVAL: Duration = Duration::from_secs(1);
/// Time until a console that failed is tried again; twice as long after each further failure.
const RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(300);
/// Maximum number of queued pieces of output.
const OUTPUT_QUEUE: usize = 64;

/// A machine whose console has to be recorded.
struct BootingMachine {
    owner: BmcOwner,
    /// The boot whose log receives the text; `None` before its first packet.
    session: Option<BootSessionId>,
}

/// A recorder that runs. It ends when this value is dropped.
struct Recorder {
    task: task::Id,
    session: watch::Sender<Option<BootSessionId>>,
}

/// Failures of the console of one machine during one boot.
struct Failures {
    count: u32,
    /// Monotonic time of the next attempt.
    retry_at: Duration,
}

#[derive(Default)]
struct Recorders {
    tasks: JoinSet<(NodeId, Result<(), BmcFailure>)>,
    running: BTreeMap<NodeId, Recorder>,
    failures: BTreeMap<NodeId, Failures>,
}

impl NodeOps {
    /// Records the consoles of booting machines until meshd stops.
    pub async fn record_consoles(self: Arc<Self>, stop: CancellationToken) {
        let mut recorders = Recorders::default();
        let mut tick = interval(WATCH_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            recorders.collect_ended(self.env.monotonic());
            recorders.reconcile(&self, self.booting_machines());
        }
        recorders.running.clear();
        while recorders.tasks.join_next().await.is_some() {}
    }

    /// Returns the machines whose consoles have to be recorded now.
    fn booting_machines(&self) -> BTreeMap<NodeId, BootingMachine> {
        let site = self.env.site();
        let now = self.env.now();
        if !site.power.rules.iter().any(|rule| rule.records_console) {
            return BTreeMap::new();
        }
        self.env.store.read(|model| {
            let boots = model.newest_sessions().filter(|boot| is_booting(boot, now));
            let booting = boots.filter_map(|boot| self.machine_of_boot(model, boot));
            let mut machines: BTreeMap<_, _> = booting.collect();
            for (id, machine) in starting_machines(model, self) {
                let node = model.node(id).map(|node| BmcOwner::of_node(model, node));
                let expected =
                    || Some(BmcOwner::of_machine(model, model.expected_machine(machine?)?));
                if let Some(owner) = node.or_else(expected) {
                    machines.insert(id, BootingMachine { owner, session: None });
                }
            }
            machines
        })
    }

    /// Returns the machine of a boot. Only its newest boot counts, and none beside a link: another
    /// machine may use its MAC address.
    fn machine_of_boot(
        &self,
        model: &Model,
        boot: &BootSession,
    ) -> Option<(NodeId, BootingMachine)> {
        let session = Some(boot.id);
        let known = boot.node.and_then(|id| model.node(id)).or_else(|| model.node_of_mac(boot.mac));
        let Some(node) = known else {
            let machine = model.expected_machine(boot.mac).filter(|it| it.node.is_none())?;
            let owner = BmcOwner::of_machine(model, machine);
            return Some((Basis::Mac(boot.mac).node_id(), BootingMachine { owner, session }));
        };
        let is_newest = model.begun_boot_of(node).is_some_and(|newest| newest.id == boot.id);
        let runs_another = node.boot != session && self.links.is_linked(node.id);
        let is_served = !matches!(node.phase, Phase::Removed | Phase::Rejected);
        let owner = || BmcOwner::of_node(model, node);
        (is_newest && !runs_another && is_served)
            .then(|| (node.id, BootingMachine { owner: owner(), session }))
    }

    /// Returns the BMC of a machine, if its console is recorded.
    fn recorded_bmc(&self, owner: &BmcOwner) -> Option<ResolvedBmc> {
        let bmc = resolve(&self.env.site(), owner, self.env.now()).ok();
        let bmc = bmc.filter(ResolvedBmc::records_console)?;
        self.other_machine_of(&bmc).is_none().then_some(bmc)
    }
}

fn is_booting(boot: &BootSession, now: Timestamp) -> bool {
    now.distance(boot.opened_at) < LONGEST_BOOT
        && matches!(boot.standing(false), BootStatus::Booting | BootStatus::Stalled)
}

impl Recorders {
    /// Removes recorders that have ended, and remembers failures.
    fn collect_ended(&mut self, now: Duration) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            // A panic is logged by its task.
            let Ok((task, (id, result))) = ended else { continue };
            if self.running.get(&id).is_some_and(|recorder| recorder.task == task) {
                self.running.remove(&id);
            }
            let Err(failure) = result else { continue };
            let failures = self.failures.entry(id).or_insert(Failures { count: 0, retry_at: now });
            if failures.count == 0 {
                let reason = failure.reason();
                tracing::info!(node = %id, reason, "the console of a booting machine is not recorded");
            }
            let is_final = !matches!(failure, BmcFailure::Failed(_) | BmcFailure::Unanswered(_));
            failures.retry_at = now + if is_final { LONGEST_RETRY } else { delay(failures.count) };
            failures.count = failures.count.saturating_add(1);
        }
        let has_panicked = |recorder: &Recorder| recorder.session.is_closed();
        self.running.retain(|_, recorder| !has_panicked(recorder));
    }

    /// Starts and ends recorders, so that these machines are recorded.
    fn reconcile(&mut self, nodes: &Arc<NodeOps>, machines: BTreeMap<NodeId, BootingMachine>) {
        self.running.retain(|id, recorder| {
            let Some(machine) = machines.get(id) else { return false };
            recorder.session.send_if_modified(|session| {
                let before = std::mem::replace(session, machine.session);
                before != machine.session
            });
            true
        });
        self.failures.retain(|id, _| machines.contains_key(id));
        let now = nodes.env.monotonic();
        for (id, BootingMachine { owner, session }) in machines {
            let is_early = self.failures.get(&id).is_some_and(|failures| now < failures.retry_at);
            if is_early || self.running.contains_key(&id) {
                continue;
            }
            if !nodes.bmcs.may_record() {
                return;
            }
            let Some(bmc) = nodes.recorded_bmc(&owner) else { continue };
            let Some(console) = nodes.bmcs.try_record(&bmc) else { continue };
            let (session, target) = watch::channel(session);
            let recorded = record(nodes.clone(), id, bmc, console, target);
            let task = self.tasks.spawn(async move { (id, recorded.await) }).id();
            self.running.insert(id, Recorder { task, session });
        }
    }
}

fn delay(failures: u32) -> Duration {
    RETRY.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_RETRY)
}

/// Records one console until the machine has booted or an operator wants the console.
///
/// # Errors
/// The BMC refuses or ends the console.
async fn record(
    nodes: Arc<NodeOps>,
    id: NodeId,
    bmc: ResolvedBmc,
    mut console: RecordedConsole,
    target: watch::Receiver<Option<BootSessionId>>,
) -> Result<(), BmcFailure> {
    let has_session = console.has_session.clone();
    let mut ordered = target.clone();
    let ended = end_of(&mut console.stop, &mut ordered);
    tokio::pin!(ended);
    let serial = tokio::select! {
        () = &mut ended => return Ok(()),
        serial = nodes.bmcs.open_console(&bmc) => serial?,
    };
    let (output, mut pieces) = mpsc::channel(OUTPUT_QUEUE);
    // Nothing is typed; the end of the input ends the console.
    let (input, typed) = mpsc::channel::<Bytes>(1);
    let carried = serial.carry(typed, &output, |bytes| bytes, |bytes| bytes);
    tokio::pin!(carried);
    let mut input = Some(input);
    let mut log = ConsoleLog { nodes, id, target, session: None, text: ConsoleText::default() };
    let mut tick = interval(STORE_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reason = loop {
        tokio::select! {
            reason = &mut carried => break reason,
            Some(piece) = pieces.recv(), if !log.text.is_full() => {
                // A program that was refused has no output, only messages.
                has_session.store(true, Ordering::Relaxed);
                log.text.push(&piece);
            }
            _ = tick.tick() => log.store().await,
            () = &mut ended, if input.is_some() => input = None,
        }
    };
    if reason.is_some() {
        // The BMC has ended the session: a new one is somebody else's.
        has_session.store(false, Ordering::Relaxed);
    }
    while let Ok(piece) = pieces.try_recv() {
        log.text.push(&piece);
    }
    log.store().await;
    match reason.filter(|_| input.is_some()) {
        Some(reason) => Err(BmcFailure::Failed(reason)),
        None => Ok(()),
    }
}

/// Resolves when a recorder has to end.
async fn end_of(
    stop: &mut oneshot::Receiver<()>,
    target: &mut watch::Receiver<Option<BootSessionId>>,
) {
    let forgotten = async { while target.changed().await.is_ok() {} };
    tokio::select! {
        _ = stop => {}
        () = forgotten => {}
    }
}

/// The log that receives the text of one console.
struct ConsoleLog {
    nodes: Arc<NodeOps>,
    id: NodeId,
    target: watch::Receiver<Option<BootSessionId>>,
    /// The boot at the last call of `store`.
    session: Option<BootSessionId>,
    text: ConsoleText,
}

impl ConsoleLog {
    /// Stores the text since the last call. Before the first packet of a boot, the text waits.
    async fn store(&mut self) {
        let next = *self.target.borrow();
        let Some(session) = receiver(&mut self.session, next) else {
            self.text.make_room();
            return;
        };
        let Some((text, length)) = self.text.take() else { return };
        if !self.nodes.boot.store_console(self.id, session, text).await {
            self.text.lose(length);
        }
    }
}

/// Returns the boot that receives the text since the last call: the former one, because a new one
/// begins with its first packet.
fn receiver(
    session: &mut Option<BootSessionId>,
    next: Option<BootSessionId>,
) -> Option<BootSessionId> {
    std::mem::replace(session, next).or(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_before_the_first_packet_belongs_to_the_next_boot() {
        let [one, two] = [1, 2].map(|number| Some(BootSessionId([number; 12])));
        let mut session = None;
        let steps = [
            (None, None),
            (one, one),
            (one, one),
            // Text before the change belongs to the boot that ended.
            (two, one),
            (two, two),
            // The machine is switched: its text waits for the next boot.
            (None, two),
            (None, None),
            (one, one),
        ];
        for (number, (next, receives)) in steps.into_iter().enumerate() {
            assert_eq!(receiver(&mut session, next), receives, "step {number}");
        }
    }

    #[test]
    fn console_that_fails_is_tried_again_after_growing_pauses() {
        let seconds: Vec<u64> = (0..9).map(|failures| delay(failures).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(delay(u32::MAX), LONGEST_RETRY);
    }
}
