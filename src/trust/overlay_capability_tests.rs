//! Tests of the capability table: use, reuse, expiry and guesses.

use super::*;
use proptest::prelude::*;

const HOME: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 5);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 6);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn grant(node: u8) -> Grant {
    let node = format!("0000000{}", node % 10).parse().expect("a node ID");
    Grant { session: BootSessionId([1; 12]), node, address: HOME }
}

fn granted(table: &mut CapabilityTable, seconds: i64, random: u8, node: u8) -> String {
    table.grant(at(seconds), [random; 16], grant(node)).expose().clone()
}

#[test]
fn capability_opens_one_complete_transfer_to_its_address() {
    let mut table = CapabilityTable::new();
    let text = granted(&mut table, 0, 1, 1);
    assert_eq!(text.len(), TEXT_LEN);
    assert_eq!(table.open(at(1), &text, ELSEWHERE), Err(Denied::Foreign(grant(1))));
    assert_eq!(table.probe(at(1), &text, HOME), Ok(grant(1)), "a probe consumes nothing");
    let transfer = table.open(at(1), &text, HOME).expect("it is ready");
    assert_eq!(table.open(at(1), &text, HOME), Err(Denied::Busy(grant(1))));
    assert!(table.finish(transfer.id));
    assert_eq!(table.open(at(2), &text, HOME), Err(Denied::Spent(grant(1))));
    assert_eq!(
        table.open(at(2), &text, ELSEWHERE),
        Err(Denied::Foreign(grant(1))),
        "an alarm in any state"
    );
    assert!(!table.finish(transfer.id) && !table.abort(transfer.id));
}

#[test]
fn capability_of_a_clock_in_the_future_is_expired() {
    let mut table = CapabilityTable::new();
    let text = granted(&mut table, 4_000_000_000, 1, 1);
    assert_eq!(table.open(at(0), &text, HOME), Err(Denied::Expired), "the clock went back");
    table.grant(at(0), [2; 16], grant(2));
    assert_eq!(table.len(), 1, "it is forgotten");
}

#[test]
fn aborted_transfer_may_be_retried() {
    let mut table = CapabilityTable::new();
    let text = granted(&mut table, 0, 1, 1);
    let first = table.open(at(1), &text, HOME).expect("ready");
    assert!(table.abort(first.id));
    let second = table.open(at(2), &text, HOME).expect("ready again");
    assert_ne!(first.id, second.id);
    assert!(!table.finish(first.id), "the first one is over");
    assert!(table.finish(second.id));
}

#[test]
fn later_capability_of_node_voids_earlier_one_and_its_transfer() {
    let mut table = CapabilityTable::new();
    let old = granted(&mut table, 0, 1, 1);
    let transfer = table.open(at(1), &old, HOME).expect("ready");
    assert!(table.is_open(transfer.id));
    let new = granted(&mut table, 2, 2, 1);
    assert!(!table.is_open(transfer.id), "nothing more is minted for it");
    assert!(!table.finish(transfer.id), "the transfer is void");
    assert_eq!(table.open(at(2), &old, HOME), Err(Denied::Expired));
    assert!(table.open(at(2), &new, HOME).is_ok());
    let other = granted(&mut table, 2, 3, 2);
    assert!(table.open(at(2), &other, HOME).is_ok(), "another node's is another matter");
}

#[test]
fn capability_expires_after_ten_minutes_and_is_forgotten_after_an_hour() {
    let mut table = CapabilityTable::new();
    let text = granted(&mut table, 0, 1, 1);
    assert_eq!(table.probe(at(600), &text, HOME), Ok(grant(1)));
    assert_eq!(table.open(at(601), &text, HOME), Err(Denied::Expired));
    granted(&mut table, 3601, 2, 2);
    assert_eq!(table.open(at(3601), &text, HOME), Err(Denied::Unknown));
    assert_eq!(table.len(), 1);
}

