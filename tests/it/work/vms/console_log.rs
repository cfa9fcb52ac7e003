//! What a guest writes is kept to the byte, whoever lives and whoever reads. The guest counts: a
//! gap would be seen, and so would a number that comes twice.

use super::guest::{COUNTED, DEADLINE, Guest, NUMBER, Node, reaches};
use meshd_agent::vm::{CONSOLE_SCROLLBACK, ConsoleEvent, ConsoleSubscription, Vms};
use meshd_proto::vm::ReportedVmState;
use meshd_types::SystemUuid;
use serde_json::json;
use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};
use tokio::time::{interval, timeout};

/// The last number before the guest waits for its so manieth key.
fn last(key: usize) -> String {
    format!("{:08}\n", key * COUNTED - 1)
}

/// Reads until a text comes.
async fn until(listening: &mut ConsoleSubscription, text: &str) {
    let waited = timeout(DEADLINE, async {
        // A number is not cut in two by the search.
        let mut at = 0;
        while !listening.before[at..].windows(text.len()).any(|window| window == text.as_bytes()) {
            at = listening.before.len().saturating_sub(text.len());
            match listening.new.next().await {
                ConsoleEvent::Bytes(bytes) => listening.before.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{text} was not written"));
}

/// The numbers of a text, without what firmware said before them and without halves at its ends.
fn numbers(text: &[u8]) -> Vec<usize> {
    let text = String::from_utf8_lossy(text);
    let begin = text.find("00000000\n").unwrap_or_else(|| text.find('\n').unwrap() + 1);
    text[begin..]
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| line.trim().parse().unwrap())
        .collect()
}

fn follow_each_other(numbers: &[usize]) {
    let breach = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    assert_eq!(breach, None, "of {} numbers", numbers.len());
}

async fn types(vms: &Vms, uuid: SystemUuid) {
    assert!(vms.console(uuid).unwrap().write(b"x".to_vec()));
}

#[tokio::test]
async fn console_log_is_complete_and_unrepeated_over_agent_restarts() {
    let node = Node::new();
    let spec = node.spec(Guest::Counts, json!({}));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let mut early = vms.console(spec.uuid).unwrap().subscribe();
    until(&mut early, &last(1)).await;
    follow_each_other(&numbers(&early.before));
    drop(vms);

    // Nobody is there. Somebody else presses a key, and the guest writes.
    let log = node.files(spec.uuid).join("console.log");
    fs::write(node.files(spec.uuid).join("serial.in"), b"x").unwrap();
    let written = timeout(DEADLINE, async {
        let mut looks = interval(Duration::from_millis(20));
        while !fs::read_to_string(&log).unwrap().ends_with(&last(2)) {
            looks.tick().await;
        }
    });
    written.await.expect("it is written with no agent");

    let vms = node.agent();
    reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Running).await;
    let late = vms.console(spec.uuid).unwrap().subscribe();
    let all = numbers(&late.before);
    follow_each_other(&all);
    assert_eq!((all.first(), all.len()), (Some(&0), 2 * COUNTED));

    // In the midst of a sentence.
    types(&vms, spec.uuid).await;
    let mut torn = vms.console(spec.uuid).unwrap().subscribe();
    until(&mut torn, &format!("{:08}\n", 2 * COUNTED)).await;
    drop(vms);
    let mut vms = node.agent();
    let mut late = vms.console(spec.uuid).unwrap().subscribe();
    until(&mut late, &last(3)).await;
    let all = numbers(&late.before);
    follow_each_other(&all);
    assert_eq!((all.first(), all.len()), (Some(&0), 3 * COUNTED));
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn slow_console_reader_blocks_no_other_and_learns_its_loss() {
    let node = Node::new();
    let spec = node.spec(Guest::Counts, json!({}));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let mut slow = vms.console(spec.uuid).unwrap().subscribe();
    let keys = 8;
    let log = node.files(spec.uuid).join("console.log");
    for key in 1..=keys {
        let mut quick = vms.console(spec.uuid).unwrap().subscribe();
        until(&mut quick, &last(key)).await;
        follow_each_other(&numbers(&quick.before));
        if key < keys {
            types(&vms, spec.uuid).await;
        }
    }
    let file = fs::metadata(&log).unwrap();
    assert!(file.size() >= (keys * COUNTED * NUMBER) as u64, "all of it was written");
    let kept = file.blocks() * 512;
    assert!(
        (CONSOLE_SCROLLBACK..=3 * CONSOLE_SCROLLBACK).contains(&kept),
        "{kept} bytes of it are kept"
    );

    let ConsoleEvent::Lost(lost) = slow.new.next().await else { panic!("it was too slow") };
    let mut received = Vec::new();
    while lost + ((slow.before.len() + received.len()) as u64) < file.size() {
        match timeout(DEADLINE, slow.new.next()).await.unwrap() {
            ConsoleEvent::Bytes(bytes) => received.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
    follow_each_other(&numbers(&received));
    assert!(received.ends_with(last(keys).as_bytes()));
    vms.release(spec.uuid).await.unwrap();
    timeout(DEADLINE, async { while slow.new.next().await != ConsoleEvent::Released {} })
        .await
        .expect("it is over for readers too");
}
