//! Checks that a qcow2 file contains the clusters that its tables name: a copy that broke off has a valid header.

use meshd_proto::vm::qcow2::{self, Layout};
use std::{fs::File, io, os::unix::fs::FileExt as _};

/// Bits of a table entry that are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Bit of an L2 entry: the cluster is compressed.
const COMPRESSED: u64 = 1 << 62;
/// Bytes of tables that are read at a time.
const PIECE: usize = 1 << 20;
const TRUNCATED: &str = "it is truncated: a cluster is beyond its end; copy it again";

/// Returns the virtual size of an image, or why no VM could use it.
pub(super) fn check(file: &File, header: &[u8]) -> io::Result<Result<u64, &'static str>> {
    let layout = match qcow2::layout(header) {
        Ok(layout) => layout,
        Err(why) => return Ok(Err(why)),
    };
    let tables = Tables { file, length: file.metadata()?.len(), layout };
    Ok(if tables.are_whole()? { Ok(layout.virtual_size) } else { Err(TRUNCATED) })
}

struct Tables<'f> {
    file: &'f File,
    length: u64,
    layout: Layout,
}

impl Tables<'_> {
    /// Returns whether every table and cluster begins inside the file. The end of the last one may be a hole.
    fn are_whole(&self) -> io::Result<bool> {
        let Layout { cluster_bits, l1_offset, l1_entries, refcount_offset, l2_entry, .. } = self.layout;
        let l1_end = l1_offset.saturating_add(u64::from(l1_entries) * 8);
        if l1_end > self.length || refcount_offset >= self.length {
            return Ok(false);
        }
        let mut tables = Vec::new();
        let mut is_whole = true;
        self.entries(l1_offset, u64::from(l1_entries) * 8, 8, |entry| tables.push(entry & OFFSET))?;
        tables.retain(|table| *table != 0);
        for table in tables {
            if table >= self.length {
                return Ok(false);
            }
            self.entries(table, 1 << cluster_bits, l2_entry, |entry| {
                let compressed_bits = (1_u64 << (62 - (cluster_bits - 8))) - 1;
                let offset = if entry & COMPRESSED == 0 { entry & OFFSET } else { entry & compressed_bits };
                is_whole &= offset < self.length;
            })?;
        }
        Ok(is_whole)
    }

    /// Calls `each` with the first word of every entry of a table, as far as the file goes.
    fn entries(&self, offset: u64, size: u64, entry: u64, mut each: impl FnMut(u64)) -> io::Result<()> {
        let end = offset.saturating_add(size).min(self.length);
        let (mut at, step) = (offset, usize::try_from(entry).unwrap_or(8));
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
