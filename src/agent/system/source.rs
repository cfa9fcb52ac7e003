//! Reads with a deadline. A device that hangs blocks its reader in the kernel forever, so each read has a thread.

use super::Tree;
use meshd_types::fail;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Deadline of a source.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum concurrent reads of one source; further reads are refused until one returns.
const MAX_READS: usize = 4;

/// Reads that have not returned, by the root of the tree and the name of the source.
static READS: Mutex<BTreeMap<(PathBuf, String), usize>> = Mutex::new(BTreeMap::new());

/// Why a source has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Late {
    /// It did not return by its deadline.
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Deadline,
    /// Earlier reads of it have not returned.
    #[error("no answer: {MAX_READS} earlier reads have not returned")]
    Hangs,
    /// The reading thread ended without a result, or could not be started.
    #[error("it could not be read")]
    Broken,
}

/// A read that was started.
#[derive(Debug)]
pub struct DeadlineRead<T>(Result<mpsc::Receiver<T>, Late>);

impl<T> DeadlineRead<T> {
    /// Waits until the deadline.
    ///
    /// # Errors
    /// [`Late`]: the read continues in its thread, and its result is dropped.
    pub fn by(self, deadline: Instant) -> Result<T, Late> {
        let receiver = self.0?;
        let heard = if fail::defends("facts-deadline") {
            receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        } else {
            receiver.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
        };
        heard.map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => Late::Deadline,
            mpsc::RecvTimeoutError::Disconnected => Late::Broken,
        })
    }
}

/// Starts to read a source of this tree.
pub fn read<T: Send + 'static>(
    tree: &Tree,
    name: &str,
    read: impl FnOnce(&Tree) -> T + Send + 'static,
) -> DeadlineRead<T> {
    let Some(slot) = Slot::take((tree.path("/"), name.to_owned())) else { return DeadlineRead(Err(Late::Hangs)) };
    let (sender, receiver) = mpsc::sync_channel(1);
    let tree = tree.clone();
    let started = thread::Builder::new().name("mesh-agent".to_owned()).spawn(move || {
        let found = read(&tree);
        drop(slot);
        // Nobody waits for it any more.
        let _ = sender.send(found);
    });
    DeadlineRead(started.map(|_| receiver).map_err(|_| Late::Broken))
}

/// One read of a source, counted until this is dropped.
struct Slot((PathBuf, String));

impl Slot {
    fn take(key: (PathBuf, String)) -> Option<Self> {
        let mut all = reads();
        let count = all.entry(key.clone()).or_default();
        if *count >= MAX_READS {
            return None;
        }
        *count += 1;
        Some(Slot(key))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut all = reads();
        match all.get_mut(&self.0) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&self.0)),
        }
    }
}

fn reads() -> MutexGuard<'static, BTreeMap<(PathBuf, String), usize>> {
    READS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_that_hangs_is_refused_after_a_few_reads_until_one_returns() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(dir.path());
        let (release, hold) = mpsc::channel::<()>();
        let hold = std::sync::Arc::new(Mutex::new(hold));
        for _ in 0..MAX_READS {
            let hold = hold.clone();
            let hangs = read(&tree, "disk", move |_| hold.lock().map(|hold| hold.recv().is_ok()).unwrap_or(false));
            assert_eq!(hangs.by(Instant::now()), Err(Late::Deadline));
        }
        assert_eq!(read(&tree, "disk", |_| 1).by(Instant::now() + DEADLINE), Err(Late::Hangs));
        assert_eq!(read(&tree, "other", |_| 1).by(Instant::now() + DEADLINE), Ok(1));
        drop(release);
        let deadline = Instant::now() + Duration::from_secs(60);
        while read(&tree, "disk", |_| 1).by(Instant::now() + DEADLINE) != Ok(1) {
            assert!(Instant::now() < deadline, "the reads have returned");
            thread::yield_now();
        }
    }
}
