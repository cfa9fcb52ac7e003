//! Streams of nodes as bounded files, the output of a task or the log of a boot: the beginning, the
//! newest part, and between them a share for each node.
//!
//! ```text
//! FOLDER/<key>/<offset>    lines of JSON, one for each piece; the file's name is the offset of its first byte
//! FOLDER/<key>/merging     two files that become one; a crash may leave it
//! ```
//!
//! An offset counts the bytes of all lines that were ever written under the key, so that a reader
//! can resume. Pieces of one stream of one node arrive in order, possibly twice; each is stored
//! once. Nothing is flushed: a power failure may lose lines, which the offsets show.
//!
//! When a file must go, the two oldest ones after the first become one that [`fair_shares`] fills.
//! Its lines move to the end of the range of both, so that it is a file as every other one: a
//! reader that is so far behind misses none of them, and may read some twice.

use super::{
    output_shares::fair_shares,
    replace_file::{Flush, replace_file},
};
use meshd_proto::task::Piece;
use meshd_types::{NodeId, Timestamp};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::PathBuf,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// Maximum number of bytes of one read; longer than any line.
const MAX_READ: u64 = 512 << 10;
/// Name of the file that replaces two others.
const MERGING: &str = "merging";

/// Bounds of the files of one key.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of a file, bytes; its last line may exceed it.
    pub segment: u64,
    /// Maximum number of files besides the first one, at least 2.
    pub newest: usize,
    /// Keep the current file open between writes.
    pub keep_open: bool,
}

/// One stored piece. `S` names the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LogLine<S> {
    pub when: Timestamp,
    pub node: NodeId,
    pub stream: S,
    /// Offset in this stream of this node, bytes.
    pub at: u64,
    pub data: Piece,
}

/// A key of a log: a folder has its name.
pub trait LogKey: Copy + Ord + Display + FromStr {}
impl<K: Copy + Ord + Display + FromStr> LogKey for K {}

/// A name of a stream.
pub trait LogStream: Copy + Ord + Serialize + DeserializeOwned {}
impl<S: Copy + Ord + Serialize + DeserializeOwned> LogStream for S {}

/// Lines from one offset on.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whole lines; empty at the end.
    pub lines: Vec<u8>,
    /// Number of bytes before them that were removed.
    pub dropped: u64,
    /// Offset of the next line.
    pub next: u64,
}

/// The logs below one folder, by key.
pub struct ChunkLogs<K, S> {
    dir: PathBuf,
    limits: Limits,
    logs: Mutex<BTreeMap<K, Arc<ChunkLog<S>>>>,
}

struct ChunkLog<S> {
    files: Mutex<Files<S>>,
    /// Offset of the next line.
    end: watch::Sender<u64>,
}

struct Files<S> {
    dir: PathBuf,
    limits: Limits,
    /// Lengths of the files by their offset, bytes.
    segments: BTreeMap<u64, u64>,
    open: Option<File>,
    /// Stored offset of each stream.
    upto: BTreeMap<(NodeId, S), u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: LogKey, S: LogStream> ChunkLogs<K, S> {
    /// Uses a folder, which is created when needed. Nothing is read.
    pub fn new(dir: PathBuf, limits: Limits) -> Self {
        ChunkLogs { dir, limits, logs: Mutex::default() }
    }

    /// Stores a piece and returns the stored offset of its stream. Blocks.
    ///
    /// # Errors
    /// If it cannot be written. The caller repeats it.
    pub fn append(&self, key: K, line: LogLine<S>) -> io::Result<u64> {
        let log = self.log(key)?;
        let mut files = lock(&log.files);
        log.store(&mut files, line)
    }

    /// Stores a piece after the last one of its stream; its offset does not count. A stream may
    /// have several such writers. Blocks.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append_next(&self, key: K, line: LogLine<S>) -> io::Result<u64> {
        let log = self.log(key)?;
        let mut files = lock(&log.files);
        let at = files.stored_offset(line.node, line.stream);
        log.store(&mut files, LogLine { at, ..line })
    }

