//! Samples as bytes, each with a check; damaged ones are skipped.
//!
//! ```text
//! frame   length of the body, u32 │ check, 8 bytes │ body        numbers little-endian
//! check   the first 8 bytes of SHA-256(body)
//! body    0 │ names of the series, by line                       columns of the frames that follow
//!         1 │ begin, u64 │ a value for each series, f64 or NaN   a minute
//!         2 │ begin, u64 │ values                                an hour
//!         3 │ begin, u64 │ node ID, 8 characters, and its codes    a minute of all nodes
//! ```
//! A program with other series writes its names first. Columns of unknown names are dropped.

use super::{
    history::{SampleRow, SeriesStep},
    node_series::{NODE_SERIES, NodeCodes},
};
use meshd_types::{Digest, NodeId};

/// Bytes before a body.
const HEAD: usize = 4 + CHECK;
const CHECK: usize = 8;
const NAMES: u8 = 0;
const MINUTE_ROW: u8 = 1;
const HOUR_ROW: u8 = 2;
const USAGE: u8 = 3;
/// Bytes of a node ID.
const ID: usize = 8;

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub enum SeriesFrame {
    /// Names of the columns of the frames that follow.
    Names(Vec<String>),
    Row(SeriesStep, SampleRow),
    /// Codes of nodes in the minute that begins at this second.
    Usage(u64, Vec<(NodeId, NodeCodes)>),
}

fn check(body: &[u8]) -> [u8; CHECK] {
    let digest = Digest::of(body);
    std::array::from_fn(|at| digest.0[at])
}

fn write_frame(out: &mut Vec<u8>, body: &[u8]) {
    let length = u32::try_from(body.len()).expect("a row of a few series is far below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&check(body));
    out.extend_from_slice(body);
}

/// Appends the names of the columns.
pub fn write_names<'a>(out: &mut Vec<u8>, names: impl IntoIterator<Item = &'a str>) {
    let names: Vec<&str> = names.into_iter().collect();
    let mut body = vec![NAMES];
    body.extend_from_slice(names.join("\n").as_bytes());
    write_frame(out, &body);
}

/// Appends a row.
pub fn write_row(out: &mut Vec<u8>, step: SeriesStep, row: &SampleRow) {
    let mut body = vec![match step {
        SeriesStep::Minute => MINUTE_ROW,
        SeriesStep::Hour => HOUR_ROW,
    }];
    body.extend_from_slice(&row.start.to_le_bytes());
    for value in &row.values {
        body.extend_from_slice(&value.unwrap_or(f64::NAN).to_le_bytes());
    }
    write_frame(out, &body);
}

/// Appends the codes of nodes in the minute that begins at `start`.
pub fn write_usage(out: &mut Vec<u8>, start: u64, samples: &[(NodeId, NodeCodes)]) {
    let mut body = vec![USAGE];
    body.extend_from_slice(&start.to_le_bytes());
    for (node, codes) in samples {
        body.extend_from_slice(node.to_string().as_bytes());
        body.extend_from_slice(codes);
    }
    write_frame(out, &body);
}

/// Codes of IDs that cannot be read are left out.
fn parse_usage(body: &[u8]) -> Option<SeriesFrame> {
    let (start, entries) = body.split_first_chunk::<8>()?;
    let entries = entries.chunks_exact(ID + NODE_SERIES);
    if !entries.remainder().is_empty() {
        return None;
    }
    let samples = entries.filter_map(|entry| {
        let (id, codes) = entry.split_at(ID);
        let node = std::str::from_utf8(id).ok()?.parse().ok()?;
        Some((node, codes.try_into().ok()?))
    });
    Some(SeriesFrame::Usage(u64::from_le_bytes(*start), samples.collect()))
}

