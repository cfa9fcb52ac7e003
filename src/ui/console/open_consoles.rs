//! Open consoles by session and virtual machine.

use super::terminal_screen;
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use maud::Markup;
use meshd_client::Socket;
use meshd_proto::vm::ConsoleNote;
use meshd_types::Digest;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::Message;

/// Open consoles at one time; the one that was not looked at for longest makes room.
const MAX_CONSOLES: usize = 64;
/// A console closes when no page looked at it for so long.
const IDLE_TIME: Duration = Duration::from_secs(90);
/// Between two checks whether a page still looks.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// Pieces of input that wait for the guest.
const MAX_WAITING: usize = 64;

/// Session, and name or UUID of the virtual machine as the page has it.
type Key = (Digest, String);

/// One open console.
pub(crate) struct Console {
    terminal: Mutex<vt100::Parser>,
    /// Counts the changes of the screen.
    version: watch::Sender<u64>,
    typed: mpsc::Sender<Bytes>,
    /// When a page last asked.
    used: Mutex<Instant>,
    /// Why the console ended.
    ended: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Console {
    fn new(now: Instant) -> (Self, mpsc::Receiver<Bytes>) {
        let (typed, input) = mpsc::channel(MAX_WAITING);
        let (rows, columns) = terminal_screen::SIZE;
        let terminal = Mutex::new(vt100::Parser::new(rows, columns, 0));
        let (version, used, ended) = (watch::Sender::new(1), Mutex::new(now), Mutex::default());
        (Console { terminal, version, typed, used, ended }, input)
    }

    /// Number of the present screen, its HTML, and why the console ended if it did.
    pub(crate) fn screen(&self) -> (u64, Markup, Option<String>) {
        let version = *self.version.borrow();
        (version, terminal_screen::html(lock(&self.terminal).screen()), lock(&self.ended).clone())
    }

    /// Waits for a screen with another number, for at most `limit`.
    pub(crate) async fn changed(&self, after: u64, limit: Duration) {
        let mut versions = self.version.subscribe();
        // The sender lives as long as `self`.
        let _ = tokio::time::timeout(limit, versions.wait_for(|version| *version != after)).await;
    }

    /// Types. Returns false if the guest does not take what was typed before, or the console ended.
    pub(crate) fn write(&self, bytes: Bytes) -> bool {
        lock(&self.ended).is_none() && self.typed.try_send(bytes).is_ok()
    }

    fn show(&self, bytes: &[u8]) {
        lock(&self.terminal).process(bytes);
        self.version.send_modify(|version| *version += 1);
    }

    fn end(&self, reason: &str) {
        lock(&self.ended).get_or_insert_with(|| reason.to_owned());
        self.version.send_modify(|version| *version += 1);
    }

    fn is_idle(&self, now: Instant) -> bool {
        now.duration_since(*lock(&self.used)) >= IDLE_TIME
    }

    fn is_open(&self) -> bool {
        lock(&self.ended).is_none()
    }

    /// Carries bytes between guest and terminal until one side ends.
    async fn run(&self, mut socket: Socket, mut input: mpsc::Receiver<Bytes>, now: fn() -> Instant) {
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        let mut versions = self.version.subscribe();
        let reason = loop {
            tokio::select! {
                message = socket.next() => match message {
                    Some(Ok(Message::Binary(bytes))) => self.show(&bytes),
                    Some(Ok(Message::Text(text))) => self.note(&text),
                    Some(Ok(Message::Close(_))) | None => break "the console was closed".to_owned(),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break format!("the connection broke: {error}"),
                },
                Some(bytes) = input.recv() => if let Err(error) = socket.send(Message::Binary(bytes)).await {
                    break format!("the connection broke: {error}");
                },
                _ = checks.tick() => if self.is_idle(now()) { break "no page looked at it any more".to_owned() },
                // The sender lives as long as `self`.
                _ = versions.changed() => if !self.is_open() { break String::new() },
            }
        };
        self.end(&reason);
        // Whoever is gone does not hear it.
        let _ = tokio::time::timeout(Duration::from_secs(1), socket.close(None)).await;
    }

    fn note(&self, text: &str) {
        if let Ok(ConsoleNote::Lost { bytes }) = serde_json::from_str(text) {
            self.show(format!("\r\n[{bytes} bytes are missing here]\r\n").as_bytes());
        }
    }
}

/// All open consoles.
#[derive(Clone, Default)]
pub(crate) struct Consoles(Arc<Mutex<BTreeMap<Key, Arc<Console>>>>);

impl Consoles {
    /// The open console of a session.
    pub(crate) fn find(&self, session: Digest, vm: &str, now: Instant) -> Option<Arc<Console>> {
        let console = lock(&self.0).get(&(session, vm.to_owned())).cloned()?;
        *lock(&console.used) = now;
        Some(console)
    }

    /// Serves a socket as the console of a session. An earlier one of the same session and virtual machine ends.
    pub(crate) fn open(&self, session: Digest, vm: &str, socket: Socket, now: fn() -> Instant) -> Arc<Console> {
        let (console, input) = Console::new(now());
        let console = Arc::new(console);
        {
            let mut all = lock(&self.0);
            all.retain(|_, console| console.is_open());
            if all.len() >= MAX_CONSOLES
                && let Some(oldest) =
                    all.iter().min_by_key(|(_, console)| *lock(&console.used)).map(|(key, _)| key.clone())
                && let Some(oldest) = all.remove(&oldest)
            {
                oldest.end("another console took its place");
            }
            if let Some(earlier) = all.insert((session, vm.to_owned()), console.clone()) {
                earlier.end("it was opened again");
            }
        }
        let (this, served) = (self.clone(), console.clone());
        // It ends with its socket, which ends with the API, or when no page looks.
        tokio::spawn(async move {
            served.run(socket, input, now).await;
            lock(&this.0).retain(|_, other| !Arc::ptr_eq(other, &served));
        });
        console
    }

    /// Ends all consoles of a session.
    pub(crate) fn end(&self, session: Digest) {
        let all = lock(&self.0);
        all.iter().filter(|((of, _), _)| *of == session).for_each(|(_, console)| console.end("signed out"));
    }
}
