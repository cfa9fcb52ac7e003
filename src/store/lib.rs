//! Store: the only owner of durable state.
//!
//! | module | content |
//! | --- | --- |
//! | `archive` | files beside the journal: large contents that the records name |
//! | `audit` | the audit log: append-only and bounded, written in the transaction of the change |
//! | `events` | the event log: append-only and bounded, written in every transaction |
//! | `flush` | group commit: concurrent writers share one flush |
//! | `index` | indexes in memory, derived from the records and updated with them |
//! | `journal` | the journal: a key-value map stored as a log of changes |
//! | `model` | the model: all state in memory, with its indexes |
//! | `open` | opens the store: folder, journal, and all records into the model |
//! | `records` | the kinds of records: key, type and index of each |
//! | `retention` | bounds of events, audit lines and finished tasks; folding of repeats |
//! | `tx` | a transaction: reads see its staged changes |
//!
//! **Terms.** A *record* is one key with one JSON value. A *change* is what one [`Store::commit`] writes. The *journal* is the file of all
//! changes. The *model* is the state in memory. *Acknowledged* means flushed to the disk.
//!
//! `records` lists the kinds of records.
//!
//! **Update protocol.** [`Store::commit`] runs a closure on a [`Tx`]. The staged records go to the journal as one batch, then to the model,
//! then the journal is flushed; writers that arrive during a flush share the next one. `commit` returns after the flush. Reads use the
//! model and never touch the disk, except those of events and audit lines.
//!
//! **Crash.** A change that was not flushed exists completely or not at all. The journal's header lists the damage that is refused. A
//! record that cannot be read stops the start with its key.
//!
//! **Full or broken disk.** All writers of a failed flush receive the error. The store refuses further changes until it can repeat the
//! flush; a restart is not necessary.
//!
//! **Files beside the journal.** [`ChunkLogs`], [`GenerationArchive`] and [`RevisionArchive`] hold large contents. An archive is
//! written after the record that names it, so a crash may lose contents; reads report that.

mod archive;
mod audit;
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
pub use archive::revisions::RevisionArchive;
pub use audit::AuditFilter;
pub use events::EventFilter;
pub use index::operations::{MAX_NODE_OPERATIONS, MAX_OPEN_NODE_OPERATIONS, MAX_STORED_OPERATIONS};
pub use model::Model;
#[cfg(any(test, feature = "testing"))]
pub use model::{NODE_READS, OPERATION_CHANGES};
pub use open::FOLDER;
pub use tx::Tx;

use flush::Flusher;
use journal::Journal;
use meshd_model::fleet::{Event, EventSeq};
use meshd_types::failpoint;
use std::{
    collections::VecDeque,
    fs::File,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};
use tokio::sync::broadcast;
use tx::Staged;

/// Version of keys and values. A store of another version is refused, never guessed at.
pub const VERSION: &str = "4";
/// Readable versions: this one, and each one that a release wrote. Release 0.1.0 wrote version 4.
pub const READABLE: [&str; 1] = [VERSION];
/// Maximum number of tokens of the admin API.
pub const MAX_API_TOKENS: usize = 1000;
/// Maximum number of orders with an idempotency key; the oldest are removed first. Three for each node of the largest rack in a day.
pub const MAX_IDEMPOTENCY_KEYS: usize = 32_768;
/// Maximum number of them with a stored answer (up to 64 KiB); the oldest answers are removed first.
pub const MAX_ANSWERS: usize = 512;
/// Retention of an order with an idempotency key.
pub const IDEMPOTENCY_KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of boot sessions of one MAC address.
pub const MAX_SESSIONS_PER_MAC: usize = 8;
/// Maximum number of boot sessions; the oldest are removed first.
pub const MAX_SESSIONS: usize = 100_000;
/// Maximum number of boot sessions of unapproved machines: four for each unknown machine of the largest rack.
pub const MAX_UNAPPROVED_SESSIONS: usize = 40_000;
/// Maximum number of them that reached DHCP only. An invented MAC address costs one session and evicts another one of this kind.
pub const MAX_DHCP_ONLY_SESSIONS: usize = 20_000;
/// Maximum number of unapproved nodes; the least recently seen is removed first, so that a flood of invented machines cannot fill the
/// store. Twice the largest rack, so that a new rack fits.
pub const MAX_UNKNOWN_NODES: usize = 20_000;
/// Maximum lag of a subscriber in events; a slower one is notified of missed events.
const SUBSCRIBER_BACKLOG: usize = 4096;

