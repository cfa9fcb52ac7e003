//! Reads the versions of an image or bundle, and the current one. [`crate::builder`] writes them.
//!
//! ```text
//! blobs_dir/<kind>/<name>/<digest>.json         a version: its manifest. What it names never changes
//! blobs_dir/<kind>/<name>/moves/<n>.<digest>    a link to the version that became current at move n
//! blobs_dir/<kind>/<name>.json                  a link to the last move: what nodes get. The one thing that is replaced
//! blobs_dir/in-use/<who>                        digests that must stay, one a line, written by whoever needs them
//! ```
//!
//! One rename moves current and previous together, so whoever reads, or dies, sees the old pair or the new one. A plain file
//! in place of the link is a version without a past, as earlier releases wrote it.

use meshd_types::{BundleName, Digest, ImageName};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

/// Where images stand under `blobs_dir`.
pub const IMAGES: &str = "images";
/// Where bundles stand under `blobs_dir`.
pub const BUNDLES: &str = "bundles";
/// Where the lists of what must stay lie under `blobs_dir`.
pub const IN_USE: &str = "in-use";
/// Folder of downloads within `blobs_dir`: beside the blobs, so that sites that share those share downloads too.
pub const CACHE: &str = "cache";
/// Folder of builds that are under way within `blobs_dir`.
pub const WORK: &str = "work";
/// Largest list of digests that is read, in bytes: 100,000 lines.
const MAX_LIST: u64 = 6 << 20;

/// The versions of one image or bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shelf {
    root: PathBuf,
    name: String,
}

/// Which version nodes get, and which one they got before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointer {
    /// Number of the last move.
    pub moves: u64,
    pub current: Option<Digest>,
    /// What they got before; `None` if it is not there any more.
    pub previous: Option<Digest>,
}

impl Shelf {
    pub fn image(blobs_dir: &Path, name: &ImageName) -> Self {
        Shelf { root: blobs_dir.join(IMAGES), name: name.to_string() }
    }

    pub fn bundle(blobs_dir: &Path, name: &BundleName) -> Self {
        Shelf { root: blobs_dir.join(BUNDLES), name: name.to_string() }
    }

    /// The manifest that nodes get, behind a link.
    pub fn current_path(&self) -> PathBuf {
        self.root.join(format!("{}.json", self.name))
    }

    /// The manifest of a version.
    pub fn version_path(&self, version: &Digest) -> PathBuf {
        self.folder().join(format!("{version}.json"))
    }

    /// The folder of all versions.
    pub fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// The folder of the moves.
    pub fn moves_dir(&self) -> PathBuf {
        self.folder().join("moves")
    }

    /// What the link of a move is named, and what the current one points to, from the folder that it lies in.
    pub fn move_target(&self, number: u64, version: &Digest) -> PathBuf {
        Path::new(&self.name).join("moves").join(format!("{number}.{version}"))
    }

    /// All versions that have a manifest.
    pub fn versions(&self) -> io::Result<BTreeSet<Digest>> {
        let names = names(&self.folder())?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }

    /// All moves by their number, also those that were prepared and never made.
    pub fn moves(&self) -> io::Result<BTreeMap<u64, Digest>> {
        let names = names(&self.moves_dir())?;
        Ok(names.iter().filter_map(|name| parse_move(name)).collect())
    }

    /// Which version nodes get; all `None` if there is none, or a plain file stands in its place.
    pub fn pointer(&self) -> io::Result<Pointer> {
        let Ok(target) = fs::read_link(self.current_path()) else { return Ok(Pointer::default()) };
        let Some((moves, current)) = target.file_name().and_then(OsStr::to_str).and_then(parse_move) else {
            return Ok(Pointer::default());
        };
        let mut before = self.moves()?.into_iter().rev().filter(|(number, _)| *number < moves);
        let previous = before.find(|(_, version)| *version != current).map(|(_, version)| version);
        let previous = previous.filter(|version| self.version_path(version).is_file());
        Ok(Pointer { moves, current: Some(current), previous })
    }
}

fn parse_move(name: &str) -> Option<(u64, Digest)> {
    let (number, version) = name.split_once('.')?;
    Some((number.parse().ok()?, version.parse().ok()?))
}

