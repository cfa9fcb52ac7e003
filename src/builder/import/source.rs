//! The source of an import: a mirror or a folder.

use super::{
    curl::{self, Download},
    error::ImportError,
    recipe::ImportRecipe,
};
use crate::{
    apk::members,
    command::{CommandError, ToolCommand},
    error::{BuildError, failed, io_error},
    parts::repo::INDEX_ARCHIVE,
    versions::store::write_whole,
};
use meshd_config::files::open_regular;
use meshd_types::{Digest, failpoint};
use sha2::Digest as _;
use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
};

/// Maximum size of a netboot bundle, in bytes; Alpine's has about 300 MB.
const MAX_BUNDLE: u64 = 2 << 30;
/// Maximum size of the unpacked bundle, in bytes.
const MAX_UNPACKED: u64 = 4 << 30;
/// Maximum size of an index archive, in bytes.
const MAX_INDEX: u64 = 64 << 20;
/// Maximum size of a kernel, initramfs or modloop, in bytes.
pub(super) const MAX_PART: u64 = 2 << 30;
/// Maximum size of a published digest, in bytes.
const MAX_SUM: u64 = 4096;
/// Maximum size of a list of digests in a folder, in bytes.
const MAX_SUMS: u64 = 1 << 20;
/// Maximum size of a package, in bytes.
const MAX_PACKAGE: u64 = 1 << 30;

/// Source of the files.
pub(super) enum ImportSource<'a> {
    /// The recipe's mirror.
    Mirror,
    /// A folder: `vmlinuz-lts`, `initramfs-lts`, `modloop-lts`, `packages/`, and optionally
    /// `SHA256SUMS` or `SHA512SUMS`.
    Folder(&'a Path),
}

/// The three files of Alpine's netboot bundle.
pub(super) struct NetbootFiles {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    pub(super) modloop: PathBuf,
}

/// Recipe, source and folders of an import.
pub(super) struct ImportContext<'a> {
    pub(super) recipe: &'a ImportRecipe,
    pub(super) source: ImportSource<'a>,
    /// Accepts a netboot bundle that the recipe does not pin.
    pub(super) trust_mirror: bool,
    pub(super) cache: &'a Path,
    pub(super) scratch: &'a Path,
}

