//! Imports packages: verifies the mirror's index and packages, resolves dependencies, and packs all
//! with an index signed by the site's key.

use super::{error::ImportError, source::ImportContext};
use crate::{
    apk::{
        closure::closure,
        depends::Dependency,
        index::{self, INDEX_FILE, Record},
        members::{self, File},
        package, signature,
    },
    command::ToolCommand,
    error::{BuildError, failed, io_error},
    parts::{
        cpio,
        keys::{PUBLIC_NAME, RepoKey},
        recipe::{Algorithm, Compression},
        repo::{self, INDEX_ARCHIVE},
    },
    progress::{BuildStep, Progress, report_step},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Lowest level, because packages are compressed already. The initrd is compressed only because
/// every initrd must be.
const COMPRESSION: Compression = Compression { algorithm: Algorithm::Gzip, level: 1 };
/// Package whose presence shows that the closure contains apk with its dependencies.
const APK: &str = "apk-tools";
/// Maximum size of an unpacked index, in bytes.
const MAX_INDEX: u64 = 256 << 20;

/// Inputs of a package import.
pub(super) struct PackageImport<'a> {
    pub(super) context: &'a ImportContext<'a>,
    /// Trusted keys for the signatures of the mirror's indexes.
    pub(super) keys: &'a [PathBuf],
    /// Key that signs the site's index.
    pub(super) site_key: &'a RepoKey,
    /// Folder with only the public key of the site.
    pub(super) trusted: &'a Path,
    pub(super) progress: &'a dyn Progress,
}

/// Result of a package import.
pub(super) struct ImportedPackages {
    pub(super) initrd: PathBuf,
    /// Name -> version.
    pub(super) versions: BTreeMap<String, String>,
}

