//! The files of a root as an index: layers are merged here, and nothing of a source is written to a
//! path that the source names.
//!
//! A path is bytes without a slash at its ends; the root has the empty path. Names of one file
//! (hard links) have one inode.

use super::limits::Limits;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
};

/// Maximum number of symbolic links in a path, as in Linux.
const MAX_LINKS: usize = 40;
/// Maximum length of a name and of a path, in bytes, as in Linux.
const MAX_NAME: usize = 255;
const MAX_PATH: usize = 4095;

/// Why a path of a source is refused, as a phrase that follows the path.
pub(super) type PathFault = &'static str;

const TOO_LONG: PathFault = "is longer than 4095 bytes";
const TOO_MANY_NAMES: PathFault = "passes more names and links than all paths of a root may";

/// Owner, mode, time and attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// Permission bits, with setuid, setgid and sticky.
    pub(super) mode: u32,
    pub(super) owner: u64,
    pub(super) group: u64,
    /// Seconds since the epoch.
    pub(super) time: u64,
    /// Extended attributes with the prefix `security.` or `user.`.
    pub(super) attributes: BTreeMap<String, Vec<u8>>,
}

impl Meta {
    fn folder() -> Self {
        Meta { mode: 0o755, owner: 0, group: 0, time: 0, attributes: BTreeMap::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InodeKind {
    Folder,
    /// A file whose content has a number in the store of contents.
    File {
        content: u64,
        size: u64,
    },
    /// A symbolic link to this target.
    Link(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    pub(super) kind: InodeKind,
    pub(super) meta: Meta,
}

/// An index of files.
#[derive(Debug)]
pub(super) struct RootTree {
    /// Path -> inode. A folder is before all paths below it.
    names: BTreeMap<Vec<u8>, usize>,
    inodes: Vec<Inode>,
    limits: Limits,
    /// Bytes of all paths.
    path_bytes: u64,
    made_folders: u64,
    /// A source with long chains of links makes each of its paths expensive.
    passed_names: AtomicU64,
}

impl RootTree {
    pub(super) fn new(limits: Limits) -> Self {
        let root = Inode { kind: InodeKind::Folder, meta: Meta::folder() };
        RootTree {
            names: BTreeMap::from([(Vec::new(), 0)]),
            inodes: vec![root],
            limits,
            path_bytes: 0,
            made_folders: 0,
            passed_names: AtomicU64::new(0),
        }
    }

    /// Returns whether paths pass more names than permitted: then [`RootTree::resolve`] finds
    /// nothing.
    pub(super) fn is_exhausted(&self) -> bool {
        self.passed_names.load(Ordering::Relaxed) > self.limits.passed_names()
    }

    /// Counts a name that leads to a path.
    fn pass(&self, path: &[u8]) -> Result<(), PathFault> {
        if path.len() > MAX_PATH {
            return Err(TOO_LONG);
        }
        self.passed_names.fetch_add(1 + path.len() as u64 / 64, Ordering::Relaxed);
        if self.is_exhausted() { Err(TOO_MANY_NAMES) } else { Ok(()) }
    }

    fn insert(&mut self, path: Vec<u8>, number: usize) -> Result<(), PathFault> {
        self.path_bytes += path.len() as u64;
        if self.path_bytes > self.limits.path_bytes() {
            return Err("makes all paths of the root together too long");
        }
        self.names.insert(path, number);
        Ok(())
    }

    /// Makes a folder that no entry of a source describes.
    fn make_folder(&mut self, path: Vec<u8>) -> Result<(), PathFault> {
        self.made_folders += 1;
        if self.made_folders > self.limits.entries {
            return Err("is below too many folders that no archive contains");
        }
        self.insert(path, self.inodes.len())?;
        self.inodes.push(Inode { kind: InodeKind::Folder, meta: Meta::folder() });
        Ok(())
    }

    fn take_name(&mut self, path: &[u8]) {
        if self.names.remove(path).is_some() {
            self.path_bytes -= path.len() as u64;
        }
    }

    /// Returns all paths with the number of their inode, ordered.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&[u8], usize, &Inode)> {
        self.names.iter().map(|(path, number)| (path.as_slice(), *number, &self.inodes[*number]))
    }

    /// Puts an inode at a path of a source. Parents that no archive contains are made; a link on
    /// the way is followed within the root.
    pub(super) fn put(&mut self, path: &[u8], inode: Inode) -> Result<(), PathFault> {
        let at = self.place(path)?;
        let is_folder = inode.kind == InodeKind::Folder;
        if let Some(number) = self.names.get(&at).copied() {
            if is_folder && self.inodes[number].kind == InodeKind::Folder {
                self.inodes[number] = inode;
                return Ok(());
            }
            if at.is_empty() {
                return Err("replaces the root by something else than a folder");
            }
            self.remove_path(&at);
        }
        self.insert(at, self.inodes.len())?;
        self.inodes.push(inode);
        Ok(())
    }

    /// Gives the file at a path of a source another name.
    pub(super) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), PathFault> {
        let target = self.place(target)?;
        let missing = "is a hard link to a path that no earlier entry has";
        let number = *self.names.get(&target).ok_or(missing)?;
        if self.inodes[number].kind == InodeKind::Folder {
            return Err("is a hard link to a folder");
        }
        let at = self.place(path)?;
        if at.is_empty() {
            return Err("replaces the root by something else than a folder");
        }
        if at != target {
            self.remove_path(&at);
            self.insert(at, number)?;
        }
        Ok(())
    }

    /// Removes a path of a source, and everything below it.
    pub(super) fn remove(&mut self, path: &[u8]) -> Result<(), PathFault> {
        let at = self.place(path)?;
        if at.is_empty() {
            return Err("removes the root");
        }
        self.remove_path(&at);
        Ok(())
    }

    /// Removes everything below a folder of a source.
    pub(super) fn clear(&mut self, path: &[u8]) -> Result<(), PathFault> {
        let at = self.place(path)?;
        self.remove_below(&at);
        Ok(())
    }

    fn remove_path(&mut self, at: &[u8]) {
        self.take_name(at);
        self.remove_below(at);
    }

    fn remove_below(&mut self, at: &[u8]) {
        let start = if at.is_empty() { vec![0] } else { [at, b"/"].concat() };
        let is_below = |path: &[u8]| at.is_empty() || path.starts_with(&start);
        let below: Vec<Vec<u8>> = self
            .names
            .range(start.clone()..)
            .map(|(path, _)| path.clone())
            .take_while(|path| is_below(path))
            .collect();
        for path in below {
            self.take_name(&path);
        }
    }

    /// Returns the path at which an entry of a source lies.
    fn place(&mut self, path: &[u8]) -> Result<Vec<u8>, PathFault> {
        let mut names = split(path)?;
        if names.iter().any(|name| name == b"..") {
            return Err("leads out of the root by `..`");
        }
        let Some(last) = names.pop() else { return Ok(Vec::new()) };
        let folder = self.walk(names.into())?;
        let path = join(&folder, &last);
        self.pass(&path)?;
        Ok(path)
    }

    /// Follows names from the root to a folder. Missing folders are made.
    fn walk(&mut self, mut names: VecDeque<Vec<u8>>) -> Result<Vec<u8>, PathFault> {
        let mut at = Vec::new();
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            if name == b".." {
                if at.is_empty() {
                    return Err("leads out of the root by a symbolic link");
                }
                self.pass(&at)?;
                parent(&mut at);
                continue;
            }
            let path = join(&at, &name);
            self.pass(&path)?;
            let Some(number) = self.names.get(&path) else {
                self.make_folder(path.clone())?;
                at = path;
                continue;
            };
            match &self.inodes[*number].kind {
                InodeKind::Folder => at = path,
                InodeKind::File { .. } => return Err("is below a file"),
                InodeKind::Link(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err("is below a loop of symbolic links");
                    }
                    if target.starts_with(b"/") {
                        at.clear();
                    }
                    for name in split(target)?.into_iter().rev() {
                        names.push_front(name);
                    }
                }
            }
        }
        Ok(at)
    }

