//! Logs of boots: pieces that agents send, the text of serial consoles, and the reason of a boot
//! that failed before its agent started.

use crate::{
    boot::BootService,
    environment::{alarms::log_failure, lan_client::LanClient, sources::Neighbour},
};
use meshd_model::{
    boot::BootFailure,
    fleet::{Actor, BootSession, Event, EventKind, Stage},
};
use meshd_proto::{
    FromCentral,
    log::{LogPiece, LogSource, LogStored},
    task::Piece,
};
use meshd_store::{Chunk, Limits, LogLine, StoreError};
use meshd_types::{BootSessionId, MacAddr, NodeId, failpoint};
use std::{collections::BTreeSet, io, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{sync::watch, task::spawn_blocking};

/// The log of one boot: 512 KiB, its beginning and its newest part. No file stays open, because a
/// rack has thousands of logs.
pub(super) const LOG_LIMITS: Limits = Limits { segment: 128 << 10, newest: 3, keep_open: false };
/// An agent sends at most 2 MiB and 16 KiB a second; a hostile node must not fill the disk.
const AGENT_RATE: LogRate = LogRate { burst: 4 << 20, per_second: 32 << 10 };
/// A serial port of 115200 baud has 11.5 KiB a second.
const CONSOLE_RATE: LogRate = LogRate { burst: 256 << 10, per_second: 16 << 10 };
/// Bytes of a stored line besides its text: time, node, source, offset.
const LINE_OVERHEAD: u64 = 128;
/// Maximum length of a stored piece of a console, in bytes.
const MAX_CONSOLE_PIECE: usize = 8 << 10;
/// Logs of boots that are no longer on record are removed this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// Bytes that a writer may store at once, and in each second after that.
#[derive(Clone, Copy, Debug)]
struct LogRate {
    burst: u64,
    per_second: u64,
}

/// Who writes into the log of a boot. Each has a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LogWriter {
    Agent,
    Console,
    Netconsole,
}

/// Rate limit of one writer of the log of one boot: a token bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogBudget {
    rate: LogRate,
    /// Bytes that the writer may store now, at most the burst.
    rest: u64,
    /// Monotonic time of the last refill.
    refilled: Duration,
}

impl LogBudget {
    fn new(rate: LogRate, now: Duration) -> Self {
        LogBudget { rate, rest: rate.burst, refilled: now }
    }

    /// Returns true if the node may send so many bytes now.
    fn admits(&mut self, bytes: u64, now: Duration) -> bool {
        let LogRate { burst, per_second } = self.rate;
        let seconds = now.saturating_sub(self.refilled).as_secs();
        let gain = per_second.saturating_mul(seconds);
        self.rest = self.rest.saturating_add(gain).min(burst);
        self.refilled += Duration::from_secs(seconds);
        let admitted = bytes <= self.rest || !failpoint::defends("boot-log-rate");
        if admitted {
            self.rest = self.rest.saturating_sub(bytes);
        }
        admitted
    }
}

impl BootService {
    /// Stores a piece of a node's log. Without an acknowledgement, the node repeats the piece.
    pub(crate) async fn store_log(
        &self,
        node: NodeId,
        session: BootSessionId,
        piece: LogPiece,
    ) -> Option<FromCentral> {
        let LogPiece { source, at, data } = piece;
        let length = piece_length(&data);
        if !source.is_of_agent() || !self.admits_log(session, LogWriter::Agent, length) {
            return None;
        }
        let line = LogLine { when: self.env.now(), node, stream: source, at, data };
        match self.append_log(session, line).await {
            Ok(end) => Some(FromCentral::LogStored(LogStored { source, end })),
            Err(error) => {
                tracing::error!(%node, %session, %error, "the log of a node is not stored; check the disk");
                None
            }
        }
    }

