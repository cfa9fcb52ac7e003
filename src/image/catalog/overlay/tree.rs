//! Walks `rootfs/` without following links.

use super::{
    System,
    entry::{Entries, MAX_ENTRIES, MAX_FILE, MAX_OVERLAY, OverlayEntry, Source, SourceLocation},
    permissions::{lost_attribute, lost_mode, package_mode},
    template::TemplateInputs,
};
use bytes::Bytes;
use meshd_config::{
    Fault,
    files::{open_beneath, read_opened},
};
use meshd_types::{Hint as _, SafePath, failpoint};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
};

/// Suffix of templates; the rendered file has no suffix.
const TEMPLATE_SUFFIX: &str = ".j2";
const PLAIN_MODE: u32 = 0o644;
const EXECUTABLE_MODE: u32 = 0o755;

/// The content of `rootfs/`.
#[derive(Default)]
pub(super) struct RootFs {
    pub(super) entries: Entries,
    /// What would be lost of a path, unless `overlay.toml` declares the path.
    pub(super) lost: Vec<(SafePath, Fault)>,
}

impl RootFs {
    /// Adds the files of one system.
    pub(super) fn add(
        &mut self,
        folder: &Path,
        system: System,
        other: RootFs,
        faults: &mut Vec<Fault>,
    ) {
        for (path, mut entry) in other.entries {
            entry.system = Some(system);
            let is_folder = |entry: &OverlayEntry| entry.source == Source::Directory;
            if let Some(earlier) = self.entries.get(&path).filter(|entry| !is_folder(entry)) {
                let what = format!("brings {path} in {}, too", earlier.location.file);
                let hint = "use one template with `image.system`, or two names";
                faults.push(Fault::of_file(folder.join(&entry.location.file), what, hint));
            }
            self.entries.insert(path, entry);
        }
        self.lost.extend(other.lost);
    }
}

/// Reads a regular file below a folder. Follows no link: the author of the overlay may have
/// replaced a folder by one since it was listed.
fn read_beneath(folder: &fs::File, relative: &Path) -> io::Result<Vec<u8>> {
    let follows_links = !failpoint::defends("overlay-links");
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    read_opened(open_beneath(folder, relative, flags, follows_links)?, MAX_FILE)
}

/// Opens a folder by a path without links.
fn open_folder(real: &Path) -> io::Result<fs::File> {
    Ok(openat2(
        CWD,
        real,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        if failpoint::defends("overlay-links") {
            ResolveFlags::NO_SYMLINKS
        } else {
            ResolveFlags::empty()
        },
    )?
    .into())
}

struct Walk<'a> {
    root: &'a Path,
    /// The open root.
    opened: io::Result<fs::File>,
    /// Mode of `overlay.toml`.
    reference: u32,
    lost: Vec<(SafePath, Fault)>,
    entries: Entries,
    bytes: u64,
    seen: usize,
    faults: &'a mut Vec<Fault>,
}

/// Returns every file, link and empty folder below `rootfs`. Other folders are created with their
/// content, or declared in `overlay.toml`. `real` is the path of `rootfs` without links.
pub(super) fn read(rootfs: &Path, real: &Path, reference: u32, faults: &mut Vec<Fault>) -> RootFs {
    let entries = Entries::new();
    let lost = Vec::new();
    let opened = open_folder(real);
    let mut walk =
        Walk { root: rootfs, opened, reference, lost, entries, bytes: 0, seen: 0, faults };
    match fs::metadata(rootfs) {
        Ok(metadata) if metadata.is_dir() => walk.folder(rootfs),
        Ok(_) => {
            walk.fault::<()>(
                rootfs,
                "is not a folder",
                "make it a folder with the files of the node",
            );
        }
        // An overlay with only services and packages has no rootfs/.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(rootfs).is_err() => {
        }
        Err(error) => {
            walk.unreadable::<()>(rootfs, &error);
        }
    }
    RootFs { entries: walk.entries, lost: walk.lost }
}

fn entry(source: Source, mode: u32, location: SourceLocation) -> OverlayEntry {
    OverlayEntry {
        source,
        mode,
        owner: (0, 0),
        append: false,
        replace: false,
        system: None,
        location,
    }
}

