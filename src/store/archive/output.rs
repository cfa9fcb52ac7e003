//! Output of tasks as bounded files: the beginning and the newest part.
//!
//! ```text
//! state_dir/jobs/<job>/<offset>    lines of JSON, one for each piece; the file's name is the offset of its first byte
//! ```
//!
//! An offset counts the bytes of all lines that the task ever wrote, so that a reader can resume. Pieces of one stream of one node arrive
//! in order, possibly twice; each is stored once. Output is not flushed: a power failure may lose some, which the offsets show.

use meshd_proto::job::{Output, Piece, Stream};
use meshd_types::{JobId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// A file goes no further than this, in bytes, but for its last line.
pub const SEGMENT: u64 = 2 << 20;
/// The newest files that are kept beside the first one: a job keeps 8 MiB.
pub const NEWEST: usize = 3;
/// Most bytes that are read at once; longer than any line.
const MAX_READ: u64 = 512 << 10;

/// One piece as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputLine {
    pub when: Timestamp,
    pub node: NodeId,
    pub stream: Stream,
    /// Bytes of this stream of this node before it.
    pub at: u64,
    pub data: Piece,
}

/// What is read at one place.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whole lines; none at the end of what there is.
    pub lines: Vec<u8>,
    /// Bytes that were thrown away before them.
    pub dropped: u64,
    /// Where the next ones are.
    pub next: u64,
}

/// The outputs of all jobs.
pub struct Outputs {
    dir: PathBuf,
    logs: Mutex<BTreeMap<JobId, Arc<OutputLog>>>,
}

struct OutputLog {
    inner: Mutex<Inner>,
    /// Where the next line goes.
    end: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    dir: PathBuf,
    /// Places of the files' first bytes, and their lengths.
    segments: BTreeMap<u64, u64>,
    open: Option<File>,
    /// How far each stream is kept.
    upto: BTreeMap<(NodeId, Stream), u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outputs {
    /// Those below a state folder. Nothing is read.
    pub fn new(state_dir: &Path) -> Self {
        Outputs { dir: state_dir.join("jobs"), logs: Mutex::default() }
    }

    /// Keeps a piece; how far its stream is kept now. Blocks.
    ///
    /// # Errors
    /// When it cannot be written: then it has to come again.
    pub fn append(&self, node: NodeId, output: Output, when: Timestamp) -> io::Result<u64> {
        let Output { job, stream, at, data } = output;
        let bytes = data.into_bytes().ok_or(io::ErrorKind::InvalidData)?;
        let log = self.log(job)?;
        let mut inner = lock(&log.inner);
        let known = inner.upto.get(&(node, stream)).copied().unwrap_or(0);
        let end = at.saturating_add(bytes.len() as u64);
        if end <= known {
            return Ok(known);
        }
        // Cut where it overlaps; a stream that goes on later than it is known was cut by a crash, and its places say so.
        let skip = usize::try_from(known.saturating_sub(at)).unwrap_or(0);
        let data = Piece::of(bytes.get(skip..).unwrap_or_default().to_vec());
        let line = OutputLine { when, node, stream, at: at.max(known), data };
        let mut line = serde_json::to_vec(&line).map_err(io::Error::other)?;
        line.push(b'\n');
        inner.write(&line)?;
        inner.upto.insert((node, stream), end);
        log.end.send_replace(inner.end());
        Ok(end)
    }

    /// Whole lines from a place on. Blocks.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn read(&self, job: JobId, from: u64) -> io::Result<Chunk> {
        let log = self.log(job)?;
        let inner = lock(&log.inner);
        let holds = |(start, length): (&u64, &u64)| from < start + length;
        let found = inner.segments.iter().find(|segment| holds(*segment)).map(|(start, _)| *start);
        let Some(start) = found else {
            return Ok(Chunk { lines: Vec::new(), dropped: 0, next: from.min(inner.end()) });
        };
        let at = from.max(start);
        let mut file = File::open(inner.path(start))?;
        // Held while it is read: nobody throws the file away meanwhile.
        file.seek(SeekFrom::Start(at - start))?;
        let mut lines = Vec::new();
        file.take(MAX_READ).read_to_end(&mut lines)?;
        let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        lines.truncate(whole);
        Ok(Chunk { next: at + lines.len() as u64, dropped: at - from, lines })
    }

    /// Tells where the next line of a job goes, now and whenever one came.
    ///
    /// # Errors
    /// When what there is cannot be read.
    pub fn watch(&self, job: JobId) -> io::Result<watch::Receiver<u64>> {
        Ok(self.log(job)?.end.subscribe())
    }

    /// Throws away what is of none of these jobs. Blocks.
    pub fn keep_only(&self, jobs: &BTreeSet<JobId>) {
        let mut logs = lock(&self.logs);
        logs.retain(|job, _| jobs.contains(job));
        let names = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in names {
            let job: Option<JobId> = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if job.is_some_and(|job| !jobs.contains(&job))
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                tracing::warn!(%error, path = %entry.path().display(), "the output of an old task stays");
            }
        }
    }

    fn log(&self, job: JobId) -> io::Result<Arc<OutputLog>> {
        let mut logs = lock(&self.logs);
        if let Some(log) = logs.get(&job) {
            return Ok(log.clone());
        }
        let inner = Inner::open(self.dir.join(job.to_string()))?;
        let log = Arc::new(OutputLog { end: watch::Sender::new(inner.end()), inner: Mutex::new(inner) });
        logs.insert(job, log.clone());
        Ok(log)
    }
}

