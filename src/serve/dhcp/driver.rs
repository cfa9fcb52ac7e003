//! The task of the DHCP service: reads packets, and runs the periodic work.

use super::{
    convert,
    neighbour_table::NeighbourReading,
    running_commit::{CommitHealth, PendingReply, RunningCommit, wait_for_commit},
    socket::{Bound, BoundInterface},
    telemetry::DhcpTelemetry,
    warnings,
};
use crate::log::Log;
use meshd_central::{DhcpChange, Shared};
use meshd_config::{DhcpMode, Site};
use meshd_dhcp::{
    BootSources, Effect, Engine, Origin, RecordChanges, Setup, Warning, client_arch::loader_names,
    packet::probe_packets,
};
use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::time::MissedTickBehavior;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Maximum size of a packet, in bytes.
const MAX_PACKET: usize = 2048;
/// Number of packets that are read from one socket before the next socket.
const READ_BATCH: usize = 64;
/// Maximum number of changes and replies that wait for a flush. Beyond it, meshd reads no packets,
/// and the kernel drops packets.
const MAX_WAITING: usize = 4096;
/// Pause after a receive error.
const ERROR_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of events and alarms that are being stored.
const MAX_ALARMS: usize = 64;
/// Interval of periodic work, and the number of intervals in a second.
const TICK: Duration = Duration::from_millis(250);
const SECOND: u64 = 4;
/// Before meshd serves as the only server of a network, it probes for other servers twice and waits
/// this many ticks.
const PROBE_WAIT: u64 = SECOND;
const PROBE_AGAIN: u64 = SECOND / 2;
/// Later, meshd probes every five minutes and listens for this many ticks: servers may ping an
/// address before an offer.
const PROBE_EVERY: u64 = 300 * SECOND;
const PROBE_LISTEN: u64 = 5 * SECOND;

/// Serves all segments until `shutdown`; then stores pending changes and sends their replies.
pub async fn run(shared: Shared, bound: Bound, shutdown: CancellationToken) {
    if bound.interfaces.iter().all(|interface| interface.server.is_none()) {
        return shutdown.cancelled().await;
    }
    let mut driver = Driver::new(shared, bound);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut running_commit: Option<RunningCommit> = None;
    loop {
        if running_commit.is_none() && driver.may_commit() {
            running_commit = driver.commit();
        }
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            outcome = wait_for_commit(&mut running_commit) => { running_commit = None; driver.finish_commit(outcome) }
            () = tokio::time::sleep_until(driver.next_slice), if !driver.ready_replies.is_empty() => driver.send_slice(),
            () = tokio::time::sleep_until(driver.next_commit), if running_commit.is_none() && !driver.changes.is_empty() => {}
            _ = ticks.tick() => driver.tick(),
            () = driver.wait_until_readable(), if driver.has_capacity() => driver.read(),
        }
    }
    while let Some(last) = running_commit.take().or_else(|| driver.commit()) {
        driver.finish_commit(last.await);
    }
    while !driver.ready_replies.is_empty() {
        driver.send_slice();
    }
    driver.tasks.close();
    driver.tasks.wait().await;
}

/// The state of the task.
pub(super) struct Driver {
    pub(super) shared: Shared,
    pub(super) engine: Engine,
    pub(super) neighbours: NeighbourReading,
    /// Revision of the records that the engine knows.
    revision: Option<u64>,
    /// The site that the engine knows.
    site: Arc<Site>,
    pub(super) interfaces: Vec<BoundInterface>,
    pub(super) changes: Vec<DhcpChange>,
    pub(super) waiting: Vec<PendingReply>,
    /// Replies whose changes are stored.
    pub(super) ready_replies: VecDeque<PendingReply>,
    pub(super) next_slice: tokio::time::Instant,
    pub(super) telemetry: DhcpTelemetry,
    pub(super) log: Arc<Log>,
    pub(super) tasks: TaskTracker,
    /// Earliest start of the next commit.
    pub(super) next_commit: tokio::time::Instant,
    pub(super) commit_health: CommitHealth,
    ticks: u64,
    paused_until: Option<tokio::time::Instant>,
    buffer: Box<[u8; MAX_PACKET]>,
}

