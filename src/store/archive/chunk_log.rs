//! Streams of nodes as bounded files, the output of a task or the log of a boot: the beginning and
//! the newest part.
//!
//! ```text
//! FOLDER/<key>/<offset>    lines of JSON, one for each piece; the file's name is the offset of its first byte
//! ```
//!
//! An offset counts the bytes of all lines that were ever written under the key, so that a reader
//! can resume. Pieces of one stream of one node arrive in order, possibly twice; each is stored
//! once. Nothing is flushed: a power failure may lose lines, which the offsets show.

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

/// Bounds of the files of one key.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of a file, bytes; its last line may exceed it.
    pub segment: u64,
    /// Maximum number of files besides the first one.
    pub newest: usize,
    /// Keep the current file open between writes.
    pub keep_open: bool,
}

/// One stored piece. `S` names the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        let LogLine { when, node, stream, at, data } = line;
        let bytes = data.into_bytes().ok_or(io::ErrorKind::InvalidData)?;
        let log = self.log(key)?;
        let mut files = lock(&log.files);
        let known = files.upto.get(&(node, stream)).copied().unwrap_or(0);
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
        log.end.send_replace(files.end());
        Ok(end)
    }

    /// Returns whole lines from an offset on. Blocks.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&self, key: K, from: u64) -> io::Result<Chunk> {
        let log = self.log(key)?;
        let files = lock(&log.files);
        let holds = |(start, length): (&u64, &u64)| from < start + length;
        let found = files.segments.iter().find(|segment| holds(*segment)).map(|(start, _)| *start);
        let Some(start) = found else {
            return Ok(Chunk { lines: Vec::new(), dropped: 0, next: from.min(files.end()) });
        };
        let at = from.max(start);
        let mut file = File::open(files.path(start))?;
        // The lock is held: no file is removed during the read.
        file.seek(SeekFrom::Start(at - start))?;
        let mut lines = Vec::new();
        file.take(MAX_READ).read_to_end(&mut lines)?;
        let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        lines.truncate(whole);
        Ok(Chunk { next: at + lines.len() as u64, dropped: at - from, lines })
    }

    /// Returns a signal with the offset of the next line.
    ///
    /// # Errors
    /// If the files cannot be read.
    pub fn watch(&self, key: K) -> io::Result<watch::Receiver<u64>> {
        Ok(self.log(key)?.end.subscribe())
    }

    /// Removes the logs of all other keys. Blocks.
    pub fn keep_only(&self, keys: &BTreeSet<K>) {
        let mut logs = lock(&self.logs);
        logs.retain(|key, _| keys.contains(key));
        let names = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in names {
            let key: Option<K> = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if key.is_some_and(|key| !keys.contains(&key))
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                tracing::warn!(%error, path = %entry.path().display(), "an old log cannot be removed");
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

impl<S: LogStream> Files<S> {
    fn open(dir: PathBuf, limits: Limits) -> io::Result<Self> {
        let mut files =
            Files { dir, limits, segments: BTreeMap::new(), open: None, upto: BTreeMap::new() };
        let entries = match fs::read_dir(&files.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if let Some(start) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                files.segments.insert(start, entry.metadata()?.len());
            }
        }
        for start in files.segments.keys().copied().collect::<Vec<_>>() {
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

    fn end(&self) -> u64 {
        self.segments.last_key_value().map_or(0, |(start, length)| start + length)
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let last = self.segments.last_key_value().map(|(start, length)| (*start, *length));
        let (start, length) = match last.filter(|(_, length)| *length < self.limits.segment) {
            Some(last) => last,
            None => {
                self.open = None;
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
        while self.segments.len() > self.limits.newest + 1 {
            let Some(second) = self.segments.keys().nth(1).copied() else { break };
            fs::remove_file(self.path(second))?;
            self.segments.remove(&second);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_proto::task::Stream;
    use meshd_types::TaskId;
    use proptest::prelude::*;
    use std::path::Path;

    const KEY: TaskId = TaskId([1; 4]);
    const LIMITS: Limits = Limits { segment: 64 << 10, newest: 3, keep_open: true };

    type Outputs = ChunkLogs<TaskId, Stream>;

    fn outputs(dir: &Path) -> Outputs {
        ChunkLogs::new(dir.to_owned(), LIMITS)
    }

    fn piece(at: u64, bytes: &[u8]) -> LogLine<Stream> {
        let (when, node) = (Timestamp::EPOCH, node());
        LogLine { when, node, stream: Stream::Out, at, data: Piece::from_bytes(bytes.to_vec()) }
    }

    fn node() -> NodeId {
        "00000001".parse().expect("a node ID")
    }

    fn all(outputs: &Outputs) -> (Vec<LogLine<Stream>>, u64) {
        let (mut lines, mut dropped, mut from) = (Vec::new(), 0, 0);
        loop {
            let chunk = outputs.read(KEY, from).expect("readable");
            if chunk.lines.is_empty() {
                return (lines, dropped);
            }
            let read = chunk.lines.split_inclusive(|byte| *byte == b'\n');
            lines.extend(
                read.map(|line| {
                    serde_json::from_slice::<LogLine<Stream>>(line).expect("whole lines")
                }),
            );
            (from, dropped) = (chunk.next, dropped + chunk.dropped);
        }
    }

    #[test]
    fn output_keeps_beginning_and_end_and_reports_the_gap() {
        let dir = tempfile::tempdir().expect("a folder");
        let outputs = self::outputs(dir.path());
        let (mut at, block) = (0, vec![b'x'; 8_000]);
        for _ in 0..100 {
            at = outputs.append(KEY, piece(at, &block)).expect("kept");
        }
        let (lines, dropped) = all(&outputs);
        assert_eq!(lines.first().map(|line| line.at), Some(0));
        assert_eq!(lines.last().map(|line| line.at), Some(at - 8_000));
        assert!(dropped > 400_000, "{dropped}");
        let files: u64 = fs::read_dir(dir.path().join("01010101"))
            .expect("there")
            .flatten()
            .map(|file| file.metadata().expect("known").len())
            .sum();
        assert!(files < (LIMITS.newest as u64 + 1) * (LIMITS.segment + 20_000), "{files}");
        // A reopened log continues at the same offset.
        let again = self::outputs(dir.path());
        assert_eq!(again.append(KEY, piece(0, b"old")).expect("known"), at);
        assert_eq!(again.append(KEY, piece(at, b"new")).expect("kept"), at + 3);
        assert_eq!(
            all(&again).0.last().map(|line| line.data.clone()),
            Some(Piece::Text("new".to_owned()))
        );
        again.keep_only(&BTreeSet::new());
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0);
    }

    #[test]
    fn partial_line_after_crash_is_truncated() {
        let dir = tempfile::tempdir().expect("a folder");
        outputs(dir.path()).append(KEY, piece(0, b"whole")).expect("kept");
        let file = dir.path().join("01010101/00000000000000000000");
        let mut text = fs::read(&file).expect("there");
        let length = text.len();
        text.extend(&text.clone()[..20]);
        fs::write(&file, text).expect("written");
        let outputs = self::outputs(dir.path());
        assert_eq!(outputs.append(KEY, piece(5, b"next")).expect("kept"), 9);
        assert_eq!(all(&outputs).0.len(), 2);
        assert!(fs::metadata(&file).expect("there").len() > length as u64);
    }

    proptest! {
        #[test]
        fn repeated_or_overlapping_pieces_are_stored_once(cuts in prop::collection::vec((0usize..40, 0usize..12), 1..30)) {
            let dir = tempfile::tempdir().expect("a folder");
            let text: Vec<u8> = (0u8..64).collect();
            let mut outputs = self::outputs(dir.path());
            let mut upto = 0;
            for (index, (back, length)) in cuts.into_iter().enumerate() {
                let at = usize::try_from(upto).expect("small").saturating_sub(back);
                let bytes = &text[at..(at + length).min(text.len())];
                let now = outputs.append(KEY, piece(at as u64, bytes)).expect("kept");
                prop_assert!(now >= upto);
                upto = now;
                if index % 5 == 4 {
                    outputs = self::outputs(dir.path());
                }
            }
            let kept: Vec<u8> = all(&outputs).0.into_iter().flat_map(|line| line.data.into_bytes().expect("bytes")).collect();
            prop_assert_eq!(kept, &text[..usize::try_from(upto).expect("small")]);
        }
    }
}