    /// Returns the file or folder at a path as a process in the root finds it.
    pub(super) fn resolve(&self, path: &str) -> Option<(Vec<u8>, &Inode)> {
        let mut names: VecDeque<Vec<u8>> = split(path.as_bytes()).ok()?.into();
        let mut at = Vec::new();
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            if name == b".." {
                self.pass(&at).ok()?;
                parent(&mut at);
                continue;
            }
            let path = join(&at, &name);
            self.pass(&path).ok()?;
            match &self.inodes[*self.names.get(&path)?].kind {
                InodeKind::Folder => at = path,
                InodeKind::File { .. } if names.is_empty() => at = path,
                InodeKind::File { .. } => return None,
                InodeKind::Link(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return None;
                    }
                    if target.starts_with(b"/") {
                        at.clear();
                    }
                    for name in split(target).ok()?.into_iter().rev() {
                        names.push_front(name);
                    }
                }
            }
        }
        let number = *self.names.get(&at)?;
        Some((at, &self.inodes[number]))
    }

    /// Returns the names in a folder, ordered; none if there is no such folder. Names that are no
    /// UTF-8 are left out.
    pub(super) fn names_in(&self, folder: &str) -> Vec<&str> {
        let Some((at, _)) = self.resolve(folder) else { return Vec::new() };
        let start = [&at[..], b"/"].concat();
        let below = self.names.range(start.clone()..).map(|(path, _)| path.as_slice());
        below
            .map_while(|path| path.strip_prefix(start.as_slice()))
            .filter(|name| !name.contains(&b'/'))
            .filter_map(|name| std::str::from_utf8(name).ok())
            .collect()
    }
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() }
}

fn parent(path: &mut Vec<u8>) {
    path.truncate(path.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
}

/// Splits a path into names. An absolute path begins at the root.
fn split(path: &[u8]) -> Result<Vec<Vec<u8>>, PathFault> {
    if path.len() > MAX_PATH {
        return Err(TOO_LONG);
    }
    if path.contains(&0) {
        return Err("contains a NUL byte");
    }
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    match names.iter().all(|name| name.len() <= MAX_NAME) {
        true => Ok(names),
        false => Err("has a name of more than 255 bytes"),
    }
}
