//! Store: the only owner of durable state.
//!
//! | module | content |
//! | --- | --- |
//! | `archive` | files beside the journal: large contents that the records name |
//! | `audit` | the audit log: append-only and bounded, written in the transaction of the change |
//! | `change_log` | the log of changes: the store's only way to the disk |
//! | `events` | the event log: append-only and bounded, written in every transaction |
//! | `flush` | group commit: concurrent writers share one flush; a change that cannot be written is undone |
//! | `index` | indexes in memory, derived from the records and updated with them |
//! | `journal` | the journal: the log of changes as files |
//! | `model` | the model: all state in memory, with its indexes |
//! | `open` | opens the store: folder, journal, and all records into the model |
//! | `records` | the kinds of records: key, type and index of each |
//! | `retention` | bounds of events, audit lines and finished tasks; folding of repeats |
//! | `tx` | a transaction: reads see its staged changes |
//!
//! **Terms.** A *record* is one key with one JSON value. A *change* is what one [`Store::commit`]
//! writes. The *journal* is the file of all changes. The *model* is the state in memory.
//! *Acknowledged* means flushed to the disk.
//!
//! `records` lists the kinds of records.
//!
//! **Update protocol.** [`Store::commit`] runs a closure on a [`Tx`] and applies the staged records
//! to the model, so that the next transaction sees them. One task writes the changes of all waiting
//! writers to the log with one flush. `commit` returns after it. Reads use the model and never
//! touch the disk, except those of events and audit lines.
//!
//! **A commit has two outcomes.** `Ok`: the change is acknowledged. An error: nothing was changed.
//! A change that cannot be written is undone in the model, with all changes after it, and is cut
//! off in the log. A commit without a change may have found its effect in such a change, so it
//! waits for the unwritten changes, and fails with them. [`Store::read`] waits for nothing: it may
//! see a change that is undone later. Orders that other machines carry out are read by
//! [`Store::read_acknowledged`].
//!
//! **Crash.** A change that was not acknowledged exists completely or not at all. The journal's
//! header lists the damage that is refused. A record that cannot be read stops the start with its
//! key.
//!
//! **Full or broken disk.** Every writer receives the error. The store takes changes again when the
//! disk does; a restart is not necessary.
//!
//! **Files beside the journal.** [`ChunkLogs`], [`GenerationArchive`], [`RevisionArchive`],
//! [`SeriesLog`] and [`NodeSeriesLog`] hold large contents. An archive is written after the record that names it, so a crash may lose
//! contents; reads report that.

mod archive;
mod audit;
mod change_log;
mod events;
mod flush;
mod index;
mod journal;
mod model;
mod open;
mod records;
mod retention;
mod tx;

#[cfg(test)]
mod tests;

pub use archive::chunk_log::{Chunk, ChunkLogs, Limits, LogLine};
pub use archive::generation_archive::{ArchiveError, GenerationArchive};
pub use archive::node_series_log::{NODE_SERIES_BYTES, NodeSeriesLog};
pub use archive::revisions::RevisionArchive;
pub use archive::series_log::SeriesLog;
pub use audit::AuditFilter;
pub use change_log::{LogSnapshot, LoggedChange, Position};
pub use events::EventFilter;
pub use index::dhcp_record_changes::DhcpRecordChange;
pub use index::operations::{MAX_NODE_OPERATIONS, MAX_OPEN_NODE_OPERATIONS, MAX_STORED_OPERATIONS};
pub use index::rollouts::{MAX_OPEN_ROLLOUTS, MAX_ROLLOUT_NODES, MAX_STORED_ROLLOUTS};
pub use index::vm_index::ReplicaCounts;
pub use model::Model;
#[cfg(any(test, feature = "testing"))]
pub use model::{NODE_READS, OPERATION_CHANGES};
pub use open::FOLDER;
pub use tx::Tx;

