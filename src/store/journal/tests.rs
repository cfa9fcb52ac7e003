//! Tests of the journal: durability, crashes and damage.

use super::*;
use crate::StoreError;
use meshd_types::Hint as _;
use proptest::prelude::*;
use std::{collections::BTreeSet, os::unix::fs::FileExt, path::Path};

mod removed;

fn open(dir: &Path) -> (Journal, Records) {
    let journal = Journal::open(dir).unwrap_or_else(|error| panic!("{error}"));
    let records = journal.load();
    (journal, records)
}

fn change(journal: &Journal, key: &str, value: &str) {
    let mut batch = Batch::default();
    batch.insert(key, value);
    batch.insert(EVENTS.key(journal.next_number(EVENTS)), format!("{key} is {value}"));
    journal.append(vec![batch]).expect("flushed");
}

/// All records, and all events with their numbers.
fn content(journal: &Journal, records: &Records) -> (Records, Vec<(u64, Vec<u8>)>) {
    let events = journal.newest(EVENTS, 0, u64::MAX).map(|event| event.expect("read"));
    (records.clone(), events.collect())
}

/// Writes a store with two compactions, closes it and returns its content.
fn sample(dir: &Path) -> (Records, Vec<(u64, Vec<u8>)>) {
    let (journal, _) = open(dir);
    for round in 0..3 {
        for n in 0..4 {
            change(&journal, &format!("node/{n}"), &format!("value {round}"));
        }
        if round < 2 {
            journal.compact().expect("renewed");
        }
    }
    let mut batch = Batch::default();
    batch.remove("node/2");
    journal.append(vec![batch]).expect("flushed");
    journal.close().expect("closed");
    drop(journal);
    let (journal, records) = open(dir);
    content(&journal, &records)
}

fn files_of(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .expect("a folder")
        .map(|entry| entry.expect("read").file_name().into_string().unwrap())
        .collect()
}

fn copy(from: &Path, to: &Path) {
    for name in files_of(from) {
        fs::copy(from.join(&name), to.join(&name)).expect("copied");
    }
}

fn refused(dir: &Path) -> StoreError {
    Journal::open(dir).expect_err("refused")
}

#[test]
fn flushed_change_exists_after_compaction() {
    let dir = tempfile::tempdir().expect("a folder");
    let (records, events) = sample(dir.path());
    let keys: Vec<_> =
        records.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    assert_eq!(keys, ["node/0", "node/1", "node/3"]);
    assert!(records.values().all(|value| value == b"value 2"));
    assert_eq!(events.len(), 12);
    assert_eq!(events[0], (11, b"node/3 is value 2".to_vec()), "the newest first");
    assert_eq!(events[11], (0, b"node/0 is value 0".to_vec()));
    assert_eq!(
        files_of(dir.path()).into_iter().collect::<Vec<_>>(),
        ["acknowledged", "journal-00000003", "lock", "numbered-00000001", "numbered-00000002"]
    );
}

#[test]
fn events_are_read_during_compaction_and_numbers_continue() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path());
    for n in 0..600 {
        change(&journal, "k", &n.to_string());
    }
    let mut reading = journal.newest(EVENTS, 10, u64::MAX);
    assert_eq!(reading.next().expect("one").expect("read").0, 599);
    journal.compact().expect("renewed");
    change(&journal, "k", "after");
    assert_eq!(
        reading.map(|event| event.expect("read").0).collect::<Vec<_>>(),
        (10..599).rev().collect::<Vec<_>>()
    );
    assert_eq!(
        journal.newest(EVENTS, 600, u64::MAX).next().expect("one").expect("read"),
        (600, b"k is after".to_vec())
    );
}

#[test]
fn change_truncated_by_crash_is_dropped_and_earlier_ones_remain() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path());
    change(&journal, "a", "1");
    let path = Kind::Journal.path(dir.path(), 1);
    let valid = fs::metadata(&path).expect("there").len();
    // The marker does not acknowledge the last change.
    let marker = fs::read(dir.path().join(files::COMMIT_MARKER)).expect("read");
    change(&journal, "b", "2");
    drop(journal);
    let bytes = fs::read(&path).expect("read");
    for cut in valid..=bytes.len() as u64 {
        fs::write(dir.path().join(files::COMMIT_MARKER), &marker).expect("written");
        fs::write(&path, &bytes[..usize::try_from(cut).expect("small")]).expect("written");
        let (journal, records) = open(dir.path());
        let whole = cut == bytes.len() as u64;
        assert_eq!(records.len(), if whole { 2 } else { 1 }, "cut at {cut}");
        change(&journal, "c", "3");
        drop(journal);
        assert_eq!(
            open(dir.path()).1.len(),
            if whole { 3 } else { 2 },
            "and it goes on, cut at {cut}"
        );
    }
}

