//! Fetches volumes by digest from the central node in pieces, verifies them, and removes volumes
//! that no VM needs. A restarted agent resumes a fetch.

use crate::{
    link::call::{self, Endpoint, Piece},
    system::Tree,
    vm::{
        failure::refusal,
        host::{capacity::writable_bytes, config::HostConfig, memory},
        lock_helpers::locked,
        reservations::Reservations,
    },
};
use meshd_proto::{
    VOLUMES_PATH,
    vm::{VmFetching, VmRefusal, VmRefusalReason},
};
use meshd_types::Digest;
use sha2::{Digest as _, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, ErrorKind, Read as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt as _,
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::sleep,
};

/// Bytes of one request. Each request has its own authorisation and timeout.
const PIECE: u64 = 16 << 20;
/// First and maximum delay before a retry.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
const MAX_CONCURRENT: usize = 4;
/// Maximum length of an error in a report, in characters.
const MAX_OBSTACLE: usize = 200;
const PART: &str = "part";
/// Bytes of one read of a partial file.
const READ: usize = 256 * 1024;

#[derive(Debug)]
pub struct Volumes {
    store: Arc<VolumeStore>,
    endpoint: watch::Receiver<Option<Endpoint>>,
    fetches: BTreeMap<Digest, Fetch>,
    permits: Arc<tokio::sync::Semaphore>,
    tasks: JoinSet<Result<(), VmRefusal>>,
}

#[derive(Debug)]
struct VolumeStore {
    config: HostConfig,
    reservations: Reservations,
}

#[derive(Debug)]
struct Fetch {
    progress: Arc<FetchProgress>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct FetchProgress {
    bytes: AtomicU64,
    total: AtomicU64,
    /// Error of the last request.
    obstacle: Mutex<Option<String>>,
}

impl Volumes {
    /// The folder of volumes may not exist. The endpoint may arrive later and change.
    pub fn new(
        config: HostConfig,
        reservations: Reservations,
        endpoint: watch::Receiver<Option<Endpoint>>,
    ) -> Self {
        Volumes {
            store: Arc::new(VolumeStore { config, reservations }),
            endpoint,
            fetches: BTreeMap::new(),
            permits: Arc::new(tokio::sync::Semaphore::new(MAX_CONCURRENT)),
            tasks: JoinSet::new(),
        }
    }

    /// Returns true if a volume is complete.
    pub fn has(&self, digest: &Digest) -> bool {
        self.store.path(digest).is_file()
    }

    /// Returns the path of a complete volume.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.store.path(digest)
    }

    pub fn is_fetching(&self, digest: &Digest) -> bool {
        self.fetches.contains_key(digest)
    }

    /// Starts a fetch unless one runs; [`Volumes::next`] returns its result.
    pub fn fetch(&mut self, digest: Digest) {
        if self.fetches.contains_key(&digest) {
            return;
        }
        let progress = Arc::<FetchProgress>::default();
        let job = FetchJob {
            digest,
            store: self.store.clone(),
            endpoint: self.endpoint.clone(),
            progress: progress.clone(),
        };
        let permits = self.permits.clone();
        let task = self.tasks.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire_owned().await;
            job.run().await
        });
        self.fetches.insert(digest, Fetch { progress, task });
    }

    /// Returns the combined progress of these fetches.
    pub fn progress(&self, digests: impl IntoIterator<Item = Digest>) -> VmFetching {
        let mut sum = VmFetching::default();
        for digest in digests {
            if let Some(Fetch { progress, .. }) = self.fetches.get(&digest) {
                sum.bytes = sum.bytes.saturating_add(progress.bytes.load(Ordering::Relaxed));
                sum.total = sum.total.saturating_add(progress.total.load(Ordering::Relaxed));
                let obstacle = locked(&progress.obstacle).clone();
                sum.obstacle = sum.obstacle.or(obstacle);
            }
        }
        sum
    }

    /// Waits for the end of a fetch; pending if there is none. Cancel-safe.
    pub async fn next(&mut self) -> (Digest, Result<(), VmRefusal>) {
        loop {
            let (task, result) = match self.tasks.join_next_with_id().await {
                Some(Ok((task, result))) => (task, result),
                Some(Err(error)) if error.is_cancelled() => continue,
                Some(Err(error)) => {
                    tracing::error!(%error, "a fetch of a volume failed");
                    // Without a result the VM would wait forever.
                    let reason = refusal(VmRefusalReason::VolumeMissing, error.to_string());
                    (error.id(), Err(reason))
                }
                None => std::future::pending().await,
            };
            // A fetch that ended before its cancellation has no entry, or another one has it.
            let ended = self.fetches.iter().find(|(_, fetch)| fetch.task.id() == task);
            if let Some(digest) = ended.map(|(digest, _)| *digest) {
                self.fetches.remove(&digest);
                return (digest, result);
            }
        }
    }

    /// Cancels fetches and removes volumes that no VM needs.
    pub fn keep_only(&mut self, needed: &BTreeSet<Digest>) {
        self.fetches.retain(|digest, fetch| {
            let is_needed = needed.contains(digest);
            if !is_needed {
                fetch.task.abort();
            }
            is_needed
        });
        for entry in fs::read_dir(&self.store.config.volumes_dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let digest = path.file_stem().and_then(|stem| stem.to_str()?.parse::<Digest>().ok());
            if digest.is_some_and(|digest| !needed.contains(&digest)) {
                tracing::info!(file = %path.display(), "removing a volume that no VM needs");
                if let Err(error) = fs::remove_file(&path) {
                    tracing::warn!(file = %path.display(), %error, "cannot remove a volume");
                }
            }
        }
    }
}

