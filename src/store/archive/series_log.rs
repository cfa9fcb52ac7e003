//! Time series of the site in one file: a frame for each sample.
//!
//! ```text
//! FOLDER/site        frames (`meshd_model::series`), appended each minute
//! FOLDER/site.new    the next file, before it replaces the former one
//! ```
//! Nothing but a rewrite is flushed: a kill loses the minute in progress, a power failure may lose
//! more. A damaged frame is skipped. If the disk is full, samples stay in memory, and the next
//! minute tries to write all of them: neither ends the program.

use super::replace_file::{Flush, replace_file};
use meshd_model::series::{
    SeriesFrame, SeriesHistory, SeriesPoint, SeriesRange, read_frames, write_names, write_row,
};
use meshd_types::Timestamp;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Length at which the file is written anew, in bytes. All samples need a third of it.
const REWRITE_AT: u64 = 3 << 20;
/// Maximum length of a file that is read, in bytes; it is never longer unless another program
/// writes it.
const MAX_READ: u64 = 16 << 20;

/// The series of one file.
pub struct SeriesLog {
    folder: PathBuf,
    /// Names of the series, in the order of their values.
    names: Vec<String>,
    state: Mutex<SeriesState>,
    /// The newest sample of each series, since the first one. Its readers do not wait for a flush,
    /// which holds the state.
    newest: Mutex<Option<Vec<Option<SeriesPoint>>>>,
    /// The last write failed.
    is_failing: AtomicBool,
}

#[derive(Default)]
struct SeriesState {
    is_loaded: bool,
    history: SeriesHistory,
    /// Length of the file, in bytes; `None` if it has to be written anew.
    length: Option<u64>,
}

impl SeriesLog {
    /// Uses a folder, which is created when needed. Nothing is read.
    pub fn new(folder: PathBuf, names: Vec<String>) -> Self {
        let state = Mutex::default();
        let newest = Mutex::default();
        SeriesLog { folder, names, state, newest, is_failing: AtomicBool::new(false) }
    }

    /// Adds the sample of a minute, and writes it. Blocks.
    pub fn record(&self, at: Timestamp, values: Vec<Option<f64>>) {
        let mut state = self.lock();
        let loaded = self.load_once(&mut state);
        let mut frames = Vec::new();
        for (step, row) in state.history.record(at, values) {
            write_row(&mut frames, step, &row);
        }
        let newest = self.newest_of(&state.history);
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(newest);
        let written = loaded.and_then(|()| match state.length {
            Some(length) if length < REWRITE_AT => self.append(length, &frames),
            _ => self.rewrite(&state.history),
        });
        let path = self.folder.display();
        let was_failing = self.is_failing.swap(written.is_err(), Ordering::Relaxed);
        match &written {
            Ok(_) if was_failing => tracing::info!(%path, "time series are stored again"),
            Err(error) if !was_failing => {
                tracing::warn!(%error, %path, "time series cannot be stored: they stay in memory");
            }
            _ => {}
        }
        state.length = written.ok();
    }

    /// The begin of the newest sample, in seconds since the epoch. Blocks.
    pub fn newest_start(&self) -> Option<u64> {
        self.loaded().history.newest_start()
    }