/// Names in a folder; none if it is not there.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Names of all images or bundles (`kind`) that have a version or a manifest.
///
/// # Errors
/// The folder is there and cannot be read.
pub fn shelves(blobs_dir: &Path, kind: &str) -> io::Result<BTreeSet<String>> {
    let root = blobs_dir.join(kind);
    let mut found = BTreeSet::new();
    for name in names(&root)? {
        let shelf = name.strip_suffix(".json").unwrap_or(&name);
        if !name.starts_with('.') && (shelf.len() < name.len() || root.join(&name).is_dir()) {
            found.insert(shelf.to_owned());
        }
    }
    Ok(found)
}

/// A list of what must stay cannot be used, so nothing may be thrown away.
#[derive(Debug, thiserror::Error)]
pub enum InUseError {
    /// It cannot be read.
    #[error("cannot read {}, which says what is in use", .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        source: io::Error,
    },
    /// A line of it is no digest.
    #[error("{}:{line}: `{text}` is not a digest; write one SHA-256 in each line, or a comment after `#`", .path.display())]
    Line {
        path: PathBuf,
        /// Line from 1.
        line: usize,
        /// What stands there, cut.
        text: String,
    },
}

/// Everything that the lists of this folder say is in use.
///
/// # Errors
/// The first list that cannot be used.
pub fn in_use(blobs_dir: &Path) -> Result<BTreeSet<Digest>, InUseError> {
    let folder = blobs_dir.join(IN_USE);
    let lists = names(&folder).map_err(|source| InUseError::Read { path: folder.clone(), source })?;
    let mut all = BTreeSet::new();
    for name in lists.iter().filter(|name| !name.starts_with('.')) {
        all.extend(read_list(&folder.join(name))?);
    }
    Ok(all)
}

/// Reads one list of digests.
///
/// # Errors
/// It cannot be read, or a line is no digest.
pub fn read_list(path: &Path) -> Result<BTreeSet<Digest>, InUseError> {
    let read = |source| InUseError::Read { path: path.to_owned(), source };
    let length = fs::metadata(path).map_err(read)?.len();
    if length > MAX_LIST {
        return Err(read(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {MAX_LIST} bytes"))));
    }
    let text = fs::read_to_string(path).map_err(read)?;
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let digests = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parse = |(line, text): (usize, &str)| {
        let wrong = |_| InUseError::Line { path: path.to_owned(), line, text: text.chars().take(80).collect() };
        text.parse().map_err(wrong)
    };
    digests.map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_digests_and_remarks_and_any_other_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join(IN_USE).join("rack-a");
        fs::create_dir(list.parent().unwrap()).unwrap();
        assert!(in_use(&dir.path().join("nowhere")).unwrap().is_empty());
        let digest = Digest::of(b"x");
        fs::write(&list, format!("# node7\n\n{digest}\n")).unwrap();
        assert_eq!(in_use(dir.path()).unwrap(), BTreeSet::from([digest]));
        fs::write(&list, format!("{digest}\nnode7\n")).unwrap();
        let told = in_use(dir.path()).unwrap_err().to_string();
        assert!(told.contains("rack-a:2") && told.contains("node7"), "{told}");
    }

    #[test]
    fn prepared_promotion_without_rename_has_no_effect() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::image(dir.path(), &"lab".parse().unwrap());
        let (a, b, c) = (Digest::of(b"a"), Digest::of(b"b"), Digest::of(b"c"));
        fs::create_dir_all(shelf.moves_dir()).unwrap();
        for (number, version) in [(1, a), (2, b), (3, c)] {
            fs::write(shelf.version_path(&version), "{}").unwrap();
            let link = dir.path().join(IMAGES).join(shelf.move_target(number, &version));
            std::os::unix::fs::symlink(format!("../{version}.json"), link).unwrap();
        }
        std::os::unix::fs::symlink(shelf.move_target(2, &b), shelf.current_path()).unwrap();
        assert_eq!(shelf.pointer().unwrap(), Pointer { moves: 2, current: Some(b), previous: Some(a) });
        assert_eq!(fs::read(shelf.current_path()).unwrap(), b"{}");
        fs::remove_file(shelf.version_path(&a)).unwrap();
        assert_eq!(shelf.pointer().unwrap().previous, None);
    }
}
