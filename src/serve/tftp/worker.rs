//! One worker: a thread with a socket that its transfers share, and the engine that tells them apart.
//!
//! It waits for acknowledgements, for requests that the listening task hands over, and for the engine's next deadline.

use super::{
    adaptive_polling::Patience,
    effect::{Effects, Happened},
    engine::{Engine, Limits, Lookup},
    socket::{BATCH, Message, Sent, Shared, headers_of, messages_of},
    table::{Name, Table},
    telemetry::Notes,
};
use crate::serve::central::Fetched;
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
use tokio::sync::mpsc;

/// Bounds of one worker.
const LIMITS: Limits = Limits { transfers: 4096, window_bytes: 32 << 20 };
/// Requests that wait for one worker; what comes beyond is dropped, and clients ask again.
const MAX_REQUESTS: usize = 1024;
/// How long transfers may go on after the end was asked for.
const DRAIN: Duration = Duration::from_secs(3);
/// A full queue of the kernel is waited for so long; then what it did not take is left to the engine's timers.
const FULL: Duration = Duration::from_millis(100);

/// With more transfers than these the next packet is worth a sleep: others are under way meanwhile.
const FEW: usize = 4;
/// A pause after an error that will come again.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// What was fetched to its end, and by whom.
pub(super) type Done = (Ipv4Addr, Fetched);

/// A request as it came.
pub(super) type Request = (SocketAddrV4, Bytes);

/// The listening task's side of a worker.
pub(super) struct Hand {
    requests: SyncSender<Request>,
    bell: Arc<Bell>,
}

/// Wakes a worker.
struct Bell {
    event: EventFd,
    stop: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        // It fails only if it is rung already 2^64 - 2 times.
        let _ = self.event.write(1);
    }
}

impl Hand {
    /// Hands a request over; false if too many wait.
    pub(super) fn give(&self, asked: Request) -> bool {
        match self.requests.try_send(asked) {
            Ok(()) => self.bell.ring(),
            Err(TrySendError::Full(_)) => return false,
            Err(TrySendError::Disconnected(_)) => {}
        }
        true
    }
}

