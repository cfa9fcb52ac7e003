//! Scrollback, new output and freed output. An appended file replaces QEMU.

use super::*;
use std::{io::Write as _, os::unix::fs::MetadataExt as _, path::Path, time::Duration};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

fn files(dir: &Path) -> VmPaths {
    let files = VmPaths::new(dir, "11223344-5566-7788-99aa-bbccddeeff00".parse().expect("a UUID"));
    files.make().expect("made");
    files
}

/// Opens the file like QEMU, in append mode.
fn guest(files: &VmPaths) -> File {
    OpenOptions::new().create(true).append(true).open(files.console()).expect("opened")
}

async fn next_event(reader: &mut ConsoleReader) -> ConsoleEvent {
    timeout(DEADLINE, reader.next()).await.expect("an event")
}

#[tokio::test]
async fn subscriber_receives_scrollback_and_new_output_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = files(dir.path());
    let (console, mut input_queue) = Console::new(&files);
    let mut early = console.subscribe();
    let watch = console.watch().expect("watched");
    let mut guest = guest(&files);
    guest.write_all(b"before ").expect("written");
    timeout(DEADLINE, watch.changed()).await.expect("a change").expect("watched");
    console.refresh();
    let mut subscription = console.subscribe();
    guest.write_all(b"after").expect("written");
    console.refresh();
    console.refresh();
    assert_eq!(subscription.before, b"before ");
    assert_eq!(next_event(&mut subscription.new).await, ConsoleEvent::Bytes(b"after".to_vec()));
    assert_eq!(
        (early.before.len(), next_event(&mut early.new).await),
        (0, ConsoleEvent::Bytes(b"before after".to_vec()))
    );
    assert!(console.write(b"ls\n".to_vec()));
    assert_eq!(input_queue.try_recv(), Ok(b"ls\n".to_vec()));
    let writer = console.writer();
    guest.write_all(b", and its last words").expect("written");
    console.refresh();
    drop(console);
    assert_eq!(
        next_event(&mut early.new).await,
        ConsoleEvent::Bytes(b", and its last words".to_vec())
    );
    assert_eq!(next_event(&mut early.new).await, ConsoleEvent::Released);
    assert!(writer.write(Vec::new()).await, "a writer does not keep the console open");
}

#[tokio::test]
async fn endless_output_is_bounded_and_a_slow_reader_learns_its_loss() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = files(dir.path());
    let (console, _input_queue) = Console::new(&files);
    let mut slow = console.subscribe();
    let mut guest = guest(&files);
    let mut piece = Vec::new();
    (0..10_000_u32).for_each(|n| piece.extend_from_slice(format!("{n:05}\n").as_bytes()));
    for _ in 0..50 {
        guest.write_all(&piece).expect("written");
        console.refresh();
    }
    guest.write_all(b"the end").expect("written");
    console.refresh();
    let file = std::fs::metadata(files.console()).expect("there");
    assert_eq!(
        file.size(),
        50 * piece.len() as u64 + 7,
        "offsets in the file are offsets in the output"
    );
    assert!(file.blocks() * 512 <= 3 * SCROLLBACK, "{} bytes are on the disk", file.blocks() * 512);
    let before = console.subscribe().before;
    assert!(
        before.len() as u64 >= SCROLLBACK && before.len() as u64 <= 3 * SCROLLBACK,
        "{}",
        before.len()
    );
    assert!(before.ends_with(b"09999\nthe end"));
    assert!(!before.contains(&0), "no byte of a hole");

    let ConsoleEvent::Lost(lost) = next_event(&mut slow.new).await else {
        panic!("old output is freed")
    };
    let mut received = Vec::new();
    while lost + (received.len() as u64) < file.size() {
        let ConsoleEvent::Bytes(bytes) = next_event(&mut slow.new).await else {
            panic!("one loss only")
        };
        received.extend(bytes);
    }
    assert_eq!(received, before, "every later byte");
    assert_eq!(dir.path().read_dir().expect("a folder").count(), 1);
}

#[tokio::test]
async fn restarted_agent_reads_earlier_output_and_frees_old_output() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = files(dir.path());
    let mut guest = guest(&files);
    guest.write_all(b"first ").expect("written");
    let (console, _input_queue) = Console::new(&files);
    assert_eq!(console.subscribe().before, b"first ");
    drop(console);
    guest.write_all(b"second").expect("written");
    let (two, _input_queue) = Console::new(&files);
    assert_eq!(two.subscribe().before, b"first second");
    drop(two);
    guest.write_all(&vec![b'x'; 8 << 20]).expect("written");
    for _ in 0..2 {
        let (next, _input_queue) = Console::new(&files);
        let before = next.subscribe().before;
        assert!(
            before.len() as u64 >= SCROLLBACK && before.len() as u64 <= 2 * SCROLLBACK,
            "{}",
            before.len()
        );
        assert!(before.iter().all(|byte| *byte == b'x'));
    }
    assert!(std::fs::metadata(files.console()).expect("there").blocks() * 512 <= 2 * SCROLLBACK);
}
