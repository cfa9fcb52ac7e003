//! The connection to a running QEMU: control socket, console file and input FIFO. Plugs the NICs in before the guest's first instruction.

use super::{
    qmp_message::{self, DiskError, Pause, QmpMessage},
    vm_state_machine::ShutdownCause,
};
use crate::vm::{
    console::{
        console_input::ConsoleInput,
        console_log::{Console, FileWatch},
    },
    helper_program,
    net::tap_ports,
};
use meshd_types::fail;
use serde_json::Value;
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Mutex, mpsc},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

/// Delay between attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);
/// Length of message queues.
const WAITING: usize = 32;

/// An event of a running QEMU.
#[derive(Debug)]
pub enum QemuEvent {
    /// The guest runs.
    Answered,
    /// The guest cannot start.
    CannotGo(String),
    /// The guest is paused.
    Paused {
        /// QEMU's run state.
        pause: Pause,
        /// The disk error that caused it.
        error: Option<DiskError>,
    },
    /// The guest was resumed.
    Resumed,
    /// QEMU is about to end.
    ShuttingDown(ShutdownCause),
}

/// Paths and channels of a session.
pub struct QmpSessionConfig {
    /// Control socket.
    pub qmp: PathBuf,
    /// The FIFO that carries console input to QEMU.
    pub serial: PathBuf,
    /// Console output.
    pub console: Console,
    pub console_input: Arc<Mutex<mpsc::Receiver<Vec<u8>>>>,
    /// TAP device, bridge, and whether it may reach its peers there.
    pub ports: Vec<(String, String, bool)>,
    /// Path of `ip`.
    pub ip: Option<PathBuf>,
}

/// A session with a running QEMU, which continues to run when this is dropped.
#[derive(Debug)]
pub struct QmpSession {
    events: mpsc::Receiver<QemuEvent>,
    commands: mpsc::Sender<&'static str>,
    gone: CancellationToken,
    _task: JoinSet<()>,
}

impl QmpSession {
    /// Opens the session.
    pub fn open(terms: QmpSessionConfig) -> Self {
        let (sender, events) = mpsc::channel(WAITING);
        let (commands, orders) = mpsc::channel(WAITING);
        let gone = CancellationToken::new();
        let mut task = JoinSet::new();
        let ended = gone.clone();
        task.spawn(async move {
            match run(terms, &sender, orders, &ended).await {
                // Sockets break when the process ends, and the supervisor knows how it ended.
                Err(error) if error.kind() == io::ErrorKind::Other => {
                    let _ = sender.send(QemuEvent::CannotGo(error.to_string())).await;
                }
                Err(error) => tracing::debug!(%error, "a session with QEMU broke off"),
                Ok(()) => {}
            }
        });
        QmpSession { events, commands, gone, _task: task }
    }

    /// Tells the session that the process ended: it delivers what the socket still holds.
    pub fn is_gone(&self) {
        self.gone.cancel();
    }

    /// Waits for the next event; `None` when the socket ended.
    pub async fn next(&mut self) -> Option<QemuEvent> {
        self.events.recv().await
    }

    /// Presses the power button.
    pub fn power_down(&self) {
        self.send("system_powerdown");
    }

    /// Resumes the guest.
    pub fn resume(&self) {
        self.send("cont");
    }

    fn send(&self, command: &'static str) {
        if let Err(error) = self.commands.try_send(command) {
            tracing::warn!(%error, command, "a command was not sent to QEMU");
        }
    }
}

async fn run(
    terms: QmpSessionConfig,
    events: &mpsc::Sender<QemuEvent>,
    orders: mpsc::Receiver<&'static str>,
    gone: &CancellationToken,
) -> io::Result<()> {
    let mut control = QmpConnection::open(&terms.qmp, events, gone).await?;
    let written = terms.console.watch()?;
    terms.console.look();
    if qmp_message::is_before_start(&control.ask("query-status").await?) {
        plug(&terms).await.map_err(io::Error::other)?;
        control.ask("cont").await?;
    }
    let _ = events.send(QemuEvent::Answered).await;
    // The guest may have been paused while no agent ran.
    control.is_held = true;
    carry(control, &written, &terms, orders).await
}

/// Plugs each TAP device into its bridge.
async fn plug(terms: &QmpSessionConfig) -> Result<(), String> {
    for (port, bridge, peers) in &terms.ports {
        let ip = terms.ip.as_deref().ok_or("there is no `ip` to plug a card into a bridge")?;
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        helper_program::run(ip, &words(&["link", "set", "dev", port, "master", bridge])).await?;
        if !peers && fail::defends("guest-ports") {
            tap_ports::keep_apart(port)?;
        }
        helper_program::run(ip, &words(&["link", "set", "dev", port, "up"])).await?;
    }
    Ok(())
}