impl Driver {
    fn new(shared: Shared, bound: Bound) -> Self {
        let loaders = loader_names()
            .filter(|name| shared.boot.loader(name).is_some())
            .map(str::to_owned)
            .collect();
        let site = shared.site();
        let mut setup = Setup {
            interfaces: bound.interfaces.iter().map(|bound| bound.interface.clone()).collect(),
            segments: site.segments.clone(),
            reservations: site.reservations.iter().map(convert::reservation).collect(),
            nics: Vec::new(),
            non_identifying_uuids: site.identity.deny.clone(),
            sources: BootSources { http_port: site.http.port, loaders },
        };
        for BoundInterface { interface, .. } in
            bound.interfaces.iter().filter(|bound| bound.server.is_some())
        {
            tracing::info!(interface = interface.name, address = %interface.address, "DHCP serves");
        }
        let update = shared.boot.dhcp_record_update(None);
        let revision = update.as_ref().map(|update| update.revision);
        if let Some(RecordChanges::All(nics)) = update.map(convert::record_changes) {
            setup.nics = nics;
        }
        let engine =
            Engine::new(setup, shared.boot.leases().into_iter().map(convert::stored_lease));
        Driver {
            engine,
            neighbours: NeighbourReading::default(),
            revision,
            site,
            shared,
            interfaces: bound.interfaces,
            changes: Vec::new(),
            waiting: Vec::new(),
            ready_replies: VecDeque::new(),
            next_slice: tokio::time::Instant::now(),
            telemetry: DhcpTelemetry::default(),
            log: Arc::default(),
            tasks: TaskTracker::new(),
            next_commit: tokio::time::Instant::now(),
            commit_health: CommitHealth::default(),
            ticks: 0,
            paused_until: None,
            buffer: Box::new([0; MAX_PACKET]),
        }
    }

    fn may_commit(&self) -> bool {
        tokio::time::Instant::now() >= self.next_commit
    }

    fn has_capacity(&self) -> bool {
        self.changes.len() + self.ready_replies.len() < MAX_WAITING
    }

    /// Returns true after the probes for other servers, or if there are none.
    fn serves(&self) -> bool {
        let authoritative =
            |segment: &meshd_config::Segment| segment.mode == DhcpMode::Authoritative;
        let probes = self.interfaces.iter().any(|interface| interface.probe.is_some());
        self.ticks > PROBE_WAIT || !probes || !self.shared.site().segments.iter().any(authoritative)
    }

    fn listens(&self) -> bool {
        self.ticks % PROBE_EVERY < PROBE_LISTEN
    }

    /// Returns true if a socket is readable. Polls every socket, so that each of them can wake the
    /// task.
    fn poll_ready(&self, context: &mut Context<'_>) -> bool {
        let serves = self.serves();
        let listens = self.listens();
        let mut ready = false;
        for interface in &self.interfaces {
            if let Some(receiver) = interface.receiver.as_ref().filter(|_| serves) {
                ready |= receiver.poll_ready(context).is_ready();
            }
            if let Some(probe) = interface.probe.as_ref().filter(|_| listens) {
                ready |= probe.poll_recv_ready(context).is_ready();
            }
        }
        ready
    }

    /// Resolves when a socket is readable.
    async fn wait_until_readable(&self) {
        if let Some(until) = self.paused_until {
            tokio::time::sleep_until(until).await;
        }
        poll_fn(|context| if self.poll_ready(context) { Poll::Ready(()) } else { Poll::Pending })
            .await;
    }

    /// Reads up to [`READ_BATCH`] packets from each socket.
    fn read(&mut self) {
        self.paused_until = None;
        // Records that were stored before a request arrived must be known to the engine.
        self.update_records();
        let since = Instant::now();
        let serves = self.serves();
        let listens = self.listens();
        for index in 0..self.interfaces.len() {
            for _ in 0..if serves { READ_BATCH } else { 0 } {
                if self.receive_one(index, since).is_none() {
                    break;
                }
                self.telemetry.count_received();
            }
            for _ in 0..if listens { READ_BATCH } else { 0 } {
                if self.receive_probe_reply(index, since).is_none() {
                    break;
                }
                self.telemetry.count_received();
            }
        }
    }

    /// Passes changes of records and of the site to the engine.
    fn update_records(&mut self) {
        let site = self.shared.site();
        if !Arc::ptr_eq(&site, &self.site) {
            self.engine.set_non_identifying_uuids(site.identity.deny.clone());
            self.site = site;
        }
        if let Some(update) = self.shared.boot.dhcp_record_update(self.revision) {
            self.revision = Some(update.revision);
            self.engine.apply(self.shared.now(), convert::record_changes(update));
        }
        let warnings = self.engine.take_warnings();
        self.perform(warnings.into_iter().map(Effect::Warn), Instant::now());
    }

