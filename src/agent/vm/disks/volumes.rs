//! Fetches volumes by digest from the central node in pieces, verifies them, and removes those that no VM names. A restarted agent resumes
//! a fetch.

use crate::{
    link::call::{self, Endpoint, Piece},
    system::Tree,
    vm::{
        host::{capacity::room, config::HostConfig, memory},
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
        Arc, Mutex, PoisonError,
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

/// Bytes of one request: each request is authorised again and has its own timeout.
const PIECE: u64 = 16 << 20;
/// First and maximum delay before a retry.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Concurrent fetches.
const AT_ONCE: usize = 4;
/// Maximum length of an error in a report, in characters.
const MAX_TROUBLE: usize = 200;
/// Extension of a partial file.
const PART: &str = "part";
/// Bytes of one read of a partial file.
const READ: usize = 256 * 1024;

/// The volumes of a node.
#[derive(Debug)]
pub struct Volumes {
    store: Arc<VolumeStore>,
    endpoint: watch::Receiver<Option<Endpoint>>,
    under_way: BTreeMap<Digest, Fetch>,
    seats: Arc<tokio::sync::Semaphore>,
    fetches: JoinSet<(Digest, Result<(), VmRefusal>)>,
}

#[derive(Debug)]
struct VolumeStore {
    config: HostConfig,
    /// Reserved memory.
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
    of: AtomicU64,
    /// Error of the last request.
    obstacle: Mutex<Option<String>>,
}

impl Volumes {
    /// Opens the store of volumes; its folder need not exist. The endpoint may come later and change.
    pub fn new(config: HostConfig, reservations: Reservations, endpoint: watch::Receiver<Option<Endpoint>>) -> Self {
        Volumes {
            store: Arc::new(VolumeStore { config, reservations }),
            endpoint,
            under_way: BTreeMap::new(),
            seats: Arc::new(tokio::sync::Semaphore::new(AT_ONCE)),
            fetches: JoinSet::new(),
        }
    }

    /// Returns true if a volume is complete.
    pub fn has(&self, digest: &Digest) -> bool {
        self.store.whole(digest).is_file()
    }

    /// Starts a fetch unless one runs; [`Volumes::next`] returns its result.
    pub fn fetch(&mut self, digest: Digest) {
        if self.under_way.contains_key(&digest) {
            return;
        }
        let progress = Arc::<FetchProgress>::default();
        let job =
            FetchJob { digest, store: self.store.clone(), endpoint: self.endpoint.clone(), progress: progress.clone() };
        let seats = self.seats.clone();
        let task = self.fetches.spawn(async move {
            // The semaphore is never closed.
            let _seat = seats.acquire_owned().await;
            (digest, job.run().await)
        });
        self.under_way.insert(digest, Fetch { progress, task });
    }

    /// Returns the combined progress of these fetches.
    pub fn progress(&self, wanted: impl IntoIterator<Item = Digest>) -> VmFetching {
        let mut sum = VmFetching::default();
        for digest in wanted {
            if let Some(Fetch { progress, .. }) = self.under_way.get(&digest) {
                sum.bytes = sum.bytes.saturating_add(progress.bytes.load(Ordering::Relaxed));
                sum.of = sum.of.saturating_add(progress.of.load(Ordering::Relaxed));
                let obstacle = progress.obstacle.lock().unwrap_or_else(PoisonError::into_inner).clone();
                sum.obstacle = sum.obstacle.or(obstacle);
            }
        }
        sum
    }

    /// Waits for the end of a fetch; pending if there is none. Cancel-safe.
    pub async fn next(&mut self) -> (Digest, Result<(), VmRefusal>) {
        loop {
            match self.fetches.join_next().await {
                Some(Ok((digest, ended))) => {
                    self.under_way.remove(&digest);
                    return (digest, ended);
                }
                Some(Err(error)) if error.is_cancelled() => {}
                Some(Err(error)) => {
                    tracing::error!(%error, "a fetch of a volume failed");
                    // The VM that waits for it would wait forever.
                    let gone = self.under_way.iter().find(|(_, fetch)| fetch.task.is_finished());
                    if let Some(digest) = gone.map(|(digest, _)| *digest) {
                        self.under_way.remove(&digest);
                        return (digest, Err(refusal(VmRefusalReason::VolumeMissing, error.to_string())));
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Cancels fetches and removes volumes that no VM names.
    pub fn keep_only(&mut self, named: &BTreeSet<Digest>) {
        self.under_way.retain(|digest, fetch| {
            let is_named = named.contains(digest);
            if !is_named {
                fetch.task.abort();
            }
            is_named
        });
        for entry in fs::read_dir(&self.store.config.images).into_iter().flatten().flatten() {
            let path = entry.path();
            let digest = path.file_stem().and_then(|stem| stem.to_str()?.parse::<Digest>().ok());
            if digest.is_some_and(|digest| !named.contains(&digest)) {
                tracing::info!(file = %path.display(), "no virtual machine names this volume any more");
                if let Err(error) = fs::remove_file(&path) {
                    tracing::warn!(file = %path.display(), %error, "a volume stays");
                }
            }
        }
    }
}

impl VolumeStore {
    fn whole(&self, digest: &Digest) -> PathBuf {
        self.config.images.join(digest.to_string())
    }

    /// Returns the bytes that may still be fetched. In memory, promised memory is not free even if it is untouched.
    fn room(&self) -> io::Result<u64> {
        let HostConfig { root, machines, images, .. } = &self.config;
        room(images, self.reservations.left(memory::read(&Tree::new(root), machines)))
    }

    fn part(&self, digest: &Digest) -> PathBuf {
        self.whole(digest).with_extension(PART)
    }
}

fn refusal(reason: VmRefusalReason, detail: String) -> VmRefusal {
    VmRefusal { reason, detail }
}

/// Why a piece was not stored.
enum FetchError {
    /// Temporary: retry.
    Again(String),
    /// Permanent: the VM is refused.
    Final(VmRefusal),
}

struct PartialFile {
    file: tokio::fs::File,
    hash: Sha256,
    bytes: u64,
    of: Option<u64>,
}

/// The fetch of one file.
struct FetchJob {
    digest: Digest,
    store: Arc<VolumeStore>,
    endpoint: watch::Receiver<Option<Endpoint>>,
    progress: Arc<FetchProgress>,
}

impl FetchJob {
    async fn run(mut self) -> Result<(), VmRefusal> {
        loop {
            let (had, fetched) = self.fetch().await;
            let Err(refusal) = fetched else { return Ok(()) };
            // Remove the partial file: no later fetch continues it.
            let _ = fs::remove_file(self.store.part(&self.digest));
            // A partial file of an earlier agent may be the cause.
            if had == 0 || refusal.reason != VmRefusalReason::VolumeDiffers {
                return Err(refusal);
            }
        }
    }

    /// Fetches the file. Returns how many bytes existed before.
    async fn fetch(&mut self) -> (u64, Result<(), VmRefusal>) {
        match self.open().await {
            Ok(part) => (part.bytes, self.complete(part).await),
            Err(error) => (0, Err(self.disk(&error))),
        }
    }

    async fn complete(&mut self, mut part: PartialFile) -> Result<(), VmRefusal> {
        if part.bytes > 0 {
            tracing::info!(volume = %self.digest.short(), bytes = part.bytes, "the fetch of a volume goes on");
        }
        let mut pause = RETRY.0;
        while part.of != Some(part.bytes) {
            let before = part.bytes;
            match self.piece(&mut part).await {
                Ok(()) => {
                    pause = RETRY.0;
                    self.obstacle(None);
                }
                Err(FetchError::Final(refusal)) => return Err(refusal),
                Err(FetchError::Again(reason)) => {
                    tracing::warn!(volume = %self.digest.short(), bytes = part.bytes, reason, "a volume does not come");
                    self.obstacle(Some(reason));
                    pause = if part.bytes > before { RETRY.0 } else { (pause * 2).min(RETRY.1) };
                    sleep(pause).await;
                }
            }
        }
        self.seal(part).await
    }

    /// Reads and hashes the partial file of an earlier agent.
    async fn open(&self) -> io::Result<PartialFile> {
        let path = self.store.part(&self.digest);
        let opened = tokio::task::spawn_blocking(move || {
            let folder = path.parent().ok_or(ErrorKind::InvalidInput)?;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            let mut file = fs::OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(&path)?;
            let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; READ]);
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
        Ok(PartialFile { file: tokio::fs::File::from_std(file), hash, bytes, of: None })
    }

    async fn piece(&mut self, part: &mut PartialFile) -> Result<(), FetchError> {
        let wait = async { self.endpoint.wait_for(Option::is_some).await.ok().and_then(|endpoint| endpoint.clone()) };
        // The sender ends with the agent.
        let Some(endpoint) = wait.await else { return std::future::pending().await };
        let path = format!("{VOLUMES_PATH}/{}", self.digest);
        let range = (part.bytes, part.bytes + PIECE);
        let piece = call::piece(&endpoint, &path, range).await;
        let piece = piece.map_err(|error| FetchError::Again(error.to_string()))?;
        let (mut body, of) = match piece {
            Piece::Body { body, total } => (body, total),
            Piece::PastEnd => {
                // The end of the file, or a wrong length that the digest detects.
                part.of = Some(part.bytes);
                return Ok(());
            }
            Piece::Unavailable(said) => {
                let reason = VmRefusalReason::VolumeMissing;
                return Err(FetchError::Final(refusal(reason, format!("the central node does not give it: {said}"))));
            }
        };
        if part.of.replace(of).is_none() {
            self.progress.of.store(of, Ordering::Relaxed);
            self.has_room(of.saturating_sub(part.bytes)).map_err(FetchError::Final)?;
        }
        while let Some(bytes) = body.next().await.map_err(|error| FetchError::Again(error.to_string()))? {
            if part.bytes + bytes.len() as u64 > of {
                return Err(FetchError::Again("more came than was asked for".to_owned()));
            }
            part.file.write_all(&bytes).await.map_err(|error| FetchError::Final(self.disk(&error)))?;
            part.hash.update(&bytes);
            part.bytes += bytes.len() as u64;
            self.progress.bytes.store(part.bytes, Ordering::Relaxed);
        }
        part.file.flush().await.map_err(|error| FetchError::Final(self.disk(&error)))
    }

    /// Reports the error of a fetch.
    fn obstacle(&self, why: Option<String>) {
        let why = why.map(|why| format!("{}: {why}", self.digest.short()).chars().take(MAX_TROUBLE).collect());
        *self.progress.obstacle.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn has_room(&self, wanted: u64) -> Result<(), VmRefusal> {
        let free = self.store.room().map_err(|error| self.disk(&error))?;
        if wanted <= free {
            return Ok(());
        }
        let (wanted, free) = (wanted >> 20, free >> 20);
        Err(self.full(format!("{wanted} MiB are to come, and there is room for {free} MiB")))
    }

    fn full(&self, why: String) -> VmRefusal {
        let folder = self.store.config.images.display();
        refusal(VmRefusalReason::StoreFull, format!("{} does not fit into {folder}: {why}", self.digest.short()))
    }

    fn disk(&self, error: &io::Error) -> VmRefusal {
        self.full(error.to_string())
    }

    /// Renames the file to its digest if the contents match.
    async fn seal(&self, part: PartialFile) -> Result<(), VmRefusal> {
        let found = Digest(part.hash.finalize().into());
        if found != self.digest {
            let detail = format!("what came for {} has the digest {}", self.digest.short(), found.short());
            return Err(refusal(VmRefusalReason::VolumeDiffers, detail));
        }
        // After a power loss, a named file must have its contents.
        part.file.sync_all().await.map_err(|error| self.disk(&error))?;
        let (from, to) = (self.store.part(&self.digest), self.store.whole(&self.digest));
        fs::rename(from, to).map_err(|error| self.disk(&error))
    }
}
