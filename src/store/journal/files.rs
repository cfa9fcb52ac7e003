//! File names of the journal, and atomic writes.

use super::{
    frame::{self, Check, HEAD},
    numbered::{Log, ValueLocation},
};
use meshd_types::fail;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where the [witness](super::commit_marker) is.
pub(super) const COMMIT_MARKER: &str = "acknowledged";
/// Made by an operator who accepts a journal without its marker; removed when it was used.
pub(super) const ACCEPTED: &str = "accept-without-marker";
/// Held by the one meshd that has the store open.
pub(super) const LOCK: &str = "lock";
/// A file that is not whole yet.
const FRESH: &str = ".new";
/// Records are put together up to so many bytes to a frame.
const FRAME: usize = 1 << 20;

/// The two kinds of files. Number 7 of one goes with number 7 of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// All records as they were when it began, then every change.
    Journal,
    /// The numbered records of a journal that has ended.
    Numbered,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Journal => "journal",
            Kind::Numbered => "numbered",
        }
    }

    pub(super) fn name(self, number: u64) -> String {
        format!("{}-{number:08}", self.word())
    }

    pub(super) fn path(self, dir: &Path, number: u64) -> PathBuf {
        dir.join(self.name(number))
    }
}

/// What stands in the first frame of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// [`VERSION`](crate::VERSION).
    pub(super) version: String,
    pub(super) number: u64,
    /// How many records follow with the same sequence: a file that lacks some is damaged.
    pub(super) records: u64,
    /// By kind of numbered records, the number that the next one has: after a numbered file, and at the begin of a journal.
    pub(super) next: BTreeMap<String, u64>,
    /// It holds every numbered record that is kept, also those of the files before it, which are not needed any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_merged: bool,
}

/// A key and its value; without one, the record of the key is no more.
pub(super) type KeyValue<K, V> = (K, Option<V>);

/// A file that is whole and in its place.
pub(super) struct Whole {
    pub(super) file: Arc<File>,
    pub(super) length: u64,
    pub(super) check: Check,
    /// Where the numbered records in it stand.
    pub(super) numbered: Vec<(Log, u64, ValueLocation)>,
}

/// Makes a folder that its owner alone may read, unless it is there.
pub(super) fn make_folder(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Writes a file beside its place, flushes it and renames it: after a crash it is there whole or not at all.
pub(super) fn write_whole(
    dir: &Path,
    kind: Kind,
    seq: u64,
    header: &Header,
    records: impl Iterator<Item = io::Result<KeyValue<impl AsRef<[u8]>, impl AsRef<[u8]>>>>,
) -> io::Result<Whole> {
    let fresh = dir.join(format!("{}{FRESH}", kind.name(header.number)));
    let written = write_fresh(&fresh, seq, header, records).and_then(|whole| {
        let folder = File::open(dir)?;
        fail::point("store-whole");
        put_in_place(&fresh, &kind.path(dir, header.number), || {
            fail::point("store-renamed");
            folder.sync_all()
        })?;
        Ok(whole)
    });
    if written.is_err() {
        // It takes room that may be what is missing.
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// Renames a file and flushes its folder. A journal that is in its place while the one before it goes on would be taken for the newer
/// one at the next start: if its place cannot be flushed, it does not stay there.
pub(super) fn put_in_place(fresh: &Path, place: &Path, flush: impl Fn() -> io::Result<()>) -> io::Result<()> {
    fs::rename(fresh, place)?;
    flush().inspect_err(|_| {
        let _ = fs::remove_file(place);
        let _ = flush();
    })
}

fn write_fresh(
    fresh: &Path,
    seq: u64,
    header: &Header,
    records: impl Iterator<Item = io::Result<KeyValue<impl AsRef<[u8]>, impl AsRef<[u8]>>>>,
) -> io::Result<Whole> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(fresh)?;
    let file = Arc::new(file);
    let (mut length, mut check, mut numbered) = (0, Check::default(), Vec::new());
    // Gives where the frame begins.
    let mut put = |body: &[u8]| {
        let mut bytes = Vec::with_capacity(body.len() + HEAD);
        check = frame::write(&mut bytes, check, seq, body);
        let begin = length;
        length += bytes.len() as u64;
        (&*file).write_all(&bytes).map(|()| begin)
    };
    put(&serde_json::to_vec(header).map_err(io::Error::other)?)?;
    let (mut body, mut places) = (Vec::new(), Vec::new());
    for record in records {
        let (key, value) = record?;
        let (key, value) = (key.as_ref(), value.as_ref().map(AsRef::as_ref));
        let Some(value) = value else {
            frame::remove(&mut body, key);
            continue;
        };
        frame::put(&mut body, key, value);
        if let Some((log, number)) = Log::of(key) {
            places.push((log, number, body.len() - value.len(), value.len()));
        }
        if body.len() >= FRAME {
            numbered.extend(placed(&file, put(&body)?, &mut places));
            body.clear();
        }
    }
    if !body.is_empty() {
        numbered.extend(placed(&file, put(&body)?, &mut places));
    }
    file.sync_all()?;
    Ok(Whole { file, length, check, numbered })
}

/// Places within a file from those within the body of a frame that begins at `begin`.
fn placed<'a>(
    file: &'a Arc<File>,
    begin: u64,
    places: &'a mut Vec<(Log, u64, usize, usize)>,
) -> impl Iterator<Item = (Log, u64, ValueLocation)> + 'a {
    places.drain(..).map(move |(log, number, at, length)| {
        (log, number, ValueLocation { file: Arc::clone(file), at: begin + (HEAD + at) as u64, length })
    })
}

/// The numbers of all files of a kind, in order. Files that were never whole are removed.
pub(super) fn numbers(dir: &Path, kind: Kind) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(kind.word()).and_then(|rest| rest.strip_prefix('-')) else { continue };
        if rest.ends_with(FRESH) {
            fs::remove_file(dir.join(&name))?;
        } else if let Ok(number) = rest.parse() {
            found.push(number);
        }
    }
    found.sort_unstable();
    Ok(found)
}
