//! Parses the header of a qcow2 image (QEMU's docs/interop/qcow2.txt) to decide whether the image
//! may be used.

/// Size of the parsed header in bytes.
pub const HEADER: u64 = 104;

/// The first bytes of an image.
pub const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Incompatible feature bits: the image was not closed; it is corrupt; its data is in another file;
/// clusters have another compression; L2 entries are of 16 bytes.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const KNOWN_FEATURES: u64 = (1 << 5) - 1;
const EXTENDED_L2: u64 = 1 << 4;
/// QEMU's limits of the cluster size, in bits.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// QEMU's limit of the L1 table, in entries.
const MAX_L1: u32 = 4 << 20;

const SHORT: &str = "it is too short for a qcow2 image";
const DAMAGED: &str = "its header is damaged; use another copy";

/// The tables of an image, as its header describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Size of the disk that a guest sees, in bytes.
    pub virtual_size: u64,
    pub cluster_bits: u32,
    /// Offset of the L1 table.
    pub l1_offset: u64,
    /// Entries of the L1 table.
    pub l1_entries: u32,
    /// Offset of the table of reference counts.
    pub refcount_offset: u64,
    /// Size of an L2 entry in bytes.
    pub l2_entry: u64,
}

/// Returns the virtual size of a self-contained image, as [`layout`] checks it.
pub fn virtual_size(header: &[u8]) -> Result<u64, &'static str> {
    layout(header).map(|layout| layout.virtual_size)
}

/// Checks the header of an image, and returns its tables. An image with a backing file or an
/// external data file is refused: it could give the guest any file of the node. So is an image that
/// QEMU would not open.
pub fn layout(header: &[u8]) -> Result<Layout, &'static str> {
    let virtual_size = size(header)?;
    let word = |offset| bytes(header, offset).map(u32::from_be_bytes);
    let long = |offset| bytes(header, offset).map(u64::from_be_bytes);
    if long(8)? != 0 {
        return Err("it needs another file (backing file); flatten it with `qemu-img convert`");
    }
    let features = if word(4)? == 3 { long(72)? } else { 0 };
    check_features(features)?;
    if word(32)? != 0 {
        return Err("it is encrypted; decrypt it with `qemu-img convert`");
    }
    if virtual_size == 0 {
        return Err("its disk has no size; make it with `qemu-img create -f qcow2 FILE SIZE`");
    }
    let cluster_bits = word(20)?;
    let l1_entries = word(36)?;
    let l1_offset = long(40)?;
    let refcount_offset = long(48)?;
    if !CLUSTER_BITS.contains(&cluster_bits) || (word(4)? == 3 && word(100)? < 104) {
        return Err(DAMAGED);
    }
    let l2_entry: u64 = if features & EXTENDED_L2 == 0 { 8 } else { 16 };
    let cluster = 1_u64 << cluster_bits;
    let l1_reach = (1_u128 << (2 * cluster_bits)) / u128::from(l2_entry);
    let is_table = |offset: u64| offset >= cluster && offset.is_multiple_of(cluster);
    let is_covered =
        u128::from(l1_entries) * l1_reach >= u128::from(virtual_size) && l1_entries <= MAX_L1;
    if !is_covered || !is_table(l1_offset) || !is_table(refcount_offset) || word(56)? == 0 {
        return Err(DAMAGED);
    }
    Ok(Layout { virtual_size, cluster_bits, l1_offset, l1_entries, refcount_offset, l2_entry })
}

fn check_features(features: u64) -> Result<(), &'static str> {
    match features {
        features if features & EXTERNAL_DATA != 0 => {
            Err("its data is in another file; flatten it with `qemu-img convert`")
        }
        features if features & CORRUPT != 0 => {
            Err("it is marked as corrupt; repair it with `qemu-img check -r all`")
        }
        features if features & DIRTY != 0 => {
            Err("it was not closed; repair it with `qemu-img check -r all`")
        }
        features if features & !KNOWN_FEATURES != 0 => {
            Err("it has unknown features; convert it with `qemu-img convert`")
        }
        _ => Ok(()),
    }
}

/// Returns the header of an empty image, for tests.
pub fn sample_header(virtual_size: u64) -> Vec<u8> {
    let mut header = vec![0; 104];
    let mut put =
        |offset: usize, bytes: &[u8]| header[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    put(4, &3_u32.to_be_bytes());
    put(20, &16_u32.to_be_bytes());
    put(24, &virtual_size.to_be_bytes());
    let entries = virtual_size.div_ceil(512 << 20);
    put(36, &u32::try_from(entries).unwrap_or(u32::MAX).to_be_bytes());
    put(40, &0x3_0000_u64.to_be_bytes());
    put(48, &0x1_0000_u64.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    header
}

/// Returns the virtual size, also of an image with a backing file.
pub fn size(header: &[u8]) -> Result<u64, &'static str> {
    if header.get(..4) != Some(MAGIC.as_slice()) {
        return Err("it is not a qcow2 image");
    }
    if !matches!(u32::from_be_bytes(bytes(header, 4)?), 2 | 3) {
        return Err("it is a qcow2 image of an unknown version");
    }
    bytes(header, 24).map(u64::from_be_bytes)
}

fn bytes<const N: usize>(header: &[u8], offset: usize) -> Result<[u8; N], &'static str> {
    header.get(offset..).and_then(|rest| rest.first_chunk().copied()).ok_or(SHORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(changes: &[(usize, &[u8])]) -> Vec<u8> {
        let mut header = sample_header(8 << 30);
        for (offset, bytes) in changes {
            header[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        header
    }

    #[test]
    fn qcow2_image_with_external_files_or_damaged_header_is_refused() {
        assert_eq!(virtual_size(&header(&[])), Ok(8 << 30));
        let version_2: (usize, &[u8]) = (4, &[0, 0, 0, 2]);
        assert_eq!(
            virtual_size(&header(&[version_2, (79, &[4])])),
            Ok(8 << 30),
            "version 2 has other words there"
        );
        for (offset, bytes, why) in [
            (14, &[2_u8, 0][..], "backing"),
            (79, &[4], "data is in another file"),
            (79, &[1], "not closed"),
            (79, &[2], "corrupt"),
            (78, &[1], "unknown features"),
            (35, &[2], "encrypted"),
            (24, &[0; 8], "no size"),
            (24, &[0x7f, 0, 0, 0, 0, 0, 0, 0], "damaged"),
            (23, &[40], "damaged"),
            (40, &[0; 8], "damaged"),
            (47, &[1], "damaged"),
            (48, &[0; 8], "damaged"),
            (4, &[0, 0, 0, 4], "unknown version"),
        ] {
            let found = virtual_size(&header(&[(offset, bytes)]));
            assert!(found.is_err_and(|found| found.contains(why)), "{offset}: {why}: {found:?}");
        }
        assert!(virtual_size(b"\x7fELF").is_err());
        assert!(virtual_size(&header(&[])[..73]).is_err());
    }

    proptest! {
        #[test]
        fn qcow2_header_with_junk_never_panics(junk: Vec<u8>) {
            let _ = virtual_size(&junk);
            let _ = virtual_size(&[MAGIC.as_slice(), &junk].concat());
        }
    }
}