#[test]
fn journal_without_its_acknowledged_end_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path());
    let path = Kind::Journal.path(dir.path(), 1);
    let mut ends = Vec::new();
    for n in 0..3 {
        change(&journal, "k", &n.to_string());
        ends.push(fs::metadata(&path).expect("there").len());
    }
    drop(journal);
    let file = fs::OpenOptions::new().write(true).open(&path).expect("opened");
    for length in [ends[2] - 1, ends[1], ends[0], 10, 0] {
        file.set_len(length).expect("cut");
        let error = refused(dir.path());
        assert!(error.to_string().contains("journal-00000001"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("restore the last backup")));
        assert_eq!(file.metadata().expect("there").len(), length, "nothing was changed");
    }
}

#[test]
fn missing_or_exchanged_journal_file_is_refused() {
    let sampled = tempfile::tempdir().expect("a folder");
    let before = sample(sampled.path());
    for name in files_of(sampled.path()) {
        let dir = tempfile::tempdir().expect("a folder");
        copy(sampled.path(), dir.path());
        fs::remove_file(dir.path().join(&name)).expect("removed");
        if name == files::LOCK {
            let (journal, records) = open(dir.path());
            assert_eq!(content(&journal, &records), before, "without {name}");
        } else if name == files::COMMIT_MARKER {
            assert!(matches!(refused(dir.path()), StoreError::Marker { .. }), "without {name}");
        } else {
            assert!(matches!(refused(dir.path()), StoreError::Broken { .. }), "without {name}");
        }
    }
    let dir = tempfile::tempdir().expect("a folder");
    copy(sampled.path(), dir.path());
    fs::copy(sampled.path().join("numbered-00000001"), dir.path().join("numbered-00000002"))
        .expect("copied");
    assert!(refused(dir.path()).to_string().contains("another file"));
}

#[test]
fn interrupted_compaction_loses_nothing() {
    let before = tempfile::tempdir().expect("a folder");
    let after = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(before.path());
    (0..5).for_each(|n| change(&journal, &format!("node/{n}"), "x"));
    journal.close().expect("closed");
    drop(journal);
    copy(before.path(), after.path());
    let (journal, _) = open(after.path());
    journal.compact().expect("renewed");
    drop(journal);
    let old = Kind::Journal.name(1);
    let temporary = [Kind::Numbered.name(1), Kind::Journal.name(2)];
    for done in 0..=2 {
        for half in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            copy(before.path(), dir.path());
            for name in &temporary[..done] {
                fs::copy(after.path().join(name), dir.path().join(name)).expect("copied");
            }
            if let Some(name) = temporary.get(done).filter(|_| half) {
                let bytes = fs::read(after.path().join(name)).expect("read");
                fs::write(dir.path().join(format!("{name}.new")), &bytes[..bytes.len() / 2])
                    .expect("written");
            }
            let (journal, records) = open(dir.path());
            let (records, events) = content(&journal, &records);
            assert_eq!((records.len(), events.len()), (5, 5), "{done} {half}");
            assert_eq!(files_of(dir.path()).contains(&old), done < 2, "{done} {half}");
        }
    }
}

#[test]
fn renamed_file_is_removed_when_its_folder_cannot_be_flushed() {
    let dir = tempfile::tempdir().expect("a folder");
    let temporary = dir.path().join("journal-00000002.new");
    let target = dir.path().join("journal-00000002");
    fs::write(&temporary, "whole").expect("written");
    let broken = files::rename_and_flush(&temporary, &target, || {
        Err(io::Error::other("the disk is broken"))
    });
    assert!(broken.is_err());
    assert_eq!(
        files_of(dir.path()),
        BTreeSet::new(),
        "the journal before it goes on, and has to be the newest"
    );
    fs::write(&temporary, "whole").expect("written");
    files::rename_and_flush(&temporary, &target, || Ok(())).expect("flushed");
    assert_eq!(files_of(dir.path()), BTreeSet::from(["journal-00000002".to_owned()]));
}

