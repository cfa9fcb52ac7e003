//! The line, alone and under storms that proptest makes up.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn mac(number: u16) -> MacAddr {
    let [high, low] = number.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

fn place(turn: QueueAnswer) -> usize {
    match turn {
        QueueAnswer::Admitted => 0,
        QueueAnswer::Wait { place, .. } => place,
    }
}

#[test]
fn who_comes_first_loads_first_and_a_later_one_never_overtakes() {
    let mut line = BootQueue::new(2);
    let places: Vec<usize> =
        (1..=5).map(|number| place(line.ask(at(10), mac(number), MachineState::Approved))).collect();
    assert_eq!(places, [0, 0, 1, 2, 3]);
    line.finished(at(11), mac(1));
    assert_eq!(place(line.ask(at(11), mac(5), MachineState::Approved)), 3, "there is room, and it is the third's");
    assert_eq!(place(line.ask(at(11), mac(4), MachineState::Approved)), 2);
    assert_eq!(place(line.ask(at(11), mac(6), MachineState::Approved)), 4, "a newcomer goes to the end");
    assert_eq!(place(line.ask(at(11), mac(3), MachineState::Approved)), 0);
    assert_eq!(place(line.ask(at(11), mac(4), MachineState::Approved)), 1);
    assert_eq!((line.loading(), line.waiting()), (2, 3));
}

#[test]
fn a_boot_in_progress_never_waits_and_a_place_is_one_however_often_it_is_asked_for() {
    let mut line = BootQueue::new(1);
    assert_eq!(line.ask(at(10), mac(1), MachineState::Approved), QueueAnswer::Admitted);
    for second in 11..20 {
        assert_eq!(place(line.ask(at(second), mac(2), MachineState::Approved)), 1);
        assert_eq!(line.ask(at(second), mac(1), MachineState::Approved), QueueAnswer::Admitted);
    }
    assert_eq!((line.loading(), line.waiting()), (1, 1));
}

#[test]
fn one_that_vanished_from_the_line_loses_its_place_after_its_wait_and_the_grace() {
    let mut line = BootQueue::new(1);
    line.ask(at(10), mac(1), MachineState::Approved);
    let QueueAnswer::Wait { seconds, place: 1 } = line.ask(at(10), mac(2), MachineState::Approved) else {
        panic!("it waits")
    };
    line.ask(at(10), mac(3), MachineState::Approved);
    line.finished(at(11), mac(1));
    let last = at(10) + at(seconds.into()) + GRACE;
    assert_eq!(place(line.ask(last, mac(3), MachineState::Approved)), 2, "the second may still come");
    assert_eq!(line.ask(last + at(1), mac(3), MachineState::Approved), QueueAnswer::Admitted);
    assert_eq!(line.waiting(), 0);
}

#[test]
fn one_that_vanished_while_loading_makes_room_and_one_that_is_heard_of_does_not() {
    let mut line = BootQueue::new(2);
    line.ask(at(10), mac(1), MachineState::Approved);
    line.ask(at(10), mac(2), MachineState::Approved);
    line.progressed(at(100), mac(2));
    let later = at(10) + PATIENCE + at(1);
    assert_eq!(line.ask(later, mac(3), MachineState::Approved), QueueAnswer::Admitted, "in the place of the first");
    assert_eq!(place(line.ask(later, mac(4), MachineState::Approved)), 1, "the second still loads");
}

#[test]
fn the_wait_follows_the_place_and_what_loading_takes() {
    let mut line = BootQueue::new(10);
    for number in 0..10 {
        line.ask(at(0), mac(number), MachineState::Approved);
    }
    let first = line.ask(at(0), mac(10), MachineState::Approved);
    assert_eq!(first, QueueAnswer::Wait { seconds: 1, place: 1 });
    for number in 11..40 {
        line.ask(at(0), mac(number), MachineState::Approved);
    }
    assert_eq!(
        line.ask(at(0), mac(39), MachineState::Approved),
        QueueAnswer::Wait { seconds: 30, place: 30 },
        "three portions of ten seconds"
    );
    for number in 0..10 {
        line.finished(at(1), mac(number));
    }
    let QueueAnswer::Wait { seconds, .. } = line.ask(at(1), mac(39), MachineState::Approved) else {
        panic!("it waits")
    };
    assert!((1..30).contains(&seconds), "loading takes less than was guessed: {seconds}");
}

#[test]
fn the_line_is_bounded_and_who_does_not_fit_is_told_to_come_again() {
    let mut line = BootQueue::new(1);
    for number in 0..u32::try_from(MAX_WAITING).expect("it fits") + 10 {
        let [_, a, b, c] = number.to_be_bytes();
        line.ask(at(0), MacAddr([2, 0, 0, a, b, c]), MachineState::Approved);
    }
    assert_eq!(line.waiting(), MAX_WAITING);
    let turn = line.ask(at(0), MacAddr([2, 1, 0, 0, 0, 0]), MachineState::Approved);
    assert_eq!(turn, QueueAnswer::Wait { seconds: 30, place: MAX_WAITING + 1 });
    assert_eq!((line.waiting(), line.approved.tickets.len()), (MAX_WAITING, MAX_WAITING));
}