impl Inner {
    fn open(dir: PathBuf) -> io::Result<Self> {
        let mut inner = Inner { dir, ..Inner::default() };
        let entries = match fs::read_dir(&inner.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(inner),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if let Some(start) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                inner.segments.insert(start, entry.metadata()?.len());
            }
        }
        for start in inner.segments.keys().copied().collect::<Vec<_>>() {
            inner.recall(start)?;
        }
        Ok(inner)
    }

    /// Reads how far each stream is in one file, and cuts off a line that a crash has left half.
    fn recall(&mut self, start: u64) -> io::Result<()> {
        let path = self.path(start);
        let bytes = fs::read(&path)?;
        let mut whole = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Ok(OutputLine { node, stream, at, data, .. }) = serde_json::from_slice(line) else { break };
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
        let (start, length) = match last.filter(|(_, length)| *length < SEGMENT) {
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
            // Half a line would break the next one.
            file.set_len(length)?;
            return Err(error);
        }
        self.segments.insert(start, length + line.len() as u64);
        while self.segments.len() > NEWEST + 1 {
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
    use proptest::prelude::*;

    fn piece(at: u64, bytes: &[u8]) -> Output {
        Output { job: JobId([1; 4]), stream: Stream::Out, at, data: Piece::of(bytes.to_vec()) }
    }

    fn node() -> NodeId {
        "00000001".parse().expect("a node ID")
    }

    fn all(outputs: &Outputs) -> (Vec<OutputLine>, u64) {
        let (mut lines, mut dropped, mut from) = (Vec::new(), 0, 0);
        loop {
            let chunk = outputs.read(JobId([1; 4]), from).expect("readable");
            if chunk.lines.is_empty() {
                return (lines, dropped);
            }
            let read = chunk.lines.split_inclusive(|byte| *byte == b'\n');
            lines.extend(read.map(|line| serde_json::from_slice::<OutputLine>(line).expect("whole lines")));
            (from, dropped) = (chunk.next, dropped + chunk.dropped);
        }
    }

    #[test]
    fn output_keeps_beginning_and_end_and_reports_the_gap() {
        let dir = tempfile::tempdir().expect("a folder");
        let outputs = Outputs::new(dir.path());
        let (mut at, block) = (0, vec![b'x'; 8_000]);
        for _ in 0..2250 {
            at = outputs.append(node(), piece(at, &block), Timestamp::EPOCH).expect("kept");
        }
        let (lines, dropped) = all(&outputs);
        assert_eq!(lines.first().map(|line| line.at), Some(0));
        assert_eq!(lines.last().map(|line| line.at), Some(at - 8_000));
        assert!(dropped > 5 << 20, "{dropped}");
        let files: u64 = fs::read_dir(dir.path().join("jobs/01010101"))
            .expect("there")
            .flatten()
            .map(|file| file.metadata().expect("known").len())
            .sum();
        assert!(files < (NEWEST as u64 + 1) * (SEGMENT + MAX_READ), "{files}");
        // Opened again, it goes on where it was.
        let again = Outputs::new(dir.path());
        assert_eq!(again.append(node(), piece(0, b"old"), Timestamp::EPOCH).expect("known"), at);
        assert_eq!(again.append(node(), piece(at, b"new"), Timestamp::EPOCH).expect("kept"), at + 3);
        assert_eq!(all(&again).0.last().map(|line| line.data.clone()), Some(Piece::Text("new".to_owned())));
        again.keep_only(&BTreeSet::new());
        assert_eq!(fs::read_dir(dir.path().join("jobs")).expect("there").count(), 0);
    }

    #[test]
    fn half_a_line_that_a_crash_left_is_cut_off() {
        let dir = tempfile::tempdir().expect("a folder");
        Outputs::new(dir.path()).append(node(), piece(0, b"whole"), Timestamp::EPOCH).expect("kept");
        let file = dir.path().join("jobs/01010101/00000000000000000000");
        let mut text = fs::read(&file).expect("there");
        let length = text.len();
        text.extend(&text.clone()[..20]);
        fs::write(&file, text).expect("written");
        let outputs = Outputs::new(dir.path());
        assert_eq!(outputs.append(node(), piece(5, b"next"), Timestamp::EPOCH).expect("kept"), 9);
        assert_eq!(all(&outputs).0.len(), 2);
        assert!(fs::metadata(&file).expect("there").len() > length as u64);
    }

    proptest! {
        #[test]
        fn pieces_that_come_again_or_overlap_are_kept_once(cuts in prop::collection::vec((0usize..40, 0usize..12), 1..30)) {
            let dir = tempfile::tempdir().expect("a folder");
            let text: Vec<u8> = (0u8..64).collect();
            let mut outputs = Outputs::new(dir.path());
            let mut upto = 0;
            for (turn, (back, length)) in cuts.into_iter().enumerate() {
                let at = usize::try_from(upto).expect("small").saturating_sub(back);
                let bytes = &text[at..(at + length).min(text.len())];
                let now = outputs.append(node(), piece(at as u64, bytes), Timestamp::EPOCH).expect("kept");
                prop_assert!(now >= upto);
                upto = now;
                if turn % 5 == 4 {
                    outputs = Outputs::new(dir.path());
                }
            }
            let kept: Vec<u8> = all(&outputs).0.into_iter().flat_map(|line| line.data.into_bytes().expect("bytes")).collect();
            prop_assert_eq!(kept, &text[..usize::try_from(upto).expect("small")]);
        }
    }
}
