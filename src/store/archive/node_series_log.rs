//! Time series of nodes: a file for each hour and each day, and a log of the present hour.
//!
//! ```text
//! FOLDER/present               frames of the present hour (`meshd_model::series`), one a minute
//! FOLDER/hours/<place>-<hour>  a table of 60 minutes; hours are counted since the epoch
//! FOLDER/days/<place>-<day>    a table of 24 hours; written anew after each of its hours
//! ```
//! The place counts the files in the order in which they were begun. The oldest of 25 hours and 91
//! days, and of a number of bytes in all, goes first. No times are compared: each file that a wrong
//! clock adds costs one old file, and never a new one.
//!
//! Tables are flushed before they replace a file, the log of the present hour is not. What a full
//! disk refuses stays in memory until the hour ends; if it still is full then, the hour is lost.

use super::replace_file::{Flush, replace_file};
use meshd_model::series::{
    HOUR, MINUTE, NODE_SERIES, NodeCodes, NodeSeries, NodeTable, RecordPlace, SeriesFrame,
    SeriesPoint, SeriesRange, TABLE_HEAD, UNKNOWN, find_record, index_length, points, read_frames,
    unpack_record, write_usage,
};
use meshd_types::{NodeId, Timestamp};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Columns of an hour and of a day.
const MINUTES: usize = 60;
const HOURS: usize = 24;
/// Seconds of a day.
const DAY: u64 = 24 * HOUR;
/// Maximum number of files.
const MAX_HOURS: usize = 25;
const MAX_DAYS: usize = 91;
/// Maximum length of all files without the log of the present hour, in bytes.
pub const NODE_SERIES_BYTES: u64 = 85_000_000;
/// Maximum number of answers that are kept until the next sample, and of the points of each.
const MAX_ANSWERS: usize = 64;
const MAX_KEPT_POINTS: usize = 2000;
/// Maximum length of a file that is read, in bytes.
const MAX_READ: u64 = 32 << 20;

/// The series of all nodes.
pub struct NodeSeriesLog {
    folder: PathBuf,
    max_bytes: u64,
    state: Mutex<NodeSeriesState>,
    /// The last write failed. Its readers do not wait for a flush, which holds the state.
    is_failing: AtomicBool,
    answers: Mutex<Answers>,
}

/// Answers since the last sample. Open pages of a node ask every few seconds, and an answer is read
/// from up to 25 files.
#[derive(Default)]
struct Answers {
    /// Number of samples.
    samples: u64,
    kept: BTreeMap<(NodeId, SeriesRange), Vec<Vec<SeriesPoint>>>,
}

/// A file of a table.
struct TableFile {
    /// Its place in the order of all files of its folder.
    place: u64,
    /// The hour or day, counted since the epoch.
    number: u64,
    /// In bytes.
    length: u64,
}

struct NodeSeriesState {
    is_loaded: bool,
    /// The present hour, counted since the epoch.
    hour: Option<u64>,
    minutes: NodeTable,
}

impl NodeSeriesLog {
    /// Uses a folder, which is created when needed. Nothing is read.
    pub fn new(folder: PathBuf, max_bytes: u64) -> Self {
        let state =
            NodeSeriesState { is_loaded: false, hour: None, minutes: NodeTable::new(MINUTES) };
        let is_failing = AtomicBool::new(false);
        let answers = Mutex::default();
        NodeSeriesLog { folder, max_bytes, state: Mutex::new(state), is_failing, answers }
    }

    /// Adds the samples of a minute, and writes them. Blocks.
    pub fn record(&self, at: Timestamp, samples: &[(NodeId, NodeCodes)]) {
        let seconds = u64::try_from(at.seconds()).unwrap_or(0);
        let mut state = locked(&self.state);
        let begun =
            self.load_once(&mut state).and_then(|()| self.begin_hour(&mut state, seconds / HOUR));
        let written = begun.and_then(|()| {
            let mut frame = Vec::new();
            write_usage(&mut frame, seconds - seconds % MINUTE, samples);
            self.append(&frame)
        });
        // If the former hour could not end, its minutes stay as they are.
        if state.hour == Some(seconds / HOUR) {
            let column = minute_of(seconds);
            samples.iter().for_each(|(node, codes)| state.minutes.set(*node, column, codes));
        }
        let mut answers = locked(&self.answers);
        answers.samples += 1;
        answers.kept.clear();
        drop(answers);
        let path = self.folder.display();
        let was_failing = self.is_failing.swap(written.is_err(), Ordering::Relaxed);
        match &written {
            Ok(()) if was_failing => tracing::info!(%path, "series of nodes are stored again"),
            Err(error) if !was_failing => {
                tracing::warn!(%error, %path, "series of nodes cannot be stored");
            }
            _ => {}
        }
    }