#[test]
fn transfer_begun_before_expiry_may_finish_later() {
    let mut table = CapabilityTable::new();
    let text = granted(&mut table, 0, 1, 1);
    let transfer = table.open(at(599), &text, HOME).expect("ready");
    assert_eq!(table.open(at(700), &text, HOME), Err(Denied::Busy(grant(1))));
    assert!(table.finish(transfer.id));
}

#[test]
fn capability_table_is_bounded_and_drops_the_oldest() {
    let mut table = CapabilityTable::new();
    let nodes = |n: usize| Grant { session: BootSessionId([1; 12]), ..grant((n % 10) as u8) };
    let mut first = None;
    for n in 0..MAX_CAPABILITIES + 10 {
        let mut random = [0; 16];
        random[..8].copy_from_slice(&(n as u64).to_be_bytes());
        let text = table.grant(at(0), random, nodes(n)).expose().clone();
        first.get_or_insert(text);
    }
    assert_eq!(table.len(), MAX_CAPABILITIES);
    assert!(
        table.open.is_empty()
            && table.current.len() == 10
            && table.oldest_first.len() == MAX_CAPABILITIES
    );
}

#[derive(Clone, Debug)]
enum Step {
    Grant(u8),
    Open { capability: usize, foreign: bool },
    Finish(usize),
    Abort(usize),
    Wait(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u8..3).prop_map(Step::Grant),
        (0usize..8, prop::bool::weighted(0.1))
            .prop_map(|(capability, foreign)| Step::Open { capability, foreign }),
        (0usize..16).prop_map(Step::Finish),
        (0usize..16).prop_map(Step::Abort),
        (0i64..700).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn capability_finishes_at_most_one_transfer_in_any_interleaving(steps in prop::collection::vec(step(), 0..80)) {
        let mut table = CapabilityTable::new();
        let mut now = 0;
        let mut texts: Vec<(String, u8, i64)> = Vec::new();
        let mut transfers: Vec<(TransferId, usize)> = Vec::new();
        let mut finished: HashMap<usize, u32> = HashMap::new();
        for step in steps {
            match step {
                Step::Grant(node) => {
                    let random = texts.len() as u8;
                    texts.push((granted(&mut table, now, random, node), node, now));
                }
                Step::Open { capability, foreign } => {
                    let Some((text, node, granted_at)) = texts.get(capability) else { continue };
                    let opened = table.open(at(now), text, if foreign { ELSEWHERE } else { HOME });
                    if let Ok(transfer) = opened {
                        prop_assert!(!foreign);
                        prop_assert!(now - granted_at <= 600);
                        prop_assert_eq!(transfer.grant, grant(*node));
                        let newest = texts.iter().rposition(|(_, other, _)| other == node);
                        prop_assert_eq!(newest, Some(capability), "an earlier one is void");
                        prop_assert!(!finished.contains_key(&capability));
                        transfers.push((transfer.id, capability));
                    }
                }
                Step::Finish(which) => {
                    let Some((id, capability)) = transfers.get(which) else { continue };
                    if table.finish(*id) {
                        *finished.entry(*capability).or_default() += 1;
                    }
                }
                Step::Abort(which) => {
                    let Some((id, _)) = transfers.get(which) else { continue };
                    table.abort(*id);
                }
                Step::Wait(seconds) => now += seconds,
            }
            prop_assert!(table.open.len() <= table.current.len());
            prop_assert_eq!(table.entries.len(), table.oldest_first.len());
        }
        prop_assert!(finished.values().all(|count| *count == 1), "{:?}", finished);
    }

    #[test]
    fn guessed_capability_is_unknown(guess in "\\PC{0,40}|[0-9a-f]{32}") {
        let mut table = CapabilityTable::new();
        let text = granted(&mut table, 0, 1, 1);
        if guess != text {
            prop_assert_eq!(table.open(at(0), &guess, HOME), Err(Denied::Unknown));
        }
    }
}
