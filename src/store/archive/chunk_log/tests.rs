//! Tests of logs.

use super::*;
use meshd_proto::task::Stream;
use meshd_types::TaskId;
use proptest::prelude::*;
use std::path::Path;

const KEY: TaskId = TaskId([1; 4]);
const LIMITS: Limits = Limits { segment: 64 << 10, newest: 3, keep_open: true };

type Outputs = ChunkLogs<TaskId, Stream>;

fn outputs(dir: &Path) -> Outputs {
    ChunkLogs::new(dir.to_owned(), LIMITS)
}

fn piece(at: u64, bytes: &[u8]) -> LogLine<Stream> {
    let when = Timestamp::EPOCH;
    let node = node();
    LogLine { when, node, stream: Stream::Out, at, data: Piece::from_bytes(bytes.to_vec()) }
}

fn node() -> NodeId {
    "00000001".parse().expect("a node ID")
}

fn all(outputs: &Outputs) -> (Vec<LogLine<Stream>>, u64) {
    let mut lines = Vec::new();
    let mut dropped = 0;
    let mut from = 0;
    loop {
        let chunk = outputs.read(KEY, from).expect("readable");
        if chunk.lines.is_empty() {
            return (lines, dropped);
        }
        let read = chunk.lines.split_inclusive(|byte| *byte == b'\n');
        lines.extend(
            read.map(|line| serde_json::from_slice::<LogLine<Stream>>(line).expect("whole lines")),
        );
        (from, dropped) = (chunk.next, dropped + chunk.dropped);
    }
}

#[test]
fn output_keeps_beginning_and_end_and_reports_the_gap() {
    let dir = tempfile::tempdir().expect("a folder");
    let outputs = self::outputs(dir.path());
    let mut at = 0;
    let block = vec![b'x'; 8_000];
    for _ in 0..100 {
        at = outputs.append(KEY, piece(at, &block)).expect("kept");
    }
    let (lines, dropped) = all(&outputs);
    assert_eq!(lines.first().map(|line| line.at), Some(0));
    assert_eq!(lines.last().map(|line| line.at), Some(at - 8_000));
    assert!(dropped > 400_000, "{dropped}");
    let files: u64 = fs::read_dir(dir.path().join("01010101"))
        .expect("there")
        .flatten()
        .map(|file| file.metadata().expect("known").len())
        .sum();
    assert!(files < (LIMITS.newest as u64 + 1) * (LIMITS.segment + 20_000), "{files}");
    // A reopened log continues at the same offset.
    let again = self::outputs(dir.path());
    assert_eq!(again.append(KEY, piece(0, b"old")).expect("known"), at);
    assert_eq!(again.append(KEY, piece(at, b"new")).expect("kept"), at + 3);
    assert_eq!(
        all(&again).0.last().map(|line| line.data.clone()),
        Some(Piece::Text("new".to_owned()))
    );
    again.keep_only(BTreeSet::new);
    assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0);
}

/// Stores a line of one node, then a flood of another one.
fn flood(outputs: &Outputs) {
    let other = LogLine { node: "00000002".parse().expect("a node ID"), ..piece(0, b"good") };
    let mut at = 0;
    let block = vec![b'x'; 8_000];
    for number in 0..100 {
        at = outputs.append(KEY, piece(at, &block)).expect("kept");
        if number == 20 {
            outputs.append(KEY, other.clone()).expect("kept");
        }
    }
}

fn has_line_of_other_node(outputs: &Outputs) -> bool {
    all(outputs).0.iter().any(|line| line.data == Piece::Text("good".to_owned()))
}

#[test]
fn flood_of_one_node_displaces_no_output_of_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let outputs = self::outputs(dir.path());
    flood(&outputs);
    assert!(has_line_of_other_node(&outputs));
    assert!(has_line_of_other_node(&self::outputs(dir.path())), "also after a start");
}

