//! Writes the archive of an overlay: tar members, gzip and cpio.
//!
//! An apkovl may consist of several concatenated gzip members with tar entries; only the last one
//! contains the end-of-archive blocks. The agent is therefore compressed once, and a node's public
//! files once per generation. The secrets of one boot are a small last member. The output does not
//! depend on the clock, the host or the order of the input.

mod read;
mod stream;

pub use read::read;
pub use stream::{HeaderBudget, HeaderLimit};
pub use stream::{Packer, Unpacked, unpack};

use crate::catalog::overlay::package_mode;
use bytes::Bytes;
use flate2::{Compression, Crc, GzBuilder, write::GzEncoder};
use meshd_model::image_kind::OVERLAY_PATH;
use meshd_proto::stage1::{STAGE1_CONFIG_FILE, STAGE1_OVERLAY_FILE, STAGE1_PROGRAM};
use meshd_types::SafePath;
use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    sync::Arc,
};

/// `OS` byte of a gzip header that means "unknown" (RFC 1952): the same on every machine that
/// renders.
const GZIP_OS_UNKNOWN: u8 = 255;
/// Alignment of initrds in bytes. The EFI stub appends initrds without padding, and the kernel
/// searches the next one at multiples of it.
const INITRD_ALIGN: usize = 4;
/// Alignment of heads and contents in a cpio.
const CPIO_ALIGN: usize = 4;
/// End of a tar archive: two empty blocks.
const END_OF_ARCHIVE: [u8; 1024] = [0; 1024];

/// Returns the folders with a mode of their own above some paths.
pub fn parents<'p>(paths: impl Iterator<Item = &'p SafePath>) -> BTreeMap<SafePath, u32> {
    let above = paths.flat_map(SafePath::parents);
    above.filter_map(|parent| Some((SafePath::new(parent).ok()?, package_mode(parent)?))).collect()
}

#[derive(Debug, Clone)]
pub struct ArchiveEntry<'a> {
    /// Path on the node.
    pub path: &'a SafePath,
    /// Permission bits; not used by links.
    pub mode: u32,
    /// User and group ID.
    pub owner: (u64, u64),
    pub content: Content<'a>,
}

#[derive(Debug, Clone)]
pub enum Content<'a> {
    File(&'a [u8]),
    /// A symbolic link to this target.
    Link(&'a str),
    Directory,
}

/// A gzip member of tar entries that many archives share.
#[derive(Debug, Clone)]
pub struct Member {
    /// Plain bytes.
    pub bytes: Bytes,
    /// The bytes encoded for an initrd. They are encoded once, so that creating an initrd does not
    /// copy them.
    stored: Arc<Stored>,
}

impl Member {
    /// Wraps packed bytes.
    pub fn new(bytes: Bytes) -> Self {
        Member { stored: Arc::new(Stored::new(&bytes, false)), bytes }
    }
}

/// Packs tar entries in the given order as a gzip member without end of archive, for content that
/// many nodes share.
pub fn member<'a>(entries: impl IntoIterator<Item = ArchiveEntry<'a>>) -> Member {
    Member::new(in_memory(|| gzip(&tar_entries(entries)?, Compression::default())))
}

/// As [`member`], with fast compression for content of one node: the saved CPU time outweighs some
/// hundred additional bytes.
pub fn quick_member<'a>(entries: impl IntoIterator<Item = ArchiveEntry<'a>>) -> Member {
    Member::new(in_memory(|| gzip(&tar_entries(entries)?, Compression::fast())))
}

/// As [`member`], with the end of the archive.
pub fn last_member<'a>(entries: impl IntoIterator<Item = ArchiveEntry<'a>>) -> Bytes {
    in_memory(|| {
        let mut tar = tar_entries(entries)?;
        tar.extend_from_slice(&END_OF_ARCHIVE);
        gzip(&tar, Compression::fast())
    })
}

/// Returns an initrd, in pieces, that unpacks to [`OVERLAY_PATH`] with these members as its
/// content.
///
/// The initrd is a gzip stream of stored blocks, because the kernel accepts a compressed cpio at
/// any offset. It accepts a plain cpio only at multiples of four, which the EFI stub does not
/// ensure.
pub fn initrd(members: &[Member], last: &Bytes) -> Vec<Bytes> {
    let mut head = Vec::new();
    overlay_head(&mut head, OVERLAY_PATH, members, last);
    gzip_stream(&[(&head, members), (&overlay_tail(members, last), &[])])
}

/// As [`initrd`], for stage 1: a program, its configuration, and the overlay, in one folder.
pub fn stage1_initrd(
    program: &Member,
    config: &[u8],
    members: &[Member],
    last: &Bytes,
) -> Vec<Bytes> {
    let folder = STAGE1_PROGRAM.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut first = Vec::new();
    let mut second = Vec::new();
    cpio_head(&mut first, 0o040_755, folder.trim_start_matches('/'), 0);
    let size = program.bytes.len();
    cpio_head(&mut first, 0o100_755, STAGE1_PROGRAM.trim_start_matches('/'), size);
    pad(&mut second, size);
    cpio_head(&mut second, 0o100_600, STAGE1_CONFIG_FILE.trim_start_matches('/'), config.len());
    second.extend_from_slice(config);
    pad(&mut second, config.len());
    overlay_head(&mut second, STAGE1_OVERLAY_FILE, members, last);
    let tail = overlay_tail(members, last);
    gzip_stream(&[(&first, std::slice::from_ref(program)), (&second, members), (&tail, &[])])
}

