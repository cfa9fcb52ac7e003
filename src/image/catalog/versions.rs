//! Reads the versions of an image or bundle, and the current one. `meshd-builder` writes them.
//!
//! ```text
//! blobs_dir/<kind>/<name>/<digest>.json         a version: its manifest; the blobs that it names never change
//! blobs_dir/<kind>/<name>/moves/<n>.<digest>    a link to the version that became current at move n
//! blobs_dir/<kind>/<name>.json                  a link to the last move; nodes receive its version. Only this link is replaced
//! blobs_dir/in-use/<site>.<id>                  digests that must not be pruned, one a line; each site writes its lists
//! ```
//!
//! One rename changes current and previous version together. Readers see the old pair or the new
//! pair, even after a crash.

use meshd_config::files::read_regular;
use meshd_types::{BundleName, Digest, ImageName};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

/// Folder of images under `blobs_dir`.
pub const IMAGES: &str = "images";
/// Folder of bundles under `blobs_dir`.
pub const BUNDLES: &str = "bundles";
/// Folder of the in-use lists under `blobs_dir`.
pub const IN_USE: &str = "in-use";
/// Folder of downloads in `blobs_dir`: sites that share blobs share downloads, too.
pub const CACHE: &str = "cache";
/// Folder of running builds in `blobs_dir`.
pub const WORK: &str = "work";
/// Maximum size of a list of digests, in bytes: 100,000 lines.
const MAX_LIST: u64 = 6 << 20;

/// Folder with the versions of one image or bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionFolder {
    root: PathBuf,
    name: String,
}

/// Current and previous version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointer {
    /// Number of the last move.
    pub moves: u64,
    pub current: Option<Digest>,
    /// Previous version; `None` if it was pruned.
    pub previous: Option<Digest>,
}

impl VersionFolder {
    pub fn image(blobs_dir: &Path, name: &ImageName) -> Self {
        VersionFolder { root: blobs_dir.join(IMAGES), name: name.to_string() }
    }

    pub fn bundle(blobs_dir: &Path, name: &BundleName) -> Self {
        VersionFolder { root: blobs_dir.join(BUNDLES), name: name.to_string() }
    }

    /// Returns the path of the current manifest, behind a link.
    pub fn current_path(&self) -> PathBuf {
        self.root.join(format!("{}.json", self.name))
    }

    /// Returns the path of a version's manifest.
    pub fn version_path(&self, version: &Digest) -> PathBuf {
        self.folder().join(format!("{version}.json"))
    }

    /// Returns the folder of all versions.
    pub fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// Returns the folder of the moves.
    pub fn moves_dir(&self) -> PathBuf {
        self.folder().join("moves")
    }

    /// Returns the name of a move's link, relative to the folder of the current link.
    pub fn move_target(&self, number: u64, version: &Digest) -> PathBuf {
        Path::new(&self.name).join("moves").join(format!("{number}.{version}"))
    }

    /// Returns all versions with a manifest.
    pub fn versions(&self) -> io::Result<BTreeSet<Digest>> {
        let names = names(&self.folder())?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }

    /// Returns all moves by number, including prepared moves that never became current.
    pub fn moves(&self) -> io::Result<BTreeMap<u64, Digest>> {
        let names = names(&self.moves_dir())?;
        Ok(names.iter().filter_map(|name| parse_move(name)).collect())
    }