    /// Stores text of the serial console of a machine. Returns false if it exceeds the rate, or
    /// cannot be stored: it is lost.
    pub(crate) async fn store_console(
        &self,
        node: NodeId,
        session: BootSessionId,
        text: Vec<u8>,
    ) -> bool {
        if !self.admits_log(session, LogWriter::Console, text.len() as u64) {
            return false;
        }
        let logs = Arc::clone(&self.logs);
        let when = self.env.now();
        let stored = spawn_blocking(move || {
            text.chunks(MAX_CONSOLE_PIECE).try_for_each(|piece| {
                let data = Piece::from_bytes(piece.to_vec());
                let line = LogLine { when, node, stream: LogSource::Console, at: 0, data };
                logs.append_next(session, line).map(drop)
            })
        });
        match stored.await.map_err(io::Error::other).and_then(|stored| stored) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%node, %session, %error, "the console of a node is not stored; check the disk");
                false
            }
        }
    }

    /// Stores a kernel message that came by UDP, if the machine at this address boots or runs. What
    /// exceeds the rate is lost.
    pub async fn store_kernel_message(&self, from: Ipv4Addr, text: String) {
        let found = self.env.store.read(|model| {
            let boot = model.session_at(from)?;
            let node = boot.node.filter(|_| !boot.ended)?;
            Some((node, boot.id, boot.mac))
        });
        let Some((node, session, own)) = found else { return };
        // ARP requests take so long that packets of other machines would be lost meanwhile.
        if self.env.lan.neighbour(from) == Neighbour::Unknown {
            return;
        }
        let is_own = |mac: &MacAddr| *mac == own || !failpoint::defends("netconsole-neighbour");
        if self.env.check_neighbour(&from.into(), is_own).await.is_err() {
            return;
        }
        // Another machine must not spend the budget.
        if !self.admits_log(session, LogWriter::Netconsole, text.len() as u64) {
            return;
        }
        // A netconsole begins with the messages so far: the command line may have a capability,
        // and a long message comes in several packets.
        let text =
            self.netconsole_redactors.lock().entry(session).or_default().redact(text.as_bytes());
        let logs = Arc::clone(&self.logs);
        let when = self.env.now();
        let data = Piece::from_bytes(text);
        let line = LogLine { when, node, stream: LogSource::Netconsole, at: 0, data };
        let stored = spawn_blocking(move || logs.append_next(session, line)).await;
        if let Err(error) = stored.map_err(io::Error::other).and_then(|stored| stored) {
            tracing::error!(%node, %session, %error, "a kernel message is not stored; check the disk");
        }
    }

    fn admits_log(&self, session: BootSessionId, writer: LogWriter, bytes: u64) -> bool {
        let now = self.env.monotonic();
        let rate = match writer {
            LogWriter::Agent => AGENT_RATE,
            LogWriter::Console | LogWriter::Netconsole => CONSOLE_RATE,
        };
        let mut budgets = self.log_budgets.lock();
        let budget = budgets.entry((session, writer)).or_insert(LogBudget::new(rate, now));
        budget.admits(bytes.saturating_add(LINE_OVERHEAD), now)
    }

    async fn append_log(
        &self,
        session: BootSessionId,
        line: LogLine<LogSource>,
    ) -> io::Result<u64> {
        let logs = Arc::clone(&self.logs);
        spawn_blocking(move || logs.append(session, line)).await.map_err(io::Error::other)?
    }

    /// Records why the first program refused to start a node. Returns false if the machine at this
    /// address does not boot this session, or if its agent has already started.
    pub async fn record_failed_boot(
        &self,
        client: impl Into<LanClient>,
        failure: BootFailure,
    ) -> bool {
        let (client, BootFailure { session, reason }) = (client.into(), failure);
        let found = self.env.store.read(|model| {
            let boot = model.session_at(client.ipv4()).filter(|boot| boot.id == session)?;
            let node = boot.node.filter(|_| boot.reached(Stage::Enrolled).is_none())?;
            Some((node, boot.mac, self.image_kind_of(model, boot).first_program()))
        });
        let Some((node, own, program)) = found else { return false };
        let is_own = |mac: &MacAddr| *mac == own || !failpoint::defends("boot-failed-neighbour");
        if self.env.check_neighbour(&client, is_own).await.is_err() {
            return false;
        }
        if !self.env.allows(&format!("failed boot of {node}")) {
            return true;
        }
        let now = self.env.now();
        self.record_failure(node, session, &reason).await;
        let data = Piece::Text(format!("{program}: FAILED: {reason}\n"));
        let line = LogLine { when: now, node, stream: LogSource::BootFailure, at: 0, data };
        if let Err(error) = self.append_log(session, line).await {
            tracing::error!(%node, %session, %error, "the report of a failed boot is not stored; check the disk");
        }
        true
    }

    async fn record_failure(&self, node: NodeId, session: BootSessionId, reason: &str) {
        let event =
            Event::new(self.env.now(), Actor::Node, EventKind::BootFailed, reason.to_owned())
                .of_node(node);
        let recorded = self.env.store.commit(|tx| {
            if let Some(boot) = tx.session(session).cloned() {
                tx.put_session(BootSession { failure: Some(reason.to_owned()), ..boot });
            }
            tx.event(event.in_session(session));
            Ok::<_, StoreError>(())
        });
        log_failure(recorded.await, "cannot record a failed boot");
    }

    /// Returns lines of a boot's log from an offset on.
    pub async fn boot_log(&self, session: BootSessionId, from: u64) -> io::Result<Chunk> {
        let logs = Arc::clone(&self.logs);
        spawn_blocking(move || logs.read(session, from)).await.map_err(io::Error::other)?
    }

    /// Returns a signal for new lines of a boot's log.
    pub async fn watch_boot_log(&self, session: BootSessionId) -> io::Result<watch::Receiver<u64>> {
        let logs = Arc::clone(&self.logs);
        spawn_blocking(move || logs.watch(session)).await.map_err(io::Error::other)?
    }

    /// Removes logs of boots that are no longer on record, once in every [`SWEEP_INTERVAL`].
    pub(crate) async fn sweep_logs(&self) {
        if !self.log_sweeps.is_due(self.env.monotonic(), SWEEP_INTERVAL) {
            return;
        }
        let sessions: BTreeSet<BootSessionId> =
            self.env.store.read(|model| model.session_ids().collect());
        self.log_budgets.lock().retain(|(session, _), _| sessions.contains(session));
        self.netconsole_redactors.lock().retain(|session, _| sessions.contains(session));
        let env = Arc::clone(&self.env);
        let logs = Arc::clone(&self.logs);
        let sessions = move || env.store.read(|model| model.session_ids().collect());
        // The next sweep removes what this one could not.
        let _ = spawn_blocking(move || logs.keep_only(sessions)).await;
    }
}

/// Bytes of a piece as it was sent.
fn piece_length(data: &Piece) -> u64 {
    let length = match data {
        Piece::Text(text) => text.len(),
        Piece::Bytes { hex } => hex.len(),
    };
    length as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_of_node_is_limited_to_burst_and_rate() {
        let start = Duration::from_secs(100);
        let piece = 8 << 10;
        let mut budget = LogBudget::new(AGENT_RATE, start);
        let mut stored = |now: Duration| {
            (0..10_000).filter(|_| budget.admits(piece, now)).count() as u64 * piece
        };
        let LogRate { burst, per_second } = AGENT_RATE;
        assert_eq!(stored(start), burst);
        assert_eq!(stored(start), 0, "the burst is spent");
        assert_eq!(stored(start + Duration::from_secs(10)), 10 * per_second);
        assert_eq!(stored(start + Duration::from_secs(3600)), burst, "an idle hour earns no more");
    }
}
