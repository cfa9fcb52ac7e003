//! Volume files of VMs, images of containers and files that they mount, named by digest.
//!
//! ```text
//! blobs_dir/volumes/<digest>         a file, never changed
//! blobs_dir/volumes/<digest>.json    its description; written last, so every listed volume is complete
//! blobs_dir/volumes/.new-*           an incomplete file; the next `add` removes it
//! ```
//!
//! | module | what it holds |
//! | --- | --- |
//! | `container_image` | the configuration of a container's image |
//! | `qcow2_file` | checks that a qcow2 file contains the clusters that its tables name |
//! | `squashfs_file` | checks that a squashfs file contains the tables that its header names |

mod container_image;
mod qcow2_file;
mod squashfs_file;

pub use container_image::ContainerImage;

use super::{ListKind, ListOwner};
use meshd_config::files::open_regular;
use meshd_proto::vm::qcow2;
use meshd_types::{Digest, Timestamp, VolumeFileName};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Size of a copied block, in bytes.
const BLOCK: usize = 1 << 20;
/// Offset and value of the ISO 9660 identifier (ECMA-119, 8.1).
const ISO_MARK: (usize, &[u8]) = (0x8001, b"CD001");
/// Maximum size of a description, in bytes.
const MAX_DESCRIPTION: u64 = 128 * 1024;
/// Prefix of incomplete files.
const TEMPORARY: &str = ".new-";

/// Format of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    Qcow2,
    Iso,
    /// The image of a container, or files that containers mount.
    Squashfs,
}

impl VolumeKind {
    /// Returns the value in vm.toml.
    pub fn as_str(self) -> &'static str {
        match self {
            VolumeKind::Qcow2 => "qcow2",
            VolumeKind::Iso => "iso",
            VolumeKind::Squashfs => "squashfs",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    pub name: VolumeFileName,
    pub digest: Digest,
    pub kind: VolumeKind,
    /// File size in bytes.
    pub size: u64,
    /// Disk size in bytes, as a guest sees it.
    pub virtual_size: u64,
    pub added_at: Timestamp,
    /// Configuration of the image of a container; `None` for other volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerImage>>,
}

impl VolumeInfo {
    /// Returns true if this description may replace another one of the same file. The digest of an
    /// image does not cover its configuration, which must not be lost.
    fn replaces_description(&self, other: &VolumeInfo) -> bool {
        match (&self.container, &other.container) {
            (Some(new), Some(old)) => self.name == other.name && new.has_same_configuration(old),
            (None, Some(_)) => false,
            (_, None) => true,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} cannot be a volume: {why}", path.display())]
    Invalid {
        path: PathBuf,
        /// Cause and hint.
        why: String,
    },
    #[error("volume {} is called `{name}` already", digest.short())]
    Taken { name: VolumeFileName, digest: Digest },
    #[error("cannot add `{name}`: its files are those of image `{other}`")]
    SameFiles { name: VolumeFileName, other: VolumeFileName },
    #[error("cannot remove volume {name}: VMs of another site use it, as {} says", list.display())]
    Foreign { name: VolumeFileName, list: PathBuf },
    #[error("cannot tell which sites use a volume: {0}")]
    Owners(String),
    #[error("there is no volume `{0}`")]
    None(String),
}

meshd_types::hints!(VolumeError {
    VolumeError::Io { .. } => "check the file and the disk";
    VolumeError::Taken { .. } => "give this one another with --name, or remove that one";
    VolumeError::SameFiles { other, .. } => "use `{other}`, with other arguments, variables or user if you need them; or remove it first: meshd volume remove {other}";
    VolumeError::Foreign { .. } => "delete them first, or that list if its site is gone";
    VolumeError::None(_) => "`meshd volume list` lists all volumes";
});

#[derive(Clone, Debug)]
pub struct Volumes {
    blobs_dir: PathBuf,
    dir: PathBuf,
}

fn volume_error(path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::Io { path, source }
}

impl Volumes {
    /// Opens the volumes in a folder of blobs, which need not exist.
    pub fn new(blobs_dir: &Path) -> Self {
        Volumes { blobs_dir: blobs_dir.to_owned(), dir: blobs_dir.join("volumes") }
    }

    /// Returns the path of a volume.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.to_string())
    }

    fn description(&self, digest: &Digest) -> PathBuf {
        self.path(digest).with_extension("json")
    }