impl Walk<'_> {
    fn fault<T>(&mut self, path: &Path, what: impl Into<String>, hint: &str) -> Option<T> {
        self.faults.push(Fault::of_file(path, what, hint));
        None
    }

    fn unreadable<T>(&mut self, path: &Path, error: &io::Error) -> Option<T> {
        self.fault(path, format!("cannot be read: {error}"), "check its permissions")
    }

    fn folder(&mut self, folder: &Path) {
        let listing =
            fs::read_dir(folder).and_then(|listing| listing.collect::<io::Result<Vec<_>>>());
        let mut paths: Vec<PathBuf> = match listing {
            Ok(listing) => listing.into_iter().map(|entry| entry.path()).collect(),
            Err(error) => {
                self.unreadable::<()>(folder, &error);
                return;
            }
        };
        paths.sort();
        if paths.is_empty() && folder != self.root {
            self.empty_folder(folder);
        }
        for path in paths {
            self.seen += 1;
            if self.seen == MAX_ENTRIES + 1 {
                let what = format!("more than {MAX_ENTRIES} files in one overlay");
                self.fault::<()>(&path, what, "bring software as packages");
            }
            if self.seen > MAX_ENTRIES {
                return;
            }
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {
                    self.check_attributes(&path);
                    if let Some(what) = lost_mode(&metadata, self.reference, EXECUTABLE_MODE) {
                        self.lose(&path, "directories", what);
                    }
                    self.folder(&path);
                }
                Ok(metadata) => {
                    let _ = self.entry(&path, &metadata);
                }
                Err(error) => {
                    self.unreadable::<()>(&path, &error);
                }
            }
        }
    }

    /// Keeps an empty folder, with the mode that packages give it.
    fn empty_folder(&mut self, folder: &Path) {
        let Some(relative) = self.relative(folder) else { return };
        let at = match SafePath::new(relative) {
            Ok(at) => at,
            Err(error) => {
                self.fault::<()>(folder, error.message(), "rename it");
                return;
            }
        };
        let mode = package_mode(relative).unwrap_or(EXECUTABLE_MODE);
        let location = self.location(relative);
        let source = Source::Directory;
        self.entries.insert(at, entry(source, mode, location));
    }

    /// Returns the position of a path relative to the root, for faults.
    fn location(&self, relative: &str) -> SourceLocation {
        let folder = self.root.file_name().unwrap_or_default().to_string_lossy();
        SourceLocation { file: format!("{folder}/{relative}"), line: 0 }
    }

    /// Returns a path relative to the root. A name that is not UTF-8 is a fault.
    fn relative<'p>(&mut self, path: &'p Path) -> Option<&'p str> {
        let relative = path.strip_prefix(self.root).expect("the walk goes downwards from its root");
        relative.to_str().or_else(|| self.fault(path, "its name is not UTF-8", "rename it"))
    }

    /// Records what would be lost of a path, unless a section of `overlay.toml` declares the path.
    fn lose(&mut self, path: &Path, section: &str, what: String) {
        let relative = path.strip_prefix(self.root).ok().and_then(Path::to_str).unwrap_or_default();
        let relative = relative.strip_suffix(TEMPLATE_SUFFIX).unwrap_or(relative);
        let Ok(at) = SafePath::new(relative) else { return };
        let mode =
            fs::symlink_metadata(path).map_or(0, |metadata| metadata.permissions().mode() & 0o7777);
        let hint = format!(
            "git keeps only the execute bit: write [{section}.\"{at}\"] mode = \"{mode:04o}\" in overlay.toml"
        );
        self.lost.push((at, Fault::of_file(path, what, hint)));
    }

    /// Returns `None` after recording a fault.
    fn check_attributes(&mut self, path: &Path) -> Option<()> {
        let Some(name) = lost_attribute(path) else { return Some(()) };
        let what = format!("has the extended attribute {name}, which no archive holds");
        let hint = "remove it with `setfattr -x`, and set it on the node when its service starts";
        self.fault(path, what, hint)
    }

    /// Reads one entry. Returns `None` after recording a fault.
    fn entry(&mut self, path: &Path, metadata: &fs::Metadata) -> Option<()> {
        let relative = self.relative(path)?;
        let executable = metadata.permissions().mode() & 0o111 != 0;
        let mode = if executable { EXECUTABLE_MODE } else { PLAIN_MODE };
        let kind = metadata.file_type();
        self.check_attributes(path)?;
        if kind.is_file()
            && let Some(what) = lost_mode(metadata, self.reference, mode)
        {
            self.lose(path, "files", what);
        }
        let (on_node, source) = if kind.is_symlink() {
            (relative, Source::Link(self.link_target(path, relative)?))
        } else if kind.is_file() {
            let bytes = self.content(path, metadata.len())?;
            match relative.strip_suffix(TEMPLATE_SUFFIX) {
                Some(on_node) => (on_node, self.template(path, relative, bytes)?),
                None => (relative, Source::File(Bytes::from(bytes))),
            }
        } else {
            return self.fault(
                path,
                "is neither a file, a folder nor a link",
                "make devices and sockets on the node",
            );
        };
        let at = match SafePath::new(on_node) {
            Ok(at) => at,
            Err(error) => return self.fault(path, error.message(), "rename it"),
        };
        let location = self.location(relative);
        match self.entries.insert(at, entry(source, mode, location)) {
            None => Some(()),
            Some(_) => {
                self.fault(path, "is here as a file and as a template", "remove one of the two")
            }
        }
    }

    fn content(&mut self, path: &Path, size: u64) -> Option<Vec<u8>> {
        const HINT: &str =
            "a file has up to 4 MiB and an overlay 16 MiB: bring software as packages";
        if size > MAX_FILE {
            return self.fault(path, format!("is of {size} bytes"), HINT);
        }
        let before = self.bytes;
        self.bytes += size;
        if self.bytes > MAX_OVERLAY {
            // Report the size fault once, at the file that exceeded the limit.
            if before <= MAX_OVERLAY {
                self.fault::<()>(
                    path,
                    format!("makes the overlay {} bytes large", self.bytes),
                    HINT,
                );
            }
            return None;
        }
        let relative = path.strip_prefix(self.root).expect("the walk goes downwards from its root");
        let read = match &self.opened {
            Ok(folder) => read_beneath(folder, relative),
            Err(error) => Err(error.kind().into()),
        };
        read.map_err(|error| self.unreadable::<()>(path, &error)).ok()
    }

    fn template(&mut self, path: &Path, relative: &str, bytes: Vec<u8>) -> Option<Source> {
        let SourceLocation { file, .. } = self.location(relative);
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Some(Source::Template {
                text,
                file,
                omit_empty: false,
                uses: TemplateInputs::default(),
            }),
            _ => {
                let what = "is a template, but binary: it is not UTF-8, or holds a NUL";
                self.fault(path, what, "remove the suffix .j2 if it is not a template")
            }
        }
    }

    /// Returns the target of a link. Links that lead out of the folder are faults, because their
    /// targets would differ between hosts.
    fn link_target(&mut self, path: &Path, relative: &str) -> Option<String> {
        let target = match fs::read_link(path) {
            Ok(target) => target,
            Err(error) => return self.unreadable(path, &error),
        };
        let mut depth = relative.matches('/').count();
        let stays = target.components().all(|part| match part {
            Component::Normal(_) => {
                depth += 1;
                true
            }
            Component::CurDir => true,
            Component::ParentDir if depth > 0 => {
                depth -= 1;
                true
            }
            _ => false,
        });
        match target.to_str() {
            Some(text) if stays => Some(text.to_owned()),
            _ => {
                let what = format!("is a link that leaves the overlay: {}", target.display());
                self.fault(
                    path,
                    what,
                    "declare it in overlay.toml, under [links]: \"/path\" = \"target\"",
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn folder_that_became_a_link_is_not_read_through() {
        let dir = tempfile::tempdir().unwrap();
        let rootfs = dir.path().join("rootfs");
        fs::create_dir_all(rootfs.join("etc")).unwrap();
        fs::create_dir(rootfs.join("private")).unwrap();
        fs::write(rootfs.join("private/shadow"), "secret").unwrap();
        fs::write(rootfs.join("etc/motd"), "hello").unwrap();
        let folder = open_folder(&rootfs.canonicalize().unwrap()).unwrap();
        assert_eq!(read_beneath(&folder, Path::new("etc/motd")).unwrap(), b"hello");
        fs::remove_dir_all(rootfs.join("etc")).unwrap();
        symlink("private", rootfs.join("etc")).unwrap();
        assert!(read_beneath(&folder, Path::new("etc/shadow")).is_err());
        assert!(read_beneath(&folder, Path::new("private")).is_err());
    }
}