#[test]
fn merge_that_a_crash_interrupted_is_completed_at_the_next_start() {
    let dir = tempfile::tempdir().expect("a folder");
    flood(&outputs(dir.path()));
    let folder = dir.path().join("01010101");
    let starts = || -> BTreeSet<u64> {
        let names = fs::read_dir(&folder).expect("there").flatten();
        names.filter_map(|file| file.file_name().to_str()?.parse().ok()).collect()
    };
    let before = starts();
    let merged = *before.iter().nth(1).expect("a merged file");
    let whole = fs::read(folder.join(format!("{merged:020}"))).expect("there");
    let line = whole.split_inclusive(|byte| *byte == b'\n').next().expect("a line");
    // What a merge removes last, and the newer of both, which overlaps the merged file.
    for (start, bytes) in [(merged - 5_000, line), (merged - 1_000, &whole)] {
        fs::write(folder.join(format!("{start:020}")), bytes).expect("written");
    }
    fs::write(folder.join(MERGING), b"begun").expect("written");
    let outputs = outputs(dir.path());
    assert!(has_line_of_other_node(&outputs));
    let left: Vec<u64> = starts().difference(&before).copied().collect();
    assert_eq!(left, [merged - 5_000], "the next merge removes it");
}

#[test]
fn reader_within_a_line_of_a_merged_file_continues_at_the_next_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let outputs = self::outputs(dir.path());
    flood(&outputs);
    let first = outputs.read(KEY, 0).expect("readable");
    let merged = outputs.read(KEY, first.next).expect("readable");
    let start = merged.next - merged.lines.len() as u64;
    for from in (start..merged.next).step_by(97) {
        let chunk = outputs.read(KEY, from).expect("readable");
        let line = chunk.lines.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = serde_json::from_slice::<LogLine<Stream>>(line);
        assert!(line.is_ok(), "{from}: {line:?}");
        assert!(chunk.next >= from + chunk.lines.len() as u64 + chunk.dropped);
    }
}

#[test]
fn partial_line_after_crash_is_truncated() {
    let dir = tempfile::tempdir().expect("a folder");
    outputs(dir.path()).append(KEY, piece(0, b"whole")).expect("kept");
    let file = dir.path().join("01010101/00000000000000000000");
    let mut text = fs::read(&file).expect("there");
    let length = text.len();
    text.extend(&text.clone()[..20]);
    fs::write(&file, text).expect("written");
    let outputs = self::outputs(dir.path());
    assert_eq!(outputs.append(KEY, piece(5, b"next")).expect("kept"), 9);
    assert_eq!(all(&outputs).0.len(), 2);
    assert!(fs::metadata(&file).expect("there").len() > length as u64);
}

proptest! {
    #[test]
    fn repeated_or_overlapping_pieces_are_stored_once(cuts in prop::collection::vec((0usize..40, 0usize..12), 1..30)) {
        let dir = tempfile::tempdir().expect("a folder");
        let text: Vec<u8> = (0u8..64).collect();
        let mut outputs = self::outputs(dir.path());
        let mut upto = 0;
        for (index, (back, length)) in cuts.into_iter().enumerate() {
            let at = usize::try_from(upto).expect("small").saturating_sub(back);
            let bytes = &text[at..(at + length).min(text.len())];
            let now = outputs.append(KEY, piece(at as u64, bytes)).expect("kept");
            prop_assert!(now >= upto);
            upto = now;
            if index % 5 == 4 {
                outputs = self::outputs(dir.path());
            }
        }
        let kept: Vec<u8> = all(&outputs).0.into_iter().flat_map(|line| line.data.into_bytes().expect("bytes")).collect();
        prop_assert_eq!(kept, &text[..usize::try_from(upto).expect("small")]);
    }
}

#[test]
fn keys_to_keep_are_read_while_no_log_can_begin() {
    let dir = tempfile::tempdir().expect("a folder");
    let outputs = self::outputs(dir.path());
    outputs.append(KEY, piece(0, b"old")).expect("stored");
    outputs.keep_only(|| {
        assert!(outputs.logs.try_lock().is_err(), "a log that begins now would be removed");
        BTreeSet::from([KEY])
    });
    assert_eq!(all(&outputs).0.len(), 1);
}
