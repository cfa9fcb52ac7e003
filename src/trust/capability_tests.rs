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

fn granted(book: &mut Book, seconds: i64, random: u8, node: u8) -> String {
    book.grant(at(seconds), [random; 16], grant(node)).expose().clone()
}

#[test]
fn capability_opens_one_complete_transfer_to_its_address() {
    let mut book = Book::new();
    let text = granted(&mut book, 0, 1, 1);
    assert_eq!(text.len(), TEXT_LEN);
    assert_eq!(book.open(at(1), &text, ELSEWHERE), Err(Denied::Foreign(grant(1))));
    assert_eq!(book.probe(at(1), &text, HOME), Ok(grant(1)), "a probe consumes nothing");
    let transfer = book.open(at(1), &text, HOME).expect("it is ready");
    assert_eq!(book.open(at(1), &text, HOME), Err(Denied::Busy(grant(1))));
    assert!(book.finish(transfer.id));
    assert_eq!(book.open(at(2), &text, HOME), Err(Denied::Spent(grant(1))));
    assert_eq!(book.open(at(2), &text, ELSEWHERE), Err(Denied::Foreign(grant(1))), "an alarm in any state");
    assert!(!book.finish(transfer.id) && !book.abort(transfer.id));
}

#[test]
fn aborted_transfer_may_be_retried() {
    let mut book = Book::new();
    let text = granted(&mut book, 0, 1, 1);
    let first = book.open(at(1), &text, HOME).expect("ready");
    assert!(book.abort(first.id));
    let second = book.open(at(2), &text, HOME).expect("ready again");
    assert_ne!(first.id, second.id);
    assert!(!book.finish(first.id), "the first one is over");
    assert!(book.finish(second.id));
}

#[test]
fn later_capability_of_node_voids_earlier_one_and_its_transfer() {
    let mut book = Book::new();
    let old = granted(&mut book, 0, 1, 1);
    let transfer = book.open(at(1), &old, HOME).expect("ready");
    assert!(book.is_open(transfer.id));
    let new = granted(&mut book, 2, 2, 1);
    assert!(!book.is_open(transfer.id), "nothing more is minted for it");
    assert!(!book.finish(transfer.id), "what was sent counts no more");
    assert_eq!(book.open(at(2), &old, HOME), Err(Denied::Expired));
    assert!(book.open(at(2), &new, HOME).is_ok());
    let other = granted(&mut book, 2, 3, 2);
    assert!(book.open(at(2), &other, HOME).is_ok(), "another node's is another matter");
}

#[test]
fn capability_expires_after_ten_minutes_and_is_forgotten_after_an_hour() {
    let mut book = Book::new();
    let text = granted(&mut book, 0, 1, 1);
    assert_eq!(book.probe(at(600), &text, HOME), Ok(grant(1)));
    assert_eq!(book.open(at(601), &text, HOME), Err(Denied::Expired));
    granted(&mut book, 3601, 2, 2);
    assert_eq!(book.open(at(3601), &text, HOME), Err(Denied::Unknown));
    assert_eq!(book.len(), 1);
}

#[test]
fn transfer_begun_before_expiry_may_finish_later() {
    let mut book = Book::new();
    let text = granted(&mut book, 0, 1, 1);
    let transfer = book.open(at(599), &text, HOME).expect("ready");
    assert_eq!(book.open(at(700), &text, HOME), Err(Denied::Busy(grant(1))));
    assert!(book.finish(transfer.id));
}

#[test]
fn capability_table_is_bounded_and_drops_the_oldest() {
    let mut book = Book::new();
    let nodes = |n: usize| Grant { session: BootSessionId([1; 12]), ..grant((n % 10) as u8) };
    let mut first = None;
    for n in 0..MAX_CAPABILITIES + 10 {
        let mut random = [0; 16];
        random[..8].copy_from_slice(&(n as u64).to_be_bytes());
        let text = book.grant(at(0), random, nodes(n)).expose().clone();
        first.get_or_insert(text);
    }
    assert_eq!(book.len(), MAX_CAPABILITIES);
    assert!(book.open.is_empty() && book.current.len() == 10 && book.oldest_first.len() == MAX_CAPABILITIES);
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
        (0usize..8, prop::bool::weighted(0.1)).prop_map(|(capability, foreign)| Step::Open { capability, foreign }),
        (0usize..16).prop_map(Step::Finish),
        (0usize..16).prop_map(Step::Abort),
        (0i64..700).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn capability_finishes_at_most_one_transfer_in_any_interleaving(steps in prop::collection::vec(step(), 0..80)) {
        let (mut book, mut now) = (Book::new(), 0);
        let mut texts: Vec<(String, u8, i64)> = Vec::new();
        let mut transfers: Vec<(TransferId, usize)> = Vec::new();
        let mut finished: HashMap<usize, u32> = HashMap::new();
        for step in steps {
            match step {
                Step::Grant(node) => {
                    let random = texts.len() as u8;
                    texts.push((granted(&mut book, now, random, node), node, now));
                }
                Step::Open { capability, foreign } => {
                    let Some((text, node, granted_at)) = texts.get(capability) else { continue };
                    let opened = book.open(at(now), text, if foreign { ELSEWHERE } else { HOME });
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
                    if book.finish(*id) {
                        *finished.entry(*capability).or_default() += 1;
                    }
                }
                Step::Abort(which) => {
                    let Some((id, _)) = transfers.get(which) else { continue };
                    book.abort(*id);
                }
                Step::Wait(seconds) => now += seconds,
            }
            prop_assert!(book.open.len() <= book.current.len());
            prop_assert_eq!(book.entries.len(), book.oldest_first.len());
        }
        prop_assert!(finished.values().all(|count| *count == 1), "{:?}", finished);
    }

    #[test]
    fn guessed_capability_is_unknown(guess in "\\PC{0,40}|[0-9a-f]{32}") {
        let mut book = Book::new();
        let text = granted(&mut book, 0, 1, 1);
        if guess != text {
            prop_assert_eq!(book.open(at(0), &guess, HOME), Err(Denied::Unknown));
        }
    }
}