impl VolumeStore {
    fn path(&self, digest: &Digest) -> PathBuf {
        self.config.volumes_dir.join(digest.to_string())
    }

    /// Returns the bytes that may still be fetched. In a store in memory, reserved memory is not
    /// free even if it is unused.
    fn free_bytes(&self) -> io::Result<u64> {
        let HostConfig { root, vms_dir, volumes_dir, .. } = &self.config;
        let memory = memory::read(&Tree::new(root), vms_dir);
        writable_bytes(volumes_dir, self.reservations.free_memory(memory))
    }

    fn partial_path(&self, digest: &Digest) -> PathBuf {
        self.path(digest).with_extension(PART)
    }
}

enum FetchError {
    /// Temporary: retry.
    Retry(String),
    /// Permanent: the VM is refused.
    Final(VmRefusal),
}

struct PartialFile {
    file: tokio::fs::File,
    hash: Sha256,
    bytes: u64,
    total: Option<u64>,
}

struct FetchJob {
    digest: Digest,
    store: Arc<VolumeStore>,
    endpoint: watch::Receiver<Option<Endpoint>>,
    progress: Arc<FetchProgress>,
}

impl FetchJob {
    async fn run(mut self) -> Result<(), VmRefusal> {
        loop {
            let (bytes_before, result) = self.fetch().await;
            let Err(refusal) = result else { return Ok(()) };
            // No later fetch continues the partial file.
            let _ = fs::remove_file(self.store.partial_path(&self.digest));
            // A partial file of an earlier agent may be the cause.
            if bytes_before == 0 || refusal.reason != VmRefusalReason::VolumeDiffers {
                return Err(refusal);
            }
        }
    }

    /// Fetches the file. Returns how many bytes existed before.
    async fn fetch(&mut self) -> (u64, Result<(), VmRefusal>) {
        match self.open_partial().await {
            Ok(part) => (part.bytes, self.fetch_rest(part).await),
            Err(error) => (0, Err(self.store_error(&error))),
        }
    }

    async fn fetch_rest(&mut self, mut part: PartialFile) -> Result<(), VmRefusal> {
        if part.bytes > 0 {
            tracing::info!(volume = %self.digest.short(), bytes = part.bytes, "resuming the fetch of a volume");
        }
        let mut delay = RETRY.0;
        while part.total != Some(part.bytes) {
            let before = part.bytes;
            match self.fetch_piece(&mut part).await {
                Ok(()) => {
                    delay = RETRY.0;
                    self.set_obstacle(None);
                }
                Err(FetchError::Final(refusal)) => return Err(refusal),
                Err(FetchError::Retry(reason)) => {
                    tracing::warn!(volume = %self.digest.short(), bytes = part.bytes, reason, "cannot fetch a volume; retrying");
                    self.set_obstacle(Some(reason));
                    delay = if part.bytes > before { RETRY.0 } else { (delay * 2).min(RETRY.1) };
                    sleep(delay).await;
                }
            }
        }
        self.seal(part).await
    }

    /// Reads and hashes the partial file of an earlier agent.
    async fn open_partial(&self) -> io::Result<PartialFile> {
        let path = self.store.partial_path(&self.digest);
        let opened = tokio::task::spawn_blocking(move || {
            let folder = path.parent().ok_or(ErrorKind::InvalidInput)?;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            let mut file = fs::OpenOptions::new()
                .create(true)
                .read(true)
                .append(true)
                .mode(0o600)
                .open(&path)?;
            let mut hash = Sha256::new();
            let mut bytes = 0;
            let mut piece = vec![0; READ];
            loop {
                let length = file.read(&mut piece)?;
                if length == 0 {
                    return io::Result::Ok((file, hash, bytes));
                }
                hash.update(&piece[..length]);
                bytes += length as u64;
            }
        });
        let (file, hash, bytes) = opened.await.map_err(io::Error::other)??;
        self.progress.bytes.store(bytes, Ordering::Relaxed);
        Ok(PartialFile { file: tokio::fs::File::from_std(file), hash, bytes, total: None })
    }