async fn carry(
    mut control: QmpConnection<'_>,
    written: &FileWatch,
    terms: &QmpSessionConfig,
    mut orders: mpsc::Receiver<&'static str>,
) -> io::Result<()> {
    let mut console_input = terms.console_input.lock().await;
    let mut keyboard = ConsoleInput::new(&terms.serial);
    loop {
        if std::mem::take(&mut control.is_held) {
            control.report_pause().await?;
        }
        tokio::select! {
            line = control.lines.next() => match line {
                Ok(Some(line)) => control.note(&line).await,
                Ok(None) | Err(_) => break,
            },
            new = written.changed() => {
                new?;
                terms.console.look();
            }
            Some(input) = console_input.recv(), if keyboard.is_idle() => keyboard.take(input),
            written = keyboard.write(), if !keyboard.is_idle() => {
                if let Err(error) = written {
                    tracing::warn!(%error, fifo = %terms.serial.display(), "console input is lost");
                    keyboard = ConsoleInput::new(&terms.serial);
                }
            }
            Some(command) = orders.recv() => {
                control.send(command).await?;
            }
        }
    }
    // QEMU ended: read the rest of its output.
    terms.console.look();
    Ok(())
}

/// The control socket after the capabilities negotiation.
struct QmpConnection<'a> {
    lines: LineReader,
    write: OwnedWriteHalf,
    last: u64,
    events: &'a mpsc::Sender<QemuEvent>,
    /// The guest is paused or may be: `query-status` follows.
    is_held: bool,
    /// Last disk error.
    error: Option<DiskError>,
}

impl<'a> QmpConnection<'a> {
    async fn open(path: &Path, events: &'a mpsc::Sender<QemuEvent>, gone: &CancellationToken) -> io::Result<Self> {
        let (read, write) = connect(path, gone).await?.into_split();
        let mut control =
            QmpConnection { lines: LineReader::new(read), write, last: 0, events, is_held: false, error: None };
        while qmp_message::read(&control.line().await?) != QmpMessage::Greeting {}
        control.ask("qmp_capabilities").await?;
        Ok(control)
    }

    async fn line(&mut self) -> io::Result<Vec<u8>> {
        self.lines.next().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    async fn send(&mut self, command: &str) -> io::Result<u64> {
        self.last += 1;
        self.write.write_all(qmp_message::command(self.last, command).as_bytes()).await?;
        Ok(self.last)
    }

    /// Sends a command and waits for its answer; processes events meanwhile.
    async fn ask(&mut self, command: &str) -> io::Result<Value> {
        let asked = self.send(command).await?;
        loop {
            let line = self.line().await?;
            match qmp_message::read(&line) {
                QmpMessage::Done { id, value } if id == asked => return Ok(value),
                QmpMessage::Refused { id, reason } if id == asked => {
                    return Err(io::Error::other(format!("QEMU refuses `{command}`: {reason}")));
                }
                _ => self.note(&line).await,
            }
        }
    }

    async fn report_pause(&mut self) -> io::Result<()> {
        let Some(pause) = qmp_message::pause(&self.ask("query-status").await?) else { return Ok(()) };
        let _ = self.events.send(QemuEvent::Paused { pause, error: self.error.clone() }).await;
        Ok(())
    }

    async fn note(&mut self, line: &[u8]) {
        match qmp_message::read(line) {
            QmpMessage::Stopped => self.is_held = true,
            QmpMessage::DiskError(error) => self.error = Some(error),
            QmpMessage::Resumed => {
                self.error = None;
                drop(self.events.send(QemuEvent::Resumed).await);
            }
            QmpMessage::ShuttingDown(leaving) => drop(self.events.send(QemuEvent::ShuttingDown(leaving)).await),
            QmpMessage::Refused { reason, .. } => tracing::warn!(reason, "QEMU refuses a command"),
            _ => {}
        }
    }
}

/// Connects as soon as QEMU listens, or gives up when it ended. The state machine has the deadline.
async fn connect(path: &Path, gone: &CancellationToken) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                tokio::select! {
                    () = gone.cancelled() => return Err(error),
                    () = sleep(PAUSE) => {}
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads lines of a socket. Skips lines longer than [`qmp_message::MAX_LINE`]. Cancel-safe.
struct LineReader {
    read: BufReader<OwnedReadHalf>,
    line: Vec<u8>,
    is_too_long: bool,
}

impl LineReader {
    fn new(read: OwnedReadHalf) -> Self {
        LineReader { read: BufReader::new(read), line: Vec::new(), is_too_long: false }
    }

    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let bytes = self.read.fill_buf().await?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (piece, used) = (&bytes[..end.unwrap_or(bytes.len())], end.map_or(bytes.len(), |end| end + 1));
            if self.line.len() + piece.len() > qmp_message::MAX_LINE {
                self.is_too_long = true;
            }
            if !self.is_too_long {
                self.line.extend_from_slice(piece);
            }
            self.read.consume(used);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                if !std::mem::take(&mut self.is_too_long) {
                    return Ok(Some(line));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_without_end_is_passed_over_and_the_next_is_read() {
        let (one, mut two) = UnixStream::pair().expect("a pair");
        let (read, _write) = one.into_split();
        let writer = tokio::spawn(async move {
            two.write_all(b"a\n").await.expect("written");
            two.write_all(&vec![b'x'; qmp_message::MAX_LINE + 10]).await.expect("written");
            two.write_all(b"\nb\nhalf").await.expect("written");
        });
        let mut lines = LineReader::new(read);
        assert_eq!(lines.next().await.expect("no I/O"), Some(b"a".to_vec()));
        assert_eq!(lines.next().await.expect("no I/O"), Some(b"b".to_vec()));
        assert_eq!(lines.next().await.expect("no I/O"), None);
        writer.await.expect("it ends");
    }
}
