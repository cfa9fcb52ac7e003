//! Reads the acknowledged changes after a position from the current journal.

use super::{
    Disk, LoggedChange, Position,
    frame::{self, Frames},
};
use std::{io, os::unix::fs::FileExt as _};

/// Reads and verifies the whole journal, as its checksums form a chain. `None`: compaction has
/// replaced the changes by their result.
pub(super) fn changes_after(disk: &Disk, after: Position) -> io::Result<Option<Vec<LoggedChange>>> {
    let damaged = || io::Error::other("the journal is damaged");
    let mut bytes = vec![0; usize::try_from(disk.length).map_err(io::Error::other)?];
    disk.file.read_exact_at(&mut bytes, 0)?;
    let mut frames = Frames::new(&bytes);
    // The first frames have the number of the last change before this journal.
    let first = frames.next().ok_or_else(damaged)?.seq;
    if after.0 < first || after.0 > disk.seq {
        return Ok(None);
    }
    let mut changes = Vec::new();
    for frame in frames.by_ref().filter(|frame| frame.seq > after.0) {
        let records = frame::ops(frame.body).map(|op| {
            let op = op.ok_or_else(damaged)?;
            Ok((op.key.to_vec(), op.value.map(|(value, _)| value.to_vec())))
        });
        changes.push(LoggedChange {
            position: Position(frame.seq),
            records: records.collect::<io::Result<_>>()?,
        });
    }
    if frames.valid != bytes.len() { Err(damaged()) } else { Ok(Some(changes)) }
}
