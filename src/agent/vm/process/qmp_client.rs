//! The connection to a running QEMU: control socket, console file and input FIFO. Attaches the NICs
//! before the guest's first instruction.

use super::{
    exit_status,
    qmp_message::{self, DiskError, QmpMessage},
    vm_event::VmEvent,
};
use crate::vm::{
    console::{
        console_input::ConsoleInput,
        console_log::{Console, FileWatch},
    },
    failure::failure,
    net::tap_ports,
    vm_paths::VmPaths,
};
use meshd_proto::vm::{VmFailureKind, VmSpec};
use serde_json::Value;
use std::{io, path::Path, sync::Arc, time::Duration};
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
const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(20);
/// Length of message queues.
const QUEUE: usize = 32;

pub struct QmpSessionConfig {
    pub spec: VmSpec,
    pub files: VmPaths,
    pub console: Console,
    pub console_input: Arc<Mutex<mpsc::Receiver<Vec<u8>>>>,
}

/// A session with a running QEMU, which continues to run when this is dropped.
#[derive(Debug)]
pub struct QmpSession {
    events: mpsc::Receiver<VmEvent>,
    commands: mpsc::Sender<&'static str>,
    process_ended: CancellationToken,
    _task: JoinSet<()>,
}

impl QmpSession {
    pub fn open(config: QmpSessionConfig) -> Self {
        let (sender, events) = mpsc::channel(QUEUE);
        let (commands, command_queue) = mpsc::channel(QUEUE);
        let process_ended = CancellationToken::new();
        let mut task = JoinSet::new();
        let ended = process_ended.clone();
        task.spawn(async move {
            match run(config, &sender, command_queue, &ended).await {
                // Other errors: the sockets break when the process ends, and the supervisor reports
                // that end.
                Err(error) if error.kind() == io::ErrorKind::Other => {
                    let failure = failure(VmFailureKind::NotStarted, error.to_string());
                    let _ = sender.send(VmEvent::GuestStartFailed(failure)).await;
                }
                Err(error) => tracing::debug!(%error, "a QMP session broke"),
                Ok(()) => {}
            }
        });
        QmpSession { events, commands, process_ended, _task: task }
    }

    /// Stops attempts to connect. Messages that the socket holds are still delivered.
    pub fn process_ended(&self) {
        self.process_ended.cancel();
    }

    /// Waits for the next event; `None` if the socket is closed.
    pub async fn next(&mut self) -> Option<VmEvent> {
        self.events.recv().await
    }

    /// Sends a command without arguments and does not wait for its answer.
    pub fn send(&self, command: &'static str) {
        if let Err(error) = self.commands.try_send(command) {
            tracing::warn!(%error, command, "cannot send a command to QEMU");
        }
    }
}

async fn run(
    config: QmpSessionConfig,
    events: &mpsc::Sender<VmEvent>,
    commands: mpsc::Receiver<&'static str>,
    process_ended: &CancellationToken,
) -> io::Result<()> {
    let mut connection = QmpConnection::open(&config, events, process_ended).await?;
    let console_watch = config.console.watch()?;
    config.console.refresh();
    if qmp_message::is_before_start(&connection.execute("query-status").await?) {
        tap_ports::attach(&config.spec).map_err(io::Error::other)?;
        connection.execute("cont").await?;
    }
    let _ = events.send(VmEvent::GuestRunning).await;
    // The guest may have been paused while no agent ran.
    connection.may_be_paused = true;
    serve(connection, &console_watch, &config, commands).await
}

async fn serve(
    mut connection: QmpConnection<'_>,
    console_watch: &FileWatch,
    config: &QmpSessionConfig,
    mut commands: mpsc::Receiver<&'static str>,
) -> io::Result<()> {
    let mut console_input = config.console_input.lock().await;
    let serial = config.files.serial_in();
    let mut fifo = ConsoleInput::new(&serial);
    loop {
        if std::mem::take(&mut connection.may_be_paused) {
            connection.report_pause().await?;
        }
        tokio::select! {
            line = connection.lines.next() => match line {
                Ok(Some(line)) => connection.handle(&line).await,
                Ok(None) | Err(_) => break,
            },
            changed = console_watch.changed() => {
                changed?;
                config.console.refresh();
            }
            Some(input) = console_input.recv(), if fifo.is_idle() => fifo.set_input(input),
            written = fifo.write(), if !fifo.is_idle() => {
                if let Err(error) = written {
                    tracing::warn!(%error, fifo = %serial.display(), "console input is lost");
                    fifo = ConsoleInput::new(&serial);
                }
            }
            Some(command) = commands.recv() => {
                connection.send(command).await?;
            }
        }
    }
    // QEMU ended: read the rest of its output.
    config.console.refresh();
    Ok(())
}