    /// Returns whole lines from an offset on. Blocks.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&self, key: K, from: u64) -> io::Result<Chunk> {
        let log = self.log(key)?;
        // The lock is held: no file is removed during the read.
        let files = lock(&log.files);
        for (start, length) in &files.segments {
            if from < start + length {
                let (lines, at) = files.read(*start, from.max(*start))?;
                if !lines.is_empty() {
                    return Ok(Chunk { next: at + lines.len() as u64, dropped: at - from, lines });
                }
            }
        }
        Ok(Chunk { lines: Vec::new(), dropped: 0, next: from.min(files.end()) })
    }

    /// Returns a signal with the offset of the next line.
    ///
    /// # Errors
    /// If the files cannot be read.
    pub fn watch(&self, key: K) -> io::Result<watch::Receiver<u64>> {
        Ok(self.log(key)?.end.subscribe())
    }

    /// Removes the logs of all other keys. Blocks.
    ///
    /// `keys` runs while no log can begin. A log begins after the record of its key, so `keys`
    /// returns the key of each log that exists.
    pub fn keep_only(&self, keys: impl FnOnce() -> BTreeSet<K>) {
        let old: Vec<PathBuf> = {
            let mut logs = lock(&self.logs);
            let keys = keys();
            logs.retain(|key, _| keys.contains(key));
            let is_old = |entry: &fs::DirEntry| {
                let key: Option<K> = entry.file_name().to_str().and_then(|name| name.parse().ok());
                key.is_some_and(|key| !keys.contains(&key))
            };
            let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
            entries.filter(is_old).map(|entry| entry.path()).collect()
        };
        // Other logs are written meanwhile: this may take seconds. The keys are never used again.
        for path in old {
            if let Err(error) = fs::remove_dir_all(&path) {
                tracing::warn!(%error, path = %path.display(), "an old log cannot be removed");
            }
        }
    }

    fn log(&self, key: K) -> io::Result<Arc<ChunkLog<S>>> {
        let mut logs = lock(&self.logs);
        if let Some(log) = logs.get(&key) {
            return Ok(log.clone());
        }
        let files = Files::open(self.dir.join(key.to_string()), self.limits)?;
        let log =
            Arc::new(ChunkLog { end: watch::Sender::new(files.end()), files: Mutex::new(files) });
        logs.insert(key, log.clone());
        Ok(log)
    }
}

impl<S: LogStream> ChunkLog<S> {
    /// Stores a piece and returns the stored offset of its stream. The caller holds the lock.
    fn store(&self, files: &mut Files<S>, line: LogLine<S>) -> io::Result<u64> {
        let LogLine { when, node, stream, at, data } = line;
        let bytes = data.into_bytes().ok_or(io::ErrorKind::InvalidData)?;
        let known = files.stored_offset(node, stream);
        let end = at.saturating_add(bytes.len() as u64);
        if end <= known {
            return Ok(known);
        }
        // An overlap is removed. A gap is what a crash lost; the offsets show it.
        let skip = usize::try_from(known.saturating_sub(at)).unwrap_or(0);
        let data = Piece::from_bytes(bytes.get(skip..).unwrap_or_default().to_vec());
        let line = LogLine { when, node, stream, at: at.max(known), data };
        let mut line = serde_json::to_vec(&line).map_err(io::Error::other)?;
        line.push(b'\n');
        files.write(&line)?;
        files.upto.insert((node, stream), end);
        self.end.send_replace(files.end());
        Ok(end)
    }
}

