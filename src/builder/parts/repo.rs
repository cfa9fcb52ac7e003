//! Creates the package repository: stages, packs, signs and indexes packages, then verifies the
//! result by installing it.

use super::{
    installed::{self, Checksum, Node},
    plan::{Files, PackagePlan, restore_text},
    recipe::{Algorithm, Compression, FileEdit, Restore},
};
use crate::{
    command::ToolCommand,
    error::{BuildError, failed, io_error},
    parts::{
        cpio::{self, set_mode},
        keys::RepoKey,
    },
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Highest level: the size of the initrd matters, and its unpacking time does not, because it is
/// unpacked once.
const COMPRESSION: Compression = Compression { algorithm: Algorithm::Gzip, level: 9 };

/// File name of a repository's index archive.
pub(crate) const INDEX_ARCHIVE: &str = "APKINDEX.tar.gz";

/// Inputs of a repository.
pub(crate) struct Repo<'a> {
    /// Userland tree, which contains apk and the packages' files.
    pub(crate) tree: &'a Path,
    pub(crate) recipe_dir: &'a Path,
    pub(crate) arch: &'a str,
    /// Key that signs packages and index.
    pub(crate) key: &'a RepoKey,
    /// A folder with only the public key.
    pub(crate) trusted: &'a Path,
    /// The unpacked script archive of the database.
    pub(crate) scripts: &'a Path,
    /// Time of folders and generated files, in seconds since the epoch.
    pub(crate) date: u64,
    pub(crate) work: &'a Path,
}