use flush::{Acknowledgement, Shared, UnwrittenChange, blocking};
use journal::{AUDIT, Batch, EVENTS};
use meshd_model::fleet::{Event, EventSeq};
use meshd_types::failpoint;
use std::{
    io,
    path::PathBuf,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{broadcast, oneshot};
use tx::Staged;

/// Version of keys and values. A store of another version is refused, never guessed at.
pub const VERSION: &str = "4";
/// Readable versions: this one, and each one that a release wrote. Release 0.1.0 wrote version 4.
pub const READABLE: [&str; 1] = [VERSION];
/// Maximum number of tokens of the admin API.
pub const MAX_API_TOKENS: usize = 1000;
/// Maximum number of orders with an idempotency key; the oldest are removed first. Three for each
/// node of the largest rack in a day.
pub const MAX_IDEMPOTENCY_KEYS: usize = 32_768;
/// Maximum number of them with a stored answer (up to 64 KiB); the oldest answers are removed
/// first.
pub const MAX_ANSWERS: usize = 512;
/// Retention of an order with an idempotency key.
pub const IDEMPOTENCY_KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of boot sessions of one MAC address.
pub const MAX_SESSIONS_PER_MAC: usize = 8;
/// Maximum number of boot sessions; the oldest are removed first.
pub const MAX_SESSIONS: usize = 100_000;
/// Maximum number of boot sessions of unapproved machines: four for each unknown machine of the
/// largest rack.
pub const MAX_UNAPPROVED_SESSIONS: usize = 40_000;
/// Maximum number of them that reached DHCP only. An invented MAC address costs one session and
/// evicts another one of this kind.
pub const MAX_DHCP_ONLY_SESSIONS: usize = 20_000;
/// Maximum number of unapproved nodes; the least recently seen is removed first, so that a flood of
/// invented machines cannot fill the store. Twice the largest rack, so that a new rack fits.
pub const MAX_UNKNOWN_NODES: usize = 20_000;
/// Maximum lag of a subscriber in events; a slower one is notified of missed events.
const SUBSCRIBER_BACKLOG: usize = 4096;

/// Why an operation on durable state fails.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another meshd has the store open.
    #[error("cannot open the store {}: another meshd uses it", path.display())]
    Held { path: PathBuf },
    /// A file cannot be read or written.
    #[error("cannot open the store {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// Stored bytes have changed.
    #[error(
        "the store is damaged: {} at byte {at}: {what}. Nothing was changed", path.display()
    )]
    Broken { path: PathBuf, at: usize, what: &'static str },
    /// The commit marker of a journal is missing or altered.
    #[error(
        "cannot open the store: its commit marker {} is missing or altered, so acknowledged changes may be missing. Nothing was changed", path.display()
    )]
    Marker {
        path: PathBuf,
        /// The file by which an operator accepts the journal.
        accept: PathBuf,
    },
    /// The site has a certificate authority and no store.
    #[error(
        "cannot open the store {}: it is missing, but the site has a certificate authority in {}. Nothing was changed",
        path.display(), authority.display()
    )]
    Missing {
        path: PathBuf,
        authority: PathBuf,
        /// The file by which an operator confirms an empty store.
        confirm: PathBuf,
    },
    /// Written by another version of meshd.
    #[error("cannot open the store: it has version {found}, this meshd reads version {VERSION}")]
    Version { found: String },
    /// A value is not valid JSON of its kind.
    #[error("cannot read the record `{key}` of the store: it is damaged")]
    Damaged { key: String, source: serde_json::Error },
    /// A key that no version writes.
    #[error("cannot open the store: unknown record `{key}`")]
    UnknownKey { key: String },
    /// The disk is full, read-only or broken.
    #[error("cannot write the store")]
    Write(#[source] io::Error),
    #[error("cannot read the store")]
    Read(#[source] io::Error),
    #[error("cannot encode a record for the store")]
    Encode(#[source] serde_json::Error),
}

meshd_types::hints!(StoreError {
    StoreError::Held { .. } => "stop that meshd, or set another state_dir";
    StoreError::Open { .. } => "check that meshd may write to the folder, and that the disk has space";
    StoreError::Broken { .. } => "restore the last backup with `meshd backup restore`";
    StoreError::Marker { accept, .. } => "restore the last backup with `meshd backup restore`, or create the empty file {} to accept the journal as it is", accept.display();
    StoreError::Missing { confirm, .. } => "put the store back, restore the last backup with `meshd backup restore`, or create the empty file {} to begin without any record of nodes, tokens and orders", confirm.display();
    StoreError::Version { .. } => "use the meshd that wrote it";
    StoreError::Damaged { .. } => "restore the last backup with `meshd backup restore`";
    StoreError::UnknownKey { .. } => "use the meshd that wrote it";
    StoreError::Write(_) => "check the disk (full? read-only?)";
    StoreError::Read(_) => "check the disk";
});

/// The open store. All methods may be called from any task.
pub struct Store {
    shared: Arc<Shared>,
}

impl Store {
    /// Reads from memory. Writers wait meanwhile, so keep it short.
    pub fn read<R>(&self, read: impl FnOnce(&Model) -> R) -> R {
        read(&self.shared.model.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads from memory, and returns when all that it may have seen is on the disk.
    ///
    /// # Errors
    /// It may have seen a change that the disk refused.
    pub async fn read_acknowledged<R>(
        &self,
        read: impl FnOnce(&Model) -> R,
    ) -> Result<R, StoreError> {
        let (result, written) = self.read(|model| (read(model), self.shared.await_unwritten()));
        if let Some(written) = written {
            acknowledged(written).await?;
        }
        Ok(result)
    }

    /// Runs a transaction. Returns when the change is on the disk.
    ///
    /// # Errors
    /// Nothing was changed: the closure refused, or the disk did.
    pub async fn commit<R, E: From<StoreError>>(
        &self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let begun = Instant::now();
        let (result, written) = self.apply(change)?;
        if let Some(written) = written {
            acknowledged(written).await?;
            metrics::histogram!("meshd_store_commit_seconds").record(begun.elapsed().as_secs_f64());
        }
        Ok(result)
    }

    /// The part of a commit that excludes other commits. Returns the acknowledgement, if there is a
    /// change.
    fn apply<R, E: From<StoreError>>(
        &self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<(R, Option<Acknowledgement>), E> {
        // A closure panics before anything is applied, so a poisoned model is consistent.
        let mut model = self.shared.model.write().unwrap_or_else(PoisonError::into_inner);
        self.shared.check_writer().map_err(StoreError::Write)?;
        let mut tx = Tx::new(&model);
        let result = change(&mut tx)?;
        let staged = tx.into_staged();
        if staged.is_empty() {
            return Ok((result, self.shared.await_unwritten()));
        }
        let Staged { records, events, audit } = staged;
        let mut batch = Batch::default();
        records.write(&mut batch)?;
        let events = model.event_log.add_all(events);
        let audit = model.audit_log.add_all(audit);
        tx::write_log(&mut batch, EVENTS, &events)?;
        tx::write_log(&mut batch, AUDIT, &audit)?;
        let undo = model.apply(records);
        let (written, acknowledgement) = oneshot::channel();
        self.shared.enqueue(UnwrittenChange { batch, undo, events, audit, written });
        Ok((result, Some(acknowledgement)))
    }

    /// Subscribes to new events. An event is sent after it is on the disk.
    pub fn subscribe(&self) -> broadcast::Receiver<(EventSeq, Event)> {
        self.shared.subscribers.subscribe()
    }

    /// Checks that a change could be written now.
    ///
    /// # Errors
    /// The disk is full, read-only or broken.
    pub async fn ready(&self) -> Result<(), StoreError> {
        if !failpoint::defends("store-readiness") {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.log.check()).await.map_err(StoreError::Write)
    }

    /// Writes what is left, and marks the log as complete; called once, at the end.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.shared.idle().await;
        self.shared.check_writer().map_err(StoreError::Write)?;
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.log.close()).await.map_err(StoreError::Write)
    }

    /// Returns a copy of all acknowledged changes, as files that form the same store in another
    /// folder. Blocks.
    pub fn snapshot(&self) -> Result<LogSnapshot, StoreError> {
        self.shared.log.snapshot().map_err(StoreError::Write)
    }

    /// Returns the acknowledged changes after a position, in order. `None`: they are no longer in
    /// the log; begin with a snapshot. Blocks.
    pub fn changes_after(&self, after: Position) -> Result<Option<Vec<LoggedChange>>, StoreError> {
        self.shared.log.changes_after(after).map_err(StoreError::Read)
    }
}

/// Waits until a change is on the disk.
async fn acknowledged(written: Acknowledgement) -> Result<(), StoreError> {
    let interrupted = |_| Err(io::Error::other("writing was interrupted"));
    written.await.unwrap_or_else(interrupted).map_err(StoreError::Write)
}
