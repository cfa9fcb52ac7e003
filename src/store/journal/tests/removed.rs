//! Tests of a journal without its commit marker, and of removed records.

use super::*;

#[test]
fn journal_without_valid_marker_is_refused_until_an_operator_accepts_it() {
    let sampled = tempfile::tempdir().expect("a folder");
    let before = sample(sampled.path());
    let altered = fs::read(sampled.path().join(files::COMMIT_MARKER))
        .expect("read")
        .iter()
        .map(|byte| !byte)
        .collect();
    for marker in [None, Some(Vec::new()), Some(altered)] {
        let dir = tempfile::tempdir().expect("a folder");
        copy(sampled.path(), dir.path());
        // The last change is cut off where a change ends: without the marker, nothing shows that it
        // was there.
        let path = Kind::Journal.path(dir.path(), 3);
        let bytes = fs::read(&path).expect("read");
        let last = Frames::new(&bytes).last().expect("a frame").at - HEAD;
        fs::write(&path, &bytes[..last]).expect("cut");
        let marker_path = dir.path().join(files::COMMIT_MARKER);
        match marker {
            Some(bytes) => fs::write(&marker_path, bytes).expect("written"),
            None => fs::remove_file(&marker_path).expect("removed"),
        }
        let files_before = files_of(dir.path());
        let error = refused(dir.path());
        assert!(error.message().contains("acknowledged changes may be missing"), "{error}");
        assert!(error.hint().unwrap().contains("accept-without-marker"), "{error:?}");
        assert_eq!(files_of(dir.path()), files_before, "nothing was changed");
        fs::write(dir.path().join(files::ACCEPTED), "").expect("accepted");
        let (journal, records) = open(dir.path());
        assert_eq!(content(&journal, &records).1.len(), before.1.len());
        drop(journal);
        open(dir.path());
        assert!(!dir.path().join(files::ACCEPTED).exists(), "it is accepted once");
    }
}

#[test]
fn store_with_blank_marker_and_no_journal_starts_empty() {
    for left in [&b""[..], &[0; 40]] {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join(files::COMMIT_MARKER), left).expect("written");
        let (journal, records) = open(dir.path());
        assert_eq!((records.len(), journal.append(Vec::new()).expect("nothing")), (0, Position(0)));
        drop(journal);
        fs::remove_file(Kind::Journal.path(dir.path(), 1)).expect("removed");
        open(dir.path());
    }
}

/// Removes all events but every tenth.
fn thin(journal: &Journal, until: u64) {
    let mut batch = Batch::default();
    (0..until)
        .filter(|number| number % 10 != 0)
        .for_each(|number| batch.remove(EVENTS.key(number)));
    journal.append(vec![batch]).expect("flushed");
}

#[test]
fn removed_events_stay_removed_after_compaction_and_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path());
    (0..100).for_each(|n| change(&journal, "k", &n.to_string()));
    journal.compact().expect("renewed");
    thin(&journal, 95);
    let kept: Vec<u64> = (0..95).filter(|number| number % 10 == 0).chain(95..100).rev().collect();
    let numbers = |journal: &Journal| {
        journal.newest(EVENTS, 0, u64::MAX).map(|event| event.expect("read").0).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&journal), kept);
    journal.compact().expect("renewed");
    journal.compact().expect("renewed");
    assert_eq!(numbers(&journal), kept);
    drop(journal);
    let (journal, _) = open(dir.path());
    assert_eq!(numbers(&journal), kept);
    assert_eq!(journal.newest(EVENTS, 30, u64::MAX).last().expect("one").expect("read").0, 30);
    change(&journal, "k", "next");
    assert_eq!(numbers(&journal)[0], 100, "numbers go on");
}

#[test]
fn files_with_more_removed_than_kept_are_merged_into_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path());
    let long = "x".repeat(1 << 20);
    let mut next = 0;
    for _ in 0..8 {
        for _ in 0..12 {
            change(&journal, "k", &long);
            next += 1;
        }
        journal.compact().expect("renewed");
        thin(&journal, next);
    }
    let numbered = files_of(dir.path()).iter().filter(|name| name.starts_with("numbered-")).count();
    assert!(numbered < 5, "{numbered} files");
    let before: Vec<_> =
        journal.newest(EVENTS, 0, u64::MAX).map(|event| event.expect("read")).collect();
    assert_eq!(before.len(), 10);
    drop(journal);
    let (journal, _) = open(dir.path());
    assert_eq!(
        journal.newest(EVENTS, 0, u64::MAX).map(|event| event.expect("read")).collect::<Vec<_>>(),
        before
    );
}

#[test]
fn failed_write_is_cut_off_and_the_journal_continues() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = Kind::Journal.path(dir.path(), 1);
    let (journal, _) = open(dir.path());
    change(&journal, "a", "1");
    let valid = fs::metadata(&path).expect("there").len();
    let writable = std::mem::replace(
        &mut lock(&journal.disk).file,
        Arc::new(File::open(&path).expect("opened")),
    );
    let mut batch = Batch::default();
    batch.insert("b", "2");
    journal.append(vec![batch]).expect_err("it is read-only");
    // What a write may leave: more than the next change is long.
    writable.write_all_at(&[7; 4096], valid).expect("written");
    assert!(journal.check().is_err());
    lock(&journal.disk).file = writable;
    journal.check().expect("repaired");
    assert_eq!(fs::metadata(&path).expect("there").len(), valid);
    change(&journal, "c", "3");
    drop(journal);
    let (_, records) = open(dir.path());
    assert_eq!(records.into_keys().collect::<Vec<_>>(), [b"a".to_vec(), b"c".to_vec()]);
}

#[test]
fn follower_has_the_records_of_the_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path());
    change(&journal, "a", "1");
    journal.compact().expect("compacted");
    assert_eq!(
        journal.changes_after(Position(0)).expect("read"),
        None,
        "the change is part of the first records"
    );
    let LogSnapshot { position, .. } = journal.snapshot().expect("taken");
    assert_eq!(journal.changes_after(position).expect("read"), Some(Vec::new()));
    change(&journal, "b", "2");
    let mut batch = Batch::default();
    batch.remove("a");
    journal.append(vec![batch]).expect("flushed");
    let changes = journal.changes_after(position).expect("read").expect("not compacted");
    assert_eq!(changes.iter().map(|change| change.position.0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(changes[0].records[0], (b"b".to_vec(), Some(b"2".to_vec())));
    assert_eq!(changes[1].records, [(b"a".to_vec(), None)]);
    assert_eq!(
        journal.changes_after(Position(9)).expect("read"),
        None,
        "a position that the log does not have"
    );
}
