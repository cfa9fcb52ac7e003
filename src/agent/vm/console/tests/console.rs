//! What is kept, what is told, and what is freed; QEMU is played by a file that is appended to.

use super::*;
use std::{io::Write as _, os::unix::fs::MetadataExt as _, path::Path, time::Duration};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

fn files(dir: &Path) -> VmPaths {
    let files = VmPaths::new(dir, "11223344-5566-7788-99aa-bbccddeeff00".parse().expect("a UUID"));
    files.make().expect("made");
    files
}

/// QEMU: it has the file open to its end, whatever agents do.
fn guest(files: &VmPaths) -> File {
    OpenOptions::new().create(true).append(true).open(files.console()).expect("opened")
}

async fn hears(live: &mut ConsoleReader) -> ConsoleEvent {
    timeout(DEADLINE, live.next()).await.expect("something comes")
}

#[tokio::test]
async fn a_listener_gets_what_was_and_what_comes_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = files(dir.path());
    let (one, mut typing) = Console::new(&files);
    let mut early = one.listen();
    let watch = one.watch().expect("watched");
    let mut guest = guest(&files);
    guest.write_all(b"before ").expect("written");
    timeout(DEADLINE, watch.changed()).await.expect("it is told").expect("watched");
    one.look();
    let mut listening = one.listen();
    guest.write_all(b"after").expect("written");
    one.look();
    one.look();
    assert_eq!(listening.before, b"before ");
    assert_eq!(hears(&mut listening.new).await, ConsoleEvent::Bytes(b"after".to_vec()));
    assert_eq!((early.before.len(), hears(&mut early.new).await), (0, ConsoleEvent::Bytes(b"before after".to_vec())));
    assert!(one.write(b"ls\n".to_vec()));
    assert_eq!(typing.try_recv(), Ok(b"ls\n".to_vec()));
    let writer = one.writer();
    guest.write_all(b", and its last words").expect("written");
    one.look();
    drop(one);
    assert_eq!(hears(&mut early.new).await, ConsoleEvent::Bytes(b", and its last words".to_vec()));
    assert_eq!(hears(&mut early.new).await, ConsoleEvent::Over);
    assert!(writer.write(Vec::new()).await, "the keyboard alone does not keep it from ending");
}

#[tokio::test]
async fn a_guest_that_talks_without_end_fills_nothing_its_last_words_are_kept_and_who_is_slow_is_told_what_it_missed() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = files(dir.path());
    let (one, _typing) = Console::new(&files);
    let mut slow = one.listen();
    let mut guest = guest(&files);
    let mut piece = Vec::new();
    (0..10_000_u32).for_each(|n| piece.extend_from_slice(format!("{n:05}\n").as_bytes()));
    for _ in 0..50 {
        guest.write_all(&piece).expect("written");
        one.look();
    }
    guest.write_all(b"the end").expect("written");
    one.look();
    let file = std::fs::metadata(files.console()).expect("there");
    assert_eq!(file.size(), 50 * piece.len() as u64 + 7, "a place in it is a place in all that was written");
    assert!(file.blocks() * 512 <= 3 * KEPT, "{} bytes are on the disk", file.blocks() * 512);
    let before = one.listen().before;
    assert!(before.len() as u64 >= KEPT && before.len() as u64 <= 3 * KEPT, "{}", before.len());
    assert!(before.ends_with(b"09999\nthe end"));
    assert!(!before.contains(&0), "nothing of a hole");

    let ConsoleEvent::Lost(lost) = hears(&mut slow.new).await else { panic!("much of it is gone") };
    let mut heard = Vec::new();
    while lost + (heard.len() as u64) < file.size() {
        let ConsoleEvent::Bytes(bytes) = hears(&mut slow.new).await else { panic!("once is enough") };
        heard.extend(bytes);
    }
    assert_eq!(heard, before, "to the byte");
    assert_eq!(dir.path().read_dir().expect("a folder").count(), 1);
}

#[tokio::test]
async fn a_later_agent_finds_what_was_written_before_it_and_frees_what_nobody_freed() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = files(dir.path());
    let mut guest = guest(&files);
    guest.write_all(b"first ").expect("written");
    let (one, _typing) = Console::new(&files);
    assert_eq!(one.listen().before, b"first ");
    drop(one);
    guest.write_all(b"second").expect("written");
    let (two, _typing) = Console::new(&files);
    assert_eq!(two.listen().before, b"first second");
    drop(two);
    guest.write_all(&vec![b'x'; 8 << 20]).expect("written");
    for _ in 0..2 {
        let (next, _typing) = Console::new(&files);
        let before = next.listen().before;
        assert!(before.len() as u64 >= KEPT && before.len() as u64 <= 2 * KEPT, "{}", before.len());
        assert!(before.iter().all(|byte| *byte == b'x'));
    }
    assert!(std::fs::metadata(files.console()).expect("there").blocks() * 512 <= 2 * KEPT);
}