fn parse_body(body: &[u8]) -> Option<SeriesFrame> {
    let (kind, rest) = body.split_first()?;
    let step = match *kind {
        NAMES => {
            let names = std::str::from_utf8(rest).ok()?.lines().map(str::to_owned).collect();
            return Some(SeriesFrame::Names(names));
        }
        MINUTE_ROW => SeriesStep::Minute,
        HOUR_ROW => SeriesStep::Hour,
        USAGE => return parse_usage(rest),
        _ => return None,
    };
    let (start, values) = rest.split_first_chunk::<8>()?;
    let (values, left) = values.as_chunks::<8>();
    let value = |bytes: &[u8; 8]| Some(f64::from_le_bytes(*bytes)).filter(|it| it.is_finite());
    let row =
        SampleRow { start: u64::from_le_bytes(*start), values: values.iter().map(value).collect() };
    left.is_empty().then_some(SeriesFrame::Row(step, row))
}

/// Reads all valid frames, and counts the bytes that belong to none. A frame with a wrong check is
/// skipped by its length. A length that leads out of the bytes ends the reading.
pub fn read_frames(bytes: &[u8]) -> (Vec<SeriesFrame>, usize) {
    let mut frames = Vec::new();
    let mut rest = bytes;
    let mut damaged = 0;
    while !rest.is_empty() {
        let frame = rest.split_at_checked(HEAD).and_then(|(head, after)| {
            let (length, expected) = head.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            Some((expected, after.split_at_checked(length)?))
        });
        let Some((expected, (body, after))) = frame else { return (frames, damaged + rest.len()) };
        match Some(body).filter(|body| check(body) == expected).and_then(parse_body) {
            Some(frame) => frames.push(frame),
            None => damaged += HEAD + body.len(),
        }
        rest = after;
    }
    (frames, damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Basis;
    use proptest::prelude::*;

    fn rows() -> impl Strategy<Value = Vec<SampleRow>> {
        let row = (any::<u64>(), prop::collection::vec(prop::option::of(-1e9..1e12), 0..6));
        prop::collection::vec(row.prop_map(|(start, values)| SampleRow { start, values }), 0..9)
    }

    fn encode(rows: &[SampleRow]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_names(&mut bytes, ["a", "b"]);
        rows.iter().for_each(|row| write_row(&mut bytes, SeriesStep::Hour, row));
        bytes
    }

    proptest! {
        #[test]
        fn frames_round_trip_and_a_torn_end_costs_its_frame_only(
            rows in rows(),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = encode(&rows);
            let (frames, damaged) = read_frames(&bytes);
            prop_assert_eq!(damaged, 0);
            prop_assert_eq!(&frames[0], &SeriesFrame::Names(vec!["a".to_owned(), "b".to_owned()]));
            let read = frames[1..].iter().map(|frame| match frame {
                SeriesFrame::Row(SeriesStep::Hour, row) => row.clone(),
                other => panic!("{other:?}"),
            });
            prop_assert_eq!(read.collect::<Vec<_>>(), rows);
            let cut = cut.index(bytes.len());
            let (torn, damaged) = read_frames(&bytes[..cut]);
            prop_assert_eq!(&torn[..], &frames[..torn.len()]);
            prop_assert!(damaged < bytes.len());
        }

        #[test]
        fn altered_byte_of_a_body_costs_one_frame(
            rows in rows(),
            which in any::<prop::sample::Index>(),
        ) {
            prop_assume!(!rows.is_empty());
            let which = which.index(rows.len());
            let at = encode(&rows[..which]).len() + HEAD;
            let mut bytes = encode(&rows);
            bytes[at] ^= 0x10;
            let (frames, damaged) = read_frames(&bytes);
            prop_assert_eq!(frames.len(), rows.len(), "the names, and all rows but one");
            prop_assert!(damaged > 0);
        }

        #[test]
        fn usage_of_nodes_round_trips(samples in prop::collection::vec((any::<u32>(), any::<NodeCodes>()), 0..9), start in any::<u64>()) {
            let node = |number: u32| Basis::Serial(number.to_string()).node_id();
            let samples: Vec<_> = samples.iter().map(|(number, codes)| (node(*number), *codes)).collect();
            let mut bytes = Vec::new();
            write_usage(&mut bytes, start, &samples);
            prop_assert_eq!(read_frames(&bytes), (vec![SeriesFrame::Usage(start, samples)], 0));
        }

        #[test]
        fn arbitrary_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (_, damaged) = read_frames(&bytes);
            prop_assert!(damaged <= bytes.len());
        }
    }
}
