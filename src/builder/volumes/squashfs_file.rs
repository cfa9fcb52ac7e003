//! Checks that a squashfs file (version 4.0, Linux's Documentation/filesystems/squashfs.rst) contains
//! the tables that its header names, in the order that the kernel requires. A copy that broke off has
//! a valid header, and a node would find out at the start of a replica.

use std::{fs::File, io, os::unix::fs::FileExt as _};

/// The first bytes of a file.
pub(super) const MAGIC: &[u8] = b"hsqs";
/// Size of the header in bytes.
const HEADER: u64 = 96;
/// Size of an unpacked block of metadata in bytes.
const METADATA: u64 = 8192;
/// Largest packed block of metadata: its length is in two bytes before it.
const PACKED_METADATA: u64 = METADATA + 2;
/// Bits of the block size: 4 KiB to 1 MiB.
const BLOCK_BITS: std::ops::RangeInclusive<u16> = 12..=20;
/// gzip, lzo, xz, lz4 and zstd. The kernel has no lzma.
const COMPRESSIONS: [u16; 5] = [1, 3, 4, 5, 6];
/// Start of a table that a file does not have.
const NONE: u64 = u64::MAX;
/// Bytes of a table that are read at a time.
const PIECE: u64 = 1 << 20;

/// Why a file cannot be a volume.
type SquashfsFault = &'static str;

const TRUNCATED: SquashfsFault = "it is truncated: its file system is longer; copy it again";
const DAMAGED: SquashfsFault = "its header is damaged; use another copy";
const VERSION: SquashfsFault = "it is no squashfs 4.0; make it with `mksquashfs`";
const COMPRESSION: SquashfsFault =
    "nodes do not know its compression; make it with `mksquashfs DIR FILE -comp zstd`";

/// Returns why no node could mount a file.
pub(super) fn check(file: &File, header: &[u8]) -> io::Result<Result<(), SquashfsFault>> {
    let header = match Header::parse(header) {
        Ok(header) => header,
        Err(why) => return Ok(Err(why)),
    };
    if header.bytes_used > file.metadata()?.len() {
        return Ok(Err(TRUNCATED));
    }
    if !header.has_ordered_tables() {
        return Ok(Err(DAMAGED));
    }
    for (start, entries) in header.index_tables() {
        if !has_sound_index(file, start, entries)? {
            return Ok(Err(DAMAGED));
        }
    }
    Ok(Ok(()))
}

/// The fields of the header that name tables.
struct Header {
    inodes: u32,
    fragments: u32,
    ids: u16,
    bytes_used: u64,
    id_table: u64,
    xattr_table: u64,
    inode_table: u64,
    directory_table: u64,
    fragment_table: u64,
    export_table: u64,
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Self, SquashfsFault> {
        if (bytes.len() as u64) < HEADER {
            return Err(TRUNCATED);
        }
        let short = |offset| u16::from_le_bytes(field(bytes, offset));
        let word = |offset| u32::from_le_bytes(field(bytes, offset));
        let long = |offset| u64::from_le_bytes(field(bytes, offset));
        if (short(28), short(30)) != (4, 0) {
            return Err(VERSION);
        }
        if !COMPRESSIONS.contains(&short(20)) {
            return Err(COMPRESSION);
        }
        let block_bits = short(22);
        let is_block = BLOCK_BITS.contains(&block_bits) && word(12) == 1_u32 << block_bits;
        let root_offset = long(32) & 0xffff;
        let header = Header {
            inodes: word(4),
            fragments: word(16),
            ids: short(26),
            bytes_used: long(40),
            id_table: long(48),
            xattr_table: long(56),
            inode_table: long(64),
            directory_table: long(72),
            fragment_table: long(80),
            export_table: long(88),
        };
        let is_sound = is_block && root_offset < METADATA && header.inodes > 0 && header.ids > 0;
        if is_sound { Ok(header) } else { Err(DAMAGED) }
    }

    /// Returns the tables whose entries are places of metadata blocks, with their numbers of entries.
    fn index_tables(&self) -> impl Iterator<Item = (u64, u64)> {
        let blocks = |count: u64, size: u64| (count * size).div_ceil(METADATA);
        let fragments = (self.fragment_table, blocks(self.fragments.into(), 16));
        let exports = (self.export_table, blocks(self.inodes.into(), 8));
        let ids = (self.id_table, blocks(self.ids.into(), 4));
        [fragments, exports, ids]
            .into_iter()
            .filter(|(start, entries)| *start != NONE && *entries > 0)
    }

    /// Returns true if every table ends before the next one begins, and the last one inside the file
    /// system.
    fn has_ordered_tables(&self) -> bool {
        let has_fragments = self.fragments == 0 || self.fragment_table != NONE;
        // An entry of a directory has more than one byte, an inode as well.
        let fixed = [(self.inode_table, 1), (self.directory_table, 1)];
        let indexes = self.index_tables().map(|(start, entries)| (start, entries * 8));
        let xattrs = [(self.xattr_table, 16)].into_iter().filter(|(start, _)| *start != NONE);
        let mut end = HEADER;
        let mut is_ordered = has_fragments && self.id_table != NONE;
        for (start, size) in fixed.into_iter().chain(indexes).chain(xattrs) {
            is_ordered &= start >= end;
            end = start.saturating_add(size);
        }
        is_ordered && end <= self.bytes_used
    }
}