    /// Returns the points of all series of a node, in the order of [`NodeSeries::ALL`]. Blocks.
    pub fn read(&self, node: NodeId, range: &SeriesRange) -> Vec<Vec<SeriesPoint>> {
        let key = (node, *range);
        let samples = {
            let answers = locked(&self.answers);
            if let Some(kept) = answers.kept.get(&key) {
                return kept.clone();
            }
            answers.samples
        };
        let answer = self.read_files(node, range);
        let mut answers = locked(&self.answers);
        // A sample that came meanwhile may be missing in the answer.
        if answers.samples == samples
            && answers.kept.len() < MAX_ANSWERS
            && answer.iter().map(Vec::len).sum::<usize>() <= MAX_KEPT_POINTS
        {
            answers.kept.insert(key, answer.clone());
        }
        answer
    }

    fn read_files(&self, node: NodeId, range: &SeriesRange) -> Vec<Vec<SeriesPoint>> {
        let present = {
            let mut state = locked(&self.state);
            // The next sample reports an error.
            let _ = self.load_once(&mut state);
            state.hour.map(|hour| (hour, state.minutes.node(node)))
        };
        let mut minutes = vec![BTreeMap::new(); NODE_SERIES];
        let mut hours = vec![BTreeMap::new(); NODE_SERIES];
        if range.step() < HOUR {
            for (path, start) in self.files_of_range("hours", range, HOUR) {
                let rows = node_of_file(&path, MINUTES, node);
                rows.iter().for_each(|rows| add_rows(&mut minutes, rows, start, MINUTE));
            }
        } else {
            for (path, start) in self.files_of_range("days", range, DAY) {
                let rows = node_of_file(&path, HOURS, node);
                rows.iter().for_each(|rows| add_rows(&mut hours, rows, start, HOUR));
            }
        }
        if let Some((hour, Some(rows))) = present {
            add_rows(&mut minutes, &rows, hour * HOUR, MINUTE);
        }
        let series = minutes.iter().zip(&hours);
        series.map(|(minutes, hours)| points(minutes, hours, range)).collect()
    }

    /// True if the last samples could not be written. Does not block.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// The file of an hour or a day, or the place for a new one.
    fn path(&self, folder: &str, number: u64) -> PathBuf {
        let files = self.files(folder);
        let found = files.iter().find(|file| file.number == number).map(|file| file.place);
        let next = || files.last().map_or(0, |last| last.place + 1);
        self.path_at(folder, found.unwrap_or_else(next), number)
    }

    fn path_at(&self, folder: &str, place: u64, number: u64) -> PathBuf {
        self.folder.join(folder).join(format!("{place}-{number}"))
    }

    fn present_path(&self) -> PathBuf {
        self.folder.join("present")
    }