    /// The newest sample of each series. Blocks before the first sample only.
    pub fn newest(&self) -> Vec<Option<SeriesPoint>> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        newest.unwrap_or_else(|| self.newest_of(&self.loaded().history))
    }

    fn newest_of(&self, history: &SeriesHistory) -> Vec<Option<SeriesPoint>> {
        (0..self.names.len()).map(|series| history.newest(series)).collect()
    }

    /// Returns the points of a series; `None` if no series has this name. Blocks.
    pub fn read(&self, name: &str, range: &SeriesRange) -> Option<Vec<SeriesPoint>> {
        let series = self.names.iter().position(|known| known == name)?;
        Some(self.loaded().history.read(series, range))
    }

    /// True if the last sample could not be written. Does not block.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    fn path(&self) -> PathBuf {
        self.folder.join("site")
    }

    fn lock(&self) -> MutexGuard<'_, SeriesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, after the file was read. The next sample reports an error.
    fn loaded(&self) -> MutexGuard<'_, SeriesState> {
        let mut state = self.lock();
        let _ = self.load_once(&mut state);
        state
    }

    /// Reads the file, unless it was read. After an error nothing is written, samples stay in
    /// memory, and the next one tries again.
    fn load_once(&self, state: &mut SeriesState) -> io::Result<()> {
        if state.is_loaded {
            return Ok(());
        }
        match self.load() {
            Ok((mut history, length)) => {
                let is_first = state.history.newest_start().is_none();
                for (step, row) in state.history.rows() {
                    history.restore(step, row.clone());
                }
                (state.history, state.length) = (history, length.filter(|_| is_first));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        state.is_loaded = true;
        Ok(())
    }

    /// Reads the file. The length is `None` if the file has to be written anew.
    fn load(&self) -> io::Result<(SeriesHistory, Option<u64>)> {
        let mut bytes = Vec::new();
        File::open(self.path())?.take(MAX_READ).read_to_end(&mut bytes)?;
        let (frames, damaged) = read_frames(&bytes);
        if damaged > 0 {
            let path = self.path();
            tracing::warn!(damaged, path = %path.display(), "damaged bytes of time series are skipped");
        }
        let mut history = SeriesHistory::default();
        let mut columns: Vec<Option<usize>> = Vec::new();
        let mut is_current = true;
        for frame in frames {
            match frame {
                SeriesFrame::Names(names) => {
                    is_current &= names == self.names;
                    let column = |name: &String| names.iter().position(|known| known == name);
                    columns = self.names.iter().map(column).collect();
                }
                SeriesFrame::Row(step, mut row) => {
                    let value = |column: &Option<usize>| {
                        column.and_then(|column| row.values.get(column).copied().flatten())
                    };
                    row.values = columns.iter().map(value).collect();
                    history.restore(step, row);
                }
                SeriesFrame::Usage(..) => {}
            }
        }
        let is_whole = damaged == 0 && is_current && !columns.is_empty();
        Ok((history, is_whole.then_some(bytes.len() as u64)))
    }

    /// Appends to the file, and returns its new length. A file that is not as long as it was, or
    /// that another program removed, has to be written anew.
    fn append(&self, length: u64, frames: &[u8]) -> io::Result<u64> {
        let mut file = OpenOptions::new().append(true).open(self.path())?;
        if file.metadata()?.len() != length {
            return Err(io::Error::other("another program changed the file"));
        }
        if let Err(error) = file.write_all(frames) {
            // A partial frame would damage the next one. If this fails, too, the reader skips it.
            let _ = file.set_len(length);
            return Err(error);
        }
        Ok(length + frames.len() as u64)
    }

    /// Writes all samples into a new file, and returns its length.
    fn rewrite(&self, history: &SeriesHistory) -> io::Result<u64> {
        let mut bytes = Vec::new();
        write_names(&mut bytes, self.names.iter().map(String::as_str));
        for (step, row) in history.rows() {
            write_row(&mut bytes, step, row);
        }
        fs::create_dir_all(&self.folder)?;
        let temporary = self.folder.join("site.new");
        replace_file(&self.path(), &temporary, &bytes, Flush::Content)?;
        Ok(bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(minute: u64) -> Timestamp {
        Timestamp::EPOCH.after(Duration::from_secs(1_700_000_400 + minute * 60))
    }

    fn open(folder: &tempfile::TempDir, names: &[&str]) -> SeriesLog {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        SeriesLog::new(folder.path().join("series"), names)
    }

    fn read(log: &SeriesLog, name: &str) -> Vec<f64> {
        let range = SeriesRange::new(at(0), at(120), Some(60)).unwrap();
        log.read(name, &range).unwrap().iter().map(|point| point.value).collect()
    }

    #[test]
    fn samples_are_read_after_a_restart_also_with_other_series() {
        let folder = tempfile::tempdir().unwrap();
        let log = open(&folder, &["a", "b"]);
        log.record(at(0), vec![Some(1.0), Some(10.0)]);
        log.record(at(1), vec![Some(2.0), None]);
        assert!(!log.is_failing());
        let again = open(&folder, &["a", "b"]);
        assert_eq!((read(&again, "a"), read(&again, "b")), (vec![1.0, 2.0], vec![10.0]));
        // The next version has another series first, and one less.
        let next = open(&folder, &["new", "b"]);
        next.record(at(2), vec![Some(7.0), Some(30.0)]);
        let next = open(&folder, &["new", "b"]);
        assert_eq!((read(&next, "new"), read(&next, "b")), (vec![7.0], vec![10.0, 30.0]));
        let range = SeriesRange::new(at(0), at(1), None).unwrap();
        assert_eq!(next.read("a", &range), None);
    }

    #[test]
    fn torn_or_foreign_file_is_recovered_and_continued() {
        let folder = tempfile::tempdir().unwrap();
        let log = open(&folder, &["a"]);
        (0..3).for_each(|minute| log.record(at(minute), vec![Some(minute as f64)]));
        let path = folder.path().join("series/site");
        let whole = fs::read(&path).unwrap();
        let row = 4 + 8 + 1 + 8 + 8;
        for cut in (whole.len() - row + 1)..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let torn = open(&folder, &["a"]);
            assert_eq!(read(&torn, "a"), [0.0, 1.0], "cut at {cut}");
            torn.record(at(4), vec![Some(4.0)]);
            assert_eq!(read(&open(&folder, &["a"]), "a"), [0.0, 1.0, 4.0], "cut at {cut}");
        }
        fs::write(&path, "not a file of meshd").unwrap();
        let foreign = open(&folder, &["a"]);
        assert!(read(&foreign, "a").is_empty());
        foreign.record(at(5), vec![Some(5.0)]);
        assert_eq!(read(&open(&folder, &["a"]), "a"), [5.0]);
    }

    #[test]
    fn failed_write_keeps_samples_and_the_next_one_stores_them() {
        let folder = tempfile::tempdir().unwrap();
        let log = open(&folder, &["a"]);
        log.record(at(0), vec![Some(0.0)]);
        // A file in place of the folder refuses every write, also those of root.
        let series = folder.path().join("series");
        let aside = folder.path().join("aside");
        fs::rename(&series, &aside).unwrap();
        fs::write(&series, "").unwrap();
        log.record(at(1), vec![Some(1.0)]);
        log.record(at(2), vec![Some(2.0)]);
        assert!(log.is_failing());
        assert_eq!(read(&log, "a"), [0.0, 1.0, 2.0], "readers see all samples");
        fs::remove_file(&series).unwrap();
        log.record(at(3), vec![Some(3.0)]);
        assert!(!log.is_failing());
        assert_eq!(read(&open(&folder, &["a"]), "a"), [0.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    fn file_that_cannot_be_read_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        open(&folder, &["a"]).record(at(0), vec![Some(0.0)]);
        let file = folder.path().join("series/site");
        let aside = folder.path().join("aside");
        fs::rename(&file, &aside).unwrap();
        // A folder in place of the file refuses every read, also those of root.
        fs::create_dir(&file).unwrap();
        let log = open(&folder, &["a"]);
        (1..3).for_each(|minute| log.record(at(minute), vec![Some(minute as f64)]));
        assert!(log.is_failing() && file.is_dir());
        assert_eq!(read(&log, "a"), [1.0, 2.0], "they are in memory");
        fs::remove_dir(&file).unwrap();
        fs::rename(&aside, &file).unwrap();
        log.record(at(3), vec![Some(3.0)]);
        assert!(!log.is_failing());
        assert_eq!(read(&open(&folder, &["a"]), "a"), [0.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    fn file_stays_bounded_over_many_samples() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..40).map(|number| format!("series{number}")).collect();
        let log = SeriesLog::new(folder.path().join("series"), names);
        for minute in 0..12_000 {
            log.record(at(minute), vec![Some(minute as f64); 40]);
        }
        let length = fs::metadata(folder.path().join("series/site")).unwrap().len();
        assert!(length < REWRITE_AT + 4096, "{length}");
        let again = SeriesLog::new(folder.path().join("series"), vec!["series7".to_owned()]);
        let newest = again.newest()[0].map(|point| point.value);
        assert_eq!(newest, Some(11_999.0));
    }
}