/// Returns a field of a whole header.
fn field<const LENGTH: usize>(header: &[u8], offset: usize) -> [u8; LENGTH] {
    let bytes = header.get(offset..).and_then(|rest| rest.first_chunk());
    bytes.copied().unwrap_or([0; LENGTH])
}

/// Returns true if the entries of a table name blocks of metadata before it, one after the other.
fn has_sound_index(file: &File, start: u64, entries: u64) -> io::Result<bool> {
    let end = start + entries * 8;
    let mut at = start;
    let mut earlier: Option<u64> = None;
    while at < end {
        let length = (end - at).min(PIECE);
        let mut piece = vec![0; usize::try_from(length).unwrap_or_default()];
        file.read_exact_at(&mut piece, at)?;
        for entry in piece.chunks_exact(8) {
            let block = u64::from_le_bytes(field(entry, 0));
            let follows =
                earlier.is_none_or(|earlier| block > earlier && block - earlier <= PACKED_METADATA);
            if block < HEADER || block >= start || !follows {
                return Ok(false);
            }
            earlier = Some(block);
        }
        at += length;
    }
    Ok(earlier.is_none_or(|last| start - last <= PACKED_METADATA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path, process::Command};

    /// Makes a file with many small files, so that its tables have several blocks.
    fn make(folder: &Path, options: &[&str]) -> Vec<u8> {
        let tree = folder.join("tree");
        fs::create_dir_all(&tree).expect("made");
        for index in 0..3000 {
            let text = format!("{index}").repeat(100);
            fs::write(tree.join(index.to_string()), text).expect("written");
        }
        let image = folder.join("image");
        let made = Command::new("mksquashfs")
            .args([&tree, &image])
            .args(["-quiet", "-noappend", "-no-progress"])
            .args(options)
            .output()
            .expect("mksquashfs, from `.ci/setup`");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fs::read(image).expect("read")
    }

    fn checked(folder: &Path, bytes: &[u8]) -> Result<(), SquashfsFault> {
        let path = folder.join("checked");
        fs::write(&path, bytes).expect("written");
        let file = File::open(&path).expect("opened");
        check(&file, &bytes[..bytes.len().min(1000)]).expect("read")
    }

    #[test]
    fn files_of_mksquashfs_are_accepted_and_truncated_ones_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        for options in [
            &["-comp", "zstd"][..],
            &["-comp", "gzip", "-b", "4096"],
            &["-comp", "xz", "-no-exports", "-no-xattrs"],
            &["-comp", "lz4", "-no-fragments"],
            &["-comp", "lzo", "-b", "1M", "-noI", "-noD", "-nopad"],
        ] {
            let bytes = make(dir.path(), options);
            assert_eq!(checked(dir.path(), &bytes), Ok(()), "{options:?}");
            let used = u64::from_le_bytes(field(&bytes, 40));
            let used = usize::try_from(used).expect("small");
            for length in [4, 95, 96, used / 2, used - 1] {
                let why = checked(dir.path(), &bytes[..length]);
                assert_eq!(why, Err(TRUNCATED), "{options:?} of {length}");
            }
        }
    }

    #[test]
    fn damaged_header_or_table_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let bytes = make(dir.path(), &["-comp", "zstd"]);
        let with = |offset: usize, value: &[u8]| {
            let mut changed = bytes.clone();
            changed[offset..offset + value.len()].copy_from_slice(value);
            checked(dir.path(), &changed)
        };
        assert_eq!(with(28, &[3, 0]), Err(VERSION));
        assert_eq!(with(20, &[2, 0]), Err(COMPRESSION));
        let cases: [(&str, usize, &[u8]); 6] = [
            ("inodes", 4, &[0; 4]),
            ("block size", 12, &[1; 4]),
            ("block bits", 22, &[30, 0]),
            ("IDs", 26, &[0; 2]),
            ("more fragments", 16, &[0xff; 4]),
            ("root inode", 32, &[0xff; 2]),
        ];
        for (what, offset, value) in cases {
            assert_eq!(with(offset, value), Err(DAMAGED), "{what}");
        }
        for table in [48, 64, 72, 80] {
            for start in [0, 95, u64::MAX - 1, u64::MAX] {
                assert_eq!(with(table, &start.to_le_bytes()), Err(DAMAGED), "{table}: {start}");
            }
        }
        for table in [48, 80, 88] {
            let start: usize = u64::from_le_bytes(field(&bytes, table)).try_into().expect("small");
            for entry in [0, start as u64, u64::MAX] {
                assert_eq!(with(start, &entry.to_le_bytes()), Err(DAMAGED), "{table}: {entry}");
            }
        }
    }
}
