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

/// Shortest time from the beginning of one flush to that of the next. A flush costs the same for one writer as for a hundred, so under
/// load it is worth while to let a hundred gather; a writer that is alone never waits for this.
const PACE: Duration = Duration::from_millis(4);

/// Flushes until a change is on the disk.
pub(super) struct Flusher {
    journal: Arc<Journal>,
    /// Whoever holds it flushes for all; inside is when the last flush began.
    turn: Arc<Mutex<Option<Instant>>>,
    /// Everything up to this change is on the disk.
    flushed: watch::Sender<u64>,
    /// The last flush failed: changes are left that nobody was told of.
    failed: AtomicBool,
}

impl Flusher {
    pub(super) fn new(journal: Arc<Journal>) -> Self {
        let flushed = watch::Sender::new(journal.seq());
        Flusher { journal, turn: Arc::default(), flushed, failed: AtomicBool::new(false) }
    }

    /// Returns when everything up to a change is on the disk: this writer flushes for everybody, or somebody else for it.
    pub(super) async fn wait(&self, change: u64) -> io::Result<()> {
        let mut flushed = self.flushed.subscribe();
        // The sender is in `self`, so waiting for it cannot fail.
        let done = async { drop(flushed.wait_for(|done| *done >= change).await) };
        let turn = tokio::select! {
            biased;
            () = done => return Ok(()),
            turn = self.turn.clone().lock_owned() => turn,
        };
        self.flush(turn, change).await
    }

    /// While the last flush failed, tries it again: a disk that was full may have room now. No change is taken before it succeeds, so
    /// that those that nobody was told of do not pile up.
    pub(super) async fn recover(&self) -> io::Result<()> {
        if self.failed.load(Ordering::SeqCst) { self.wait(self.journal.seq()).await } else { Ok(()) }
    }

    async fn flush(&self, mut begun: OwnedMutexGuard<Option<Instant>>, change: u64) -> io::Result<()> {
        let done = *self.flushed.borrow();
        if done >= change {
            return Ok(());
        }
        let alone = self.journal.seq() == done + 1;
        if let Some(last) = begun.filter(|_| !alone) {
            sleep_until(last + PACE).await;
        }
        *begun = Some(Instant::now());
        let journal = Arc::clone(&self.journal);
        let flushed = blocking(move || journal.flush()).await;
        self.failed.store(flushed.is_err(), Ordering::SeqCst);
        let Flushed { seq, is_long } = flushed?;
        self.flushed.send_replace(seq);
        if is_long {
            self.renew(begun);
        }
        Ok(())
    }

    /// The one whose change made the journal long need not wait for this; those who come later do.
    fn renew(&self, turn: OwnedMutexGuard<Option<Instant>>) {
        let journal = Arc::clone(&self.journal);
        tokio::spawn(async move {
            if let Err(error) = blocking(move || journal.renew()).await {
                tracing::warn!(%error, "the store cannot be written anew, and grows meanwhile; check the disk (full?)");
            }
            drop(turn);
        });
    }

    /// Fails if the disk has no room for a change, or is read-only.
    pub(super) async fn has_room(&self) -> io::Result<()> {
        let journal = Arc::clone(&self.journal);
        blocking(move || journal.has_room()).await
    }

    /// Flushes what is left; called once, at the end.
    pub(super) async fn close(&self) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let journal = Arc::clone(&self.journal);
        blocking(move || journal.close()).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