/// The control socket after the capabilities negotiation.
struct QmpConnection<'a> {
    spec: &'a VmSpec,
    lines: LineReader,
    write: OwnedWriteHalf,
    last_id: u64,
    events: &'a mpsc::Sender<VmEvent>,
    /// `query-status` must follow.
    may_be_paused: bool,
    last_disk_error: Option<DiskError>,
}

impl<'a> QmpConnection<'a> {
    async fn open(
        QmpSessionConfig { spec, files, .. }: &'a QmpSessionConfig,
        events: &'a mpsc::Sender<VmEvent>,
        process_ended: &CancellationToken,
    ) -> io::Result<Self> {
        let (read, write) = connect(&files.qmp(), process_ended).await?.into_split();
        let lines = LineReader::new(read);
        let mut connection = QmpConnection {
            spec,
            lines,
            write,
            last_id: 0,
            events,
            may_be_paused: false,
            last_disk_error: None,
        };
        while qmp_message::parse(&connection.line().await?) != QmpMessage::Greeting {}
        connection.execute("qmp_capabilities").await?;
        Ok(connection)
    }

    async fn line(&mut self) -> io::Result<Vec<u8>> {
        self.lines.next().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    async fn send(&mut self, command: &str) -> io::Result<u64> {
        self.last_id += 1;
        self.write.write_all(qmp_message::command(self.last_id, command).as_bytes()).await?;
        Ok(self.last_id)
    }

    /// Sends a command and waits for its answer; processes events meanwhile.
    async fn execute(&mut self, command: &str) -> io::Result<Value> {
        let command_id = self.send(command).await?;
        loop {
            let line = self.line().await?;
            match qmp_message::parse(&line) {
                QmpMessage::Return { id, value } if id == command_id => return Ok(value),
                QmpMessage::Error { id, reason } if id == command_id => {
                    return Err(io::Error::other(format!(
                        "QMP command `{command}` failed: {reason}"
                    )));
                }
                _ => self.handle(&line).await,
            }
        }
    }

    async fn report_pause(&mut self) -> io::Result<()> {
        let Some(pause) = qmp_message::pause(&self.execute("query-status").await?) else {
            return Ok(());
        };
        let _ = self
            .events
            .send(exit_status::paused(self.spec, &pause, self.last_disk_error.as_ref()))
            .await;
        Ok(())
    }

    async fn handle(&mut self, line: &[u8]) {
        match qmp_message::parse(line) {
            QmpMessage::Stopped => self.may_be_paused = true,
            QmpMessage::DiskError(error) => self.last_disk_error = Some(error),
            QmpMessage::Resumed => {
                self.last_disk_error = None;
                drop(self.events.send(VmEvent::Resumed).await);
            }
            QmpMessage::ShuttingDown(cause) => {
                drop(self.events.send(VmEvent::ShuttingDown(cause)).await)
            }
            QmpMessage::Error { reason, .. } => tracing::warn!(reason, "a QMP command failed"),
            _ => {}
        }
    }
}

/// Connects as soon as QEMU listens, or fails when QEMU ended. The state machine has the deadline.
async fn connect(path: &Path, process_ended: &CancellationToken) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                tokio::select! {
                    () = process_ended.cancelled() => return Err(error),
                    () = sleep(CONNECT_RETRY_DELAY) => {}
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
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            let used = end.map_or(bytes.len(), |end| end + 1);
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
    async fn overlong_line_is_skipped() {
        let (agent, mut qemu) = UnixStream::pair().expect("a pair");
        let (read, _write) = agent.into_split();
        let writer = tokio::spawn(async move {
            qemu.write_all(b"a\n").await.expect("written");
            qemu.write_all(&vec![b'x'; qmp_message::MAX_LINE + 10]).await.expect("written");
            qemu.write_all(b"\nb\nhalf").await.expect("written");
        });
        let mut lines = LineReader::new(read);
        assert_eq!(lines.next().await.expect("no I/O"), Some(b"a".to_vec()));
        assert_eq!(lines.next().await.expect("no I/O"), Some(b"b".to_vec()));
        assert_eq!(lines.next().await.expect("no I/O"), None);
        writer.await.expect("it ends");
    }
}
