//! Drives the engine. One task reads what has come in, lets the engine decide, and sends at once what promises nothing. What must
//! be on disk first gathers while the flush before it runs, and goes there as one change: a storm shares few flushes.

use super::{
    bootfile::Sources,
    engine::{Effect, Engine, Reply, Setup},
    figures::Figures,
    firmware::loader_names,
    probe,
    route::{Origin, PROXY_PORT, SERVER_PORT},
    socket::{Bound, Ear},
};
use crate::config::DhcpMode;
use crate::id::MacAddr;
use crate::serve::{
    central::{DhcpStep, Shared},
    log::Log,
};
use crate::store::StoreError;
use std::{
    collections::VecDeque,
    future::{Future, pending, poll_fn},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};
use tokio::{net::UdpSocket, time::MissedTickBehavior};
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
type Committing = Pin<Box<dyn Future<Output = (Result<(), StoreError>, Vec<Waiting>)> + Send>>;

async fn finished(committing: &mut Option<Committing>) -> (Result<(), StoreError>, Vec<Waiting>) {
    match committing {
        Some(committing) => committing.await,
        None => pending().await,
    }
}

/// An answer that waits for the disk, and since when its client waits.
struct Waiting {
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
    waiting: Vec<Waiting>,
    /// Answers whose changes are on the disk.
    promised: VecDeque<Waiting>,
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
        let loaders = loader_names().filter(|name| shared.loader(name).is_some()).map(str::to_owned).collect();
        let site = shared.site();
        let (cards_seen, cards) = shared.all_cards();
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
        Driver {
            engine: Engine::new(setup, shared.leases()),
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
        let authoritative = |segment: &crate::config::Segment| segment.mode == DhcpMode::Authoritative;
        let asks = self.ears.iter().any(|ear| ear.probe.is_some());
        self.beat > PROBE_WAIT || !asks || !self.shared.site().segments.iter().any(authoritative)
    }

    fn listens(&self) -> bool {
        self.beat % PROBE_EVERY < PROBE_LISTEN
    }

    /// The sockets that are read now, with their interface and port.
    fn sockets(&self) -> impl Iterator<Item = (usize, u16, &UdpSocket)> {
        let (serves, listens) = (self.serves(), self.listens());
        self.ears.iter().enumerate().flat_map(move |(via, ear)| {
            let server = ear.server.as_ref().filter(|_| serves).map(|socket| (via, SERVER_PORT, socket));
            let proxy = ear.proxy.as_ref().filter(|_| serves).map(|socket| (via, PROXY_PORT, socket));
            let probe = ear.probe.as_ref().filter(|_| listens).map(|socket| (via, probe::PROBE_PORT, socket));
            [server, proxy, probe].into_iter().flatten()
        })
    }

    /// Resolves when there is something to read.
    async fn ready(&self) {
        if let Some(until) = self.paused_until {
            tokio::time::sleep_until(until).await;
        }
        poll_fn(|context| {
            let ready = |(.., socket): (usize, u16, &UdpSocket)| socket.poll_recv_ready(context).is_ready();
            // Every socket is asked, so that each of them can wake this task.
            if self.sockets().map(ready).fold(false, |any, ready| any | ready) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Reads from each socket what is there, within its turn.
    fn read(&mut self) {
        self.paused_until = None;
        // Whoever is on record before it asks is known when it asks.
        self.look_at_cards();
        let since = Instant::now();
        let places: Vec<(usize, u16)> = self.sockets().map(|(via, port, _)| (via, port)).collect();
        for (via, port) in places {
            for _ in 0..TURN {
                if self.read_one(via, port, since).is_none() {
                    break;
                }
                self.figures.received();
            }
        }
    }

    fn look_at_cards(&mut self) {
        if let Some((seen, news)) = self.shared.cards_since(self.cards_seen) {
            self.cards_seen = seen;
            self.engine.cards(news);
        }
        let notes = self.engine.take_notes();
        self.perform(notes.into_iter().map(Effect::Note), Instant::now());
    }

    /// Reads and handles one packet; `None` if there is none.
    fn read_one(&mut self, via: usize, port: u16, since: Instant) -> Option<()> {
        let ear = self.ears.get(via)?;
        let socket = match port {
            SERVER_PORT => ear.server.as_ref()?,
            PROXY_PORT => ear.proxy.as_ref()?,
            _ => ear.probe.as_ref()?,
        };
        let (length, source) = match socket.try_recv_from(&mut self.buffer[..]) {
            Ok((length, SocketAddr::V4(source))) => (length, source),
            Ok((_, SocketAddr::V6(_))) => return Some(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => {
                let name = &ear.interface.name;
                self.log.warn("receive", || format!("cannot read DHCP packets on {name}: {error}"));
                self.paused_until = Some(tokio::time::Instant::now() + AFTER_ERROR);
                return None;
            }
        };
        let (now, packet) = (self.shared.now(), self.buffer.get(..length)?);
        if port == probe::PROBE_PORT {
            let heard = self.engine.heard(now, packet, via);
            self.perform(heard, since);
            return Some(());
        }
        let shared = &self.shared;
        let node_of = |mac: MacAddr| shared.node_of_mac(mac);
        let effects = self.engine.handle(now, packet, Origin { via, source, local_port: port }, &node_of);
        self.perform(effects, since);
        Some(())
    }

    /// Performs effects in their order: what stands behind a change waits for it.
    fn perform(&mut self, effects: impl IntoIterator<Item = Effect>, since: Instant) {
        let mut waits = false;
        for effect in effects {
            match effect {
                Effect::Reply(reply) if waits => self.waiting.push(Waiting { reply, since }),
                Effect::Reply(reply) => self.send(&reply, since),
                Effect::Store(step) => {
                    waits = true;
                    self.steps.push(step);
                }
                Effect::Note(note) => {
                    self.log.warn(note.cause(), || note.to_string());
                    if let Some(kind) = note.event() {
                        let shared = Arc::clone(&self.shared);
                        let cause = note.cause();
                        self.tasks.spawn(async move { shared.dhcp_event(kind, cause, note.to_string()).await });
                    }
                }
            }
        }
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
        Some(Box::pin(async move { (shared.dhcp_steps(&steps).await, waiting) }))
    }

    /// What was stored is promised now.
    fn committed(&mut self, (stored, waiting): (Result<(), StoreError>, Vec<Waiting>)) {
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
        let answers: Vec<Waiting> = self.promised.drain(..slice).collect();
        for Waiting { reply, since } in answers {
            self.send(&reply, since);
        }
        self.next_slice = tokio::time::Instant::now() + BETWEEN_SLICES;
    }

    /// A quarter of a second has passed.
    fn beat(&mut self) {
        self.look_at_cards();
        let now = self.shared.now();
        for lease in self.shared.take_freed() {
            self.engine.free(now, &lease);
        }
        let phase = self.beat % PROBE_EVERY;
        if phase == 0 || phase == PROBE_AGAIN {
            self.probe();
        }
        if self.beat.is_multiple_of(SECOND) {
            let health = self.engine.health(self.shared.now());
            self.figures.publish(self.engine.counters());
            health.into_iter().for_each(|segment| self.shared.report_segment(segment));
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