    /// Copies a file into the store; an existing volume receives the new name. `progress` receives
    /// the number of copied bytes. Blocks.
    ///
    /// # Errors
    /// The file is not an image or needs a backing file; the name is in use; a file cannot be read
    /// or written. No incomplete file stays.
    pub fn add(
        &self,
        file: &Path,
        name: VolumeFileName,
        now: Timestamp,
        progress: impl FnMut(u64),
    ) -> Result<VolumeInfo, VolumeError> {
        let mut from = open_regular(file).map_err(volume_error(file))?;
        let _lock = self.lock()?;
        self.sweep();
        let mut head = Vec::new();
        let length = (ISO_MARK.0 + ISO_MARK.1.len()) as u64;
        (&mut from).take(length).read_to_end(&mut head).map_err(volume_error(file))?;
        let found = kind(&from, &head).map_err(volume_error(file))?;
        let (kind, virtual_size) =
            found.map_err(|why| VolumeError::Invalid { path: file.to_owned(), why })?;
        let describe = |digest, size| {
            let virtual_size = virtual_size.unwrap_or(size);
            VolumeInfo { name, digest, kind, size, virtual_size, added_at: now, container: None }
        };
        self.store(head, from, describe, progress)
    }

    /// Copies the squashfs of a container's image into the store, with its configuration. Blocks.
    ///
    /// # Errors
    /// The name is in use; an image with another name or configuration has the same files; the
    /// configuration is too large; a file cannot be read or written. No incomplete file stays.
    pub(crate) fn add_container_image(
        &self,
        file: &Path,
        name: VolumeFileName,
        image: ContainerImage,
        now: Timestamp,
    ) -> Result<VolumeInfo, VolumeError> {
        let text = serde_json::to_vec(&image).expect("plain data");
        if text.len() as u64 > MAX_DESCRIPTION / 2 {
            let why = format!("its configuration has {} bytes", text.len());
            return Err(VolumeError::Invalid { path: file.to_owned(), why });
        }
        let from = open_regular(file).map_err(volume_error(file))?;
        let _lock = self.lock()?;
        self.sweep();
        let describe = |digest, size| VolumeInfo {
            name,
            digest,
            kind: VolumeKind::Squashfs,
            size,
            virtual_size: size,
            added_at: now,
            container: Some(Box::new(image)),
        };
        self.store(Vec::new(), from, describe, |_| {})
    }

    /// Copies a file, whose head was read, into the store, which is locked.
    fn store(
        &self,
        head: Vec<u8>,
        from: File,
        describe: impl FnOnce(Digest, u64) -> VolumeInfo,
        progress: impl FnMut(u64),
    ) -> Result<VolumeInfo, VolumeError> {
        let temporary = self.dir.join(format!("{TEMPORARY}{}", std::process::id()));
        let added = self
            .copy(head, from, &temporary, progress)
            .map_err(volume_error(&temporary))
            .and_then(|(digest, size)| {
                let info = describe(digest, size);
                self.commit(&temporary, &info).map(|()| info)
            });
        // Ignore the error: the file is absent after a successful rename.
        let _ = fs::remove_file(&temporary);
        added
    }

    /// Locks the folder for changes.
    fn lock(&self) -> Result<File, VolumeError> {
        fs::create_dir_all(&self.dir).map_err(volume_error(&self.dir))?;
        let path = self.dir.join(".lock");
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let lock = lock.map_err(volume_error(&path))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| volume_error(&path)(error.into()))?;
        Ok(lock)
    }