    /// Receives and handles one packet of a client or relay. Returns `None` if there is none.
    fn receive_one(&mut self, index: usize, since: Instant) -> Option<()> {
        let receiver = self.interfaces.get_mut(index)?.receiver.as_mut()?;
        let received = match receiver.try_receive(&mut self.buffer[..]) {
            Ok(Some(received)) => received,
            Ok(None) => return Some(()),
            Err(error) => return self.handle_receive_error(index, &error),
        };
        let now = self.shared.now();
        let packet = self.buffer.get(received.payload)?;
        let origin = Origin {
            interface_index: index,
            source: received.source,
            local_port: received.port,
            ethernet_source: received.ethernet_source,
        };
        let effects = self.engine.handle(now, packet, origin);
        self.perform(effects, since);
        Some(())
    }

    /// Receives one reply to a probe. Returns `None` if there is none.
    fn receive_probe_reply(&mut self, index: usize, since: Instant) -> Option<()> {
        let probe = self.interfaces.get(index)?.probe.as_ref()?;
        let length = match probe.try_recv_from(&mut self.buffer[..]) {
            Ok((length, _)) => length,
            Err(error) => return self.handle_receive_error(index, &error),
        };
        let warning =
            self.engine.handle_server_packet(self.shared.now(), self.buffer.get(..length)?, index);
        self.perform(warning, since);
        Some(())
    }

    /// Handles a receive error: pauses reading, except for `WouldBlock`.
    fn handle_receive_error(&mut self, index: usize, error: &io::Error) -> Option<()> {
        if error.kind() != io::ErrorKind::WouldBlock {
            let name =
                self.interfaces.get(index).map_or("?", |bound| bound.interface.name.as_str());
            self.log.warn("receive", || format!("cannot receive DHCP packets on {name}: {error}"));
            self.paused_until = Some(tokio::time::Instant::now() + ERROR_PAUSE);
        }
        None
    }

    /// Logs a warning, and records its event or alarm.
    pub(super) fn warn(&mut self, warning: &Warning) {
        let cause = warnings::cause(warning);
        self.log.warn(cause, || warnings::text(warning));
        self.raise(warning);
        if let Some(kind) = warnings::event(warning) {
            let shared = Arc::clone(&self.shared);
            let text = warnings::text(warning);
            self.tasks.spawn(async move { shared.boot.dhcp_event(kind, cause, text).await });
        }
    }

    /// Records the alarm of a warning, if any. The number of tasks is limited.
    fn raise(&mut self, warning: &Warning) {
        let Some((mac, kind, sender)) = warnings::alarm(warning) else { return };
        let limit =
            if self.shared.boot.node_of_mac(mac).is_some() { MAX_ALARMS * 4 } else { MAX_ALARMS };
        if self.tasks.len() >= limit {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let detail = warnings::text(warning);
        self.tasks.spawn(async move { shared.boot.dhcp_alarm(mac, kind, &sender, detail).await });
    }

    /// Runs the periodic work.
    fn tick(&mut self) {
        self.update_records();
        self.rebind();
        self.look_for_used_addresses();
        let phase = self.ticks % PROBE_EVERY;
        if phase == 0 || phase == PROBE_AGAIN {
            self.probe();
        }
        if self.ticks.is_multiple_of(SECOND) {
            let status = self.engine.status(self.shared.now());
            self.telemetry.publish(self.engine.counters());
            status
                .into_iter()
                .for_each(|segment| self.shared.boot.report_segment(convert::health(segment)));
            for bound in &self.interfaces {
                let fault = bound.fault().or_else(|| self.commit_health.fault(Instant::now()));
                self.shared.boot.report_service("DHCP", &bound.interface.name, fault);
            }
        }
        self.ticks += 1;
    }

    /// Opens the sockets of changed interfaces again.
    fn rebind(&mut self) {
        for (index, bound) in self.interfaces.iter_mut().enumerate() {
            match bound.rebind() {
                Ok(None) => {}
                Ok(Some(address)) => self.engine.set_interface_address(index, address),
                Err(error) => {
                    let name = &bound.interface.name;
                    self.log.warn("bind", || {
                        format!("cannot bind DHCP to {name} again: {error}; retrying")
                    });
                }
            }
        }
    }

    /// Probes all segments for other servers.
    fn probe(&mut self) {
        for (index, bound) in
            self.interfaces.iter().enumerate().filter(|(_, bound)| bound.probe.is_some())
        {
            let xid = u32::try_from(self.ticks ^ index as u64).unwrap_or_default() ^ 0x6d65_0000;
            for packet in probe_packets(bound.interface.address, xid) {
                if let Err(error) = bound.send_probe(&packet) {
                    let name = &bound.interface.name;
                    self.log.warn("probe", || {
                        format!("cannot probe for other DHCP servers on {name}: {error}")
                    });
                }
            }
        }
    }
}
