//! Drives the engine. One task reads what has come in, lets the engine decide, and sends at once what promises nothing. What must
//! be on disk first gathers while the flush before it runs, and goes there as one change: a storm shares few flushes.

use super::{
    bootfile::Sources,
    engine::{Effect, Engine, Reply, Setup},
    figures::Figures,
    firmware::loader_names,
    note::Note,
    probe,
    route::Origin,
    socket::{Bound, Ear},
};
use crate::serve::{
    central::{DhcpStep, Shared},
    log::Log,
};
use meshd_config::DhcpMode;
use meshd_store::StoreError;
use std::{
    collections::VecDeque,
    future::{Future, pending, poll_fn},
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::time::MissedTickBehavior;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The largest packet that is read.
const MAX_PACKET: usize = 2048;
/// Packets that are read from one socket before another has its turn.
const TURN: usize = 64;
/// Changes that may wait for the disk; beyond it nothing more is read, and the kernel drops what it cannot keep.
const MAX_WAITING: usize = 4096;
/// Shortest time from one change of the store to the next. A change and its flush cost the same for one lease as for a hundred, so
/// it is worth while to let them gather; a client that is alone never waits for it.
const PACE: Duration = Duration::from_millis(8);
/// Answers that wait for one flush go out in slices, a millisecond apart, each at least so many and at least this part of those
/// that wait. A relay has the kernel's usual 208 KiB to keep what it has no time to read: some 270 answers.
const SLICE: usize = 12;
const SLICE_PART: usize = 8;
const BETWEEN_SLICES: Duration = Duration::from_millis(1);
/// A socket that fails at every read is not asked in a tight loop.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// Events and alarms that may be on their way to the disk.
const MAX_ALARMS: usize = 64;
/// The rhythm of everything that happens by itself, and how many beats are a second.
const BEAT: Duration = Duration::from_millis(250);
const SECOND: u64 = 4;
/// Before it answers as the one server of a network, meshd asks who else is there, twice, and waits so many beats.
const PROBE_WAIT: u64 = SECOND;
const PROBE_AGAIN: u64 = SECOND / 2;
/// It asks again every five minutes, and listens for so long: servers may ping an address before they offer it.
const PROBE_EVERY: u64 = 300 * SECOND;
const PROBE_LISTEN: u64 = 5 * SECOND;

/// Serves all segments until `shutdown`; then finishes what it has begun. An error ends it only if its sockets are of no use.
pub async fn run(shared: Shared, bound: Bound, shutdown: CancellationToken) -> io::Result<()> {
    if bound.ears.iter().all(|ear| ear.server.is_none()) {
        shutdown.cancelled().await;
        return Ok(());
    }
    let mut driver = Driver::new(shared, bound);
    let mut beats = tokio::time::interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut committing: Option<Committing> = None;
    loop {
        if committing.is_none() && driver.may_commit() {
            committing = driver.commit();
        }
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            outcome = finished(&mut committing) => { committing = None; driver.committed(outcome) }
            () = tokio::time::sleep_until(driver.next_slice), if !driver.promised.is_empty() => driver.send_slice(),
            () = tokio::time::sleep_until(driver.next_commit), if committing.is_none() && driver.has_steps() => {}
            _ = beats.tick() => driver.beat(),
            () = driver.ready(), if driver.has_room() => driver.read(),
        }
    }
    while let Some(last) = committing.take().or_else(|| driver.commit()) {
        driver.committed(last.await);
    }
    while !driver.promised.is_empty() {
        driver.send_slice();
    }
    driver.tasks.close();
    driver.tasks.wait().await;
    Ok(())
}

/// What is under way to the disk, with the answers that wait for it.
type Committing = Pin<Box<dyn Future<Output = (Result<(), StoreError>, Vec<PendingReply>)> + Send>>;

async fn finished(committing: &mut Option<Committing>) -> (Result<(), StoreError>, Vec<PendingReply>) {
    match committing {
        Some(committing) => committing.await,
        None => pending().await,
    }
}

/// An answer that waits for the disk, and since when its client waits.
struct PendingReply {
    reply: Reply,
    since: Instant,
}

struct Driver {
    shared: Shared,
    engine: Engine,
    /// What of virtual machines' cards the engine knows.
    cards_seen: u64,
    ears: Vec<Ear>,
    steps: Vec<DhcpStep>,
    waiting: Vec<PendingReply>,
    /// Answers whose changes are on the disk.
    promised: VecDeque<PendingReply>,
    next_slice: tokio::time::Instant,
    figures: Figures,
    log: Arc<Log>,
    tasks: TaskTracker,
    /// When what has gathered may go to the disk.
    next_commit: tokio::time::Instant,
    beat: u64,
    paused_until: Option<tokio::time::Instant>,
    buffer: Box<[u8; MAX_PACKET]>,
}