    /// Removes leftovers of a crash: incomplete files, and files without description.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let digest = name.to_str().and_then(|name| name.parse::<Digest>().ok());
            let unknown = digest.is_some_and(|digest| !self.description(&digest).exists());
            if unknown || name.to_str().is_some_and(|name| name.starts_with(TEMPORARY)) {
                let _ = fs::remove_file(path);
            }
        }
    }

    fn copy(
        &self,
        head: Vec<u8>,
        mut from: File,
        temporary: &Path,
        mut progress: impl FnMut(u64),
    ) -> io::Result<(Digest, u64)> {
        let mut to = OpenOptions::new().create_new(true).write(true).mode(0o640).open(temporary)?;
        // The service user of meshd owns the folder and must be able to read the file.
        let owner = fs::metadata(&self.dir)?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::fchown(&to, Some(owner.uid()), Some(owner.gid()))?;
        }
        let mut hash = Sha256::new();
        let mut size = 0;
        let mut block = head;
        loop {
            to.write_all(&block)?;
            hash.update(&block);
            size += block.len() as u64;
            progress(size);
            block.resize(BLOCK, 0);
            let length = from.read(&mut block)?;
            if length == 0 {
                break;
            }
            block.truncate(length);
        }
        to.sync_all()?;
        Ok((Digest(hash.finalize().into()), size))
    }

    fn commit(&self, temporary: &Path, info: &VolumeInfo) -> Result<(), VolumeError> {
        for other in self.list()? {
            if other.name == info.name && other.digest != info.digest {
                return Err(VolumeError::Taken { name: other.name, digest: other.digest });
            }
            if other.digest == info.digest && !info.replaces_description(&other) {
                return Err(VolumeError::SameFiles { name: info.name.clone(), other: other.name });
            }
        }
        let path = self.path(&info.digest);
        let description = self.description(&info.digest);
        fs::rename(temporary, &path).map_err(volume_error(&path))?;
        let text = serde_json::to_vec(info).expect("plain data");
        let write = || {
            let mut file =
                OpenOptions::new().create_new(true).write(true).mode(0o644).open(temporary)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(temporary, &description)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(volume_error(&description))
    }

    /// Lists all volumes by name. Blocks.
    pub fn list(&self) -> Result<Vec<VolumeInfo>, VolumeError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(volume_error(&self.dir))?,
        };
        let read = |path: PathBuf| {
            let mut text = String::new();
            File::open(&path).ok()?.take(MAX_DESCRIPTION).read_to_string(&mut text).ok()?;
            serde_json::from_str::<VolumeInfo>(&text).ok()
        };
        let described = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|it| it == "json"));
        let mut all: Vec<VolumeInfo> =
            described.filter_map(read).filter(|info| self.path(&info.digest).is_file()).collect();
        all.sort_by(|one, two| one.name.cmp(&two.name));
        Ok(all)
    }

    /// Finds a volume by name or digest. Blocks.
    pub fn find(&self, text: &str) -> Result<VolumeInfo, VolumeError> {
        let is = |info: &VolumeInfo| info.name.as_str() == text || info.digest.to_string() == text;
        let none = || VolumeError::None(text.chars().take(80).collect());
        self.list()?.into_iter().find(is).ok_or_else(none)
    }

    /// Records the volumes that VMs of a site use: sites may share a folder of blobs, and another
    /// site keeps them. A removal that runs meanwhile ends first. Blocks.
    pub fn declare(
        &self,
        owner: &ListOwner,
        digests: &BTreeSet<Digest>,
    ) -> Result<(), VolumeError> {
        let _lock = self.lock()?;
        let declared = owner.declare(&self.blobs_dir, ListKind::Volumes, digests);
        declared.map_err(|error| VolumeError::Owners(error.to_string()))
    }

    /// Removes a volume, unless another site uses it. Blocks.
    pub fn remove(&self, owner: &ListOwner, info: &VolumeInfo) -> Result<(), VolumeError> {
        let _lock = self.lock()?;
        let found = owner.list_of_other(&self.blobs_dir, &info.digest);
        if let Some(list) = found.map_err(|error| VolumeError::Owners(error.to_string()))? {
            return Err(VolumeError::Foreign { name: info.name.clone(), list });
        }
        for path in [self.description(&info.digest), self.path(&info.digest)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(volume_error(&path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Determines the format by the file header; returns the disk size of a qcow2 too. The inner error
/// is why the file cannot be a volume.
fn kind(file: &File, head: &[u8]) -> io::Result<Result<(VolumeKind, Option<u64>), String>> {
    if head.starts_with(&qcow2::MAGIC) {
        let size = qcow2_file::check(file, head)?;
        return Ok(size.map(|size| (VolumeKind::Qcow2, Some(size))).map_err(str::to_owned));
    }
    if head.starts_with(squashfs_file::MAGIC) {
        let checked = squashfs_file::check(file, head)?;
        return Ok(checked.map(|()| (VolumeKind::Squashfs, None)).map_err(str::to_owned));
    }
    if head.get(ISO_MARK.0..) == Some(ISO_MARK.1) {
        return Ok(Ok((VolumeKind::Iso, None)));
    }
    Ok(Err("it is neither qcow2, ISO 9660 nor squashfs; make a disk one with `qemu-img convert -O qcow2`, a folder one with `mksquashfs`".to_owned()))
}

#[cfg(test)]
mod tests;
