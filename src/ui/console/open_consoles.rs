//! Open consoles by session and target.

use super::{console_target::ConsoleTarget, repeat_filter::RepeatFilter, terminal_screen};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use maud::Markup;
use meshd_client::Socket;
use meshd_proto::vm::ConsoleNote;
use meshd_types::{Digest, failpoint};
use std::{
    collections::BTreeMap,
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::Message;

/// Number of open consoles from which on a new one replaces the console of a VM that no page has
/// polled for the longest time. A shell is never replaced, because its programs would end.
const MAX_CONSOLES: usize = 64;
/// A console closes after this time without a poll by a page.
const IDLE_TIME: Duration = Duration::from_secs(90);
/// The same for a shell, whose programs end with it: a hidden page does not poll.
const SHELL_IDLE_TIME: Duration = Duration::from_secs(15 * 60);
/// Time in which the page of an ended shell shows its last screen: a program may end before the
/// page is loaded.
const LAST_SCREEN_TIME: Duration = Duration::from_secs(5 * 60);
/// Interval between two checks for idle consoles.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of input pieces that wait for the guest.
const MAX_WAITING: usize = 64;
/// Bytes of guest output that are emulated at a time. Between two slices, the terminal is unlocked
/// and other tasks of the thread run.
const SLICE: usize = 1024;

/// Session and target.
type Key = (Digest, ConsoleTarget);

/// Filter and emulator for the output of a guest.
struct Terminal {
    filter: RepeatFilter,
    emulator: vt100::Parser,
}

pub(crate) struct Console {
    terminal: Mutex<Terminal>,
    /// Number of changes of the screen.
    version: watch::Sender<u64>,
    typed: mpsc::Sender<Bytes>,
    /// Time of the last poll by a page.
    used: Mutex<Instant>,
    idle_time: Duration,
    /// The program that its user chose; empty for a target that takes none.
    program: String,
    /// Reason why the console ended.
    ended: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Console {
    fn new(target: &ConsoleTarget, program: &str, now: Instant) -> (Self, mpsc::Receiver<Bytes>) {
        let (typed, input) = mpsc::channel(MAX_WAITING);
        let (rows, columns) = terminal_screen::SIZE;
        let emulator = vt100::Parser::new(rows, columns, 0);
        let terminal = Mutex::new(Terminal { filter: RepeatFilter::default(), emulator });
        let version = watch::Sender::new(1);
        let used = Mutex::new(now);
        let ended = Mutex::default();
        let idle_time = if target.is_shell() { SHELL_IDLE_TIME } else { IDLE_TIME };
        let program = if target.takes_program() { program.to_owned() } else { String::new() };
        (Console { terminal, version, typed, used, idle_time, program, ended }, input)
    }

    /// Returns the program that its user chose; empty for a target that takes none.
    pub(crate) fn program(&self) -> &str {
        &self.program
    }

    /// Returns the number of the current screen, its HTML, and the reason if the console ended.
    pub(crate) fn screen(&self) -> (u64, Markup, Option<String>) {
        let version = *self.version.borrow();
        (
            version,
            terminal_screen::html(lock(&self.terminal).emulator.screen()),
            lock(&self.ended).clone(),
        )
    }

    /// Waits for a screen with another number, for at most `limit`.
    pub(crate) async fn changed(&self, after: u64, limit: Duration) {
        let mut versions = self.version.subscribe();
        // The sender lives as long as `self`.
        let _ = tokio::time::timeout(limit, versions.wait_for(|version| *version != after)).await;
    }

    /// Sends input to the guest. Returns false if the guest has not read earlier input, or if the
    /// console ended.
    pub(crate) fn write(&self, bytes: Bytes) -> bool {
        lock(&self.ended).is_none() && self.typed.try_send(bytes).is_ok()
    }

    /// Emulates output in slices, because the emulation of a large output would block other tasks.
    async fn show(&self, bytes: &[u8]) {
        let size = if failpoint::defends("ui-console-slices") { SLICE } else { bytes.len().max(1) };
        for slice in bytes.chunks(size) {
            self.emulate(slice);
            tokio::task::yield_now().await;
        }
        self.version.send_modify(|version| *version += 1);
    }

    fn emulate(&self, slice: &[u8]) {
        let mut terminal = lock(&self.terminal);
        let bytes = terminal.filter.apply(slice);
        terminal.emulator.process(&bytes);
    }

    fn end(&self, reason: &str) {
        lock(&self.ended).get_or_insert_with(|| reason.to_owned());
        self.version.send_modify(|version| *version += 1);
    }

    fn is_idle(&self, now: Instant) -> bool {
        now.duration_since(*lock(&self.used)) >= self.idle_time
    }

    fn is_open(&self) -> bool {
        lock(&self.ended).is_none()
    }

    /// Serves a socket until either side ends.
    async fn run(
        &self,
        mut socket: Socket,
        mut input: mpsc::Receiver<Bytes>,
        now: fn() -> Instant,
    ) {
        let reason = tokio::select! {
            reason = self.carry(&mut socket, &mut input) => reason,
            // This branch also ends a `carry` that waits for a guest that does not read.
            reason = self.over(now), if failpoint::defends("ui-console-ends") => reason,
        };
        self.end(&reason);
        // The close frame is best effort: the peer may be gone.
        let _ = tokio::time::timeout(Duration::from_secs(1), socket.close(None)).await;
    }

    /// Relays bytes between guest and terminal. Returns the reason for the end.
    async fn carry(&self, socket: &mut Socket, input: &mut mpsc::Receiver<Bytes>) -> String {
        loop {
            tokio::select! {
                message = socket.next() => match message {
                    Some(Ok(Message::Binary(bytes))) => self.show(&bytes).await,
                    Some(Ok(Message::Text(text))) => self.note(&text).await,
                    Some(Ok(Message::Close(_))) | None => return "the console was closed".to_owned(),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return format!("the connection broke: {error}"),
                },
                // After an error, the branch above reads what arrived before it.
                Some(bytes) = input.recv() => drop(socket.send(Message::Binary(bytes)).await),
            }
        }
    }

    /// Resolves when this console has been ended, or when no page has polled it for its
    /// idle time.
    async fn over(&self, now: fn() -> Instant) -> String {
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        let mut versions = self.version.subscribe();
        while self.is_open() {
            tokio::select! {
                _ = checks.tick() => if self.is_idle(now()) { return "no page was open".to_owned() },
                // The sender lives as long as `self`.
                _ = versions.changed() => {}
            }
        }
        String::new()
    }

    async fn note(&self, text: &str) {
        match serde_json::from_str(text) {
            Ok(ConsoleNote::Lost { bytes }) => {
                self.show(format!("\r\n[{bytes} bytes are missing]\r\n").as_bytes()).await;
            }
            Ok(ConsoleNote::EndsSoon { seconds, .. }) => {
                let note = format!("\r\n[ends in {seconds} s without input]\r\n");
                self.show(note.as_bytes()).await;
            }
            // The close frame follows; the first reason counts.
            Ok(ConsoleNote::Ended { reason, .. }) => self.end(&reason),
            Ok(ConsoleNote::Exited { code }) => self.end(&format!("exit code {code}")),
            Ok(ConsoleNote::InputQueued) | Err(_) => {}
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Consoles(Arc<Mutex<BTreeMap<Key, Arc<Console>>>>);

fn oldest_of_vm(all: &BTreeMap<Key, Arc<Console>>) -> Option<Key> {
    all.iter()
        .filter(|((_, target), _)| !target.is_shell())
        .min_by_key(|(_, console)| *lock(&console.used))
        .map(|(key, _)| key.clone())
}

impl Consoles {
    /// Returns the open console of a session.
    pub(crate) fn find(
        &self,
        session: Digest,
        target: &ConsoleTarget,
        now: Instant,
    ) -> Option<Arc<Console>> {
        let console = lock(&self.0).get(&(session, target.clone())).cloned()?;
        *lock(&console.used) = now;
        Some(console)
    }

    /// Serves a socket as the console of a session. Ends an earlier console of this session and
    /// target.
    pub(crate) fn open(
        &self,
        session: Digest,
        target: &ConsoleTarget,
        program: &str,
        socket: Socket,
        now: fn() -> Instant,
    ) -> Arc<Console> {
        let (console, input) = Console::new(target, program, now());
        let console = Arc::new(console);
        {
            let mut all = lock(&self.0);
            if all.len() >= MAX_CONSOLES {
                all.retain(|_, console| console.is_open());
            }
            if all.len() >= MAX_CONSOLES
                && let Some(oldest) = oldest_of_vm(&all)
                && let Some(oldest) = all.remove(&oldest)
            {
                oldest.end("another console replaced it");
            }
            if let Some(earlier) = all.insert((session, target.clone()), console.clone()) {
                earlier.end("it was opened again");
            }
        }
        let this = self.clone();
        let served = console.clone();
        let is_shell = target.is_shell();
        // The task ends with its socket. The socket ends with the API, or when no page polls the
        // console.
        tokio::spawn(async move {
            served.run(socket, input, now).await;
            // Only the table, which is bounded, holds an ended console.
            let ended = Arc::downgrade(&served);
            drop(served);
            if is_shell {
                tokio::time::sleep(LAST_SCREEN_TIME).await;
            }
            lock(&this.0).retain(|_, other| !ptr::eq(Arc::as_ptr(other), ended.as_ptr()));
        });
        console
    }

    /// Ends all consoles of a session.
    pub(crate) fn end(&self, session: Digest) {
        let is_other = |of: Digest, console: &Console| {
            if of == session {
                console.end("signed out");
            }
            of != session
        };
        lock(&self.0).retain(|(of, _), console| is_other(*of, console));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The runtime of this test has one thread: the other task runs only while the emulator yields.
    #[tokio::test]
    async fn guest_output_is_emulated_in_slices_that_yield() {
        const SLICES: usize = 64;
        let target = ConsoleTarget::Vm("one".to_owned());
        let (console, _input) = Console::new(&target, "", Instant::now());
        let console = Arc::new(console);
        let turns = Arc::new(AtomicUsize::new(0));
        let watched = console.clone();
        let counted = turns.clone();
        let other = tokio::spawn(async move {
            loop {
                drop(watched.terminal.try_lock().expect("the terminal is unlocked"));
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        console.show("a\u{1b}[65535b".repeat(SLICES * SLICE / 9 + 1).as_bytes()).await;
        assert!(turns.load(Ordering::Relaxed) >= SLICES, "{turns:?}");
        other.abort();
    }

    #[test]
    fn shell_is_never_replaced_by_another_console() {
        let now = Instant::now();
        let shell = ConsoleTarget::Node("one".to_owned());
        let open = |target: &ConsoleTarget, at| Arc::new(Console::new(target, "", at).0);
        let key = |target: &ConsoleTarget| (Digest([1; 32]), target.clone());
        let mut all = BTreeMap::from([(key(&shell), open(&shell, now))]);
        assert_eq!(oldest_of_vm(&all), None);
        for (name, age) in [("new", 2), ("old", 1)] {
            let target = ConsoleTarget::Vm(name.to_owned());
            all.insert(key(&target), open(&target, now + Duration::from_secs(age)));
        }
        assert_eq!(oldest_of_vm(&all), Some(key(&ConsoleTarget::Vm("old".to_owned()))));
    }

    /// The emulator stores the title until its terminator, which a guest need not send.
    #[test]
    fn unterminated_window_title_is_bounded() {
        #[derive(Default)]
        struct TitleLength(usize);
        impl vt100::Callbacks for TitleLength {
            fn set_window_title(&mut self, _: &mut vt100::Screen, title: &[u8]) {
                self.0 = title.len();
            }
        }
        let (rows, columns) = terminal_screen::SIZE;
        let mut emulator =
            vt100::Parser::new_with_callbacks(rows, columns, 0, TitleLength::default());
        emulator.process(b"\x1b]2;");
        emulator.process(&[b'a'; 64 * 1024]);
        emulator.process(b"\x07");
        let title_length = emulator.callbacks().0;
        assert!((1..=1024).contains(&title_length), "{title_length} bytes");
    }
}
