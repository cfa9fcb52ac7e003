//! Tests of the boot queue: single cases and random sequences.

use super::{
    Admission::{Approved, Unknown},
    QueueAnswer::Admitted,
    *,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn mac(number: u16) -> MacAddr {
    let [high, low] = number.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

fn position(answer: QueueAnswer) -> usize {
    match answer {
        Admitted => 0,
        QueueAnswer::Wait { position, .. } => position,
    }
}

#[test]
fn boot_queue_is_first_in_first_out() {
    let mut queue = BootQueue::new(2);
    let positions: Vec<usize> =
        (1..=5).map(|number| position(queue.request(at(10), mac(number), Approved))).collect();
    assert_eq!(positions, [0, 0, 1, 2, 3]);
    queue.finish(at(11), mac(1));
    assert_eq!(
        position(queue.request(at(11), mac(5), Approved)),
        3,
        "there is room, and it is the third's"
    );
    assert_eq!(position(queue.request(at(11), mac(4), Approved)), 2);
    assert_eq!(position(queue.request(at(11), mac(6), Approved)), 4, "a newcomer goes to the end");
    assert_eq!(position(queue.request(at(11), mac(3), Approved)), 0);
    assert_eq!(position(queue.request(at(11), mac(4), Approved)), 1);
    assert_eq!((queue.loading(), queue.waiting()), (2, 3));
}

#[test]
fn repeated_request_keeps_position_and_loading_machine_is_admitted() {
    let mut queue = BootQueue::new(1);
    assert_eq!(queue.request(at(10), mac(1), Approved), Admitted);
    for second in 11..20 {
        assert_eq!(position(queue.request(at(second), mac(2), Approved)), 1);
        assert_eq!(queue.request(at(second), mac(1), Approved), Admitted);
    }
    assert_eq!((queue.loading(), queue.waiting()), (1, 1));
}

#[test]
fn queued_machine_without_retry_expires_after_delay_and_grace() {
    let mut queue = BootQueue::new(1);
    queue.request(at(10), mac(1), Approved);
    let QueueAnswer::Wait { seconds, position: 1 } = queue.request(at(10), mac(2), Approved) else {
        panic!("it waits")
    };
    queue.request(at(10), mac(3), Approved);
    queue.finish(at(11), mac(1));
    let last = at(10) + at(seconds.into()) + GRACE;
    assert_eq!(position(queue.request(last, mac(3), Approved)), 2, "the second may still come");
    assert_eq!(queue.request(last + at(1), mac(3), Approved), Admitted);
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn queue_slot_of_silent_loader_is_freed() {
    let mut queue = BootQueue::new(2);
    queue.request(at(10), mac(1), Approved);
    queue.request(at(10), mac(2), Approved);
    queue.record_progress(at(100), mac(2));
    let later = at(10) + PROGRESS_TIMEOUT + at(1);
    assert_eq!(queue.request(later, mac(3), Approved), Admitted, "it replaces the first machine");
    assert_eq!(position(queue.request(later, mac(4), Approved)), 1, "the second still loads");
}

#[test]
fn retry_delay_follows_position_and_mean_loading_time() {
    let mut queue = BootQueue::new(10);
    for number in 0..10 {
        queue.request(at(0), mac(number), Approved);
    }
    let first = queue.request(at(0), mac(10), Approved);
    assert_eq!(first, QueueAnswer::Wait { seconds: 1, position: 1 });
    for number in 11..40 {
        queue.request(at(0), mac(number), Approved);
    }
    assert_eq!(
        queue.request(at(0), mac(39), Approved),
        QueueAnswer::Wait { seconds: 30, position: 30 },
        "three portions of ten seconds"
    );
    for number in 0..10 {
        queue.finish(at(1), mac(number));
    }
    let QueueAnswer::Wait { seconds, .. } = queue.request(at(1), mac(39), Approved) else {
        panic!("it waits")
    };
    assert!((1..30).contains(&seconds), "loading takes less than was guessed: {seconds}");
}

#[test]
fn full_boot_queue_answers_with_retry_delay_and_adds_no_entry() {
    let mut queue = BootQueue::new(1);
    for number in 0..u32::try_from(MAX_WAITING).expect("it fits") + 10 {
        let [_, a, b, c] = number.to_be_bytes();
        queue.request(at(0), MacAddr([2, 0, 0, a, b, c]), Approved);
    }
    assert_eq!(queue.waiting(), MAX_WAITING);
    let answer = queue.request(at(0), MacAddr([2, 1, 0, 0, 0, 0]), Approved);
    assert_eq!(answer, QueueAnswer::Wait { seconds: 30, position: MAX_WAITING + 1 });
    assert_eq!((queue.waiting(), queue.approved.tickets.len()), (MAX_WAITING, MAX_WAITING));
}

#[test]
fn unknown_machines_receive_a_quarter_of_the_loading_limit() {
    let mut queue = BootQueue::new(256);
    for number in 0..1000 {
        queue.request(at(10), mac(number), Unknown);
    }
    assert_eq!((queue.loading(), queue.waiting()), (64, 936));
    for number in 1000..1192 {
        assert_eq!(queue.request(at(11), mac(number), Approved), Admitted, "{number}");
    }
    assert_eq!(
        position(queue.request(at(11), mac(2000), Approved)),
        1,
        "before every unknown one that waits"
    );
    queue.finish(at(12), mac(0));
    assert_eq!(position(queue.request(at(12), mac(64), Unknown)), 2);
    assert_eq!(queue.request(at(12), mac(2000), Approved), Admitted);
}

#[test]
fn unknown_machine_loses_loading_slot_after_time_limit_despite_progress() {
    let mut queue = BootQueue::new(4);
    let holds = |queue: &BootQueue| queue.loading.contains_key(&mac(1));
    assert_eq!(queue.request(at(0), mac(1), Unknown), Admitted);
    for second in (10..=UNKNOWN_TIME.as_secs()).step_by(10) {
        queue.record_progress(at(second), mac(1));
        assert_eq!(queue.request(at(second), mac(1), Unknown), Admitted, "{second}");
        assert_eq!(position(queue.request(at(second), mac(2), Unknown)), 1);
    }
    let over = UNKNOWN_TIME + at(2);
    assert_eq!(queue.request(over, mac(2), Unknown), Admitted);
    assert!(!holds(&queue), "another machine loads");
    assert_eq!(position(queue.request(over, mac(1), Unknown)), 1);
}

#[test]
fn unknown_machine_without_progress_loses_loading_slot() {
    let mut queue = BootQueue::new(4);
    queue.request(at(0), mac(1), Unknown);
    for second in 1..=PROGRESS_TIMEOUT.as_secs() {
        queue.request(at(second), mac(1), Unknown);
    }
    assert_eq!(
        queue.request(PROGRESS_TIMEOUT + at(2), mac(2), Unknown),
        Admitted,
        "a request is no progress"
    );
}

#[test]
fn machine_approved_in_queue_leaves_the_share_of_unknown_machines() {
    let mut queue = BootQueue::new(4);
    queue.request(at(0), mac(1), Unknown);
    assert_eq!(position(queue.request(at(0), mac(2), Unknown)), 1);
    assert_eq!(queue.request(at(0), mac(2), Approved), Admitted);
    assert_eq!((queue.loading(), queue.waiting()), (2, 0));
    queue.request(at(0), mac(1), Approved);
    assert_eq!(queue.request(at(0), mac(3), Unknown), Admitted, "no unknown machine loads");
}

#[derive(Clone, Debug)]
enum Step {
    Request(u16),
    Progress(u16),
    Finish(u16),
    Leave(u16),
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0u16..12;
    prop_oneof![
        6 => number.clone().prop_map(Step::Request),
        1 => number.clone().prop_map(Step::Progress),
        2 => number.clone().prop_map(Step::Finish),
        1 => number.prop_map(Step::Leave),
        2 => (0u16..100).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn boot_queue_keeps_limit_and_one_entry_per_machine(limit in 1usize..5, steps in prop::collection::vec(step(), 0..200)) {
        let mut queue = BootQueue::new(limit);
        let mut now = at(0);
        for step in steps {
            match step {
                Step::Request(number) => {
                    let in_time = |ticket: &u64| queue.approved.waiting[ticket].until >= now;
                    let before = queue.approved.tickets.get(&mac(number)).filter(|ticket| in_time(ticket)).and(queue.position(mac(number)));
                    let answer = queue.request(now, mac(number), Approved);
                    if let (Some(before), QueueAnswer::Wait { position, .. }) = (before, answer) {
                        prop_assert!(position <= before, "nobody falls back");
                    }
                }
                Step::Progress(number) => queue.record_progress(now, mac(number)),
                Step::Finish(number) => queue.finish(now, mac(number)),
                Step::Leave(number) => queue.remove(mac(number)),
                Step::Pass(seconds) => now += at(seconds.into()),
            }
            prop_assert!(queue.loading() <= limit);
            let waiting: BTreeSet<MacAddr> = queue.approved.waiting.values().map(|waiting| waiting.mac).collect();
            prop_assert_eq!(waiting.len(), queue.waiting());
            prop_assert_eq!(queue.approved.tickets.len(), queue.waiting());
            prop_assert!(waiting.iter().all(|mac| !queue.loading.contains_key(mac)));
        }
    }

    #[test]
    fn machines_that_retry_in_time_all_load_once(limit in 1usize..8, count in 1u16..60, takes in 1u64..40) {
        let mut queue = BootQueue::new(limit);
        let mut due: BTreeMap<(Duration, u16), ()> = (0..count).map(|number| ((at(0), number), ())).collect();
        let mut ends: BTreeSet<(Duration, u16)> = BTreeSet::new();
        let mut order = Vec::new();
        let mut requests = 0u32;
        while let Some(((now, number), ())) = due.pop_first() {
            requests += 1;
            prop_assert!(requests < 100_000, "it comes to an end");
            while let Some((end, done)) = ends.first().copied().filter(|(end, _)| *end <= now) {
                ends.remove(&(end, done));
                queue.finish(end, mac(done));
            }
            match queue.request(now, mac(number), Approved) {
                Admitted => {
                    order.push(number);
                    ends.insert((now + at(takes), number));
                }
                QueueAnswer::Wait { seconds, .. } => drop(due.insert((now + at(seconds.into()), number), ())),
            }
        }
        prop_assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), usize::from(count), "everybody, once");
        prop_assert!(limit > 1 || order.is_sorted(), "with room for one it is the order in which they came: {:?}", order);
    }
}
