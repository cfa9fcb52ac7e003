//! Writes members into the new root. Every path is resolved with `RESOLVE_IN_ROOT` (openat2(2)), so
//! that neither a link of the root nor one of the archive leads outside.

use super::member::{Member, MemberError};
use flate2::read::MultiGzDecoder;
use meshd_types::SafePath;
use rustix::{
    fs::{
        AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fchmod, fchown, mkdirat,
        openat, openat2, symlinkat, unlinkat,
    },
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::Path,
};

/// Maximum number of members; the largest overlay of the tree has some hundred.
const MAX_MEMBERS: usize = 100_000;
/// Permission bits of a tar header.
const MODE_BITS: u32 = 0o7777;

/// The archive cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("open the root: {0}")]
    Root(io::Error),
    #[error("read the overlay: {0}")]
    Archive(io::Error),
    #[error("unpack the overlay: {0}")]
    Member(#[from] MemberError),
    #[error("unpack the overlay: it has more than {MAX_MEMBERS} members")]
    TooMany,
    #[error("unpack {path} of the overlay: {cause}")]
    Write { path: SafePath, cause: io::Error },
}

/// Mode and owner of a member.
#[derive(Clone, Copy)]
struct Attributes {
    mode: Mode,
    owner: Uid,
    group: Gid,
}

/// Unpacks concatenated gzip members of a tar archive below a folder. Returns their number. The
/// size is bounded by the file system of the folder.
pub fn unpack(archive: impl Read, root: &Path) -> Result<usize, UnpackError> {
    let root = open_root(root).map_err(UnpackError::Root)?;
    let mut archive = tar::Archive::new(MultiGzDecoder::new(archive));
    let mut count = 0;
    for entry in archive.entries().map_err(UnpackError::Archive)? {
        let mut entry = entry.map_err(UnpackError::Archive)?;
        count += 1;
        if count > MAX_MEMBERS {
            return Err(UnpackError::TooMany);
        }
        let member = {
            let target = entry.link_name_bytes();
            Member::new(&entry.path_bytes(), entry.header().entry_type(), target.as_deref())?
        };
        let attributes = attributes(entry.header()).map_err(UnpackError::Archive)?;
        write(&root, &member, attributes, &mut entry)?;
    }
    Ok(count)
}

fn attributes(header: &tar::Header) -> io::Result<Attributes> {
    let id = |number: u64| u32::try_from(number).map_err(io::Error::other);
    Ok(Attributes {
        mode: Mode::from_raw_mode(header.mode()? & MODE_BITS),
        owner: Uid::from_raw(id(header.uid()?)?),
        group: Gid::from_raw(id(header.gid()?)?),
    })
}

pub(super) fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, root, flags, Mode::empty())?)
}

fn write(
    root: &OwnedFd,
    member: &Member,
    attributes: Attributes,
    content: &mut impl Read,
) -> Result<(), UnpackError> {
    let (Member::File(path) | Member::Folder(path) | Member::Link(path, _)) = member;
    let written = match member {
        Member::File(path) => write_file(root, path, attributes, content),
        Member::Folder(path) => write_folder(root, path, attributes),
        Member::Link(path, target) => write_link(root, path, target, attributes),
    };
    written.map_err(|cause| UnpackError::Write { path: path.clone(), cause })
}

fn write_file(
    root: &OwnedFd,
    path: &SafePath,
    attributes: Attributes,
    content: &mut impl Read,
) -> io::Result<()> {
    let parent = make_parent(root, path)?;
    remove(&parent, name(path))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(&parent, name(path), flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(file);
    io::copy(content, &mut file)?;
    set_attributes(&file, attributes)
}

fn write_folder(root: &OwnedFd, path: &SafePath, attributes: Attributes) -> io::Result<()> {
    set_attributes(&make_folder(root, path.relative())?, attributes)
}

fn write_link(
    root: &OwnedFd,
    path: &SafePath,
    target: &str,
    attributes: Attributes,
) -> io::Result<()> {
    let parent = make_parent(root, path)?;
    remove(&parent, name(path))?;
    symlinkat(target, &parent, name(path))?;
    let owner = Some(attributes.owner);
    let group = Some(attributes.group);
    Ok(chownat(&parent, name(path), owner, group, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The owner first: changing it clears setuid.
fn set_attributes(file: impl std::os::fd::AsFd, attributes: Attributes) -> io::Result<()> {
    fchown(&file, Some(attributes.owner), Some(attributes.group))?;
    Ok(fchmod(&file, attributes.mode)?)
}

/// Removes what is at the place of a file or link. A folder is not replaced.
fn remove(parent: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn name(path: &SafePath) -> &str {
    let text = path.relative();
    text.rsplit_once('/').map_or(text, |(_, name)| name)
}

fn make_parent(root: &OwnedFd, path: &SafePath) -> io::Result<OwnedFd> {
    let parent = path.relative().rsplit_once('/').map_or(".", |(parent, _)| parent);
    make_folder(root, parent)
}

/// Opens a folder below the root; makes it, and those above it, if they do not exist.
fn make_folder(root: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let open = |path: &str| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
    };
    match open(path) {
        Ok(folder) => return Ok(folder),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let mut parent = open(".")?;
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    for end in ends {
        let path = &path[..end];
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        parent = match open(path) {
            Err(Errno::NOENT) => {
                mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
                open(path)?
            }
            opened => opened?,
        };
    }
    Ok(parent)
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
