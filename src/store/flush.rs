//! Group commit: many writers, one flush.

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// Hands out tickets in write order and flushes until a ticket is on the disk.
pub(super) struct Flusher {
    db: sled::Db,
    issued: AtomicU64,
    flushed: Mutex<u64>,
}

impl Flusher {
    pub(super) fn new(db: sled::Db) -> Self {
        Flusher { db, issued: AtomicU64::new(0), flushed: Mutex::new(0) }
    }

    /// A ticket for what was written before this call.
    pub(super) fn ticket(&self) -> u64 {
        self.issued.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns when everything up to the ticket is on the disk. While one writer flushes, the others queue for the lock; the
    /// next flush carries all of them, and those that come after find their ticket done.
    pub(super) async fn wait(&self, ticket: u64) -> Result<(), sled::Error> {
        let mut flushed = self.flushed.lock().await;
        if *flushed >= ticket {
            return Ok(());
        }
        let target = self.issued.load(Ordering::SeqCst);
        self.db.flush_async().await?;
        *flushed = target;
        Ok(())
    }
}