impl Driver {
    fn new(shared: Shared, bound: Bound) -> Self {
        let loaders = loader_names().filter(|name| shared.boot.loader(name).is_some()).map(str::to_owned).collect();
        let site = shared.site();
        let (cards_seen, cards) = shared.workloads.all_cards();
        let setup = Setup {
            interfaces: bound.ears.iter().map(|ear| ear.interface.clone()).collect(),
            segments: site.segments.clone(),
            reservations: site.reservations.clone(),
            cards,
            deny: site.identity.deny.clone(),
            sources: Sources { http_port: site.http.port, loaders },
        };
        for ear in bound.ears.iter().filter(|ear| ear.server.is_some()) {
            tracing::info!(interface = ear.interface.name, address = %ear.interface.address, "DHCP serves");
        }
        let mut engine = Engine::new(setup, shared.boot.leases());
        engine.keep_addresses(&shared.boot.approved_cards());
        Driver {
            engine,
            cards_seen,
            shared,
            ears: bound.ears,
            steps: Vec::new(),
            waiting: Vec::new(),
            promised: VecDeque::new(),
            next_slice: tokio::time::Instant::now(),
            figures: Figures::default(),
            log: Arc::default(),
            tasks: TaskTracker::new(),
            next_commit: tokio::time::Instant::now(),
            beat: 0,
            paused_until: None,
            buffer: Box::new([0; MAX_PACKET]),
        }
    }

    fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    fn may_commit(&self) -> bool {
        tokio::time::Instant::now() >= self.next_commit
    }

    fn has_room(&self) -> bool {
        self.steps.len() + self.promised.len() < MAX_WAITING
    }

    /// True once it is known, or cannot be known, who else serves the networks that are ours alone.
    fn serves(&self) -> bool {
        let authoritative = |segment: &meshd_config::Segment| segment.mode == DhcpMode::Authoritative;
        let asks = self.ears.iter().any(|ear| ear.probe.is_some());
        self.beat > PROBE_WAIT || !asks || !self.shared.site().segments.iter().any(authoritative)
    }

    fn listens(&self) -> bool {
        self.beat % PROBE_EVERY < PROBE_LISTEN
    }

    /// True if something can be read from a socket that is read now. Every socket is asked, so that each of them can wake this task.
    fn poll_ready(&self, context: &mut Context<'_>) -> bool {
        let (serves, listens) = (self.serves(), self.listens());
        let mut ready = false;
        for ear in &self.ears {
            if let Some(receiver) = ear.receiver.as_ref().filter(|_| serves) {
                ready |= receiver.poll_ready(context).is_ready();
            }
            if let Some(probe) = ear.probe.as_ref().filter(|_| listens) {
                ready |= probe.poll_recv_ready(context).is_ready();
            }
        }
        ready
    }