    /// Returns current and previous version. Both are `None` if the link does not exist.
    pub fn pointer(&self) -> io::Result<Pointer> {
        let Ok(target) = fs::read_link(self.current_path()) else { return Ok(Pointer::default()) };
        let Some((moves, current)) =
            target.file_name().and_then(OsStr::to_str).and_then(parse_move)
        else {
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

/// Returns the names in a folder; none if it does not exist.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Returns the names of all images or bundles (`kind`) with a version or a manifest.
pub fn version_names(blobs_dir: &Path, kind: &str) -> io::Result<BTreeSet<String>> {
    let root = blobs_dir.join(kind);
    let mut found = BTreeSet::new();
    for name in names(&root)? {
        let version_folder = name.strip_suffix(".json").unwrap_or(&name);
        if !name.starts_with('.')
            && (version_folder.len() < name.len() || root.join(&name).is_dir())
        {
            found.insert(version_folder.to_owned());
        }
    }
    Ok(found)
}

/// An in-use list is unreadable, so nothing may be pruned.
#[derive(Debug, thiserror::Error)]
pub enum InUseError {
    #[error("cannot read {}, which says what is in use", .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        source: io::Error,
    },
    /// A line is not a digest.
    #[error("{}:{line}: `{text}` is not a digest", .path.display())]
    Line {
        path: PathBuf,
        /// Line from 1.
        line: usize,
        /// Content of the line, truncated.
        text: String,
    },
}

meshd_types::hints!(InUseError {
    InUseError::Line { .. } => "write one SHA-256 in each line, or a comment after `#`";
});

/// Returns all versions on the in-use lists.
///
/// # Errors
/// The first invalid list.
pub fn in_use(blobs_dir: &Path) -> Result<BTreeSet<Digest>, InUseError> {
    let folder = blobs_dir.join(IN_USE);
    let lists =
        names(&folder).map_err(|source| InUseError::Read { path: folder.clone(), source })?;
    let mut all = BTreeSet::new();
    for name in lists.iter().filter(|name| !name.starts_with('.')) {
        all.extend(read_list(&folder.join(name))?);
    }
    Ok(all)
}

/// Reads one list of digests.
pub fn read_list(path: &Path) -> Result<BTreeSet<Digest>, InUseError> {
    let read = |source| InUseError::Read { path: path.to_owned(), source };
    let bytes = read_regular(path, MAX_LIST).map_err(read)?;
    let text = String::from_utf8(bytes)
        .map_err(|error| read(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let digests = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parse = |(line, text): (usize, &str)| {
        let wrong = |_| InUseError::Line {
            path: path.to_owned(),
            line,
            text: text.chars().take(80).collect(),
        };
        text.parse().map_err(wrong)
    };
    digests.map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_use_list_accepts_digests_and_comments_and_names_other_lines() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join(IN_USE).join("rack-a");
        fs::create_dir(list.parent().unwrap()).unwrap();
        assert!(in_use(&dir.path().join("nowhere")).unwrap().is_empty());
        let digest = Digest::of(b"x");
        fs::write(&list, format!("# node7\n\n{digest}\n")).unwrap();
        assert_eq!(in_use(dir.path()).unwrap(), BTreeSet::from([digest]));
        fs::write(&list, format!("{digest}\nnode7\n")).unwrap();
        let error = in_use(dir.path()).unwrap_err().to_string();
        assert!(error.contains("rack-a:2") && error.contains("node7"), "{error}");
    }

    #[test]
    fn prepared_promotion_without_rename_has_no_effect() {
        let dir = tempfile::tempdir().unwrap();
        let version_folder = VersionFolder::image(dir.path(), &"lab".parse().unwrap());
        let (a, b, c) = (Digest::of(b"a"), Digest::of(b"b"), Digest::of(b"c"));
        fs::create_dir_all(version_folder.moves_dir()).unwrap();
        for (number, version) in [(1, a), (2, b), (3, c)] {
            fs::write(version_folder.version_path(&version), "{}").unwrap();
            let link = dir.path().join(IMAGES).join(version_folder.move_target(number, &version));
            std::os::unix::fs::symlink(format!("../{version}.json"), link).unwrap();
        }
        std::os::unix::fs::symlink(
            version_folder.move_target(2, &b),
            version_folder.current_path(),
        )
        .unwrap();
        assert_eq!(
            version_folder.pointer().unwrap(),
            Pointer { moves: 2, current: Some(b), previous: Some(a) }
        );
        assert_eq!(fs::read(version_folder.current_path()).unwrap(), b"{}");
        fs::remove_file(version_folder.version_path(&a)).unwrap();
        assert_eq!(version_folder.pointer().unwrap().previous, None);
    }
}
