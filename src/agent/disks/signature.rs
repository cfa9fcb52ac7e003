//! What the first bytes of a disk or partition say that it holds. Pure, total.

/// How much is looked at, in bytes: btrfs writes its name farthest inside.
pub const LENGTH: u64 = 0x10048;

/// Where a name stands, and what it means.
const MARKS: [(usize, &[u8], &str); 14] = [
    (0x438, &[0x53, 0xef], "ext file system"),
    (0, b"XFSB", "xfs file system"),
    (0x10040, b"_BHRfS_M", "btrfs file system"),
    (0x8001, b"CD001", "ISO 9660 file system"),
    (0, b"hsqs", "squashfs file system"),
    (3, b"NTFS    ", "NTFS file system"),
    (0x36, b"FAT1", "FAT file system"),
    (0x52, b"FAT32", "FAT file system"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (0x200, b"LABELONE", "LVM volume"),
    (0x1000, &[0xfc, 0x4e, 0x2b, 0xa9], "RAID member"),
    (0, &[0xfc, 0x4e, 0x2b, 0xa9], "RAID member"),
    (0, b"LUKS\xba\xbe", "LUKS volume"),
    (0x200, b"EFI PART", "partition table"),
];
/// The end of a boot sector: of a partition table, or of FAT and NTFS, which have a name of their own.
const BOOT_SECTOR: (usize, &[u8]) = (0x1fe, &[0x55, 0xaa]);

/// Everything that is recognised.
pub fn of(bytes: &[u8]) -> Vec<&'static str> {
    let has = |at: usize, mark: &[u8]| bytes.get(at..at + mark.len()) == Some(mark);
    let mut found: Vec<&'static str> =
        MARKS.iter().filter(|(at, mark, _)| has(*at, mark)).map(|(_, _, what)| *what).collect();
    found.dedup();
    if found.is_empty() && has(BOOT_SECTOR.0, BOOT_SECTOR.1) {
        found.push("partition table");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_mark_is_found_where_it_stands_and_a_blank_disk_holds_nothing() {
        assert!(of(&[]).is_empty() && of(&[0; 0x20000]).is_empty());
        for (at, mark, what) in MARKS {
            let mut bytes = vec![0; usize::try_from(LENGTH).expect("small")];
            bytes[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(of(&bytes), [what]);
            assert!(of(&bytes[..at + 1]).is_empty(), "cut short");
        }
        let mut bytes = vec![0; 512];
        bytes[0x1fe..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(of(&bytes), ["partition table"]);
        bytes[0x52..0x57].copy_from_slice(b"FAT32");
        assert_eq!(of(&bytes), ["FAT file system"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged(bytes: Vec<u8>) {
            let _ = of(&bytes);
        }
    }
}
