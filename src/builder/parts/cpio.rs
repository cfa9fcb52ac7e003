//! Packs files as a reproducible compressed cpio.

use super::recipe::{Algorithm, Compression};
use crate::{
    command::ToolCommand,
    error::{BuildError, failed, io_error},
};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

/// Packs `files` (relative to `root`, each after its folders) with one date, folders 0755, files
/// 0644.
pub(crate) fn pack(
    root: &Path,
    files: &[String],
    date: u64,
    how: Compression,
    scratch: &Path,
    out: &Path,
) -> Result<(), BuildError> {
    for file in files {
        let path = root.join(file);
        finish(&path, Some(if path.is_dir() { 0o755 } else { 0o644 }), date)?;
    }
    let names = scratch.join("initrd.list");
    let plain = scratch.join("initrd.cpio");
    let list: String = files.iter().map(|file| format!("{file}\0")).collect();
    fs::write(&names, list).map_err(io_error("write", &names))?;
    ToolCommand::new("cpio")
        .args(["--create", "--format=newc", "--null", "--reproducible", "--owner=+0:+0", "--quiet"])
        .current_dir(root)
        .input(File::open(&names).map_err(io_error("open", &names))?)
        .into_file(File::create(&plain).map_err(io_error("make", &plain))?)
        .map_err(failed("archive the packages"))?;
    compress(&plain, how, out)
}

/// Sets the time of a path, in seconds since the epoch, and its mode unless it is a link.
pub(crate) fn finish(path: &Path, mode: Option<u32>, date: u64) -> Result<(), BuildError> {
    let time = Timespec { tv_sec: i64::try_from(date).unwrap_or(0), tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|e| io_error("date", path)(e.into()))?;
    mode.map_or(Ok(()), |mode| set_mode(path, mode))
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), BuildError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(io_error("set the mode of", path))
}

/// Compresses an archive deterministically.
pub(crate) fn compress(from: &Path, how: Compression, out: &Path) -> Result<(), BuildError> {
    let run = match how.algorithm {
        Algorithm::Gzip => ToolCommand::new("gzip").args(["-n", "-c"]),
        Algorithm::Zstd => ToolCommand::new("zstd").args(["-q", "-c", "-T0"]),
    };
    let input = File::open(from).map_err(io_error("open", from))?;
    let output = File::create(out).map_err(io_error("make", out))?;
    run.arg(format!("-{}", how.level))
        .input(input)
        .into_file(output)
        .map_err(failed("compress an archive"))
}
