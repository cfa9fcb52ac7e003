//! Group commit: concurrent writers share one flush.

use super::journal::{Flushed, Journal};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Mutex, OwnedMutexGuard, watch},
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

/// Minimum time between the starts of two flushes. A flush costs the same for one writer as for a hundred, so under load writers are
/// gathered. A single writer does not wait.
const MIN_FLUSH_INTERVAL: Duration = Duration::from_millis(4);

/// Flushes changes for all waiting writers.
pub(super) struct Flusher {
    journal: Arc<Journal>,
    /// Held by the writer that flushes for all; contains the start of the last flush.
    flush_lock: Arc<Mutex<Option<Instant>>>,
    /// Everything up to this change is on the disk.
    flushed: watch::Sender<u64>,
    /// The last flush failed: unacknowledged changes are left.
    failed: AtomicBool,
}

impl Flusher {
    pub(super) fn new(journal: Arc<Journal>) -> Self {
        let flushed = watch::Sender::new(journal.seq());
        Flusher { journal, flush_lock: Arc::default(), flushed, failed: AtomicBool::new(false) }
    }

    /// Returns when everything up to a change is on the disk. This writer flushes for all, unless another one already does.
    pub(super) async fn wait(&self, change: u64) -> io::Result<()> {
        let mut flushed = self.flushed.subscribe();
        // The sender is in `self`, so waiting for it cannot fail.
        let done = async { drop(flushed.wait_for(|done| *done >= change).await) };
        let flush_lock = tokio::select! {
            biased;
            () = done => return Ok(()),
            flush_lock = self.flush_lock.clone().lock_owned() => flush_lock,
        };
        self.flush(flush_lock, change).await
    }

    /// Repeats a failed flush: a full disk may have space now. No change is accepted before it succeeds, so that unacknowledged changes do
    /// not accumulate.
    pub(super) async fn recover(&self) -> io::Result<()> {
        if self.failed.load(Ordering::SeqCst) { self.wait(self.journal.seq()).await } else { Ok(()) }
    }

    async fn flush(&self, mut last_begin: OwnedMutexGuard<Option<Instant>>, change: u64) -> io::Result<()> {
        let done = *self.flushed.borrow();
        if done >= change {
            return Ok(());
        }
        let is_single = self.journal.seq() == done + 1;
        if let Some(last) = last_begin.filter(|_| !is_single) {
            sleep_until(last + MIN_FLUSH_INTERVAL).await;
        }
        *last_begin = Some(Instant::now());
        let journal = Arc::clone(&self.journal);
        let flushed = blocking(move || journal.flush()).await;
        self.failed.store(flushed.is_err(), Ordering::SeqCst);
        let Flushed { seq, needs_compaction } = flushed?;
        self.flushed.send_replace(seq);
        if needs_compaction {
            self.compact(last_begin);
        }
        Ok(())
    }

    /// Compacts the journal in the background. Later writers wait for it.
    fn compact(&self, flush_lock: OwnedMutexGuard<Option<Instant>>) {
        let journal = Arc::clone(&self.journal);
        tokio::spawn(async move {
            if let Err(error) = blocking(move || journal.compact()).await {
                tracing::warn!(%error, "cannot compact the store, which grows meanwhile; check the disk (full?)");
            }
            drop(flush_lock);
        });
    }

    /// Fails if the disk is full or read-only.
    pub(super) async fn has_space(&self) -> io::Result<()> {
        let journal = Arc::clone(&self.journal);
        blocking(move || journal.has_space()).await
    }

    /// Flushes all changes; called once, at the end.
    pub(super) async fn close(&self) -> io::Result<()> {
        let _turn = self.flush_lock.lock().await;
        let journal = Arc::clone(&self.journal);
        blocking(move || journal.close()).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