impl Repo<'_> {
    /// Creates the repository as an initrd: `/packages/<arch>/*.apk` and their index.
    pub(crate) fn make(&self, plans: &[PackagePlan], out: &Path) -> Result<(), BuildError> {
        let root = self.work.join("repo");
        let folder = root.join("packages").join(self.arch);
        fs::create_dir_all(&folder).map_err(io_error("make the folder", &folder))?;
        let mut packages = Vec::new();
        for plan in plans {
            let stage = self.stage(plan)?;
            let package = folder.join(format!("{}-{}.apk", plan.name, plan.version));
            self.pack(plan, &stage, &package)?;
            packages.push(package);
        }
        packages.sort();
        self.apk("mkndx")
            .arg("--keys-dir")
            .arg(self.trusted)
            .arg("--sign-key")
            .arg(&self.key.private)
            .arg("--output")
            .arg(folder.join(INDEX_ARCHIVE))
            .args(&packages)
            .run()
            .map_err(failed("index the packages"))?;
        self.verify_installation(plans, &root.join("packages"))?;
        self.archive(&root, &packages, out)
    }

    fn apk(&self, applet: &str) -> ToolCommand {
        apk(self.tree, self.arch, applet)
    }

    fn stage(&self, plan: &PackagePlan) -> Result<PathBuf, BuildError> {
        let stage = self.work.join("stage").join(&plan.name);
        fs::create_dir_all(&stage).map_err(io_error("make the folder", &stage))?;
        match &plan.files {
            Files::None => {}
            Files::Recipe(path) => {
                self.stage_recipe(&self.recipe_dir.join(path.relative()), &stage)?
            }
            Files::Tree { folders, files } => {
                for folder in folders {
                    let path = stage.join(folder.path.relative());
                    fs::create_dir_all(&path).map_err(io_error("make the folder", &path))?;
                }
                for (file, restore) in files {
                    self.stage_file(&plan.name, file, restore.as_ref(), &stage)?;
                }
                // Set the modes of folders after their files and deepest first, because a read-only
                // folder accepts no files.
                for folder in folders.iter().rev() {
                    self.finish(&stage.join(folder.path.relative()), Some(folder.mode))?;
                }
            }
        }
        Ok(stage)
    }

    fn stage_file(
        &self,
        package: &str,
        file: &Node,
        rule: Option<&Restore>,
        stage: &Path,
    ) -> Result<(), BuildError> {
        let from = self.tree.join(file.path.relative());
        let to = stage.join(file.path.relative());
        let link = match rule.map(|rule| &rule.edit) {
            Some(FileEdit::Link(target)) => Some(PathBuf::from(target)),
            Some(_) => None,
            None => fs::read_link(&from).ok(),
        };
        let checksum = if let Some(target) = link {
            std::os::unix::fs::symlink(&target, &to).map_err(io_error("make the link", &to))?;
            self.finish(&to, None)?;
            Checksum::of(target.as_os_str().as_bytes())
        } else {
            let content = self.content(&from, rule)?;
            fs::write(&to, &content).map_err(io_error("write", &to))?;
            let changed = fs::metadata(&from).and_then(|meta| meta.modified());
            match changed {
                Ok(at) if rule.is_none() => {
                    let dated = File::options()
                        .write(true)
                        .open(&to)
                        .and_then(|file| file.set_modified(at));
                    dated.map_err(io_error("date", &to))?;
                    set_mode(&to, file.mode)?;
                }
                _ => self.finish(&to, Some(file.mode))?,
            }
            Checksum::of(&content)
        };
        match file.checksum {
            Some(stated) if stated != checksum && !rule.is_some_and(|rule| rule.differs) => {
                Err(BuildError::Changed {
                    package: package.to_owned(),
                    path: file.path.to_string(),
                    found: checksum.to_hex(),
                    stated: stated.to_hex(),
                })
            }
            _ => Ok(()),
        }
    }

    fn content(&self, from: &Path, rule: Option<&Restore>) -> Result<Vec<u8>, BuildError> {
        match rule {
            None => fs::read(from).map_err(io_error("read", from)),
            Some(Restore { edit: FileEdit::Content(text), .. }) => Ok(text.clone().into_bytes()),
            Some(rule) => {
                let text = fs::read_to_string(from).map_err(io_error("read", from))?;
                Ok(restore_text(&rule.edit, &text).unwrap_or(text).into_bytes())
            }
        }
    }

    /// Copies a folder of the recipe: folders 0755, files 0644, or 0755 if executable.
    fn stage_recipe(&self, from: &Path, to: &Path) -> Result<(), BuildError> {
        for entry in fs::read_dir(from).map_err(io_error("read", from))? {
            let entry = entry.map_err(io_error("read", from))?;
            let source = entry.path();
            let target = to.join(entry.file_name());
            let meta = entry.metadata().map_err(io_error("read", &source))?;
            if meta.is_dir() {
                fs::create_dir_all(&target).map_err(io_error("make the folder", &target))?;
                self.stage_recipe(&source, &target)?;
                self.finish(&target, Some(0o755))?;
            } else {
                fs::copy(&source, &target).map_err(io_error("copy to", &target))?;
                let executable = meta.permissions().mode() & 0o100 != 0;
                self.finish(&target, Some(if executable { 0o755 } else { 0o644 }))?;
            }
        }
        Ok(())
    }

    fn finish(&self, path: &Path, mode: Option<u32>) -> Result<(), BuildError> {
        cpio::finish(path, mode, self.date)
    }

    fn pack(&self, plan: &PackagePlan, stage: &Path, package: &Path) -> Result<(), BuildError> {
        // The whole archive is compressed once; compressed packages would make it larger.
        let mut command =
            self.apk("mkpkg").args(["--compression", "none", "--sign-key"]).arg(&self.key.private);
        for (key, value) in &plan.info {
            command = command.arg("--info").arg(format!("{key}:{value}"));
        }
        for (kind, file) in &plan.scripts {
            command = command
                .arg("--script")
                .arg(format!("{kind}:{}", self.scripts.join(file).display()));
        }
        for path in &plan.triggers {
            command = command.arg("--trigger").arg(path);
        }
        command
            .arg("--files")
            .arg(stage)
            .arg("--output")
            .arg(package)
            .run()
            .map_err(failed("make a package"))
    }

    /// Installs everything into an empty root, trusting only the site's key, and compares the
    /// result with the plan.
    fn verify_installation(
        &self,
        plans: &[PackagePlan],
        repository: &Path,
    ) -> Result<(), BuildError> {
        let root = self.work.join("proof");
        fs::create_dir(&root).map_err(io_error("make the folder", &root))?;
        let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
        install(self.apk("add"), self.arch, self.trusted, &root, repository, &names)
            .run()
            .map_err(failed("install the new packages for proof"))?;
        let database = root.join("lib/apk/db/installed");
        let text = fs::read_to_string(&database).map_err(io_error("read", &database))?;
        let found = installed::parse(&text)?;
        if found.len() != plans.len() {
            return Err(BuildError::Unproven(format!(
                "{} packages instead of {}",
                found.len(),
                plans.len()
            )));
        }
        plans.iter().try_for_each(|plan| compare(plan, &found))
    }

    fn archive(&self, root: &Path, packages: &[PathBuf], out: &Path) -> Result<(), BuildError> {
        let index = root.join("packages").join(self.arch).join(INDEX_ARCHIVE);
        let within = |path: &PathBuf| {
            path.strip_prefix(root)
                .expect("packages lie in the repository")
                .to_string_lossy()
                .into_owned()
        };
        let folders = ["packages".to_owned(), format!("packages/{}", self.arch)];
        let files: Vec<String> =
            folders.into_iter().chain(packages.iter().chain([&index]).map(within)).collect();
        cpio::pack(root, &files, self.date, COMPRESSION, self.work, out)
    }
}

