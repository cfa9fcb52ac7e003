//! Logs of boots: pieces that agents send, and the reason of a boot that failed before its agent started.

use crate::serve::central::boot::BootService;
use meshd_model::{
    boot::BootFailure,
    fleet::{Actor, Event, EventKind, Stage},
};
use meshd_proto::{
    FromCentral,
    log::{LogPiece, LogSource, LogStored},
    task::Piece,
};
use meshd_store::{Chunk, Limits, LogLine};
use meshd_types::{BootSessionId, NodeId};
use std::{collections::BTreeSet, io, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{sync::watch, task::spawn_blocking};

/// The log of one boot: 512 KiB, its beginning and its newest part. No file stays open, because a rack has thousands of logs.
pub(super) const LOG_LIMITS: Limits = Limits { segment: 128 << 10, newest: 3, keep_open: false };
/// Logs of boots that are no longer on record are removed this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

impl BootService {
    /// Stores a piece of a node's log. Without an answer, the node repeats the piece.
    pub(crate) async fn store_log(&self, node: NodeId, session: BootSessionId, piece: LogPiece) -> Option<FromCentral> {
        let LogPiece { source, at, data } = piece;
        let line = LogLine { when: self.env.now(), node, stream: source, at, data };
        match self.append_log(session, line).await {
            Ok(upto) => Some(FromCentral::LogStored(LogStored { source, upto })),
            Err(error) => {
                tracing::error!(%node, %session, %error, "the log of a node is not stored; check the disk");
                None
            }
        }
    }

    async fn append_log(&self, session: BootSessionId, line: LogLine<LogSource>) -> io::Result<u64> {
        let logs = Arc::clone(&self.logs);
        spawn_blocking(move || logs.append(session, line)).await.map_err(io::Error::other)?
    }

    /// Records why `mesh-init` refused to start a node. Returns false if the machine at this address does not boot this session, or if its
    /// agent has already started.
    pub async fn boot_failed(&self, from: Ipv4Addr, failure: BootFailure) -> bool {
        let BootFailure { session, reason } = failure;
        let node = self.env.store.read(|model| {
            let boot = model.session_at(from).filter(|boot| boot.id == session)?;
            boot.node.filter(|_| boot.reached(Stage::Enrolled).is_none())
        });
        let Some(node) = node else { return false };
        if !self.env.allows(&format!("failed boot of {node}")) {
            return true;
        }
        let now = self.env.now();
        let event = Event::new(now, Actor::Node, EventKind::BootFailed, reason.clone()).of_node(node);
        self.env.record(event.in_session(session)).await;
        let data = Piece::Text(format!("mesh-init: FAILED: {reason}\n"));
        let line = LogLine { when: now, node, stream: LogSource::BootFailure, at: 0, data };
        if let Err(error) = self.append_log(session, line).await {
            tracing::error!(%node, %session, %error, "the report of a failed boot is not stored; check the disk");
        }
        true
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
        let now = self.env.monotonic();
        {
            let mut swept = self.swept.lock();
            if swept.is_some_and(|last| now.saturating_sub(last) < SWEEP_INTERVAL) {
                return;
            }
            *swept = Some(now);
        }
        let sessions: BTreeSet<BootSessionId> = self.env.store.read(|model| model.session_ids().collect());
        let logs = Arc::clone(&self.logs);
        // The next sweep removes what this one could not.
        let _ = spawn_blocking(move || logs.keep_only(&sessions)).await;
    }
}
