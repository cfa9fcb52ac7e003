//! Reads with a deadline. A device that hangs blocks its reader in the kernel forever, so each read
//! has a thread.

use super::Tree;
use meshd_types::failpoint;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Timeout of a source.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum concurrent reads of one source; further reads are refused until one returns.
const MAX_READS: usize = 4;

/// Reads that have not returned, by the root of the tree and the name of the source.
static READS: Mutex<BTreeMap<(PathBuf, String), usize>> = Mutex::new(BTreeMap::new());

/// The error of a source without value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Timeout,
    #[error("no answer: {MAX_READS} earlier reads have not returned")]
    Hangs,
    /// The thread ended without a result, or could not be started.
    #[error("cannot read the source")]
    Failed,
}

/// A read in progress.
#[derive(Debug)]
pub struct DeadlineRead<T>(Result<mpsc::Receiver<T>, ReadError>);

impl<T> DeadlineRead<T> {
    /// Waits until the deadline. After an error the read continues in its thread, and its result is
    /// dropped.
    pub fn wait_until(self, deadline: Instant) -> Result<T, ReadError> {
        let receiver = self.0?;
        let result = if failpoint::defends("facts-deadline") {
            receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        } else {
            receiver.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
        };
        result.map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => ReadError::Timeout,
            mpsc::RecvTimeoutError::Disconnected => ReadError::Failed,
        })
    }

    /// Returns the result if there is one yet. Does not block.
    pub fn try_result(&self) -> Option<Result<T, ReadError>> {
        match self.0.as_ref().map(mpsc::Receiver::try_recv) {
            Ok(Ok(value)) => Some(Ok(value)),
            Ok(Err(mpsc::TryRecvError::Empty)) => None,
            Ok(Err(mpsc::TryRecvError::Disconnected)) => Some(Err(ReadError::Failed)),
            Err(error) => Some(Err(*error)),
        }
    }
}

/// Starts to read a source in its own thread.
pub fn read<T: Send + 'static>(
    tree: &Tree,
    name: &str,
    read: impl FnOnce(&Tree) -> T + Send + 'static,
) -> DeadlineRead<T> {
    let Some(permit) = ReadPermit::acquire((tree.path("/"), name.to_owned())) else {
        return DeadlineRead(Err(ReadError::Hangs));
    };
    let (sender, receiver) = mpsc::sync_channel(1);
    let tree = tree.clone();
    let started = thread::Builder::new().name("mesh-agent".to_owned()).spawn(move || {
        let value = read(&tree);
        drop(permit);
        // After the deadline there is no receiver.
        let _ = sender.send(value);
    });
    DeadlineRead(started.map(|_| receiver).map_err(|_| ReadError::Failed))
}

/// A permit for one read of a source.
struct ReadPermit((PathBuf, String));

impl ReadPermit {
    fn acquire(key: (PathBuf, String)) -> Option<Self> {
        let mut all = reads();
        let count = all.entry(key.clone()).or_default();
        if *count >= MAX_READS {
            return None;
        }
        *count += 1;
        Some(ReadPermit(key))
    }
}

impl Drop for ReadPermit {
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
    fn hanging_source_is_refused_until_a_read_returns() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(dir.path());
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(Mutex::new(released));
        for _ in 0..MAX_READS {
            let released = released.clone();
            let hangs = read(&tree, "disk", move |_| {
                released.lock().is_ok_and(|released| released.recv().is_ok())
            });
            assert_eq!(hangs.wait_until(Instant::now()), Err(ReadError::Timeout));
        }
        assert_eq!(
            read(&tree, "disk", |_| 1).wait_until(Instant::now() + DEADLINE),
            Err(ReadError::Hangs)
        );
        assert_eq!(read(&tree, "other", |_| 1).wait_until(Instant::now() + DEADLINE), Ok(1));
        drop(release);
        let deadline = Instant::now() + Duration::from_secs(60);
        while read(&tree, "disk", |_| 1).wait_until(Instant::now() + DEADLINE) != Ok(1) {
            assert!(Instant::now() < deadline, "the reads have returned");
            thread::yield_now();
        }
    }
}