#[test]
fn store_in_use_or_of_another_version_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path());
    assert!(refused(dir.path()).to_string().contains("another meshd"));
    drop(journal);
    let header = Header {
        version: "99".into(),
        number: 2,
        records: 0,
        next: BTreeMap::new(),
        is_merged: false,
    };
    let nothing = std::iter::empty::<io::Result<files::KeyValue<&[u8], &[u8]>>>();
    write_atomically(dir.path(), Kind::Journal, 0, &header, nothing).expect("written");
    fs::write(
        Kind::Numbered.path(dir.path(), 1),
        fs::read(Kind::Journal.path(dir.path(), 1)).expect("read"),
    )
    .expect("written");
    assert!(matches!(refused(dir.path()), StoreError::Version { found } if found == "99"));
}

#[test]
fn snapshot_has_exactly_the_changes_before_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let other = tempfile::tempdir().expect("a folder");
    let (journal, _) = open(dir.path());
    change(&journal, "a", "1");
    journal.compact().expect("renewed");
    change(&journal, "b", "2");
    let LogSnapshot { position, files: parts } = journal.snapshot().expect("taken");
    change(&journal, "c", "3");
    journal.compact().expect("renewed");
    for (name, file, length) in parts {
        let mut bytes = vec![0; usize::try_from(length).expect("small")];
        file.read_exact_at(&mut bytes, 0).expect("read");
        fs::write(other.path().join(name), bytes).expect("written");
    }
    assert_eq!(position, Position(2));
    let copy = Journal::open_whole(other.path()).expect("it is whole");
    let records = copy.load();
    let (records, events) = content(&copy, &records);
    assert_eq!((records.len(), events.len()), (2, 2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// At every kind of place: heads and bodies of frames, headers, both kinds of files, the
    /// marker.
    #[test]
    fn altered_byte_is_refused_or_loses_nothing(position in any::<prop::sample::Index>(), with in 1..=255u8) {
        let dir = tempfile::tempdir().expect("a folder");
        let before = sample(dir.path());
        let sizes = files_of(dir.path()).into_iter().map(|name| {
            let length = fs::metadata(dir.path().join(&name)).expect("there").len();
            // Only the used bytes of the marker.
            (name.clone(), if name == files::COMMIT_MARKER { 32 } else { usize::try_from(length).expect("small") })
        });
        let sizes: Vec<(String, usize)> = sizes.filter(|(_, size)| *size > 0).collect();
        let mut at = position.index(sizes.iter().map(|(_, size)| size).sum());
        let (name, _) = sizes.iter().find(|(_, size)| if at < *size { true } else { at -= size; false }).expect("one");
        let path = dir.path().join(name);
        let mut bytes = fs::read(&path).expect("read");
        bytes[at] ^= with;
        fs::write(&path, &bytes).expect("written");
        match Journal::open(dir.path()) {
            Ok(journal) => prop_assert_eq!(content(&journal, &journal.load()), before, "{} at {}", name, at),
            Err(StoreError::Broken { path: named, .. }) => {
                prop_assert_eq!(named, path.clone());
                prop_assert_eq!(fs::read(&path).expect("read"), bytes, "nothing was changed");
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn journal_equals_a_map_after_any_operations(steps in prop::collection::vec(0..12u8, 1..60)) {
        let dir = tempfile::tempdir().expect("a folder");
        let (mut journal, mut records) = open(dir.path());
        let mut known = Records::new();
        let mut events = 0;
        for (n, step) in steps.into_iter().enumerate() {
            let mut batch = Batch::default();
            let key = format!("k/{}", step % 4);
            match step {
                0..=5 => {
                    batch.insert(&key, n.to_string());
                    batch.insert(EVENTS.key(events), n.to_string());
                    known.insert(key.into_bytes(), n.to_string().into_bytes());
                    events += 1;
                    journal.append(vec![batch]).expect("flushed");
                }
                6..=8 => {
                    batch.remove(&key);
                    known.remove(key.as_bytes());
                    journal.append(vec![batch]).expect("flushed");
                }
                9 | 10 => journal.compact().expect("renewed"),
                _ => {
                    drop(journal);
                    (journal, records) = open(dir.path());
                    prop_assert_eq!(&records, &known);
                    prop_assert_eq!(journal.next_number(EVENTS), events);
                    prop_assert_eq!(journal.newest(EVENTS, 0, u64::MAX).count() as u64, events);
                }
            }
        }
        drop(records);
    }
}