    async fn fetch_piece(&mut self, part: &mut PartialFile) -> Result<(), FetchError> {
        let wait = async {
            self.endpoint.wait_for(Option::is_some).await.ok().and_then(|endpoint| endpoint.clone())
        };
        // The sender ends with the agent.
        let Some(endpoint) = wait.await else { return std::future::pending().await };
        let path = format!("{VOLUMES_PATH}/{}", self.digest);
        let range = (part.bytes, part.bytes + PIECE);
        let piece = call::piece(&endpoint, &path, range).await;
        let piece = piece.map_err(|error| FetchError::Retry(error.to_string()))?;
        let (mut body, total) = match piece {
            Piece::Body { body, total } => (body, total),
            Piece::PastEnd => {
                // The end of the file. The digest detects a wrong length.
                part.total = Some(part.bytes);
                return Ok(());
            }
            Piece::Unavailable(reason) => {
                let kind = VmRefusalReason::VolumeMissing;
                return Err(FetchError::Final(refusal(
                    kind,
                    format!("the central node refuses it: {reason}"),
                )));
            }
        };
        if part.total.replace(total).is_none() {
            self.progress.total.store(total, Ordering::Relaxed);
            self.check_space(total.saturating_sub(part.bytes)).map_err(FetchError::Final)?;
        }
        while let Some(bytes) =
            body.next().await.map_err(|error| FetchError::Retry(error.to_string()))?
        {
            if part.bytes + bytes.len() as u64 > total {
                return Err(FetchError::Retry("the response is longer than the file".to_owned()));
            }
            part.file
                .write_all(&bytes)
                .await
                .map_err(|error| FetchError::Final(self.store_error(&error)))?;
            part.hash.update(&bytes);
            part.bytes += bytes.len() as u64;
            self.progress.bytes.store(part.bytes, Ordering::Relaxed);
        }
        part.file.flush().await.map_err(|error| FetchError::Final(self.store_error(&error)))
    }

    fn set_obstacle(&self, error: Option<String>) {
        let text = error.map(|error| {
            format!("{}: {error}", self.digest.short()).chars().take(MAX_OBSTACLE).collect()
        });
        *locked(&self.progress.obstacle) = text;
    }

    fn check_space(&self, needed: u64) -> Result<(), VmRefusal> {
        let free = self.store.free_bytes().map_err(|error| self.store_error(&error))?;
        if needed <= free {
            return Ok(());
        }
        Err(self.store_full(format!(
            "{} MiB are needed, {} MiB are free",
            needed >> 20,
            free >> 20
        )))
    }

    fn store_full(&self, reason: String) -> VmRefusal {
        let folder = self.store.config.volumes_dir.display();
        refusal(
            VmRefusalReason::StoreFull,
            format!("cannot store {} in {folder}: {reason}", self.digest.short()),
        )
    }

    fn store_error(&self, error: &io::Error) -> VmRefusal {
        self.store_full(error.to_string())
    }

    /// Renames the file to its digest if the contents match.
    async fn seal(&self, part: PartialFile) -> Result<(), VmRefusal> {
        let found = Digest(part.hash.finalize().into());
        if found != self.digest {
            let detail =
                format!("volume {} arrived with digest {}", self.digest.short(), found.short());
            return Err(refusal(VmRefusalReason::VolumeDiffers, detail));
        }
        // After a power loss, a file with its final name must be complete.
        part.file.sync_all().await.map_err(|error| self.store_error(&error))?;
        let from = self.store.partial_path(&self.digest);
        let to = self.store.path(&self.digest);
        fs::rename(from, to).map_err(|error| self.store_error(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{pin::pin, task::Poll};

    #[tokio::test]
    async fn result_of_a_cancelled_fetch_does_not_end_the_next_one() {
        let dir = tempfile::tempdir().expect("a folder");
        // Without an endpoint, a fetch waits.
        let (_sender, endpoint) = watch::channel(None);
        let config = HostConfig::of_root(dir.path());
        let mut volumes = Volumes::new(config, Reservations::default(), endpoint);
        let digest = Digest::of(b"a volume");
        let task = volumes.tasks.spawn(async { Ok(()) });
        volumes.fetches.insert(digest, Fetch { progress: Arc::default(), task: task.clone() });
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
        volumes.keep_only(&BTreeSet::new());
        volumes.fetch(digest);
        {
            let mut next = pin!(volumes.next());
            let polled = std::future::poll_fn(|context| Poll::Ready(next.as_mut().poll(context)));
            assert!(polled.await.is_pending(), "the volume is not there");
        }
        assert!(volumes.fetches.contains_key(&digest), "no third fetch begins");
    }
}
