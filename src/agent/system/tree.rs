//! Reads small files of sysfs and procfs below a root: `/` on a node, a folder in a test. Absent and unreadable files are `None`.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

/// Maximum size of a file in bytes: `/proc/cpuinfo` of 1024 hardware threads has about 1.5 MB.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// Maximum number of entries that are read of a folder.
const MAX_ENTRIES: usize = 65_536;

/// A file system tree.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree below a folder.
    pub fn new(root: &Path) -> Self {
        Tree { root: root.to_owned() }
    }

    /// Returns the path below the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text, trimmed. Bytes that are not UTF-8 are replaced.
    pub fn read(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.path(path)).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file's text if there is any.
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).filter(|text| !text.is_empty())
    }

    /// A file's number, decimal.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    /// A file's number as sysfs writes identifiers: `0x` and hexadecimal digits; returns the first `digits` of them.
    pub fn hex(&self, path: &str, digits: usize) -> Option<String> {
        let text = self.read(path)?;
        let text = text.strip_prefix("0x").unwrap_or(&text);
        let wanted = text.get(..digits)?;
        wanted.bytes().all(|c| c.is_ascii_hexdigit()).then(|| wanted.to_lowercase())
    }

    /// Names in a folder, sorted.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().take(MAX_ENTRIES);
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The last part of what a symbolic link points to.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        target.file_name()?.to_str().map(str::to_owned)
    }

    /// The target of a symbolic link, unresolved.
    pub fn target(&self, path: &str) -> Option<String> {
        fs::read_link(self.path(path)).ok()?.into_os_string().into_string().ok()
    }

    /// The path below the root after all symbolic links are resolved.
    pub fn real(&self, path: &str) -> Option<String> {
        let root = self.root.canonicalize().ok()?;
        let real = self.path(path).canonicalize().ok()?;
        Some(format!("/{}", real.strip_prefix(root).ok()?.to_str()?))
    }

    /// Sub-folders, sorted, without symbolic links.
    pub fn folders(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().take(MAX_ENTRIES).flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut names: Vec<String> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The first bytes of a file.
    pub fn bytes(&self, path: &str, most: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path(path)).ok()?.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// True if the path exists, also as a broken symbolic link.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }
}