impl PackageImport<'_> {
    pub(super) fn make(&self) -> Result<ImportedPackages, BuildError> {
        let (records, install) =
            report_step(self.progress, BuildStep::Index, || self.read_indexes())?;
        let chosen = closure(&records, &install).map_err(ImportError::Lacks)?;
        let files = report_step(self.progress, BuildStep::FetchPackages, || self.fetch(&chosen))?;
        let initrd = report_step(self.progress, BuildStep::Packages, || {
            self.assemble(&records, &chosen, &files)
        })?;
        let versions =
            chosen.iter().map(|record| (record.name.clone(), record.version.clone())).collect();
        Ok(ImportedPackages { initrd, versions })
    }

    /// Returns all packages of the indexes, and the names of the packages to install.
    fn read_indexes(&self) -> Result<(Vec<Record>, Vec<String>), BuildError> {
        let recipe = self.context.recipe;
        let mut all = Vec::new();
        for (repository_index, repository) in recipe.mirror.repositories.iter().enumerate() {
            let (bytes, name) = self.context.index(repository)?;
            let signed = signature::verify(&bytes, self.keys, self.context.scratch)
                .map_err(|source| ImportError::Signature { file: name.clone(), source })?;
            let damaged = |source| ImportError::Damaged { file: name.clone(), source };
            let files = members::unpack_all(signed, MAX_INDEX)
                .and_then(|tar| members::files(&tar))
                .map_err(damaged)?;
            let index = files.into_iter().find(|file| file.name == INDEX_FILE);
            let text = index
                .map(|file| String::from_utf8_lossy(&file.bytes).into_owned())
                .unwrap_or_default();
            let records =
                index::parse(&text).map_err(|source| ImportError::Index { file: name, source })?;
            all.extend(
                records.into_iter().map(|record| Record { repository: repository_index, ..record }),
            );
        }
        let mut install = recipe.install.clone();
        if install.is_empty() {
            install = all.iter().map(|record| record.name.clone()).collect();
        }
        self.progress.note(BuildStep::Index, &format!("{} packages in the mirror", all.len()));
        Ok((all, install))
    }

    /// Fetches every package into the cache and verifies it. Returns the path of each.
    fn fetch(&self, chosen: &[&Record]) -> Result<Vec<PathBuf>, BuildError> {
        let repositories = &self.context.recipe.mirror.repositories;
        let cached = |record: &&Record| {
            // The file name contains the checksum, so that two builds of one version have different
            // files.
            let cached =
                self.context.cache.join(format!("{}-{}", record.checksum.to_hex(), record.file()));
            (repositories[record.repository].clone(), record.file(), cached)
        };
        let targets: Vec<(String, String, PathBuf)> = chosen.iter().map(cached).collect();
        for (record, (_, _, path)) in chosen.iter().zip(&targets) {
            // Damaged files of the cache are fetched again.
            if fs::read(path).is_ok_and(|bytes| package::check(&bytes, record).is_err()) {
                fs::remove_file(path).map_err(io_error("remove", path))?;
            }
        }
        self.context.packages(&targets)?;
        let absent: Vec<String> = targets
            .iter()
            .filter(|(_, _, path)| !path.is_file())
            .map(|(_, file, _)| file.clone())
            .collect();
        if !absent.is_empty() {
            return Err(ImportError::Absent(absent).into());
        }
        for (record, (_, file, path)) in chosen.iter().zip(&targets) {
            let bytes = fs::read(path).map_err(io_error("read", path))?;
            if let Err(why) = package::check(&bytes, record) {
                // The next import must not find the damaged file in the cache.
                let _ = fs::remove_file(path);
                return Err(ImportError::Package { file: file.clone(), why }.into());
            }
        }
        let bytes: u64 = chosen.iter().map(|record| record.size).sum();
        self.progress.note(
            BuildStep::FetchPackages,
            &format!("{} packages, {} MiB", chosen.len(), bytes >> 20),
        );
        Ok(targets.into_iter().map(|(_, _, path)| path).collect())
    }

    /// Packs repository, index and public key as one initrd.
    fn assemble(
        &self,
        all: &[Record],
        chosen: &[&Record],
        files: &[PathBuf],
    ) -> Result<PathBuf, BuildError> {
        let scratch = self.context.scratch;
        let arch = self.context.recipe.arch.to_string();
        let root = scratch.join("root");
        let repository = root.join("packages").join(&arch);
        let keys = root.join("etc/apk/keys");
        for folder in [&repository, &keys] {
            fs::create_dir_all(folder).map_err(io_error("make the folder", folder))?;
        }
        let mut listed = Vec::new();
        for (record, file) in chosen.iter().zip(files) {
            let to = repository.join(record.file());
            fs::copy(file, &to).map_err(io_error("write", &to))?;
            listed.push(format!("packages/{arch}/{}", record.file()));
        }
        let index: String = chosen.iter().map(|record| format!("{}\n", record.text)).collect();
        let index = [
            File { name: "DESCRIPTION".to_owned(), bytes: b"meshd".to_vec() },
            File { name: INDEX_FILE.to_owned(), bytes: index.into_bytes() },
        ];
        let signed = signature::sign(&index, &self.site_key.private, PUBLIC_NAME, scratch);
        let path = repository.join(INDEX_ARCHIVE);
        fs::write(&path, signed.map_err(failed("sign the index"))?)
            .map_err(io_error("write", &path))?;
        // Alpine's initramfs contains Alpine's keys. The site's key is added to that folder;
        // Alpine's init copies all keys to the node.
        let key = keys.join(PUBLIC_NAME);
        fs::copy(self.trusted.join(PUBLIC_NAME), &key).map_err(io_error("write", &key))?;
        self.try_install(all, chosen, files, &root.join("packages"))?;
        let folders = ["etc", "etc/apk", "etc/apk/keys", "packages"].map(str::to_owned);
        let last =
            [format!("packages/{arch}/{INDEX_ARCHIVE}"), format!("etc/apk/keys/{PUBLIC_NAME}")];
        let mut paths: Vec<String> =
            folders.into_iter().chain([format!("packages/{arch}")]).collect();
        paths.extend(listed.into_iter().chain(last));
        let date = chosen.iter().map(|record| record.built).max().unwrap_or(0);
        let out = scratch.join("packages.initrd");
        cpio::pack(&root, &paths, date, COMPRESSION, scratch, &out)?;
        Ok(out)
    }

    /// Installs all packages into an empty root with the imported apk, because a package that it
    /// refuses would fail on every node. If this host cannot run the imported apk, the trial is
    /// skipped.
    fn try_install(
        &self,
        all: &[Record],
        chosen: &[&Record],
        files: &[PathBuf],
        repository: &Path,
    ) -> Result<(), BuildError> {
        let arch = self.context.recipe.arch.to_string();
        let apk_packages = closure(all, &[APK.to_owned()]).unwrap_or_default();
        let apk = Dependency::parse(APK);
        if arch != std::env::consts::ARCH || !chosen.iter().any(|record| record.satisfies(&apk)) {
            self.progress
                .note(BuildStep::Packages, "not tried with apk: there is none that runs here");
            return Ok(());
        }
        let tree = self.context.scratch.join("apk");
        fs::create_dir_all(&tree).map_err(io_error("make the folder", &tree))?;
        let is_needed =
            |record: &Record| apk_packages.iter().any(|package| package.name == record.name);
        for (_, file) in chosen.iter().zip(files).filter(|(record, _)| is_needed(record)) {
            ToolCommand::unpack_tar(file, &tree).run().map_err(failed("unpack apk"))?;
        }
        let root = self.context.scratch.join("proof");
        fs::create_dir_all(&root).map_err(io_error("make the folder", &root))?;
        let names: Vec<&str> = chosen.iter().map(|record| record.name.as_str()).collect();
        let apk = repo::apk(&tree, &arch, "add");
        let installed = repo::install(apk, &arch, self.trusted, &root, repository, &names).run();
        installed.map_err(ImportError::Unproven)?;
        self.progress
            .note(BuildStep::Packages, &format!("{} packages, and apk installs them", names.len()));
        Ok(())
    }
}
