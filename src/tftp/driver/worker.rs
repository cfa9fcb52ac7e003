//! One worker: a thread with one socket and one engine. It handles requests from the listening
//! task, packets of its transfers, and the engine's deadlines.

use super::{
    adaptive_polling::AdaptivePolling,
    batch_socket::{BATCH, BatchSocket},
    sender::{Unsent, send},
};
use crate::{
    client::Client,
    effect::{Effects, Payload, Transmission},
    engine::{Engine, Limits, Lookup, PathMtu},
    files::{Datagram, EthernetLink, Files, Observer, Problem},
};
use bytes::Bytes;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{self, error::TrySendError as TryReportError};

/// Limits of one worker.
const LIMITS: Limits = Limits { transfers: 4096, window_bytes: 32 << 20 };
/// Requests that wait for one worker. Further ones are dropped; clients repeat them.
const MAX_REQUESTS: usize = 1024;
/// How long transfers may continue after shutdown was requested.
const DRAIN: Duration = Duration::from_secs(3);

/// A worker polls with at most this many transfers. With more it sleeps: several packets arrive
/// meanwhile.
const MAX_POLLING_TRANSFERS: usize = 4;
/// Pause after a receive error, which would repeat at once.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// A client that acknowledged all blocks of a file.
pub(super) type Completed<F> = (Ipv4Addr, F);

/// A request packet with its sender.
pub(super) type RawRequest = (Client, Bytes);

/// The listening task's side of a worker. Dropping it stops the worker.
pub(super) struct WorkerHandle {
    requests: SyncSender<RawRequest>,
    wakeup: Arc<Wakeup>,
}

/// Wakes a sleeping worker.
struct Wakeup {
    event: EventFd,
    stop: AtomicBool,
}

impl Wakeup {
    fn wake(&self) {
        // It fails only if the counter overflows, at 2^64 - 2 pending wakes.
        let _ = self.event.write(1);
    }
}

impl WorkerHandle {
    /// Passes a request to the worker. Returns false if its queue is full.
    pub(super) fn send(&self, request: RawRequest) -> bool {
        match self.requests.try_send(request) {
            Ok(()) => self.wakeup.wake(),
            Err(TrySendError::Full(_)) => return false,
            Err(TrySendError::Disconnected(_)) => {}
        }
        true
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.wakeup.stop.store(true, Ordering::Release);
        self.wakeup.wake();
    }
}

/// Sockets of one worker.
pub(super) struct WorkerSockets {
    /// Bound to the port of its transfers.
    pub(super) socket: UdpSocket,
    pub(super) path_mtu: PathMtu,
    pub(super) ethernet: Option<WorkerLink>,
}

/// A link that receives datagrams to the port of the worker's transfers, and to the request port.
pub(super) struct WorkerLink {
    pub(super) link: Box<dyn EthernetLink>,
    /// True for the clients of this worker: every worker receives all requests.
    pub(super) is_own: Box<dyn Fn(&SocketAddrV4) -> bool + Send>,
}

/// Creates a worker for bound sockets: its handle, and the function for its thread.
pub(super) fn worker<F: Files, O: Observer>(
    sockets: WorkerSockets,
    files: Arc<F>,
    observer: Arc<O>,
    completed: mpsc::Sender<Completed<F::Id>>,
) -> io::Result<(WorkerHandle, impl FnOnce() -> io::Result<()> + Send + 'static)> {
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
    let wakeup = Arc::new(Wakeup { event, stop: AtomicBool::new(false) });
    let (sender, requests) = sync_channel(MAX_REQUESTS);
    let handle = WorkerHandle { requests: sender, wakeup: Arc::clone(&wakeup) };
    let run = move || {
        let WorkerSockets { socket, path_mtu, ethernet } = sockets;
        let engine = Engine::new(LIMITS, path_mtu);
        let socket = BatchSocket::new(socket);
        let polling = AdaptivePolling::new();
        Worker { socket, ethernet, engine, requests, wakeup, files, observer, completed, polling }
            .run()
    };
    Ok((handle, run))
}

/// The state of the worker thread.
struct Worker<F: Files, O> {
    socket: BatchSocket,
    ethernet: Option<WorkerLink>,
    engine: Engine<F::Id>,
    requests: Receiver<RawRequest>,
    wakeup: Arc<Wakeup>,
    files: Arc<F>,
    observer: Arc<O>,
    completed: mpsc::Sender<Completed<F::Id>>,
    polling: AdaptivePolling,
}

impl<F: Files, O: Observer> Worker<F, O> {
    /// Runs until the handle is dropped and all transfers ended or [`DRAIN`] is over.
    fn run(mut self) -> io::Result<()> {
        let mut out = Effects::default();
        let mut until = None;
        loop {
            let now = Instant::now();
            let received = self.receive(now, &mut out)?
                + self.receive_frames(now, until.is_none(), &mut out)?;
            let taken = if until.is_none() { self.take_requests(now, &mut out) } else { 0 };
            self.engine.tick(now, &mut out);
            self.flush(now, &mut out);
            if until.is_none() && taken == 0 && self.wakeup.stop.load(Ordering::Acquire) {
                until = Some(now + DRAIN);
            }
            if until.is_some_and(|until| self.engine.is_empty() || until <= now) {
                self.engine.close(&mut out);
                self.flush(now, &mut out);
                return Ok(());
            }
            if received + taken > 0 {
                self.polling.succeeded();
            } else if !(1..=MAX_POLLING_TRANSFERS).contains(&self.engine.len())
                || !self.polling.poll_again(now)
            {
                self.wait(now, until)?;
            }
        }
    }

