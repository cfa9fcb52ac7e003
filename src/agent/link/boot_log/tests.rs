//! Kernel records become lines, and both sources reach the driver.

use super::{BootLog, kernel_log::line};
use crate::system::Tree;
use meshd_proto::log::{LogPiece, LogSource, LogStored};
use proptest::prelude::*;
use std::{fs, time::Duration};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn kernel_record_becomes_a_line_of_dmesg() {
    let record =
        b"6,339,5140900,-;NET: Registered PF_INET6 protocol family\n SUBSYSTEM=net\n DEVICE=n1\n";
    assert_eq!(line(record).unwrap(), "[    5.140900] NET: Registered PF_INET6 protocol family\n");
    assert_eq!(line(b"4,1,0,c;").unwrap(), "[    0.000000] \n");
    let command_line =
        b"5,2,0,-;Kernel command line: apkovl=http://10.77.0.1:8080/overlay/00112233aabb/apkovl.tar.gz quiet";
    let hidden = "[    0.000000] Kernel command line: apkovl=http://10.77.0.1:8080/overlay/.../apkovl.tar.gz quiet\n";
    assert_eq!(line(command_line).unwrap(), hidden);
    for junk in [&b""[..], b"no record", b"6,1;short", b"6,1,soon,-;text"] {
        assert_eq!(line(junk), None);
    }
}

proptest! {
    #[test]
    fn arbitrary_kernel_record_never_panics(record in proptest::collection::vec(any::<u8>(), 0..300)) {
        let line = line(&record);
        prop_assert!(line.is_none_or(|line| line.ends_with('\n') && line.lines().count() == 1));
    }
}

/// Acknowledges pieces of the system log until they end with a text.
async fn read_until(log: &mut BootLog, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let LogPiece { source, at, data } = timeout(DEADLINE, log.next()).await.expect("a piece");
        assert_eq!((source, at), (LogSource::System, text.len() as u64));
        text.extend(data.into_bytes().expect("bytes"));
        log.stored(LogStored { source, end: text.len() as u64 });
    }
    String::from_utf8(text).expect("text")
}

#[tokio::test]
async fn system_log_is_sent_whole_across_rotation() {
    let root = tempfile::tempdir().unwrap();
    let tree = Tree::new(root.path());
    let logs = root.path().join("var/log");
    fs::create_dir_all(&logs).unwrap();
    let mut log = BootLog::new();
    // The file appears after the agent started, as syslogd may.
    log.begin_link(&tree);
    fs::write(logs.join("messages"), "one\n".repeat(5000) + "two\n").unwrap();
    assert_eq!(read_until(&mut log, "two\n").await.len(), 20_004);
    fs::rename(logs.join("messages"), logs.join("messages.0")).unwrap();
    fs::write(logs.join("messages"), "three\n").unwrap();
    let LogPiece { at, data, .. } = timeout(DEADLINE, log.next()).await.expect("a piece");
    assert_eq!((at, data.into_bytes().unwrap()), (20_004, b"three\n".to_vec()));
    // Not acknowledged: the next welcome repeats it.
    log.begin_link(&tree);
    let repeated = timeout(DEADLINE, log.next()).await.expect("a piece");
    assert_eq!((repeated.at, repeated.data.into_bytes().unwrap()), (20_004, b"three\n".to_vec()));
    log.end().await;
}
