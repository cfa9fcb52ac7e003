//! Creates a backup: a snapshot of the store, and all files of the site.

use super::{
    BackupError, DigestReader, MANIFEST, MAX_MANIFEST, MEMBER_TEXT, Manifest, Member, encryption,
    failed,
    owned_files::{is_owned, is_transient},
};
use age::stream::StreamWriter;
use meshd_config::{
    Site,
    files::{open_regular, read_regular},
};
use meshd_image::{
    catalog::versions::{CACHE, WORK},
    overlay::Packer,
};
use meshd_types::{Digest, SafePath, Secret, Timestamp, is_rootfs};
use sha2::Digest as _;
use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io::{self, Write},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Input of a backup.
pub struct BackupSource<'a> {
    pub site: &'a Site,
    /// Files of [`meshd_store::Store::snapshot`].
    pub store: Vec<(String, File, u64)>,
    /// Files of the certificate authority at one moment: they must be consistent.
    pub authority: AuthorityFiles,
    /// Time of that snapshot.
    pub created_at: Timestamp,
    /// Include the blobs of images and bundles.
    pub blobs: bool,
}

/// The files of the certificate authority, which are read together.
#[derive(Debug, Default)]
pub struct AuthorityFiles {
    /// Content and mode by the name of the member.
    files: Vec<(String, u32, Vec<u8>)>,
    /// Files of others in its folder.
    left_out: Vec<String>,
}

impl AuthorityFiles {
    /// Reads the files in its folder and their sub-folders. Blocks.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn read(dir: &Path) -> Result<Self, BackupError> {
        let mut group = AuthorityFiles::default();
        group.add(dir, &format!("{STATE}/{AUTHORITY}"))?;
        Ok(group)
    }

    fn add(&mut self, dir: &Path, above: &str) -> Result<(), BackupError> {
        for path in sorted_entries(dir)? {
            let last = path.file_name().unwrap_or_default().to_string_lossy();
            let member = format!("{above}/{last}");
            let about = fs::symlink_metadata(&path).map_err(failed("read", &path))?;
            if is_transient(&member) {
                continue;
            }
            if !is_owned(&member, about.is_dir()) {
                self.left_out.push(foreign(&member));
            } else if about.is_dir() {
                self.add(&path, &member)?;
            } else if about.is_file() {
                let content =
                    read_regular(&path, MAX_AUTHORITY_FILE).map_err(failed("read", &path))?;
                self.files.push((member, about.permissions().mode() & 0o7777, content));
            }
        }
        Ok(())
    }
}

/// Returns the line about a file that meshd has not written.
fn foreign(member: &str) -> String {
    format!("{}: it is no file of meshd", member.escape_debug())
}

/// Lists a folder; empty if it does not exist.
fn sorted_entries(dir: &Path) -> Result<Vec<PathBuf>, BackupError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("read", dir))?,
    };
    let paths =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>();
    let mut paths = paths.map_err(failed("read", dir))?;
    paths.sort();
    Ok(paths)
}

/// Folder of blobs in `blobs_dir`.
const BLOBS: &str = "sha256";
/// Folders in `blobs_dir` without state: downloads and running builds.
const DISPOSABLE: [&str; 2] = [CACHE, WORK];
/// The store's folder is skipped: the snapshot contains its files.
const STATE: &str = "state";
/// The folder of the certificate authority, which is skipped, too.
pub const AUTHORITY: &str = "ca";
/// Maximum size of one file of the certificate authority, in bytes.
const MAX_AUTHORITY_FILE: u64 = 1 << 20;
/// Maximum number of named files that a backup does not hold.
const MAX_LEFT_OUT: usize = 1000;
/// Maximum depth of folders.
const MAX_DEPTH: usize = 64;
/// Mode of private files.
const PRIVATE: u32 = 0o600;