    fn receive(&mut self, now: Instant, out: &mut Effects<F::Id>) -> io::Result<usize> {
        let engine = &mut self.engine;
        let received =
            self.socket.receive(|from, bytes| engine.handle_packet(now, from, bytes, out));
        self.received_or_zero(received)
    }

    fn receive_frames(
        &mut self,
        now: Instant,
        takes_requests: bool,
        out: &mut Effects<F::Id>,
    ) -> io::Result<usize> {
        let Some(WorkerLink { link, is_own }) = &mut self.ethernet else { return Ok(0) };
        let files: Lookup<'_, F::Id> = &|name| self.files.open(name);
        // Every worker gets all requests.
        let takes = |client: SocketAddrV4| takes_requests && is_own(&client);
        let received = link.receive(&takes, &mut |datagram| match datagram {
            Datagram::Request(client, bytes) => {
                self.engine.handle_request(now, client, bytes, files, out)
            }
            Datagram::Packet(client, bytes) => self.engine.handle_packet(now, client, bytes, out),
        });
        self.received_or_zero(received)
    }

    /// Returns the number of received packets. Reports an error and waits a moment, because it
    /// would repeat at once.
    fn received_or_zero(&self, received: io::Result<usize>) -> io::Result<usize> {
        match received {
            Ok(received) => Ok(received),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(0)
            }
            Err(error) => {
                self.observer.problem(Problem::Receive(&error));
                wait_for(
                    &mut [PollFd::new(self.wakeup.event.as_fd(), PollFlags::POLLIN)],
                    Some(ERROR_PAUSE),
                )?;
                Ok(0)
            }
        }
    }

    fn take_requests(&mut self, now: Instant, out: &mut Effects<F::Id>) -> usize {
        let files: Lookup<'_, F::Id> = &|name| self.files.open(name);
        let mut taken = 0;
        for (client, bytes) in self.requests.try_iter().take(BATCH) {
            self.engine.handle_request(now, client, &bytes, files, out);
            taken += 1;
        }
        taken
    }

    /// Sends the datagrams and reports the events of the engine. A full queue delays no other
    /// client: the engine sends again what was not sent.
    fn flush(&mut self, now: Instant, out: &mut Effects<F::Id>) {
        let link = self.ethernet.as_mut().map(|ethernet| &mut ethernet.link);
        for unsent in send(now, &out.sends, &mut self.socket, link) {
            match unsent {
                Unsent::QueueFull(client) => {
                    self.engine.postpone(now, client);
                    self.observer.problem(Problem::SendQueueFull(client));
                }
                Unsent::Refused(error) => self.observer.problem(Problem::Send(&error)),
                Unsent::NoSegmentation(error) => {
                    self.observer.problem(Problem::NoSegmentation(&error));
                }
            }
        }
        let (bytes, resent) = count_blocks(&out.sends);
        self.observer.sent(bytes, resent);
        out.sends.clear();
        for completed in out.completed.drain(..) {
            // A full queue loses a report, never a transfer.
            if let Err(TryReportError::Full(_)) = self.completed.try_send(completed) {
                self.observer.problem(Problem::ReportQueueFull);
            }
        }
        out.events.drain(..).for_each(|event| self.observer.event(&event));
    }

    /// Waits for a packet, a request, or a deadline.
    fn wait(&self, now: Instant, until: Option<Instant>) -> io::Result<()> {
        let next = self.engine.next_deadline().into_iter().chain(until).min();
        let left = next.map(|at| at.saturating_duration_since(now));
        let mut files = vec![
            PollFd::new(self.wakeup.event.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.socket.socket().as_fd(), PollFlags::POLLIN),
        ];
        let frames = self
            .ethernet
            .iter()
            .map(|ethernet| PollFd::new(ethernet.link.as_fd(), PollFlags::POLLIN));
        files.extend(frames);
        wait_for(&mut files, left)?;
        if files[0].any() == Some(true) {
            let _ = self.wakeup.event.read();
        }
        Ok(())
    }
}

/// Waits for one of `files`, at most for `left`.
fn wait_for(files: &mut [PollFd<'_>], left: Option<Duration>) -> io::Result<()> {
    // poll(2) counts in milliseconds; one more ensures that the deadline has passed.
    let timeout = left.map(|left| {
        PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    });
    match poll(files, timeout.unwrap_or(PollTimeout::NONE)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the bytes of file data, and the number of retransmitted blocks.
fn count_blocks(sends: &[Transmission]) -> (u64, u64) {
    let mut bytes = 0;
    let mut retransmitted = 0;
    for send in sends {
        if let Payload::Blocks { file, block, first, count, resent } = &send.payload {
            let start = (first - 1) * u64::from(*block);
            bytes += (u64::from(*block) * u64::from(*count)).min(file.len() as u64 - start);
            retransmitted += if *resent { u64::from(*count) } else { 0 };
        }
    }
    (bytes, retransmitted)
}
