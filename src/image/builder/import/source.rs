//! The source of an import: a mirror or a folder.

use super::{
    curl::{self, Wish},
    error::ImportError,
    recipe::ImportRecipe,
};
use crate::builder::{
    command::{CommandError, Run},
    error::{BuildError, failed, io_error},
    store::write_whole,
};
use meshd_types::Digest;
use sha2::Digest as _;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Largest netboot bundle, in bytes; Alpine's has some 300 MB.
const MAX_BUNDLE: u64 = 2 << 30;
/// Largest index archive, in bytes.
const MAX_INDEX: u64 = 64 << 20;
/// Largest published digest, in bytes.
const MAX_SUM: u64 = 4096;
/// Largest package, in bytes.
const MAX_PACKAGE: u64 = 1 << 30;
/// The index of a repository.
const INDEX: &str = "APKINDEX.tar.gz";

/// Where the files come from.
pub(super) enum ImportSource<'a> {
    /// The recipe's mirror.
    Mirror,
    /// A folder: `vmlinuz-lts`, `initramfs-lts`, `modloop-lts`, `packages/`, and `SHA256SUMS` or `SHA512SUMS` if there are.
    Folder(&'a Path),
}

/// Alpine's three files.
pub(super) struct NetbootFiles {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    pub(super) modloop: PathBuf,
}

/// What fetching works with.
pub(super) struct Desk<'a> {
    pub(super) recipe: &'a ImportRecipe,
    pub(super) source: ImportSource<'a>,
    pub(super) cache: &'a Path,
    pub(super) scratch: &'a Path,
}