    /// Reads the log of the present hour, unless it was read. After an error nothing is written,
    /// and the next sample tries again.
    fn load_once(&self, state: &mut NodeSeriesState) -> io::Result<()> {
        if state.is_loaded {
            return Ok(());
        }
        match self.load(state) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => state.is_loaded = true,
        }
        Ok(())
    }

    fn load(&self, state: &mut NodeSeriesState) -> io::Result<()> {
        let bytes = read_file(&self.present_path())?;
        let (frames, damaged) = read_frames(&bytes);
        let samples: Vec<_> = frames
            .into_iter()
            .filter_map(|frame| match frame {
                SeriesFrame::Usage(start, samples) => Some((start, samples)),
                SeriesFrame::Names(_) | SeriesFrame::Row(..) => None,
            })
            .collect();
        let Some(hour) = samples.last().map(|(start, _)| start / HOUR) else { return Ok(()) };
        let mut minutes = self.table("hours", hour, MINUTES)?;
        let mut whole = Vec::new();
        for (start, samples) in samples.iter().filter(|(start, _)| start / HOUR == hour) {
            for (node, codes) in samples {
                minutes.set(*node, minute_of(*start), codes);
            }
            write_usage(&mut whole, *start, samples);
        }
        (state.hour, state.minutes) = (Some(hour), minutes);
        if damaged > 0 {
            let path = self.present_path();
            tracing::warn!(damaged, path = %path.display(), "damaged bytes of series of nodes are skipped");
            // If this fails, each reader skips them.
            let _ = replace(&path, &whole);
        }
        Ok(())
    }

    /// Stores the former hour, and begins another one. If it is on record, it continues.
    fn begin_hour(&self, state: &mut NodeSeriesState, hour: u64) -> io::Result<()> {
        if state.hour == Some(hour) {
            return Ok(());
        }
        let next = self.table("hours", hour, MINUTES)?;
        let minutes = std::mem::replace(&mut state.minutes, next);
        let stored = match state.hour.replace(hour) {
            Some(former) if !minutes.is_empty() => self.store_hour(former, &minutes),
            _ => Ok(()),
        };
        self.prune();
        // The log is removed although the hour could not be stored: its place is needed.
        match fs::remove_file(self.present_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => stored.and(Err(error)),
            _ => stored,
        }
    }

    fn store_hour(&self, hour: u64, minutes: &NodeTable) -> io::Result<()> {
        replace(&self.path("hours", hour), &minutes.encode())?;
        let day = hour * HOUR / DAY;
        let mut hours = self.table("days", day, HOURS)?;
        let column = usize::try_from(hour % HOURS as u64).unwrap_or(0);
        minutes.means().for_each(|(node, codes)| hours.set(node, column, &codes));
        replace(&self.path("days", day), &hours.encode())
    }

    /// Reads a table. A file that is absent or damaged is an empty one; one that cannot be read is
    /// an error, so that nothing replaces it.
    fn table(&self, folder: &str, number: u64, columns: usize) -> io::Result<NodeTable> {
        let table = match read_file(&self.path(folder, number)) {
            Ok(bytes) => NodeTable::decode(&bytes, columns),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(table.unwrap_or_else(|| NodeTable::new(columns)))
    }

    /// Paths and begins of the files of a folder that have a part of a range.
    fn files_of_range(
        &self,
        folder: &str,
        range: &SeriesRange,
        length: u64,
    ) -> Vec<(PathBuf, u64)> {
        let files = self.files(folder).into_iter();
        let found = files.filter_map(|TableFile { place, number, .. }| {
            let start = number.checked_mul(length)?;
            range.overlaps(start, length).then(|| (self.path_at(folder, place, number), start))
        });
        found.collect()
    }

    /// The files of a folder, the oldest first.
    fn files(&self, folder: &str) -> Vec<TableFile> {
        let entries = fs::read_dir(self.folder.join(folder)).into_iter().flatten().flatten();
        let file = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let (place, number) = name.to_str()?.split_once('-')?;
            let length = entry.metadata().ok()?.len();
            Some(TableFile { place: place.parse().ok()?, number: number.parse().ok()?, length })
        };
        let mut files: Vec<TableFile> = entries.filter_map(file).collect();
        files.sort_by_key(|file| file.place);
        files
    }

    /// Removes the oldest files that are too many or too long: days before hours.
    fn prune(&self) {
        let mut bytes = 0;
        for (folder, most) in [("hours", MAX_HOURS), ("days", MAX_DAYS)] {
            let files = self.files(folder);
            let excess = files.len().saturating_sub(most);
            files[..excess].iter().for_each(|file| self.remove(folder, file));
            bytes += files[excess..].iter().map(|file| file.length).sum::<u64>();
        }
        for folder in ["days", "hours"] {
            for file in self.files(folder) {
                if bytes <= self.max_bytes {
                    return;
                }
                self.remove(folder, &file);
                bytes = bytes.saturating_sub(file.length);
            }
        }
    }

    fn remove(&self, folder: &str, file: &TableFile) {
        let path = self.path_at(folder, file.place, file.number);
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(%error, path = %path.display(), "an old series cannot be removed");
        }
    }

    fn append(&self, frame: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let path = self.present_path();
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let length = file.metadata()?.len();
        if let Err(error) = file.write_all(frame) {
            // A partial frame would damage the frames after it.
            let _ = file.set_len(length);
            return Err(error);
        }
        Ok(())
    }
}

/// Reads the rows of one node.
fn node_of_file(path: &Path, columns: usize, node: NodeId) -> Option<Vec<Vec<u8>>> {
    let mut file = File::open(path).ok()?;
    let mut head = [0; TABLE_HEAD];
    file.read_exact(&mut head).ok()?;
    let mut index = vec![0; index_length(&head, columns)?];
    file.read_exact(&mut index).ok()?;
    let RecordPlace { offset, length } = find_record(&head, &index, node)?;
    let begin = (TABLE_HEAD + index.len()) as u64;
    file.seek(SeekFrom::Start(begin + offset)).ok()?;
    let mut record = vec![0; length];
    file.read_exact(&mut record).ok()?;
    unpack_record(&record, columns)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn minute_of(seconds: u64) -> usize {
    usize::try_from(seconds % HOUR / MINUTE).unwrap_or(0)
}

/// Adds the values of a file that begins at `start`.
fn add_rows(values: &mut [BTreeMap<u64, f64>], rows: &[Vec<u8>], start: u64, step: u64) {
    for ((series, values), codes) in NodeSeries::ALL.iter().zip(values).zip(rows) {
        let known = (0_u64..).zip(codes).filter(|(_, code)| **code != UNKNOWN);
        values.extend(known.filter_map(|(column, code)| {
            Some((start.saturating_add(column * step), series.decode(*code)?))
        }));
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_READ).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces a file by a complete one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // One name for each folder: what a killed write left is written over.
    replace_file(path, &path.with_file_name("new"), bytes, Flush::Content)
}

#[cfg(test)]
mod tests;