    /// Resolves when there is something to read.
    async fn ready(&self) {
        if let Some(until) = self.paused_until {
            tokio::time::sleep_until(until).await;
        }
        poll_fn(|context| if self.poll_ready(context) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Reads from each socket what is there, within its turn.
    fn read(&mut self) {
        self.paused_until = None;
        // Whoever is on record before it asks is known when it asks.
        self.look_at_cards();
        let since = Instant::now();
        let (serves, listens) = (self.serves(), self.listens());
        for via in 0..self.ears.len() {
            for _ in 0..if serves { TURN } else { 0 } {
                if self.receive_one(via, since).is_none() {
                    break;
                }
                self.figures.received();
            }
            for _ in 0..if listens { TURN } else { 0 } {
                if self.hear_one(via, since).is_none() {
                    break;
                }
                self.figures.received();
            }
        }
    }

    fn look_at_cards(&mut self) {
        if let Some((seen, news)) = self.shared.workloads.cards_since(self.cards_seen) {
            self.cards_seen = seen;
            self.engine.cards(news);
        }
        let notes = self.engine.take_notes();
        self.perform(notes.into_iter().map(Effect::Note), Instant::now());
    }

    /// Receives and handles one packet of a client or relay; `None` if there is none.
    fn receive_one(&mut self, via: usize, since: Instant) -> Option<()> {
        let receiver = self.ears.get_mut(via)?.receiver.as_mut()?;
        let received = match receiver.try_receive(&mut self.buffer[..]) {
            Ok(Some(received)) => received,
            Ok(None) => return Some(()),
            Err(error) => return self.unreadable(via, &error),
        };
        let (now, packet) = (self.shared.now(), self.buffer.get(received.payload)?);
        let origin = Origin { via, source: received.source, local_port: received.port, hardware: received.hardware };
        let effects = self.engine.handle(now, packet, origin, &*self.shared);
        self.perform(effects, since);
        Some(())
    }

    /// Reads one answer to a probe; `None` if there is none.
    fn hear_one(&mut self, via: usize, since: Instant) -> Option<()> {
        let probe = self.ears.get(via)?.probe.as_ref()?;
        let length = match probe.try_recv_from(&mut self.buffer[..]) {
            Ok((length, _)) => length,
            Err(error) => return self.unreadable(via, &error),
        };
        let heard = self.engine.heard(self.shared.now(), self.buffer.get(..length)?, via);
        self.perform(heard, since);
        Some(())
    }

    /// Nothing could be read: there is nothing, or the socket fails, and is left alone for a moment.
    fn unreadable(&mut self, via: usize, error: &io::Error) -> Option<()> {
        if error.kind() != io::ErrorKind::WouldBlock {
            let name = self.ears.get(via).map_or("?", |ear| ear.interface.name.as_str());
            self.log.warn("receive", || format!("cannot read DHCP packets on {name}: {error}"));
            self.paused_until = Some(tokio::time::Instant::now() + AFTER_ERROR);
        }
        None
    }

    /// Performs effects in their order: what stands behind a change waits for it.
    fn perform(&mut self, effects: impl IntoIterator<Item = Effect>, since: Instant) {
        let mut waits = false;
        for effect in effects {
            match effect {
                Effect::Reply(reply) if waits => self.waiting.push(PendingReply { reply, since }),
                Effect::Reply(reply) => self.send(&reply, since),
                Effect::Store(step) => {
                    waits = true;
                    self.steps.push(step);
                }
                Effect::Note(note) => {
                    self.log.warn(note.cause(), || note.to_string());
                    self.raise(&note);
                    if let Some(kind) = note.event() {
                        let shared = Arc::clone(&self.shared);
                        let cause = note.cause();
                        self.tasks.spawn(async move { shared.boot.dhcp_event(kind, cause, note.to_string()).await });
                    }
                }
            }
        }
    }

    /// Records an alarm, if the note is one and it was not recorded just now: a flood of them must not become a flood of tasks.
    fn raise(&mut self, note: &Note) {
        let Some((mac, kind, who)) = note.alarm() else { return };
        let is_known = self.shared.boot.node_of_mac(mac).is_some();
        if self.tasks.len() >= if is_known { MAX_ALARMS * 4 } else { MAX_ALARMS } {
            return;
        }
        let (shared, detail) = (Arc::clone(&self.shared), note.to_string());
        self.tasks.spawn(async move { shared.boot.dhcp_alarm(mac, kind, &who, detail).await });
    }

    fn send(&mut self, reply: &Reply, since: Instant) {
        let Some(ear) = self.ears.get(reply.via) else { return };
        match ear.send(reply) {
            Ok(()) => self.figures.sent(reply.kind, since),
            Err(error) => {
                self.figures.unsent();
                self.log.warn("send", || format!("cannot send a DHCP answer to {:?}: {error}", reply.to));
            }
        }
    }

    /// Begins to store what has gathered, if anything has.
    fn commit(&mut self) -> Option<Committing> {
        if self.steps.is_empty() {
            return None;
        }
        self.next_commit = tokio::time::Instant::now() + PACE;
        let (steps, waiting) = (std::mem::take(&mut self.steps), std::mem::take(&mut self.waiting));
        let shared = Arc::clone(&self.shared);
        Some(Box::pin(async move { (shared.boot.dhcp_steps(&steps).await, waiting) }))
    }

    /// What was stored is promised now.
    fn committed(&mut self, (stored, waiting): (Result<(), StoreError>, Vec<PendingReply>)) {
        if let Err(error) = stored {
            let (count, error) = (waiting.len(), &error as &dyn std::error::Error);
            tracing::error!(count, error, "clients get no DHCP answer: their leases cannot be stored");
            return;
        }
        self.promised.extend(waiting);
        self.send_slice();
    }

    /// Sends some of what is promised; whoever is alone never waits for it.
    fn send_slice(&mut self) {
        let slice = SLICE.max(self.promised.len() / SLICE_PART).min(self.promised.len());
        let answers: Vec<PendingReply> = self.promised.drain(..slice).collect();
        for PendingReply { reply, since } in answers {
            self.send(&reply, since);
        }
        self.next_slice = tokio::time::Instant::now() + BETWEEN_SLICES;
    }

    /// A quarter of a second has passed.
    fn beat(&mut self) {
        self.look_at_cards();
        let now = self.shared.now();
        for lease in self.shared.nodes.take_freed() {
            self.engine.free(now, &lease);
        }
        let phase = self.beat % PROBE_EVERY;
        if phase == 0 || phase == PROBE_AGAIN {
            self.probe();
        }
        if self.beat.is_multiple_of(SECOND) {
            self.engine.keep_addresses(&self.shared.boot.approved_cards());
            let health = self.engine.health(self.shared.now());
            self.figures.publish(self.engine.counters());
            health.into_iter().for_each(|segment| self.shared.boot.report_segment(segment));
        }
        self.beat += 1;
    }

    /// Asks who else serves the networks.
    fn probe(&mut self) {
        // What came to the port since it was last looked at is old.
        for (via, ear) in self.ears.iter().enumerate().filter(|(_, ear)| ear.probe.is_some()) {
            let xid =
                u32::try_from(self.beat).unwrap_or_default() ^ 0x6d65_0000 ^ u32::try_from(via).unwrap_or_default();
            for packet in probe::packets(ear.interface.address, xid) {
                if let Err(error) = ear.ask(&packet) {
                    let name = &ear.interface.name;
                    self.log.warn("probe", || format!("cannot look for other DHCP servers on {name}: {error}"));
                }
            }
        }
    }
}
