//! Sends the node's log to the central node: kernel messages since the start of the kernel, and the
//! system log.
//!
//! | module | content |
//! | --- | --- |
//! | `kernel_log` | reads `/dev/kmsg` |
//! | `journal` | follows the journal of systemd |
//! | `system_log` | follows `/var/log/messages` |
//!
//! Bounds: one unacknowledged piece of each source, and after the first MiB one piece a second. A
//! source that writes faster loses its oldest lines to the kernel's ring buffer or the rotation of
//! syslogd.

mod kernel_log;
mod journal;
mod system_log;

#[cfg(test)]
mod tests;

use crate::{
    link::acked_stream::{AckedOffsets, forward},
    system::Tree,
};
use meshd_proto::log::{LogPiece, LogSource, LogStored};
use std::{io, time::Duration};
use tokio::{
    io::{AsyncWriteExt as _, DuplexStream, duplex},
    sync::{mpsc, watch},
    task::JoinSet,
    time::sleep,
};

const KERNEL_LOG: &str = "/dev/kmsg";
/// Folder that systemd makes when it is the service manager (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
const SYSTEM_LOG: &str = "/var/log/messages";
/// Bytes of a source that are sent at full speed: more than the log of a long boot.
const BURST: u64 = 1 << 20;
/// Bytes between two pauses after the burst.
const STEP: u64 = 8 << 10;
const PAUSE: Duration = Duration::from_secs(1);
/// Interval of polls for new lines. Both sources are in memory, so that a poll costs one or two
/// system calls.
const INTERVAL: Duration = Duration::from_secs(1);
/// Length of the queue to the driver.
const QUEUE_LENGTH: usize = 4;

/// The log of this boot.
pub struct BootLog {
    messages: mpsc::Receiver<LogPiece>,
    sender: mpsc::Sender<LogPiece>,
    acked: watch::Sender<AckedOffsets<LogSource>>,
    readers: JoinSet<()>,
}

impl BootLog {
    pub fn new() -> Self {
        let (sender, messages) = mpsc::channel(QUEUE_LENGTH);
        BootLog { messages, sender, acked: watch::Sender::default(), readers: JoinSet::new() }
    }

    /// Begins a new link: starts to read for the first one, repeats unacknowledged pieces for later
    /// ones.
    pub fn begin_link(&mut self, tree: &Tree) {
        if !self.readers.is_empty() {
            return self.acked.send_modify(AckedOffsets::rewind);
        }
        let path = tree.path(KERNEL_LOG);
        let to = self.start(LogSource::Kernel);
        self.readers
            .spawn(async move { log_end(LogSource::Kernel, kernel_log::forward(&path, to).await) });
        let path = tree.path(SYSTEM_LOG);
        let to = self.start(LogSource::System);
        let has_journal = tree.has(SYSTEMD);
        self.readers.spawn(async move {
            let end = match has_journal {
                true => journal::forward(to).await,
                false => system_log::forward(&path, to).await,
            };
            log_end(LogSource::System, end);
        });
    }

    /// Returns a writer whose bytes are forwarded.
    fn start(&mut self, source: LogSource) -> PacedWriter {
        let (to, from) = duplex(meshd_proto::task::MAX_PIECE);
        let message = move |at, data| LogPiece { source, at, data };
        self.readers.spawn(forward(
            source,
            from,
            self.sender.clone(),
            self.acked.subscribe(),
            message,
        ));
        PacedWriter { to, written: 0 }
    }

    /// Records that the central node stored a piece.
    pub fn stored(&self, LogStored { source, end }: LogStored) {
        self.acked.send_modify(|acked| acked.acknowledge(source, end));
    }

    /// Waits for the next piece. Cancel-safe.
    pub async fn next(&mut self) -> LogPiece {
        match self.messages.recv().await {
            Some(piece) => piece,
            // Unreachable: the channel is open as long as `self.sender` exists.
            None => std::future::pending().await,
        }
    }

    /// Stops reading.
    pub async fn end(mut self) {
        self.readers.shutdown().await;
    }
}

/// Logs the error of a source. The agent continues without the source.
fn log_end(source: LogSource, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::info!(source = source.as_str(), %error, "cannot send a log");
    }
}

/// A writer that pauses after [`BURST`] bytes.
struct PacedWriter {
    to: DuplexStream,
    written: u64,
}

impl PacedWriter {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for step in bytes.chunks(STEP as usize) {
            self.to.write_all(step).await?;
            let before = self.written / STEP;
            self.written += step.len() as u64;
            if self.written > BURST && self.written / STEP > before {
                sleep(PAUSE).await;
            }
        }
        Ok(())
    }
}
