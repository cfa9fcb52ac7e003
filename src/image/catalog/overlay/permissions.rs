//! Finds what the archive of a node would lose of a file in `rootfs/`. git keeps only the execute
//! bit, so `overlay.toml` declares modes; a mode that is only on the disk is a fault, and not a
//! wider file on the node.

use std::{
    fs::Metadata,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

/// Read bits of other users than root.
const READ_BY_OTHERS: u32 = 0o044;
const SPECIAL: u32 = 0o7000;
const SET_GROUP: u32 = 0o2000;
const WRITE_BY_ALL: u32 = 0o002;
/// Extended attributes that change what a file is or who may use it.
const ATTRIBUTES: [&str; 3] = ["security.capability", "system.posix_acl_", "user."];
/// Maximum size of the names of a file's attributes, in bytes.
const MAX_NAMES: usize = 64 * 1024;

/// Folders of alpine-baselayout with another mode than 0755. An archive that brings a file below
/// one names the folder, too: the initramfs would make it with 0755, and no package changes a
/// folder that exists.
const PACKAGE_MODES: [(&str, u32); 4] =
    [("root", 0o700), ("tmp", 0o1777), ("var/empty", 0o555), ("var/tmp", 0o1777)];

/// Returns the mode that packages give a folder, if it is not 0755. The path is relative to the
/// root.
pub fn package_mode(path: &str) -> Option<u32> {
    PACKAGE_MODES.iter().find(|(folder, _)| *folder == path).map(|(_, mode)| *mode)
}

/// Returns why the mode of a file or folder would be another on the node. `reference` is the mode
/// of `overlay.toml`: a umask that removed the bits there, too, says nothing about the file.
pub(super) fn lost_mode(metadata: &Metadata, reference: u32, delivered: u32) -> Option<String> {
    let mode = metadata.permissions().mode() & 0o7777;
    // Folders of a group inherit the bit from the folder above.
    let special = mode & SPECIAL & !if metadata.is_dir() { SET_GROUP } else { 0 };
    let is_stricter = reference & READ_BY_OTHERS & !mode != 0;
    let is_wider = mode & WRITE_BY_ALL & !reference != 0;
    let is_owners_program = metadata.is_file() && mode & 0o155 == 0o144;
    let is_lost = special != 0 || is_stricter || is_wider || is_owners_program;
    is_lost.then(|| {
        format!("has the mode {mode:04o} here, and would have {delivered:04o} on the node")
    })
}

/// Returns the first extended attribute that the archive does not hold.
pub(super) fn lost_attribute(path: &Path) -> Option<String> {
    let mut names = vec![0; MAX_NAMES];
    let length = rustix::fs::llistxattr(path, &mut names[..]).ok()?;
    let names = String::from_utf8_lossy(names.get(..length)?).into_owned();
    names
        .split('\0')
        .find(|name| ATTRIBUTES.iter().any(|lost| name.starts_with(lost)))
        .map(str::to_owned)
}

/// Returns the mode of a file for [`lost_mode`]; no bits if the file cannot be read.
pub(super) fn reference(file: &Path) -> u32 {
    std::fs::metadata(file).map_or(0, |metadata| metadata.mode() & 0o7777)
}