/// Writes an encrypted backup. Blocks.
///
/// # Errors
/// After a failure, `out` contains no valid backup.
pub fn create(
    source: BackupSource<'_>,
    key: &Secret<String>,
    out: impl Write,
) -> Result<Manifest, BackupError> {
    let BackupSource { site, store, authority, created_at, blobs } = source;
    let packer = Packer::new(encryption::encrypt(out, key)?);
    let mut archive = BackupArchive {
        packer,
        members: BTreeMap::new(),
        manifest_size: 0,
        left_out: Vec::new(),
        open_folders: Vec::new(),
    };
    for (name, file, length) in store {
        archive.put(
            &format!("{STATE}/{}/{name}", meshd_store::FOLDER),
            PRIVATE,
            length,
            file,
            Path::new(&name),
        )?;
    }
    for (name, mode, content) in &authority.files {
        let size = content.len() as u64;
        archive.put(name, *mode, size, content.as_slice(), Path::new(name))?;
    }
    for line in authority.left_out {
        archive.leave_out(line);
    }
    archive.file("site.toml", &site.file)?;
    let blobs_dir = absolute(&site.blobs_dir);
    let separate =
        [meshd_store::FOLDER, AUTHORITY].map(|folder| absolute(&site.state_dir.join(folder)));
    let apart = |path: &Path| path == blobs_dir || separate.iter().any(|folder| path == folder);
    archive.folder(STATE, &site.state_dir, Links::Keep, &apart)?;
    let all_blobs = blobs_dir.join(BLOBS);
    let disposable = DISPOSABLE.map(|folder| blobs_dir.join(folder));
    let skipped = |path: &Path| {
        (path == all_blobs && !blobs) || disposable.iter().any(|folder| path == folder)
    };
    archive.folder("blobs", &site.blobs_dir, Links::Keep, &skipped)?;
    archive.folder("images", &site.images_dir, Links::Follow, &|_| false)?;
    archive.folder("overlays", &site.overlays_dir, Links::Follow, &|_| false)?;
    for (name, secret) in &site.secrets {
        archive.file(&format!("secrets/{name}"), &secret.file)?;
    }
    archive.finish(Manifest {
        site: site.name.clone(),
        created_at,
        meshd: env!("CARGO_PKG_VERSION").to_owned(),
        store: meshd_store::VERSION.to_owned(),
        blobs,
        members: BTreeMap::new(),
        left_out: Vec::new(),
    })
}

/// What happens to a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    /// It is archived as a link: meshd or the node gives it its meaning.
    Keep,
    /// Its target is archived in its place, down to `rootfs/`: meshd follows links of operators to
    /// overlays and recipes as well. A link to a folder that contains it stays a link: meshd does
    /// not search an overlay above `rootfs/`, so that it follows no such link.
    Follow,
}

/// Identifies a folder, whatever links lead to it.
type FolderIdentity = (u64, u64);

fn identity(folder: &Metadata) -> FolderIdentity {
    (folder.dev(), folder.ino())
}

/// Makes a path absolute without resolving links.
fn absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

struct BackupArchive<W: Write> {
    packer: Packer<StreamWriter<W>>,
    members: BTreeMap<String, Member>,
    /// Size of the manifest of these members, at most, in bytes.
    manifest_size: u64,
    /// What the archive cannot hold, each with its reason.
    left_out: Vec<String>,
    /// The folder being read, and those above it.
    open_folders: Vec<FolderIdentity>,
}

impl<W: Write> BackupArchive<W> {
    fn put(
        &mut self,
        name: &str,
        mode: u32,
        size: u64,
        content: impl io::Read,
        from: &Path,
    ) -> Result<(), BackupError> {
        let path = safe(name, from)?;
        let mut reader =
            DigestReader { content: content.take(size), hash: sha2::Sha256::new(), size: 0 };
        self.packer.file(&path, mode, size, &mut reader).map_err(failed("back up", from))?;
        self.insert(name, reader.member(), from)
    }

    /// Records a member. Links between folders can multiply files without end, and a restore reads
    /// no larger manifest.
    fn insert(&mut self, name: &str, member: Member, from: &Path) -> Result<(), BackupError> {
        self.manifest_size += name.len() as u64 + MEMBER_TEXT;
        if self.manifest_size > MAX_MANIFEST {
            return Err(BackupError::TooManyFiles {
                path: from.to_owned(),
                files: self.members.len(),
            });
        }
        self.members.insert(name.to_owned(), member);
        Ok(())
    }

    fn file(&mut self, name: &str, from: &Path) -> Result<(), BackupError> {
        let file = open_regular(from).map_err(failed("read", from))?;
        let about = file.metadata().map_err(failed("read", from))?;
        self.put(name, about.permissions().mode() & 0o7777, about.len(), file, from)
    }