/// Why an operation on durable state fails.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another meshd has the store open.
    #[error("cannot open the store {}: another meshd uses it; stop that meshd, or set another state_dir", path.display())]
    Held { path: PathBuf },
    /// A file cannot be read or written.
    #[error("cannot open the store {}; check that meshd may write to the folder, and that the disk has space", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// Stored bytes have changed.
    #[error(
        "the store is damaged: {} at byte {at}: {what}. Nothing was changed; restore the last backup with `meshd backup restore`", path.display()
    )]
    Broken { path: PathBuf, at: usize, what: &'static str },
    /// The commit marker of a journal is missing or altered.
    #[error(
        "cannot open the store: its commit marker {} is missing or altered, so acknowledged changes may be missing. Nothing was changed; \
         restore the last backup with `meshd backup restore`, or create the empty file {} to accept the journal as it is", path.display(), accept.display()
    )]
    Marker {
        path: PathBuf,
        /// The file by which an operator accepts the journal.
        accept: PathBuf,
    },
    /// The site has a certificate authority and no store.
    #[error(
        "cannot open the store {}: it is missing, but the site has a certificate authority in {}. Nothing was changed; put the store back, \
         restore the last backup with `meshd backup restore`, or create the empty file {} to begin without any record of nodes, tokens and orders",
        path.display(), authority.display(), confirm.display()
    )]
    Missing {
        path: PathBuf,
        authority: PathBuf,
        /// The file by which an operator confirms an empty store.
        confirm: PathBuf,
    },
    /// Written by another version of meshd.
    #[error(
        "cannot open the store: it has version {found}, this meshd reads version {VERSION}; use the meshd that wrote it"
    )]
    Version { found: String },
    /// A value is not valid JSON of its kind.
    #[error("cannot read the record `{key}` of the store: it is damaged; restore the last backup")]
    Damaged { key: String, source: serde_json::Error },
    /// A key that no version writes.
    #[error("cannot open the store: unknown record `{key}`; use the meshd that wrote it")]
    UnknownKey { key: String },
    /// The disk is full, read-only or broken.
    #[error("cannot write the store; check the disk (full? read-only?)")]
    Write(#[source] io::Error),
    #[error("cannot read the store; check the disk")]
    Read(#[source] io::Error),
    #[error("cannot encode a record for the store")]
    Encode(#[source] serde_json::Error),
}

/// The open store. All methods may be called from any task.
pub struct Store {
    journal: Arc<Journal>,
    model: RwLock<Model>,
    flusher: Flusher,
    subscribers: broadcast::Sender<(EventSeq, Event)>,
    /// Events with the number of their unflushed change.
    unsent: Mutex<VecDeque<(u64, (EventSeq, Event))>>,
}

impl Store {
    /// Reads from memory. Writers wait meanwhile, so keep it short.
    pub fn read<R>(&self, read: impl FnOnce(&Model) -> R) -> R {
        read(&self.model.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a transaction. Returns when the change is on the disk. An error of the closure changes nothing.
    pub async fn commit<R, E: From<StoreError>>(
        &self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let begun = Instant::now();
        self.flusher.recover().await.map_err(StoreError::Write)?;
        let (result, number) = self.apply(change)?;
        if let Some(number) = number {
            self.flusher.wait(number).await.map_err(StoreError::Write)?;
            metrics::histogram!("meshd_store_commit_seconds").record(begun.elapsed().as_secs_f64());
            self.publish(number);
        }
        Ok(result)
    }

    /// The part of a commit that excludes other commits.
    fn apply<R, E: From<StoreError>>(
        &self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<(R, Option<u64>), E> {
        // A closure panics before anything is applied, so a poisoned model is consistent.
        let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
        let mut tx = Tx::new(&model);
        let result = change(&mut tx)?;
        let staged = tx.into_staged();
        if staged.is_empty() {
            return Ok((result, None));
        }
        let Staged { records, events, audit } = staged;
        let events = model.event_log.add_all(events);
        audit.iter().for_each(|audit| audit.by.audited.set());
        let audit = model.audit_log.add_all(audit);
        let number = self.journal.append(tx::to_batch(&records, &events, &audit)?);
        model.apply(records);
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        unsent.extend(events.all.into_iter().map(|(seq, event)| (number, (EventSeq(seq), event))));
        Ok((result, Some(number)))
    }

    /// Sends the events of all flushed changes up to `number` to subscribers, in order. The first of several writers that wakes sends the
    /// events of all.
    fn publish(&self, number: u64) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        while unsent.front().is_some_and(|(other, _)| *other <= number) {
            if let Some((_, event)) = unsent.pop_front() {
                // An error means that there are no subscribers.
                let _ = self.subscribers.send(event);
            }
        }
    }

    /// Subscribes to new events. An event is sent after it is on the disk.
    pub fn subscribe(&self) -> broadcast::Receiver<(EventSeq, Event)> {
        self.subscribers.subscribe()
    }

    /// Checks that a change could be written now. Repeats a failed write.
    ///
    /// # Errors
    /// The disk is full, read-only or broken.
    pub async fn ready(&self) -> Result<(), StoreError> {
        if !failpoint::defends("store-readiness") {
            return Ok(());
        }
        self.flusher.recover().await.map_err(StoreError::Write)?;
        self.flusher.has_space().await.map_err(StoreError::Write)
    }

    /// Flushes all changes; called once, at the end.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.flusher.close().await.map_err(StoreError::Write)
    }

    /// Returns all committed changes as files that form the same store in another folder: name, open file, and length in bytes. Later
    /// changes do not affect these bytes. Blocks.
    pub fn snapshot(&self) -> Result<Vec<(String, File, u64)>, StoreError> {
        self.journal.snapshot().map_err(StoreError::Write)
    }
}
