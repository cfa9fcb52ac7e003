//! Step 3, store: the only owner of durable state, on sled.
//!
//! **Trees and keys.** One sled tree, so that one batch changes everything that belongs together or nothing of it:
//!
//! | key | value (JSON) |
//! | --- | --- |
//! | `version` | [`VERSION`] as text |
//! | `node/<node ID>` | [`Node`](crate::fleet::Node) |
//! | `session/<boot session ID>` | [`BootSession`](crate::fleet::BootSession) |
//! | `lease/<address>` | [`Lease`](crate::fleet::Lease) |
//! | `token/<SHA-256 of the token>` | [`TokenRecord`](crate::trust::TokenRecord) |
//! | `history/<node ID>` | [`History`](crate::fleet::History): generations that it was given |
//! | `profile/<name>` | [`Revisions`](crate::fleet::Revisions): what a profile was, and what it is held at |
//! | `event/<sequence, 8 bytes big-endian>` | [`Event`](crate::fleet::Event) |
//!
//! **Memory.** All but the events is held in a [`Model`] too; reads never touch the disk.
//!
//! **Update protocol.** [`Store::commit`] runs a closure on a [`Tx`]; what it staged is written as one sled batch, then shown
//! to readers, then flushed. It returns after the flush: what was acknowledged is on the disk. Writers that arrive while a
//! flush runs share the next one.
//!
//! **Crash cases.** Killed before the batch: nothing happened. Between batch and flush: sled recovers a prefix of its log, so
//! the batch is there whole or not at all, and nobody was told. After the flush: it is there. A value that cannot be read
//! back stops the start with its key; it is never skipped.
//!
//! **Beside the tree** lie [`Kept`] and [`KeptRevisions`]: what generations and profiles consist of, by digest, for comparing and for
//! booting them again. The former is written after the history that names it; what a crash leaves out of it is not kept, and says so.

mod events;
mod flush;
mod kept;
mod model;
mod open;
mod revisions;
mod tx;

#[cfg(test)]
mod tests;

pub use events::EventFilter;
pub use kept::{Kept, KeptError};
#[cfg(test)]
pub(crate) use model::LOOKED_AT;
pub use model::Model;
pub use revisions::KeptRevisions;
pub use tx::Tx;

use crate::fleet::{Event, EventSeq};
use flush::Flusher;
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError, RwLock},
    time::Instant,
};
use tokio::sync::broadcast;

/// Version of keys and values. A store of another version is refused, never guessed at.
pub const VERSION: &str = "1";
/// Events kept; the oldest go first.
pub const MAX_EVENTS: u64 = 200_000;
/// Boot sessions kept of one MAC address.
pub const MAX_SESSIONS_PER_MAC: usize = 8;
/// Boot sessions kept in all; beyond it the oldest go, so that a flood of invented MAC addresses cannot fill the store.
pub const MAX_SESSIONS: usize = 100_000;
/// Nodes kept that nobody ever let in; beyond it the one that was seen least recently goes, so that a flood of invented
/// machines cannot fill the store. Twice the largest rack, so that one that powers on for the first time fits.
pub const MAX_UNKNOWN_NODES: usize = 20_000;
/// Events that a slow subscriber may lag behind before it is told that it missed some.
const SUBSCRIBER_BACKLOG: usize = 4096;

/// What can go wrong with durable state.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder cannot be used.
    #[error("cannot use the state folder {path}; it must be a folder that meshd may write")]
    Folder {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// sled would not open it.
    #[error("cannot open the store {path}; is another meshd running on it? Else restore the last backup")]
    Open {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: sled::Error,
    },
    /// Written by another version of meshd.
    #[error("the store has version {found}, this meshd reads version {VERSION}; use the meshd that wrote it")]
    Version {
        /// What was found.
        found: String,
    },
    /// A value cannot be read back.
    #[error("the store's record `{key}` is damaged; restore the last backup")]
    Damaged {
        /// Which.
        key: String,
        /// Why.
        source: serde_json::Error,
    },
    /// A key that no version writes.
    #[error("the store holds `{key}`, which this meshd does not know; it was written by another version")]
    UnknownKey {
        /// Which.
        key: String,
    },
    /// A write or flush failed: the disk is full, read-only or broken.
    #[error("cannot write the store; check the disk (full? read-only?)")]
    Write(#[source] sled::Error),
    /// A value cannot be written as JSON.
    #[error("cannot encode a record for the store")]
    Encode(#[source] serde_json::Error),
}

/// The open store. Shared by reference; all methods may be called from any task.
pub struct Store {
    tree: sled::Tree,
    model: RwLock<Model>,
    flusher: Flusher,
    subscribers: broadcast::Sender<(EventSeq, Event)>,
    /// Events whose flush is under way, with their tickets.
    unsent: Mutex<VecDeque<(u64, (EventSeq, Event))>>,
}

impl Store {
    /// Reads from memory. Keep it short: writers wait.
    pub fn read<R>(&self, read: impl FnOnce(&Model) -> R) -> R {
        read(&self.model.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a change; returns when it is on the disk. An error of the closure changes nothing.
    pub async fn commit<R, E: From<StoreError>>(
        &self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let begun = Instant::now();
        let (result, ticket) = self.apply(change)?;
        if let Some(ticket) = ticket {
            self.flusher.wait(ticket).await.map_err(StoreError::Write)?;
            metrics::histogram!("meshd_store_commit_seconds").record(begun.elapsed().as_secs_f64());
            self.publish(ticket);
        }
        Ok(result)
    }

    /// The part of a commit that must not be interleaved with another one.
    fn apply<R, E: From<StoreError>>(
        &self,
        change: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<(R, Option<u64>), E> {
        // A panic inside a closure happens before anything is applied, so a poisoned model is still a whole one.
        let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
        let mut tx = Tx::new(&model);
        let result = change(&mut tx)?;
        let staged = tx.into_staged();
        if staged.is_empty() {
            return Ok((result, None));
        }
        let events = staged.numbered_events(model.next_event);
        let batch = staged.to_batch(&model, &events)?;
        self.tree.apply_batch(batch).map_err(StoreError::Write)?;
        model.apply(staged);
        let ticket = self.flusher.ticket();
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        unsent.extend(events.into_iter().map(|event| (ticket, event)));
        Ok((result, Some(ticket)))
    }

    /// Tells subscribers of everything up to a ticket that is on the disk, in the order in which it happened: whoever of
    /// several writers wakes first speaks for all, and for those who no longer wait.
    fn publish(&self, ticket: u64) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        while unsent.front().is_some_and(|(other, _)| *other <= ticket) {
            if let Some((_, event)) = unsent.pop_front() {
                // Nobody listening is no error.
                let _ = self.subscribers.send(event);
            }
        }
    }

    /// Every event from now on, after it is durable.
    pub fn subscribe(&self) -> broadcast::Receiver<(EventSeq, Event)> {
        self.subscribers.subscribe()
    }

    /// Flushes what is left; called once, at the end.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.flusher.wait(self.flusher.ticket()).await.map_err(StoreError::Write)
    }
}
