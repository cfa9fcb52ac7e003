//! Checks that a qcow2 file contains the clusters that its tables name: a copy that broke off has a
//! valid header.

use meshd_proto::vm::qcow2::{self, Layout};
use std::{fs::File, io, os::unix::fs::FileExt as _};

/// Bits of a table entry that are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Bit of an L2 entry: the cluster is compressed.
const COMPRESSED: u64 = 1 << 62;
/// Bytes of tables that are read at a time.
const PIECE: usize = 1 << 20;
/// Maximum size of all L2 tables, in bytes: 8 TiB of clusters of 64 KiB.
const MAX_TABLES: u64 = 1 << 30;

/// Why an image cannot be a volume.
type Qcow2Fault = &'static str;

const TRUNCATED: Qcow2Fault = "it is truncated: a cluster is beyond its end; copy it again";
const UNALIGNED: Qcow2Fault =
    "its table of clusters is not aligned; repair it with `qemu-img check -r all`";
const REPEATED: Qcow2Fault =
    "it names a table of clusters twice; repair it with `qemu-img check -r all`";
const TOO_LARGE: Qcow2Fault =
    "its tables have more than 1 GiB; use `qemu-img convert -O qcow2 -o cluster_size=2M`";

/// Returns the virtual size of an image, or why no VM could use it.
pub(super) fn check(file: &File, header: &[u8]) -> io::Result<Result<u64, Qcow2Fault>> {
    let layout = match qcow2::layout(header) {
        Ok(layout) => layout,
        Err(why) => return Ok(Err(why)),
    };
    let tables = Tables { file, length: file.metadata()?.len(), layout };
    Ok(tables.check()?.map(|()| layout.virtual_size))
}

struct Tables<'f> {
    file: &'f File,
    length: u64,
    layout: Layout,
}

impl Tables<'_> {
    /// Checks that every table and cluster begins inside the file. The end of the last one may be a
    /// hole. Reads each table once.
    fn check(&self) -> io::Result<Result<(), Qcow2Fault>> {
        let Layout { cluster_bits, l1_offset, l1_entries, refcount_offset, l2_entry, .. } =
            self.layout;
        let l1_size = u64::from(l1_entries) * 8;
        if l1_offset.saturating_add(l1_size) > self.length || refcount_offset >= self.length {
            return Ok(Err(TRUNCATED));
        }
        let mut l2_tables = Vec::new();
        self.entries(l1_offset, l1_size, 8, |entry| l2_tables.push(entry & OFFSET))?;
        l2_tables.retain(|table| *table != 0);
        if let Err(why) = self.check_l2_offsets(&mut l2_tables) {
            return Ok(Err(why));
        }
        let mut is_whole = true;
        for table in l2_tables {
            self.entries(table, 1 << cluster_bits, l2_entry, |entry| {
                let compressed_bits = (1_u64 << (62 - (cluster_bits - 8))) - 1;
                let offset =
                    if entry & COMPRESSED == 0 { entry & OFFSET } else { entry & compressed_bits };
                is_whole &= offset < self.length;
            })?;
        }
        Ok(if is_whole { Ok(()) } else { Err(TRUNCATED) })
    }

    fn check_l2_offsets(&self, l2_tables: &mut [u64]) -> Result<(), Qcow2Fault> {
        let cluster = 1_u64 << self.layout.cluster_bits;
        l2_tables.sort_unstable();
        match l2_tables {
            _ if l2_tables.iter().any(|table| !table.is_multiple_of(cluster)) => Err(UNALIGNED),
            _ if l2_tables.windows(2).any(|pair| pair[0] == pair[1]) => Err(REPEATED),
            [.., last] if *last >= self.length => Err(TRUNCATED),
            _ if l2_tables.len() as u64 * cluster > MAX_TABLES => Err(TOO_LARGE),
            _ => Ok(()),
        }
    }

    /// Calls `each` with the first word of every entry of a table, as far as the file goes.
    fn entries(
        &self,
        offset: u64,
        size: u64,
        entry: u64,
        mut each: impl FnMut(u64),
    ) -> io::Result<()> {
        let end = offset.saturating_add(size).min(self.length);
        let mut at = offset;
        let step = usize::try_from(entry).unwrap_or(8);
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            let mut piece = vec![0; length];
            self.file.read_exact_at(&mut piece, at)?;
            for chunk in piece.chunks(step) {
                if let Some(word) = chunk.first_chunk() {
                    each(u64::from_be_bytes(*word));
                }
            }
            at += length as u64;
        }
        Ok(())
    }
}