#[test]
fn unknown_machines_hold_a_part_of_the_places_approved_ones_the_rest() {
    let mut line = BootQueue::new(256);
    for number in 0..1000 {
        line.ask(at(10), mac(number), MachineState::Unknown);
    }
    assert_eq!((line.loading(), line.waiting()), (64, 936));
    for number in 1000..1192 {
        assert_eq!(line.ask(at(11), mac(number), MachineState::Approved), QueueAnswer::Admitted, "{number}");
    }
    assert_eq!(place(line.ask(at(11), mac(2000), MachineState::Approved)), 1, "before every unknown one that waits");
    line.finished(at(12), mac(0));
    assert_eq!(place(line.ask(at(12), mac(64), MachineState::Unknown)), 2);
    assert_eq!(line.ask(at(12), mac(2000), MachineState::Approved), QueueAnswer::Admitted);
}

#[test]
fn unknown_machines_lose_their_places_whatever_they_fetch() {
    let mut line = BootQueue::new(4);
    let holds = |line: &BootQueue| line.loading.contains_key(&mac(1));
    assert_eq!(line.ask(at(0), mac(1), MachineState::Unknown), QueueAnswer::Admitted);
    for second in (10..=UNKNOWN_TIME.as_secs()).step_by(10) {
        line.progressed(at(second), mac(1));
        assert_eq!(line.ask(at(second), mac(1), MachineState::Unknown), QueueAnswer::Admitted, "{second}");
        assert_eq!(place(line.ask(at(second), mac(2), MachineState::Unknown)), 1);
    }
    let over = UNKNOWN_TIME + at(2);
    assert_eq!(line.ask(over, mac(2), MachineState::Unknown), QueueAnswer::Admitted);
    assert!(!holds(&line), "its place is another's");
    assert_eq!(place(line.ask(over, mac(1), MachineState::Unknown)), 1);
}

#[test]
fn an_unknown_machine_that_only_asks_is_given_up() {
    let mut line = BootQueue::new(4);
    line.ask(at(0), mac(1), MachineState::Unknown);
    for second in 1..=PATIENCE.as_secs() {
        line.ask(at(second), mac(1), MachineState::Unknown);
    }
    assert_eq!(
        line.ask(PATIENCE + at(2), mac(2), MachineState::Unknown),
        QueueAnswer::Admitted,
        "asking is no progress"
    );
}

#[test]
fn a_machine_approved_while_it_waits_or_loads_is_not_unknown() {
    let mut line = BootQueue::new(4);
    line.ask(at(0), mac(1), MachineState::Unknown);
    assert_eq!(place(line.ask(at(0), mac(2), MachineState::Unknown)), 1);
    assert_eq!(line.ask(at(0), mac(2), MachineState::Approved), QueueAnswer::Admitted);
    assert_eq!((line.loading(), line.waiting()), (2, 0));
    line.ask(at(0), mac(1), MachineState::Approved);
    assert_eq!(line.ask(at(0), mac(3), MachineState::Unknown), QueueAnswer::Admitted, "the unknown's place is free");
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u16),
    Progress(u16),
    Finish(u16),
    Leave(u16),
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0u16..12;
    prop_oneof![
        6 => who.clone().prop_map(Step::Ask),
        1 => who.clone().prop_map(Step::Progress),
        2 => who.clone().prop_map(Step::Finish),
        1 => who.prop_map(Step::Leave),
        2 => (0u16..100).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn never_more_than_the_limit_load_and_nobody_is_in_two_places(limit in 1usize..5, steps in prop::collection::vec(step(), 0..200)) {
        let mut line = BootQueue::new(limit);
        let mut now = at(0);
        for step in steps {
            match step {
                Step::Ask(who) => {
                    let in_time = |ticket: &u64| line.approved.waiting[ticket].until >= now;
                    let before = line.approved.tickets.get(&mac(who)).filter(|ticket| in_time(ticket)).and(line.place(mac(who)));
                    let turn = line.ask(now, mac(who), MachineState::Approved);
                    if let (Some(before), QueueAnswer::Wait { place, .. }) = (before, turn) {
                        prop_assert!(place <= before, "nobody falls back");
                    }
                }
                Step::Progress(who) => line.progressed(now, mac(who)),
                Step::Finish(who) => line.finished(now, mac(who)),
                Step::Leave(who) => line.leave(mac(who)),
                Step::Pass(seconds) => now += at(seconds.into()),
            }
            prop_assert!(line.loading() <= limit);
            let waiting: BTreeSet<MacAddr> = line.approved.waiting.values().map(|waiting| waiting.mac).collect();
            prop_assert_eq!(waiting.len(), line.waiting());
            prop_assert_eq!(line.approved.tickets.len(), line.waiting());
            prop_assert!(waiting.iter().all(|mac| !line.loading.contains_key(mac)));
        }
    }

    #[test]
    fn machines_that_do_as_they_are_told_all_load(limit in 1usize..8, count in 1u16..60, takes in 1u64..40) {
        let mut line = BootQueue::new(limit);
        let mut due: BTreeMap<(Duration, u16), ()> = (0..count).map(|number| ((at(0), number), ())).collect();
        let mut ends: BTreeSet<(Duration, u16)> = BTreeSet::new();
        let mut order = Vec::new();
        let mut turns = 0u32;
        while let Some(((now, number), ())) = due.pop_first() {
            turns += 1;
            prop_assert!(turns < 100_000, "it comes to an end");
            while let Some((end, done)) = ends.first().copied().filter(|(end, _)| *end <= now) {
                ends.remove(&(end, done));
                line.finished(end, mac(done));
            }
            match line.ask(now, mac(number), MachineState::Approved) {
                QueueAnswer::Admitted => {
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
