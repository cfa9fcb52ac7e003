//! The bytes of an overlay: tar members, gzip, and the cpio that carries them. Only home of tar and flate2.
//!
//! An apkovl may be several gzip members after each other, each holding tar entries, if only the last of them has tar's
//! end-of-archive blocks. So the agent is compressed once, a node's public files once per generation, and the secrets
//! of one boot are a small last member. Nothing here depends on the clock, the machine or the order of its input.

use crate::id::SafePath;
use bytes::Bytes;
use flate2::{Compression, GzBuilder, write::GzEncoder};
use std::io::{self, Write as _};

/// Where the initramfs finds the overlay, and what the command line's `apkovl=` says.
pub const APKOVL_PATH: &str = "/apkovl.tar.gz";
/// `OS` byte of a gzip header that means "unknown" (RFC 1952): the same on every machine that renders.
const GZIP_OS_UNKNOWN: u8 = 255;
/// The EFI stub appends initrds without padding, and the kernel looks for the next one at multiples of this.
const INITRD_ALIGN: usize = 4;
/// Two empty blocks end a tar archive.
const END_OF_ARCHIVE: [u8; 1024] = [0; 1024];

/// One thing in a member.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// Where on the node.
    pub path: &'a SafePath,
    /// Permission bits; not used by links.
    pub mode: u32,
    /// Owner's user and group number.
    pub owner: (u64, u64),
    /// What it is.
    pub content: Content<'a>,
}

/// What an entry holds.
#[derive(Debug, Clone)]
pub enum Content<'a> {
    /// A regular file.
    File(&'a [u8]),
    /// A symbolic link to this target.
    Link(&'a str),
    /// A folder.
    Directory,
}

/// A gzip member of tar entries, in the order given, without end of archive.
pub fn member<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Bytes {
    in_memory(|| gzip(&tar_entries(entries)?, Compression::default()))
}

/// As [`member`], and ends the archive: nothing can follow.
pub fn last_member<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Bytes {
    in_memory(|| {
        let mut tar = tar_entries(entries)?;
        tar.extend_from_slice(&END_OF_ARCHIVE);
        gzip(&tar, Compression::default())
    })
}

/// One initrd that unpacks to [`APKOVL_PATH`] with these members as its content.
///
/// It is in gzip's format, though stored, because the kernel takes a compressed cpio at any offset of the initrd memory
/// but a plain one only at multiples of four, which the EFI stub does not keep.
pub fn initrd(members: &[Bytes], last: &Bytes) -> Bytes {
    in_memory(|| {
        let parts: Vec<&[u8]> = members.iter().chain([last]).map(AsRef::as_ref).collect();
        let mut cpio = Vec::with_capacity(parts.iter().map(|part| part.len()).sum::<usize>() + 1024);
        cpio_entry(&mut cpio, 0o100_600, APKOVL_PATH.trim_start_matches('/'), &parts);
        cpio_entry(&mut cpio, 0, "TRAILER!!!", &[]);
        let mut packed = gzip(&cpio, Compression::none())?.to_vec();
        packed.resize(packed.len().next_multiple_of(INITRD_ALIGN), 0);
        Ok(Bytes::from(packed))
    })
}

/// Writing into memory has no way to fail; what tar and flate2 could still refuse is excluded by `SafePath`.
fn in_memory(write: impl FnOnce() -> io::Result<Bytes>) -> Bytes {
    write().expect("an archive is written to memory from checked paths")
}

fn tar_entries<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let path = entry.path.relative();
        let mut header = tar::Header::new_gnu();
        header.set_mtime(0);
        header.set_uid(entry.owner.0);
        header.set_gid(entry.owner.1);
        header.set_mode(entry.mode);
        header.set_size(0);
        match entry.content {
            Content::File(bytes) => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(bytes.len() as u64);
                builder.append_data(&mut header, path, bytes)?;
            }
            Content::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                builder.append_link(&mut header, path, target)?;
            }
            Content::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                builder.append_data(&mut header, format!("{path}/"), io::empty())?;
            }
        }
    }
    // Taken out before the builder ends the archive, which it then does into what is left.
    Ok(std::mem::take(builder.get_mut()))
}

fn gzip(bytes: &[u8], level: Compression) -> io::Result<Bytes> {
    let header = GzBuilder::new().mtime(0).operating_system(GZIP_OS_UNKNOWN);
    let mut encoder: GzEncoder<Vec<u8>> = header.write(Vec::new(), level);
    encoder.write_all(bytes)?;
    encoder.finish().map(Bytes::from)
}

/// Appends one entry in cpio's "newc" format (the kernel's `early-userspace/buffer-format.rst`).
fn cpio_entry(out: &mut Vec<u8>, mode: u32, name: &str, parts: &[&[u8]]) {
    let size: usize = parts.iter().map(|part| part.len()).sum();
    let size = u32::try_from(size).expect("an overlay is far below the 4 GiB that cpio can say");
    let name_size = u32::try_from(name.len() + 1).expect("names here are constants");
    let (inode, owner, group, links, time, checksum) = (u32::from(size > 0), 0, 0, 1, 0, 0);
    let no_device = [0; 4];
    out.extend_from_slice(b"070701");
    let before = [inode, mode, owner, group, links, time, size];
    for field in before.into_iter().chain(no_device).chain([name_size, checksum]) {
        out.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.resize(out.len().next_multiple_of(4), 0);
}
