//! The commit marker: a small file with the position of the last acknowledged change.
//!
//! An incomplete frame at the end of a journal is either an unacknowledged change that a crash cut
//! off, or later damage. Only the commit marker distinguishes them.
//!
//! Two slots are written in turn, so that one of them is always whole. The marker is not flushed: a
//! kill cannot lose it, and after a power failure an older marker is incomplete but never wrong.

use meshd_types::Digest;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Distance of the two slots in bytes: no disk writes both at once.
const SLOT_DISTANCE: u64 = 4096;
const FIELDS_LENGTH: usize = 24;
const CHECK_LENGTH: usize = 8;

#[derive(Debug)]
pub(super) struct CommitMarker {
    file: File,
    last: MarkerRecord,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MarkerRecord {
    /// Number of writes; the slot with the larger one is valid.
    writes: u64,
    /// The last acknowledged change.
    pub(super) seq: u64,
    /// The first file of numbered records in use.
    pub(super) first: u64,
}

impl MarkerRecord {
    fn bytes(&self) -> [u8; FIELDS_LENGTH + CHECK_LENGTH] {
        let mut bytes = [0; FIELDS_LENGTH + CHECK_LENGTH];
        for (slot, field) in bytes.chunks_mut(8).zip([self.writes, self.seq, self.first]) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        let digest = Digest::of(&bytes[..FIELDS_LENGTH]);
        bytes[FIELDS_LENGTH..].copy_from_slice(&digest.0[..CHECK_LENGTH]);
        bytes
    }

    fn read(file: &File, slot: u64) -> Option<Self> {
        let mut bytes = [0; FIELDS_LENGTH + CHECK_LENGTH];
        file.read_exact_at(&mut bytes, slot * SLOT_DISTANCE).ok()?;
        let field = |at: usize| bytes[at * 8..][..8].try_into().map(u64::from_le_bytes).ok();
        let record = MarkerRecord { writes: field(0)?, seq: field(1)?, first: field(2)? };
        (record.bytes() == bytes).then_some(record)
    }
}

impl CommitMarker {
    /// Reads the marker; `None` if the file is missing, or both slots are invalid.
    pub(super) fn read(path: &Path) -> io::Result<Option<MarkerRecord>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let locations: Vec<_> = (0..2).filter_map(|slot| MarkerRecord::read(&file, slot)).collect();
        if locations.len() == 1 {
            // A crash during a write also invalidates one slot; the other is one flush older.
            tracing::warn!(marker = %path.display(), "one of two slots of the commit marker is altered; repaired from the other");
        }
        Ok(locations.into_iter().max())
    }

    /// Opens or creates the marker. `None`: it has no valid record.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Option<MarkerRecord>)> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        let record = (0..2).filter_map(|slot| MarkerRecord::read(&file, slot)).max();
        Ok((CommitMarker { file, last: record.unwrap_or_default() }, record))
    }

    /// Records the last stored change and the first file of numbered records.
    pub(super) fn write(&mut self, seq: u64, first: u64) -> io::Result<()> {
        let record = MarkerRecord { writes: self.last.writes + 1, seq, first };
        self.file.write_all_at(&record.bytes(), record.writes % 2 * SLOT_DISTANCE)?;
        self.last = record;
        Ok(())
    }

    /// Writes the record to both slots, and flushes it.
    pub(super) fn write_twice(&mut self, seq: u64, first: u64) -> io::Result<()> {
        self.write(seq, first)?;
        self.write(seq, first)?;
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_marker_survives_damage_of_one_slot() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("witness");
        let (mut marker, record) = CommitMarker::open(&path).expect("made");
        assert_eq!(record, None);
        for seq in 1..=3 {
            marker.write(seq, 7).expect("written");
        }
        let read = || {
            CommitMarker::open(&path).expect("opened").1.map(|record| (record.seq, record.first))
        };
        assert_eq!(read(), Some((3, 7)));
        let file = OpenOptions::new().write(true).open(&path).expect("opened");
        file.write_all_at(&[0xff], SLOT_DISTANCE + 9).expect("damaged");
        assert_eq!(read(), Some((2, 7)));
        file.write_all_at(&[0xff], 9).expect("damaged");
        assert_eq!(read(), None);
    }
}