impl Desk<'_> {
    /// The kernel's files, each compared with the digest that was published; the text says where they came from.
    pub(super) fn netboot(&self) -> Result<(NetbootFiles, String), BuildError> {
        match self.source {
            ImportSource::Mirror => self.bundle(),
            ImportSource::Folder(folder) => self.loose(folder),
        }
    }

    fn bundle(&self) -> Result<(NetbootFiles, String), BuildError> {
        let recipe = self.recipe;
        let url = recipe.mirror.bundle(&recipe.netboot, recipe.arch);
        let name = url.rsplit('/').next().expect("a split has a first part").to_owned();
        let kept = self.cache.join(&name);
        let published = self.published(&url)?;
        let holds = |bytes: &[u8]| published.iter().try_for_each(|sum| sum.check(&name, bytes));
        let mut how = format!("{name}, from the cache");
        if !fs::read(&kept).is_ok_and(|bytes| holds(&bytes).is_ok()) {
            let came = self.scratch.join("bundle");
            fetch(&url, &came, MAX_BUNDLE)?;
            let bytes = fs::read(&came).map_err(io_error("read", &came))?;
            holds(&bytes)?;
            write_whole(&kept, &bytes, 0o644).map_err(io_error("write", &kept))?;
            how = format!("{name}, downloaded");
        }
        let folder = self.scratch.join("netboot");
        fs::create_dir_all(&folder).map_err(io_error("make the folder", &folder))?;
        let run = Run::new("tar").args(["--no-same-owner", "-xzf"]).arg(&kept).arg("-C").arg(&folder);
        run.done().map_err(failed("unpack Alpine's netboot bundle"))?;
        Ok((self.three(&folder.join("boot"))?, how))
    }

    /// The digests that the mirror publishes and that the recipe pins: at least one.
    fn published(&self, url: &str) -> Result<Vec<Sum>, ImportError> {
        let mut sums: Vec<Sum> = Vec::new();
        let mut last = None;
        for kind in ["sha512", "sha256"] {
            let (from, to) = (format!("{url}.{kind}"), self.scratch.join(format!("bundle.{kind}")));
            match curl::one(&from, &to, MAX_SUM) {
                Ok(()) => {
                    let text = fs::read_to_string(&to).unwrap_or_default();
                    let hex = text.split_whitespace().next().unwrap_or_default().to_lowercase();
                    sums.push(Sum { by: from, hex });
                    break;
                }
                Err(error) => last = Some(error),
            }
        }
        if let Some(pinned) = self.recipe.netboot.sha256 {
            sums.push(Sum { by: "the recipe".to_owned(), hex: pinned.to_string() });
        }
        match last {
            _ if !sums.is_empty() => Ok(sums),
            Some(source) if !is_refusal(&source) => Err(ImportError::Fetch { url: format!("{url}.sha256"), source }),
            _ => Err(ImportError::NoDigest { url: url.to_owned() }),
        }
    }

    fn loose(&self, folder: &Path) -> Result<(NetbootFiles, String), BuildError> {
        let netboot = self.three(folder)?;
        let mut how = "taken as they are: there is no SHA256SUMS".to_owned();
        for sums in ["SHA512SUMS", "SHA256SUMS"] {
            let file = folder.join(sums);
            let text = match fs::read_to_string(&file) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error("read", file)(error)),
            };
            for part in [&netboot.kernel, &netboot.initramfs, &netboot.modloop] {
                let name = part.file_name().unwrap_or_default().to_string_lossy();
                let line = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
                let hex = line.filter(|(_, file)| file.trim_start_matches([' ', '*']).trim_start_matches("./") == name);
                let hex = hex.map(|(hex, _)| hex.to_lowercase()).next().unwrap_or_else(|| "no digest of it".to_owned());
                let bytes = fs::read(part).map_err(io_error("read", part))?;
                Sum { by: file.display().to_string(), hex }.check(&name, &bytes)?;
            }
            how = format!("checked against {sums}");
            break;
        }
        Ok((netboot, how))
    }

    fn three(&self, folder: &Path) -> Result<NetbootFiles, ImportError> {
        let flavor = &self.recipe.netboot.flavor;
        let find = |name: &str| {
            let names = [format!("{name}-{flavor}"), name.to_owned()];
            let found = names.iter().map(|name| folder.join(name)).find(|path| path.is_file());
            let hint = "name the files as Alpine does, and the kernel's kind as netboot.flavor";
            found.ok_or_else(|| ImportError::NoFile { folder: folder.to_owned(), what: names[0].clone(), hint })
        };
        Ok(NetbootFiles { kernel: find("vmlinuz")?, initramfs: find("initramfs")?, modloop: find("modloop")? })
    }

    /// The bytes of a repository's index, and what to call it.
    pub(super) fn index(&self, repository: &str) -> Result<(Vec<u8>, String), BuildError> {
        let (path, name) = match self.source {
            ImportSource::Mirror => {
                let url = self.recipe.mirror.file(repository, self.recipe.arch, INDEX);
                let to = self.scratch.join(format!("{repository}.{INDEX}"));
                fetch(&url, &to, MAX_INDEX)?;
                (to, url)
            }
            ImportSource::Folder(folder) => {
                let path = self.folder(folder, repository)?.join(INDEX);
                let name = path.display().to_string();
                (path, name)
            }
        };
        Ok((fs::read(&path).map_err(io_error("read", &path))?, name))
    }

    /// A repository in a folder: `packages/<repository>/<arch>/`, `packages/<arch>/` or `packages/`.
    fn folder(&self, folder: &Path, repository: &str) -> Result<PathBuf, ImportError> {
        let (packages, arch) = (folder.join("packages"), self.recipe.arch.to_string());
        let places = [packages.join(repository).join(&arch), packages.join(&arch), packages.clone()];
        let found = places.into_iter().find(|place| place.join(INDEX).is_file());
        let hint = "`apk fetch --recursive` brings packages; their index is signed by the mirror's key";
        found.ok_or_else(|| ImportError::NoFile { folder: packages, what: format!("index {INDEX}"), hint })
    }

    /// Brings packages of the mirror into the cache, or finds them in the folder: `(repository, file, kept as)`. What could not
    /// be brought is not there afterwards.
    pub(super) fn packages(&self, wanted: &[(String, String, PathBuf)]) -> Result<(), BuildError> {
        let absent = wanted.iter().filter(|(_, _, kept)| !kept.is_file());
        match self.source {
            ImportSource::Mirror => {
                let url = |repository: &str, file: &str| self.recipe.mirror.file(repository, self.recipe.arch, file);
                let wish = |(repository, file, kept): &(String, String, PathBuf)| Wish {
                    url: url(repository, file),
                    to: kept.clone(),
                };
                let wishes: Vec<Wish> = absent.map(wish).collect();
                let failed = if wishes.is_empty() { None } else { curl::many(&wishes, MAX_PACKAGE, self.scratch)? };
                match (failed, wishes.iter().find(|wish| !wish.to.is_file())) {
                    // Nothing came at all: the mirror is gone. Else each one that is absent is named.
                    (Some(source), Some(first))
                        if wishes.iter().all(|wish| !wish.to.is_file()) && !is_refusal(&source) =>
                    {
                        Err(ImportError::Fetch { url: first.url.clone(), source }.into())
                    }
                    _ => Ok(()),
                }
            }
            ImportSource::Folder(folder) => {
                for (repository, file, kept) in absent {
                    let from = self.folder(folder, repository)?.join(file);
                    if from.is_file() {
                        let bytes = fs::read(&from).map_err(io_error("read", &from))?;
                        write_whole(kept, &bytes, 0o644).map_err(io_error("write", kept))?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// The server is there and says that it does not have the file.
fn is_refusal(error: &CommandError) -> bool {
    const HTTP_RETURNED_ERROR: i32 = 22;
    matches!(error, CommandError::Failed { status, .. } if status.code() == Some(HTTP_RETURNED_ERROR))
}

fn fetch(url: &str, to: &Path, limit: u64) -> Result<(), ImportError> {
    curl::one(url, to, limit).map_err(|source| ImportError::Fetch { url: url.to_owned(), source })
}

/// A digest that somebody states: SHA-256 or SHA-512, by its length.
struct Sum {
    by: String,
    hex: String,
}

impl Sum {
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
        Err(ImportError::Digest { file: file.to_owned(), found, by: self.by.clone(), stated })
    }
}
