//! The frame format of the journal: each frame carries a checksum over all frames before it.
//!
//! ```text
//! frame   length of the body, u32 │ sequence of the change, u64 │ check, 16 bytes │ body        numbers little-endian
//! check   the first 16 bytes of SHA-256(check of the previous frame, sequence, body), each preceded by its length
//! body    1 │ length of the key, u16 │ key │ length of the value, u32 │ value                    put
//!         2 │ length of the key, u16 │ key                                                      removed; and so on
//! ```
//! The chain of checksums reveals a frame that was altered, removed, repeated or moved.

use meshd_types::Digest;
use std::ops::Range;

/// Bytes before a body.
pub(super) const HEAD: usize = 4 + 8 + CHECK;
const CHECK: usize = 16;
const PUT: u8 = 1;
const REMOVE: u8 = 2;

/// The checksum of a frame and all frames before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Check([u8; CHECK]);

impl Check {
    /// The checksum of the next frame.
    pub(super) fn next(self, seq: u64, body: &[u8]) -> Self {
        let digest = Digest::of_fields([&self.0[..], &seq.to_le_bytes(), body]);
        Check(std::array::from_fn(|at| digest.0[at]))
    }
}

/// Appends a frame and returns its checksum. The body begins [`HEAD`] bytes after the previous end
/// of `out`.
pub(super) fn write(out: &mut Vec<u8>, before: Check, seq: u64, body: &[u8]) -> Check {
    let length = u32::try_from(body.len()).expect("one change is far below 4 GiB");
    let check = before.next(seq, body);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&check.0);
    out.extend_from_slice(body);
    check
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) seq: u64,
    pub(super) check: Check,
    /// Offset of the body in the file.
    pub(super) at: usize,
    pub(super) body: &'a [u8],
}

/// Iterates over the valid frames at the beginning of a file.
pub(super) struct Frames<'a> {
    bytes: &'a [u8],
    /// Length of the valid frames so far, in bytes.
    pub(super) valid: usize,
    check: Check,
}

impl<'a> Frames<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Frames { bytes, valid: 0, check: Check::default() }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let (length, rest) = self.bytes.get(self.valid..)?.split_first_chunk::<4>()?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let (check, rest) = rest.split_first_chunk::<CHECK>()?;
        let body = rest.get(..usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        let seq = u64::from_le_bytes(*seq);
        let check = Check(*check);
        if self.check.next(seq, body) != check {
            return None;
        }
        let at = self.valid + HEAD;
        self.valid = at + body.len();
        self.check = check;
        Some(Frame { seq, check, at, body })
    }
}

/// The change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Op<'a> {
    pub(super) key: &'a [u8],
    /// The new value with its range in the body; `None` removes the record.
    pub(super) value: Option<(&'a [u8], Range<usize>)>,
}

pub(super) fn put(body: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    body.push(PUT);
    write_key(body, key);
    let length = u32::try_from(value.len()).expect("a value is far below 4 GiB");
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(value);
}

pub(super) fn remove(body: &mut Vec<u8>, key: &[u8]) {
    body.push(REMOVE);
    write_key(body, key);
}

fn write_key(body: &mut Vec<u8>, key: &[u8]) {
    let length = u16::try_from(key.len()).expect("a key is a kind and a name");
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(key);
}

/// Parses a body. The last item is `None` if the body is invalid.
pub(super) fn ops(body: &[u8]) -> impl Iterator<Item = Option<Op<'_>>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= body.len() {
            return None;
        }
        let op = read_op(body, &mut at);
        if op.is_none() {
            at = body.len();
        }
        Some(op)
    })
}

fn read_op<'a>(body: &'a [u8], at: &mut usize) -> Option<Op<'a>> {
    let mut take = |length: usize| {
        let range = *at..at.checked_add(length)?;
        let bytes = body.get(range.clone())?;
        *at = range.end;
        Some((bytes, range))
    };
    let kind = take(1)?.0[0];
    let length = u16::from_le_bytes(take(2)?.0.try_into().ok()?);
    let (key, _) = take(length.into())?;
    match kind {
        PUT => {
            let length = u32::from_le_bytes(take(4)?.0.try_into().ok()?);
            let value = take(usize::try_from(length).ok()?)?;
            Some(Op { key, value: Some(value) })
        }
        REMOVE => Some(Op { key, value: None }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut check = Check::default();
        for (seq, body) in (1..).zip(bodies) {
            check = write(&mut out, check, seq, body);
        }
        out
    }

    #[test]
    fn frames_are_read_in_order_up_to_a_truncated_frame() {
        let bodies = [b"one".to_vec(), Vec::new(), b"three".to_vec()];
        let bytes = file(&bodies);
        let mut frames = Frames::new(&bytes);
        let read: Vec<_> = frames.by_ref().map(|frame| (frame.seq, frame.body.to_vec())).collect();
        assert_eq!(read, [(1, bodies[0].clone()), (2, bodies[1].clone()), (3, bodies[2].clone())]);
        assert_eq!(frames.valid, bytes.len());
        let second = file(&bodies[..2]).len();
        for cut in second..bytes.len() {
            let mut frames = Frames::new(&bytes[..cut]);
            assert_eq!((frames.by_ref().count(), frames.valid), (2, second), "cut at {cut}");
        }
    }

    #[test]
    fn missing_repeated_or_reordered_frame_ends_reading() {
        let bodies = [b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
        let one = file(&bodies[..1]).len();
        let bytes = file(&bodies);
        let parts: Vec<&[u8]> = bytes.chunks(one).collect();
        for (order, valid) in
            [(vec![0, 2], 1), (vec![0, 0, 1], 1), (vec![1, 0, 2], 0), (vec![0, 1, 1], 2)]
        {
            let shuffled: Vec<u8> = order.iter().flat_map(|at| parts[*at]).copied().collect();
            assert_eq!(Frames::new(&shuffled).count(), valid, "{order:?}");
        }
    }

    proptest! {
        #[test]
        fn flipped_byte_ends_reading_before_its_frame(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
            position in any::<prop::sample::Index>(),
            with in 1..=255u8,
        ) {
            let mut bytes = file(&bodies);
            let position = position.index(bytes.len());
            bytes[position] ^= with;
            let mut frames = Frames::new(&bytes);
            prop_assert!(frames.by_ref().count() < bodies.len());
            prop_assert!(frames.valid <= position);
        }

        #[test]
        fn frame_bodies_round_trip(records in prop::collection::vec((".{0,9}", prop::option::of(".{0,99}")), 0..9)) {
            let mut body = Vec::new();
            for (key, value) in &records {
                match value {
                    Some(value) => put(&mut body, key.as_bytes(), value.as_bytes()),
                    None => remove(&mut body, key.as_bytes()),
                }
            }
            let read: Option<Vec<_>> = ops(&body).collect();
            let read = read.expect("a body");
            prop_assert_eq!(read.len(), records.len());
            for (op, (key, value)) in read.iter().zip(&records) {
                prop_assert_eq!(op.key, key.as_bytes());
                prop_assert_eq!(op.value.as_ref().map(|(bytes, _)| *bytes), value.as_ref().map(|text| text.as_bytes()));
                if let Some((bytes, range)) = &op.value {
                    prop_assert_eq!(*bytes, &body[range.clone()]);
                }
            }
        }

        #[test]
        fn arbitrary_bytes_yield_no_operation_after_an_invalid_one(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let read: Vec<_> = ops(&bytes).collect();
            prop_assert!(read.iter().rev().skip(1).all(Option::is_some), "nothing follows what is no body");
        }
    }
}
