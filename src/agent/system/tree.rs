//! Reads small files of sysfs and procfs below a root: `/` on a node, a folder in a test. Absent
//! and unreadable files are `None`.

use std::{
    fs::{self, DirEntry, File},
    io::Read as _,
    path::{Path, PathBuf},
};

/// Maximum size of a file in bytes: `/proc/cpuinfo` of 1024 hardware threads has about 1.5 MB.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// Maximum number of entries of a folder.
const MAX_ENTRIES: usize = 65_536;

/// A file system tree.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    pub fn new(root: &Path) -> Self {
        Tree { root: root.to_owned() }
    }

    /// Returns true if the root is that of the running system. Any other root has no network.
    pub fn is_running_system(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the path below the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the text of a file, trimmed. Bytes that are not UTF-8 are replaced.
    pub fn read(&self, path: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes(path, MAX_FILE)?).trim().to_owned())
    }

    /// Returns the text of a file that is not empty.
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).filter(|text| !text.is_empty())
    }

    /// Parses the decimal number in a file.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    /// Returns the first `digits` hexadecimal digits of an identifier in a file. Sysfs adds `0x`.
    pub fn hex(&self, path: &str, digits: usize) -> Option<String> {
        let text = self.read(path)?;
        let text = text.strip_prefix("0x").unwrap_or(&text);
        let id = text.get(..digits)?;
        id.bytes().all(|c| c.is_ascii_hexdigit()).then(|| id.to_lowercase())
    }

    /// Returns the names in a folder, sorted.
    pub fn list(&self, path: &str) -> Vec<String> {
        self.list_where(path, |_| true)
    }

    /// Returns the names of sub-folders, sorted, without symbolic links.
    pub fn folders(&self, path: &str) -> Vec<String> {
        self.list_where(path, |entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    }

    fn list_where(&self, path: &str, filter: impl Fn(&DirEntry) -> bool) -> Vec<String> {
        let entries =
            fs::read_dir(self.path(path)).into_iter().flatten().take(MAX_ENTRIES).flatten();
        let mut names: Vec<String> = entries
            .filter(filter)
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Returns the IDs of all processes.
    pub fn processes(&self) -> impl Iterator<Item = u32> + use<> {
        self.list("/proc").into_iter().filter_map(|name| name.parse().ok())
    }

    /// Returns the file name of the target of a symbolic link.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        target.file_name()?.to_str().map(str::to_owned)
    }

    /// Returns the target of a symbolic link, unresolved.
    pub fn target(&self, path: &str) -> Option<String> {
        fs::read_link(self.path(path)).ok()?.into_os_string().into_string().ok()
    }

    /// Returns the path below the root with all symbolic links resolved.
    pub fn real(&self, path: &str) -> Option<String> {
        let root = self.root.canonicalize().ok()?;
        let real = self.path(path).canonicalize().ok()?;
        Some(format!("/{}", real.strip_prefix(root).ok()?.to_str()?))
    }

    /// Returns the first bytes of a file.
    pub fn bytes(&self, path: &str, limit: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path(path)).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns true if the path exists, even as a broken symbolic link.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }
}

/// Returns true for the name of one file in a folder, which cannot lead out of the folder. Hidden
/// files are excluded.
pub fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && !name.starts_with('.')
}