/// Installs packages of a repository into an empty root, trusting only the keys in `trusted`,
/// without running scripts.
pub(crate) fn install(
    apk: ToolCommand,
    arch: &str,
    trusted: &Path,
    root: &Path,
    repository: &Path,
    names: &[&str],
) -> ToolCommand {
    apk.args([
        "--initdb",
        "--no-scripts",
        "--no-network",
        "--no-cache",
        "--quiet",
        "--repositories-file",
        "/dev/null",
    ])
    .args(["--arch", arch, "--keys-dir"])
    .arg(trusted)
    .arg("--root")
    .arg(root)
    .arg("--repository")
    .arg(repository)
    .args(names)
}

/// Creates a command that runs the apk of a tree with the tree's loader. It needs no chroot, so the
/// key is not copied into the tree.
pub(crate) fn apk(tree: &Path, arch: &str, applet: &str) -> ToolCommand {
    let libraries = format!("{0}/lib:{0}/usr/lib", tree.display());
    let program = ["sbin/apk", "usr/sbin/apk", "usr/bin/apk"]
        .map(|path| tree.join(path))
        .into_iter()
        .find(|p| p.is_file());
    ToolCommand::as_root(tree.join(format!("lib/ld-musl-{arch}.so.1")))
        .arg("--library-path")
        .arg(libraries)
        .arg(program.unwrap_or_else(|| tree.join("sbin/apk")))
        .arg(applet)
}

/// Verifies version, folders, files and modes of an installed package.
fn compare(plan: &PackagePlan, found: &[installed::Package]) -> Result<(), BuildError> {
    let Some(package) = found.iter().find(|package| package.name() == plan.name) else {
        return Err(BuildError::Unproven(format!("{} is not installed", plan.name)));
    };
    if package.version() != plan.version {
        return Err(BuildError::Unproven(format!(
            "{} has version {}",
            plan.name,
            package.version()
        )));
    }
    let Files::Tree { folders, files } = &plan.files else { return Ok(()) };
    let view = |node: &Node| (node.path.clone(), node.mode, node.owner);
    let planned: BTreeSet<_> =
        folders.iter().chain(files.iter().map(|(file, _)| file)).map(view).collect();
    let installed: BTreeSet<_> = package.folders.iter().chain(&package.files).map(view).collect();
    match planned.symmetric_difference(&installed).next() {
        None => Ok(()),
        Some((path, mode, _)) => {
            Err(BuildError::Unproven(format!("{} differs in {path}, mode {mode:o}", plan.name)))
        }
    }
}
