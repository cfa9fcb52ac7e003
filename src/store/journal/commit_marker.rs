//! The commit marker: a small file with the position of the last acknowledged change.
//!
//! An incomplete frame at the end of a journal is either the trace of a crash, which nobody was told of, or later damage. Only the commit
//! marker tells the two apart.
//!
//! Two slots are written in turn, so that one of them is always whole. The marker is not flushed: a kill cannot lose it, and after a power
//! failure an older marker is incomplete but never wrong.

use meshd_types::Digest;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Distance of the two places: no disk writes both at once.
const STRIDE: u64 = 4096;
const FIELDS: usize = 24;
const CHECK: usize = 8;

/// The open file.
#[derive(Debug)]
pub(super) struct CommitMarker {
    file: File,
    last: MarkerRecord,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MarkerRecord {
    /// How often it was written; the larger one counts.
    turn: u64,
    /// The last change that was acknowledged.
    pub(super) seq: u64,
    /// The first file of numbered records that is needed.
    pub(super) first: u64,
}

impl MarkerRecord {
    fn bytes(&self) -> [u8; FIELDS + CHECK] {
        let mut bytes = [0; FIELDS + CHECK];
        for (place, field) in bytes.chunks_mut(8).zip([self.turn, self.seq, self.first]) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let digest = Digest::of(&bytes[..FIELDS]);
        bytes[FIELDS..].copy_from_slice(&digest.0[..CHECK]);
        bytes
    }

    fn read(file: &File, place: u64) -> Option<Self> {
        let mut bytes = [0; FIELDS + CHECK];
        file.read_exact_at(&mut bytes, place * STRIDE).ok()?;
        let field = |at: usize| bytes[at * 8..][..8].try_into().map(u64::from_le_bytes).ok();
        let record = MarkerRecord { turn: field(0)?, seq: field(1)?, first: field(2)? };
        (record.bytes() == bytes).then_some(record)
    }
}

impl CommitMarker {
    /// What the file says; `None` if it is missing, or both of its places are altered.
    pub(super) fn read(path: &Path) -> io::Result<Option<MarkerRecord>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let places: Vec<_> = (0..2).filter_map(|place| MarkerRecord::read(&file, place)).collect();
        if places.len() == 1 {
            // A crash while it was written leaves this as well; the older place says one flush less.
            tracing::warn!(marker = %path.display(), "one of two places of the commit marker is altered; repaired from the other");
        }
        Ok(places.into_iter().max())
    }

    /// Opens it, or makes an empty one. `None`: it says nothing.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Option<MarkerRecord>)> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let record = (0..2).filter_map(|place| MarkerRecord::read(&file, place)).max();
        Ok((CommitMarker { file, last: record.unwrap_or_default() }, record))
    }

    /// The record that was written last.
    pub(super) fn record(&self) -> MarkerRecord {
        self.last
    }

    /// Writes that everything up to a change is stored, and where numbered records begin.
    pub(super) fn write(&mut self, seq: u64, first: u64) -> io::Result<()> {
        let record = MarkerRecord { turn: self.last.turn + 1, seq, first };
        self.file.write_all_at(&record.bytes(), record.turn % 2 * STRIDE)?;
        self.last = record;
        Ok(())
    }

    /// Writes the same record in both places, and flushes it.
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
        let read = || CommitMarker::open(&path).expect("opened").1.map(|record| (record.seq, record.first));
        assert_eq!(read(), Some((3, 7)));
        let file = OpenOptions::new().write(true).open(&path).expect("opened");
        file.write_all_at(&[0xff], STRIDE + 9).expect("damaged");
        assert_eq!(read(), Some((2, 7)));
        file.write_all_at(&[0xff], 9).expect("damaged");
        assert_eq!(read(), None);
    }
}