/// A hand that lets go tells the worker to end.
impl Drop for Hand {
    fn drop(&mut self) {
        self.bell.stop.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// Makes a worker for a bound socket: what hands it requests, and what its thread does.
pub(super) fn worker<T: Table>(
    socket: UdpSocket,
    table: Arc<T>,
    done: mpsc::Sender<Done>,
    notes: Arc<Notes>,
) -> io::Result<(Hand, impl FnOnce() -> io::Result<()> + Send + 'static)> {
    let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
    let bell = Arc::new(Bell { event, stop: AtomicBool::new(false) });
    let (sender, requests) = sync_channel(MAX_REQUESTS);
    let hand = Hand { requests: sender, bell: Arc::clone(&bell) };
    let work = move || {
        let (socket, engine, patience) = (Shared::new(socket), Engine::new(LIMITS), Patience::new());
        Worker { socket, engine, requests, bell, table, done, notes, patience }.work()
    };
    Ok((hand, work))
}

/// The thread's side.
struct Worker<T> {
    socket: Shared,
    engine: Engine,
    requests: Receiver<Request>,
    bell: Arc<Bell>,
    table: Arc<T>,
    done: mpsc::Sender<Done>,
    notes: Arc<Notes>,
    patience: Patience,
}

impl<T: Table> Worker<T> {
    /// Works until its hand is dropped and its transfers have ended, or had their time.
    fn work(mut self) -> io::Result<()> {
        let mut out = Effects::default();
        let mut until = None;
        loop {
            let now = Instant::now();
            let received = self.receive(now, &mut out)?;
            let taken = if until.is_none() { self.take(now, &mut out) } else { 0 };
            self.engine.tick(now, &mut out);
            self.flush(&mut out)?;
            if until.is_none() && taken == 0 && self.bell.stop.load(Ordering::Acquire) {
                until = Some(now + DRAIN);
            }
            if until.is_some_and(|until| self.engine.len() == 0 || until <= now) {
                self.engine.close(&mut out);
                return self.flush(&mut out);
            }
            if received + taken > 0 {
                self.patience.paid();
            } else if !(1..=FEW).contains(&self.engine.len()) || !self.patience.again(now) {
                self.wait(now, until)?;
            }
        }
    }

    fn receive(&mut self, now: Instant, out: &mut Effects) -> io::Result<usize> {
        let engine = &mut self.engine;
        match self.socket.receive(|from, bytes| engine.receive(now, from, bytes, out)) {
            Ok(received) => Ok(received),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            Err(error) => {
                self.notes.failed("receive", &error);
                // A socket that fails at every read is not asked in a tight loop.
                wait_for(&mut [PollFd::new(self.bell.event.as_fd(), PollFlags::POLLIN)], Some(AFTER_ERROR))?;
                Ok(0)
            }
        }
    }

    fn take(&mut self, now: Instant, out: &mut Effects) -> usize {
        let files: Lookup<'_> = &|name| look_up(self.table.as_ref(), name);
        let mut taken = 0;
        for (client, bytes) in self.requests.try_iter().take(BATCH) {
            self.engine.request(now, client, &bytes, files, out);
            taken += 1;
        }
        taken
    }

    /// Sends and reports everything that the engine wants.
    fn flush(&mut self, out: &mut Effects) -> io::Result<()> {
        for sends in out.sends.chunks(BATCH) {
            let headers = headers_of(sends);
            let mut messages = messages_of(sends, &headers, self.socket.cuts());
            let mut done = 0;
            while done < messages.len() {
                match self.socket.send(&messages[done..]) {
                    Sent::All => break,
                    Sent::Full(sent) => {
                        done += sent;
                        if !self.writable()? {
                            self.notes.queue_full();
                            break;
                        }
                    }
                    Sent::Failed(sent, error) => {
                        done += sent + 1;
                        self.notes.failed("send", &error);
                    }
                    Sent::NotCut(sent, error) => {
                        self.notes.not_cut(&error);
                        messages = messages.split_off(done + sent).into_iter().flat_map(Message::apart).collect();
                        done = 0;
                    }
                }
            }
        }
        self.notes.sent(&out.sends);
        out.sends.clear();
        for happened in out.happened.drain(..) {
            if let Happened::Fetched { from, what } = &happened {
                // A full queue loses a stage mark, never the transfer.
                let _ = self.done.try_send((*from, *what));
            }
            self.notes.happened(&happened);
        }
        Ok(())
    }

    fn writable(&self) -> io::Result<bool> {
        let mut files = [PollFd::new(self.socket.socket().as_fd(), PollFlags::POLLOUT)];
        wait_for(&mut files, Some(FULL))?;
        Ok(files[0].any() == Some(true))
    }

    /// Waits for a packet, a request, or a deadline.
    fn wait(&self, now: Instant, until: Option<Instant>) -> io::Result<()> {
        let next = self.engine.next_deadline().into_iter().chain(until).min();
        let left = next.map(|at| at.saturating_duration_since(now));
        let mut files = [
            PollFd::new(self.socket.socket().as_fd(), PollFlags::POLLIN),
            PollFd::new(self.bell.event.as_fd(), PollFlags::POLLIN),
        ];
        wait_for(&mut files, left)?;
        if files[1].any() == Some(true) {
            // The number of rings does not matter: it says that there is something to look at.
            let _ = self.bell.event.read();
        }
        Ok(())
    }
}

/// Waits for one of `files`, for ever or so long.
fn wait_for(files: &mut [PollFd<'_>], left: Option<Duration>) -> io::Result<()> {
    // One millisecond more, because it counts in whole ones: a deadline is met when it has passed.
    let timeout = left.map(|left| PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX));
    match poll(files, timeout.unwrap_or(PollTimeout::NONE)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn look_up<T: Table>(table: &T, name: &str) -> Option<(Bytes, Fetched)> {
    match Name::parse(name)? {
        Name::Loader(name) => table.loader(name).map(|bytes| (bytes, Fetched::Loader)),
        Name::Blob { digest, part } => table.blob(digest, part).map(|bytes| (bytes, Fetched::Blob(digest))),
    }
}