fn overlay_size(members: &[Member], last: &Bytes) -> usize {
    members.iter().map(|member| member.bytes.len()).sum::<usize>() + last.len()
}

fn overlay_head(out: &mut Vec<u8>, path: &str, members: &[Member], last: &Bytes) {
    cpio_head(out, 0o100_600, path.trim_start_matches('/'), overlay_size(members, last));
}

/// Returns the last member of an overlay, and the end of the cpio.
fn overlay_tail(members: &[Member], last: &Bytes) -> Vec<u8> {
    let mut tail = last.to_vec();
    pad(&mut tail, overlay_size(members, last));
    cpio_head(&mut tail, 0, "TRAILER!!!", 0);
    tail
}

/// Appends the padding after a content of `size` bytes.
fn pad(out: &mut Vec<u8>, size: usize) {
    out.resize(out.len() + size.next_multiple_of(CPIO_ALIGN) - size, 0);
}

/// Returns a gzip stream in pieces: own bytes, each before shared members. The last piece is own
/// bytes.
fn gzip_stream(parts: &[(&[u8], &[Member])]) -> Vec<Bytes> {
    let mut crc = Crc::new();
    let mut pieces = Vec::new();
    let mut own = GZIP_HEADER.to_vec();
    for (index, (bytes, members)) in parts.iter().enumerate() {
        let stored = Stored::new(bytes, index + 1 == parts.len());
        crc.combine(&stored.crc);
        own.extend_from_slice(&stored.blocks);
        if !members.is_empty() {
            pieces.push(Bytes::from(std::mem::take(&mut own)));
        }
        for member in *members {
            crc.combine(&member.stored.crc);
            pieces.push(member.stored.blocks.clone());
        }
    }
    own.extend_from_slice(&crc.sum().to_le_bytes());
    own.extend_from_slice(&crc.amount().to_le_bytes());
    let length = pieces.iter().map(Bytes::len).sum::<usize>() + own.len();
    own.resize(own.len() + length.next_multiple_of(INITRD_ALIGN) - length, 0);
    pieces.push(own.into());
    pieces
}

/// RFC 1952: deflate, no name, no time, unknown system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, GZIP_OS_UNKNOWN];

/// Encodes bytes as stored blocks of deflate (RFC 1951, 3.2.4). Stored blocks begin and end at
/// whole bytes, so they can be concatenated.
#[derive(Debug)]
struct Stored {
    blocks: Bytes,
    crc: Crc,
}

impl Stored {
    /// Encodes bytes; `last` ends the stream.
    fn new(bytes: &[u8], last: bool) -> Self {
        const MOST: usize = u16::MAX as usize;
        let mut crc = Crc::new();
        crc.update(bytes);
        let mut blocks = Vec::with_capacity(bytes.len() + bytes.len() / MOST * 5 + 5);
        let count = bytes.len().div_ceil(MOST);
        for (number, block) in (1..).zip(bytes.chunks(MOST)) {
            let length = u16::try_from(block.len()).expect("a chunk is as long as a block at most");
            blocks.push(u8::from(last && number == count));
            blocks.extend_from_slice(&length.to_le_bytes());
            blocks.extend_from_slice(&(!length).to_le_bytes());
            blocks.extend_from_slice(block);
        }
        Stored { blocks: blocks.into(), crc }
    }
}

/// Writes an archive into memory. This cannot fail, because `SafePath` excludes all paths that tar
/// refuses.
fn in_memory(write: impl FnOnce() -> io::Result<Bytes>) -> Bytes {
    write().expect("an archive is written to memory from checked paths")
}

fn tar_entries<'a>(entries: impl IntoIterator<Item = ArchiveEntry<'a>>) -> io::Result<Vec<u8>> {
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
    // Take the bytes before the dropped builder appends the end of the archive.
    Ok(std::mem::take(builder.get_mut()))
}

fn gzip(bytes: &[u8], compression: Compression) -> io::Result<Bytes> {
    let header = GzBuilder::new().mtime(0).operating_system(GZIP_OS_UNKNOWN);
    let mut encoder: GzEncoder<Vec<u8>> = header.write(Vec::new(), compression);
    encoder.write_all(bytes)?;
    encoder.finish().map(Bytes::from)
}

/// Appends the head of one entry in cpio's "newc" format (the kernel's
/// `early-userspace/buffer-format.rst`), padded.
fn cpio_head(out: &mut Vec<u8>, mode: u32, name: &str, size: usize) {
    let size = u32::try_from(size).expect("an overlay is far below the 4 GiB that cpio can say");
    let name_size = u32::try_from(name.len() + 1).expect("names here are constants");
    let inode = u32::from(size > 0);
    let owner = 0;
    let group = 0;
    let links = 1;
    let time = 0;
    let checksum = 0;
    let no_device = [0; 4];
    let begin = out.len();
    out.extend_from_slice(b"070701");
    let before = [inode, mode, owner, group, links, time, size];
    for field in before.into_iter().chain(no_device).chain([name_size, checksum]) {
        out.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    let length = out.len() - begin;
    out.resize(begin + length.next_multiple_of(CPIO_ALIGN), 0);
}