impl ImportContext<'_> {
    /// Returns the kernel's files after verification by the pinned or published digest, and their
    /// origin.
    pub(super) fn netboot(&self) -> Result<(NetbootFiles, String), BuildError> {
        match self.source {
            ImportSource::Mirror => self.bundle(),
            ImportSource::Folder(folder) => self.folder_files(folder),
        }
    }

    fn bundle(&self) -> Result<(NetbootFiles, String), BuildError> {
        let recipe = self.recipe;
        let url = recipe.mirror.bundle(&recipe.netboot, recipe.arch);
        let name = url.rsplit('/').next().expect("a split has a first part").to_owned();
        let cached = self.cache.join(&name);
        let digest = self.bundle_digest(&url)?;
        let mut origin = format!("{name}, from the cache");
        if !fs::read(&cached).is_ok_and(|bytes| digest.check(&name, &bytes).is_ok()) {
            let downloaded = self.scratch.join("bundle");
            fetch(&url, &downloaded, MAX_BUNDLE)?;
            let bytes = fs::read(&downloaded).map_err(io_error("read", &downloaded))?;
            digest.check(&name, &bytes)?;
            write_whole(&cached, &bytes, 0o644).map_err(io_error("write", &cached))?;
            origin = format!("{name}, downloaded");
        }
        let is_trusted = self.trust_mirror || self.recipe.netboot.sha256.is_some();
        if !is_trusted && failpoint::defends("import-pin") {
            let bytes = fs::read(&cached).map_err(io_error("read", &cached))?;
            return Err(ImportError::NotPinned { url, found: Digest::of(&bytes) }.into());
        }
        let folder = self.scratch.join("netboot");
        fs::create_dir_all(&folder).map_err(io_error("make the folder", &folder))?;
        let tar = self.scratch.join("bundle.tar");
        members::unpack_file(&cached, &tar, MAX_UNPACKED)
            .map_err(|source| ImportError::Damaged { file: name, source })?;
        ToolCommand::unpack_tar(&tar, &folder)
            .run()
            .map_err(failed("unpack Alpine's netboot bundle"))?;
        let files = self.netboot_files(&folder.join("boot"))?;
        require_inside(&files, &folder)?;
        Ok((files, origin))
    }

    /// Returns the digest that the recipe pins, otherwise the one that the mirror publishes.
    fn bundle_digest(&self, url: &str) -> Result<PublishedDigest, ImportError> {
        if let Some(pinned) = self.recipe.netboot.sha256 {
            return Ok(PublishedDigest {
                publisher: "the recipe".to_owned(),
                hex: pinned.to_string(),
            });
        }
        let mut last = None;
        for kind in ["sha512", "sha256"] {
            let publisher = format!("{url}.{kind}");
            let to = self.scratch.join(format!("bundle.{kind}"));
            match curl::download(&publisher, &to, MAX_SUM) {
                Ok(()) => {
                    let text = fs::read_to_string(&to).unwrap_or_default();
                    let hex = text.split_whitespace().next().unwrap_or_default().to_lowercase();
                    return Ok(PublishedDigest { publisher, hex });
                }
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(source) if !is_refusal(&source) => {
                Err(ImportError::Fetch { url: format!("{url}.sha256"), source })
            }
            _ => Err(ImportError::NoDigest { url: url.to_owned() }),
        }
    }

    fn folder_files(&self, folder: &Path) -> Result<(NetbootFiles, String), BuildError> {
        let netboot = self.netboot_files(folder)?;
        require_inside(&netboot, folder)?;
        let mut origin = "taken as they are: there is no SHA256SUMS".to_owned();
        for list in ["SHA512SUMS", "SHA256SUMS"] {
            let file = folder.join(list);
            if fs::symlink_metadata(&file).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                continue;
            }
            let text = read_inside(folder, &file, MAX_SUMS)?;
            let text = String::from_utf8_lossy(&text);
            for part in [&netboot.kernel, &netboot.initramfs, &netboot.modloop] {
                let name = part.file_name().unwrap_or_default().to_string_lossy();
                let line = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
                let hex = line.filter(|(_, file)| {
                    file.trim_start_matches([' ', '*']).trim_start_matches("./") == name
                });
                let hex = hex
                    .map(|(hex, _)| hex.to_lowercase())
                    .next()
                    .unwrap_or_else(|| "no digest of it".to_owned());
                let bytes = read_inside(folder, part, MAX_PART)?;
                PublishedDigest { publisher: file.display().to_string(), hex }
                    .check(&name, &bytes)?;
            }
            origin = format!("checked against {list}");
            break;
        }
        Ok((netboot, origin))
    }

    fn netboot_files(&self, folder: &Path) -> Result<NetbootFiles, ImportError> {
        let flavor = &self.recipe.netboot.flavor;
        let find = |name: &str| {
            let names = [format!("{name}-{flavor}"), name.to_owned()];
            let found = names.iter().map(|name| folder.join(name)).find(|path| path.is_file());
            let hint = "name the files as Alpine does, and the kernel's kind as netboot.flavor";
            found.ok_or_else(|| ImportError::NoFile {
                folder: folder.to_owned(),
                what: names[0].clone(),
                hint,
            })
        };
        Ok(NetbootFiles {
            kernel: find("vmlinuz")?,
            initramfs: find("initramfs")?,
            modloop: find("modloop")?,
        })
    }

    /// Returns the content and the name of a repository's index.
    pub(super) fn index(&self, repository: &str) -> Result<(Vec<u8>, String), BuildError> {
        match self.source {
            ImportSource::Mirror => {
                let url = self.recipe.mirror.file(repository, self.recipe.arch, INDEX_ARCHIVE);
                let to = self.scratch.join(format!("{repository}.{INDEX_ARCHIVE}"));
                fetch(&url, &to, MAX_INDEX)?;
                Ok((fs::read(&to).map_err(io_error("read", &to))?, url))
            }
            ImportSource::Folder(folder) => {
                let path = self.folder(folder, repository)?.join(INDEX_ARCHIVE);
                Ok((read_inside(folder, &path, MAX_INDEX)?, path.display().to_string()))
            }
        }
    }

    /// Returns a repository in a folder: `packages/<repository>/<arch>/`, `packages/<arch>/` or
    /// `packages/`.
    fn folder(&self, folder: &Path, repository: &str) -> Result<PathBuf, ImportError> {
        let packages = folder.join("packages");
        let arch = self.recipe.arch.to_string();
        let candidates =
            [packages.join(repository).join(&arch), packages.join(&arch), packages.clone()];
        let found = candidates.into_iter().find(|folder| folder.join(INDEX_ARCHIVE).is_file());
        let hint =
            "`apk fetch --recursive` brings packages; their index is signed by the mirror's key";
        found.ok_or_else(|| ImportError::NoFile {
            folder: packages,
            what: format!("index {INDEX_ARCHIVE}"),
            hint,
        })
    }

    /// Downloads packages of the mirror into the cache, or finds them in the folder:
    /// `(repository, file, cached path)`. Failed downloads are absent afterwards.
    pub(super) fn packages(&self, targets: &[(String, String, PathBuf)]) -> Result<(), BuildError> {
        let absent = targets.iter().filter(|(_, _, cached)| !cached.is_file());
        match self.source {
            ImportSource::Mirror => {
                let download = |(repository, file, cached): &(String, String, PathBuf)| Download {
                    url: self.recipe.mirror.file(repository, self.recipe.arch, file),
                    to: cached.clone(),
                };
                let downloads: Vec<Download> = absent.map(download).collect();
                let Some(first) = downloads.first() else { return Ok(()) };
                match curl::download_all(&downloads, MAX_PACKAGE, self.scratch)? {
                    // If nothing was downloaded, the mirror is unreachable. Otherwise the caller
                    // reports each absent package.
                    Some(source)
                        if downloads.iter().all(|download| !download.to.is_file())
                            && !is_refusal(&source) =>
                    {
                        Err(ImportError::Fetch { url: first.url.clone(), source }.into())
                    }
                    _ => Ok(()),
                }
            }
            ImportSource::Folder(folder) => {
                for (repository, file, cached) in absent {
                    let from = self.folder(folder, repository)?.join(file);
                    if from.is_file() {
                        let bytes = read_inside(folder, &from, MAX_PACKAGE)?;
                        write_whole(cached, &bytes, 0o644).map_err(io_error("write", cached))?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// Checks that the files of a bundle or folder are in it: a link would lead to a file of this
/// machine, which nodes would receive.
fn require_inside(files: &NetbootFiles, folder: &Path) -> Result<(), BuildError> {
    for path in [&files.kernel, &files.initramfs, &files.modloop] {
        open_inside(folder, path, MAX_PART)?;
    }
    Ok(())
}

/// Reads a file of a bundle or folder: a regular file inside it, of at most `limit` bytes.
pub(super) fn read_inside(folder: &Path, path: &Path, limit: u64) -> Result<Vec<u8>, BuildError> {
    let mut bytes = Vec::new();
    let file = open_inside(folder, path, limit)?;
    file.take(limit).read_to_end(&mut bytes).map_err(io_error("read", path))?;
    Ok(bytes)
}

fn open_inside(folder: &Path, path: &Path, limit: u64) -> Result<File, BuildError> {
    let real = path.canonicalize().map_err(io_error("read", path))?;
    let folder = folder.canonicalize().map_err(io_error("read", folder))?;
    if !real.starts_with(folder) && failpoint::defends("bundle-links") {
        return Err(ImportError::Outside { file: path.to_owned() }.into());
    }
    let file = open_regular(&real).map_err(io_error("read", path))?;
    let size = file.metadata().map_err(io_error("read", path))?.len();
    if size > limit {
        return Err(ImportError::TooLarge { file: path.to_owned(), size, limit }.into());
    }
    Ok(file)
}

/// Returns whether the server answered that it does not have the file.
fn is_refusal(error: &CommandError) -> bool {
    const HTTP_RETURNED_ERROR: i32 = 22;
    matches!(error, CommandError::Failed { status, .. } if status.code() == Some(HTTP_RETURNED_ERROR))
}

fn fetch(url: &str, to: &Path, limit: u64) -> Result<(), ImportError> {
    curl::download(url, to, limit)
        .map_err(|source| ImportError::Fetch { url: url.to_owned(), source })
}

/// A published digest: SHA-256 or SHA-512, by its length.
struct PublishedDigest {
    publisher: String,
    hex: String,
}

impl PublishedDigest {
    fn check(&self, file: &str, bytes: &[u8]) -> Result<(), ImportError> {
        const SHA512_HEX: usize = 128;
        let found = match self.hex.len() {
            SHA512_HEX => meshd_types::hex(&sha2::Sha512::digest(bytes)),
            _ => Digest::of(bytes).to_string(),
        };
        if found == self.hex {
            return Ok(());
        }
        let stated = self.hex.chars().take(SHA512_HEX).collect();
        Err(ImportError::Digest {
            file: file.to_owned(),
            found,
            publisher: self.publisher.clone(),
            stated,
        })
    }
}