    /// Adds a folder except the absolute paths for which `skip` returns true. Files that disappear
    /// meanwhile are ignored.
    fn folder(
        &mut self,
        name: &str,
        from: &Path,
        links: Links,
        skip: &dyn Fn(&Path) -> bool,
    ) -> Result<(), BackupError> {
        let above = self.open_folders.len();
        self.open_folders.extend(fs::metadata(from).iter().map(identity));
        let added = self.entries(name, from, links, skip);
        self.open_folders.truncate(above);
        added
    }

    fn entries(
        &mut self,
        name: &str,
        from: &Path,
        links: Links,
        skip: &dyn Fn(&Path) -> bool,
    ) -> Result<(), BackupError> {
        for path in sorted_entries(from)? {
            let last = path.file_name().unwrap_or_default();
            let Some(last) = last.to_str().filter(|last| safe(last, &path).is_ok()) else {
                let last = last.to_string_lossy().escape_debug().to_string();
                self.leave_out(format!("{name}/{last}: its name is not plain UTF-8"));
                continue;
            };
            let member = format!("{name}/{last}");
            if is_transient(&member) || skip(&absolute(&path)) {
                continue;
            }
            match self.entry(&member, &path, links, skip) {
                Err(BackupError::File { source, .. })
                    if source.kind() == io::ErrorKind::NotFound => {}
                done => done?,
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        name: &str,
        path: &Path,
        links: Links,
        skip: &dyn Fn(&Path) -> bool,
    ) -> Result<(), BackupError> {
        let mut about = fs::symlink_metadata(path).map_err(failed("read", path))?;
        if links == Links::Follow
            && about.is_symlink()
            && let Ok(target) = fs::metadata(path)
            && !self.open_folders.contains(&identity(&target))
        {
            about = target;
        }
        if about.file_type().is_socket() {
            // meshd creates its sockets.
            return Ok(());
        }
        if !is_owned(name, about.is_dir()) {
            self.leave_out(foreign(name));
        } else if about.is_symlink() {
            let target =
                fs::read_link(path).map_err(failed("read", path))?.to_string_lossy().into_owned();
            self.packer.link(&safe(name, path)?, &target).map_err(failed("back up", path))?;
            self.insert(name, Member { size: 0, digest: Digest::of(target.as_bytes()) }, path)?;
        } else if about.is_dir() {
            let mode = about.permissions().mode() & 0o7777;
            self.packer.folder(&safe(name, path)?, mode).map_err(failed("back up", path))?;
            if name.matches('/').count() >= MAX_DEPTH {
                self.leave_out(format!("{name}/: its folders are more than {MAX_DEPTH} deep"));
                return Ok(());
            }
            let has_links_of_nodes = path.file_name().is_some_and(is_rootfs);
            let links = if has_links_of_nodes { Links::Keep } else { links };
            self.folder(name, path, links, skip)?;
        } else if about.is_file() {
            self.file(name, path)?;
        } else {
            self.leave_out(format!("{name}: it is a pipe or device"));
        }
        Ok(())
    }

    /// Records what the archive does not hold, up to a bound.
    fn leave_out(&mut self, line: String) {
        if self.left_out.len() < MAX_LEFT_OUT {
            self.left_out.push(line);
        }
    }

    fn finish(mut self, manifest: Manifest) -> Result<Manifest, BackupError> {
        let members = std::mem::take(&mut self.members);
        let left_out = std::mem::take(&mut self.left_out);
        let manifest = Manifest { members, left_out, ..manifest };
        let text = serde_json::to_vec(&manifest).expect("plain data");
        let path = Path::new(MANIFEST);
        self.packer
            .file(&safe(MANIFEST, path)?, PRIVATE, text.len() as u64, text.as_slice())
            .and_then(|()| self.packer.finish())
            .and_then(StreamWriter::finish)
            .and_then(|mut out| out.flush())
            .map_err(failed("write", path))?;
        Ok(manifest)
    }
}

fn safe(name: &str, from: &Path) -> Result<SafePath, BackupError> {
    SafePath::new(name).map_err(|error| failed("back up", from)(io::Error::other(error)))
}
