//! Group commit: many writers, one flush.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::{
    sync::{Mutex, MutexGuard, watch},
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

/// Shortest time from the beginning of one flush to that of the next. A flush costs the same for one writer as for a hundred
/// (sled wakes all of its threads for it), so under load it is worth while to let a hundred gather; a writer that is alone never
/// waits for this.
const PACE: Duration = Duration::from_millis(4);

/// Hands out tickets in write order and flushes until a ticket is on the disk.
pub(super) struct Flusher {
    db: sled::Db,
    issued: AtomicU64,
    /// Whoever holds it flushes for all; inside is when the last flush began.
    turn: Mutex<Option<Instant>>,
    /// Everything up to this ticket is on the disk.
    flushed: watch::Sender<u64>,
}

impl Flusher {
    pub(super) fn new(db: sled::Db) -> Self {
        Flusher { db, issued: AtomicU64::new(0), turn: Mutex::default(), flushed: watch::Sender::new(0) }
    }

    /// A ticket for what was written before this call.
    pub(super) fn ticket(&self) -> u64 {
        self.issued.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns when everything up to the ticket is on the disk: this writer flushes for everybody, or somebody else for it.
    pub(super) async fn wait(&self, ticket: u64) -> Result<(), sled::Error> {
        let mut flushed = self.flushed.subscribe();
        // The sender is in `self`, so waiting for it cannot fail.
        let done = async { drop(flushed.wait_for(|done| *done >= ticket).await) };
        let turn = tokio::select! {
            biased;
            () = done => return Ok(()),
            turn = self.turn.lock() => turn,
        };
        self.flush(turn, ticket).await
    }

    async fn flush(&self, mut begun: MutexGuard<'_, Option<Instant>>, ticket: u64) -> Result<(), sled::Error> {
        let done = *self.flushed.borrow();
        if done >= ticket {
            return Ok(());
        }
        let alone = self.issued.load(Ordering::SeqCst) == done + 1;
        if let Some(last) = begun.filter(|_| !alone) {
            sleep_until(last + PACE).await;
        }
        *begun = Some(Instant::now());
        let target = self.issued.load(Ordering::SeqCst);
        let db = self.db.clone();
        let flush = spawn_blocking(move || db.flush());
        flush.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        self.flushed.send_replace(target);
        Ok(())
    }
}