impl<S: LogStream> Files<S> {
    fn open(dir: PathBuf, limits: Limits) -> io::Result<Self> {
        let mut files =
            Files { dir, limits, segments: BTreeMap::new(), open: None, upto: BTreeMap::new() };
        let entries = match fs::read_dir(&files.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
            Err(error) => return Err(error),
        };
        let mut starts = BTreeSet::new();
        for entry in entries {
            starts.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        for start in starts {
            // A file that begins within the former one replaces it: a crash interrupted a merge.
            let former = files.segments.last_key_value().map(|(former, length)| (*former, *length));
            if let Some((former, _)) = former.filter(|(former, length)| start < former + length) {
                files.remove(former)?;
            }
            files.recover(start)?;
        }
        Ok(files)
    }

    /// Reads the stored offsets from one file, and removes a line that a crash cut off.
    fn recover(&mut self, start: u64) -> io::Result<()> {
        let path = self.path(start);
        let bytes = fs::read(&path)?;
        let mut whole = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Ok(LogLine::<S> { node, stream, at, data, .. }) = serde_json::from_slice(line)
            else {
                break;
            };
            let length = data.into_bytes().map_or(0, |bytes| bytes.len() as u64);
            self.upto.insert((node, stream), at.saturating_add(length));
            whole += line.len() as u64;
        }
        if whole < bytes.len() as u64 {
            OpenOptions::new().write(true).open(&path)?.set_len(whole)?;
        }
        self.segments.insert(start, whole);
        Ok(())
    }

    fn path(&self, start: u64) -> PathBuf {
        self.dir.join(format!("{start:020}"))
    }

    /// Returns the stored offset of a stream of a node.
    fn stored_offset(&self, node: NodeId, stream: S) -> u64 {
        self.upto.get(&(node, stream)).copied().unwrap_or(0)
    }

    fn end(&self) -> u64 {
        self.segments.last_key_value().map_or(0, |(start, length)| start + length)
    }

    /// Returns whole lines of a file from an offset on, and the offset of the first one. `at` may
    /// be within a line of a merged file.
    fn read(&self, start: u64, at: u64) -> io::Result<(Vec<u8>, u64)> {
        let mut file = File::open(self.path(start))?;
        // With the end of the line before.
        let before = at.saturating_sub(1).max(start);
        file.seek(SeekFrom::Start(before - start))?;
        let mut lines = Vec::new();
        file.take(MAX_READ).read_to_end(&mut lines)?;
        let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        lines.truncate(whole);
        let skipped = match at > start {
            true => lines.iter().position(|byte| *byte == b'\n').map_or(whole, |end| end + 1),
            false => 0,
        };
        lines.drain(..skipped);
        Ok((lines, before + skipped as u64))
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let last = self.segments.last_key_value().map(|(start, length)| (*start, *length));
        let (start, length) = match last.filter(|(_, length)| *length < self.limits.segment) {
            Some(last) => last,
            None => {
                self.open = None;
                if self.segments.len() > self.limits.newest {
                    self.merge()?;
                }
                (self.end(), 0)
            }
        };
        let file = match &mut self.open {
            Some(file) => file,
            None => {
                fs::create_dir_all(&self.dir)?;
                let file = OpenOptions::new().create(true).append(true).open(self.path(start))?;
                self.open.insert(file)
            }
        };
        if let Err(error) = file.write_all(line) {
            // A partial line would damage the next one.
            file.set_len(length)?;
            return Err(error);
        }
        self.segments.insert(start, length + line.len() as u64);
        if !self.limits.keep_open {
            self.open = None;
        }
        Ok(())
    }

    /// Makes the two oldest files after the first one into one, of the length of a file at most.
    fn merge(&mut self) -> io::Result<()> {
        let [(older, _), (newer, length)] = {
            let mut oldest = self.segments.iter().skip(1).map(|(start, length)| (*start, *length));
            let (Some(older), Some(newer)) = (oldest.next(), oldest.next()) else { return Ok(()) };
            [older, newer]
        };
        let mut lines = fs::read(self.path(older))?;
        lines.extend(fs::read(self.path(newer))?);
        // No more than the newer file has: the merged file begins within it, by which a start after
        // a crash knows that it replaces both.
        let kept = fair_shares(&lines, self.limits.segment.min(length));
        let temporary = self.dir.join(MERGING);
        let start = (newer + length).saturating_sub(kept.len() as u64);
        replace_file(&self.path(start), &temporary, &kept, Flush::Nothing)?;
        if start != newer {
            self.remove(newer)?;
        }
        self.segments.insert(start, kept.len() as u64);
        self.remove(older)
    }

    fn remove(&mut self, start: u64) -> io::Result<()> {
        fs::remove_file(self.path(start))?;
        self.segments.remove(&start);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
