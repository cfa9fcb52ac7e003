//! Tests of retention: isolation of sources, and counted repeats.

use super::*;
use meshd_model::fleet::{
    Actor, Audit, AuditContext, AuditOutcome, ConditionKind, Event, EventKind, Verb,
};
use meshd_types::{Basis, CorrelationId, MacAddr, NodeId};

/// The n-th node.
fn id(n: u32) -> NodeId {
    let [a, b, c, d] = n.to_be_bytes();
    Basis::Mac(MacAddr([2, 0, a, b, c, d])).node_id()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn alarm(node: NodeId, detail: &str, seconds: i64) -> Event {
    let kind = EventKind::Raised { condition: ConditionKind::BootImpersonated };
    Event::new(at(seconds), Actor::Stranger, kind, detail).of_node(node)
}

fn started(detail: &str, seconds: i64) -> Event {
    Event::new(at(seconds), Actor::Node, EventKind::BootStarted, detail)
}

fn audit_context(actor: &str, verb: Verb) -> AuditContext {
    AuditContext::new(actor.parse().expect("somebody"), verb, CorrelationId([1; 8]))
}

fn line(actor: &str, verb: Verb, target: &str, seconds: i64) -> Audit {
    Audit {
        target: Some(target.to_owned()),
        ..Audit::done(at(seconds), audit_context(actor, verb))
    }
}

fn refused(actor: &str, target: &str, seconds: i64) -> Audit {
    Audit {
        outcome: AuditOutcome::Refused("forbidden".to_owned()),
        ..line(actor, Verb::Approve, target, seconds)
    }
}

/// The retention state and the stored records.
struct TestLog<T>(Retained<T>, BTreeMap<u64, T>);

impl<T> Default for TestLog<T> {
    fn default() -> Self {
        TestLog(Retained::default(), BTreeMap::new())
    }
}

impl<T: Record> TestLog<T> {
    fn add_all(&mut self, record: T) {
        let NewRecords { all, evicted } = self.0.add_all(vec![record]);
        self.1.extend(all);
        evicted.iter().for_each(|number| drop(self.1.remove(number)));
        assert_eq!(self.1.len(), self.0.len(), "the count equals the number of stored records");
    }

    fn count(&self, fits: impl Fn(&T) -> bool) -> usize {
        self.1.values().filter(|record| fits(record)).count()
    }
}

#[test]
fn unknown_machine_flood_evicts_no_alarm_order_or_node_event() {
    let mut log = TestLog::default();
    log.add_all(alarm(id(0), "02:00:00:00:66:66", 1));
    log.add_all(
        Event::new(at(1), &audit_context("uid:0", Verb::Approve), EventKind::Discovered, "")
            .of_node(id(0)),
    );
    log.add_all(started("the node's own", 1).of_node(id(0)));
    for n in 0..100_000 {
        log.add_all(started(&format!("MAC {n}"), 2 + n / 5_000));
    }
    assert_eq!(log.count(|event| event.detail == "02:00:00:00:66:66"), 1);
    assert_eq!(log.count(|event| event.by.is_some()), 1);
    assert_eq!(log.count(|event| event.detail == "the node's own"), 1);
    assert!(log.1.len() <= Event::share(Class::Unknown).records + 3, "{}", log.1.len());
}

#[test]
fn refused_request_flood_evicts_no_audit_line_of_others() {
    let mut log = TestLog::default();
    (0..1000).for_each(|n| log.add_all(line("uid:0", Verb::Vars, &format!("node-{n}"), n)));
    (0..3).for_each(|n| log.add_all(refused("token:other", &format!("node-{n}"), 1001)));
    for n in 0..100_000 {
        log.add_all(refused("token:viewer", &format!("x{n}"), 1001 + n / 1_290));
    }
    assert_eq!(
        log.count(|line| line.by.principal.to_string() == "uid:0"),
        1000,
        "the last 1,000 orders are there"
    );
    assert_eq!(log.count(|line| line.by.principal.to_string() == "token:other"), 3);
    let refused: Vec<_> =
        log.1.values().filter(|line| line.by.principal.to_string() == "token:viewer").collect();
    assert!(refused.len() < 1_000, "{} lines", refused.len());
    assert_eq!(refused.iter().map(|line| line.count).sum::<u32>(), 100_000, "every one is counted");
}

#[test]
fn node_flooding_events_evicts_only_its_own() {
    let mut log = TestLog::default();
    for n in 1..=40 {
        (0..100).for_each(|_| log.add_all(started("boot", 1).of_node(id(n))));
    }
    for n in 0..200_000 {
        // Slow enough for its budget.
        log.add_all(started(&format!("renewal {n}"), 10 * n).of_node(id(99)));
    }
    for n in 1..=40 {
        assert_eq!(log.count(|event| event.node == Some(id(n))), 100);
    }
    assert!(log.1.len() <= Event::share(Class::Routine).records);
}

#[test]
fn events_beyond_budget_fold_into_one_record_with_count_and_times() {
    let mut log = TestLog::default();
    (0..1_000).for_each(|n| log.add_all(alarm(id(0), "02:00:00:00:66:66", n / 100)));
    log.add_all(alarm(id(0), "02:00:00:00:77:77", 10));
    let burst = Event::share(Class::Alarm).burst;
    let folded = log.1.values().find(|event| event.count > 1).expect("a folded record");
    assert_eq!((folded.count, folded.first_at, folded.at), (1_000 - burst, Some(at(2)), at(9)));
    let (number, last) = log.1.last_key_value().expect("a record");
    assert_eq!(
        (*number, last.detail.as_str(), last.count),
        (1_000, "02:00:00:00:77:77", 1),
        "another one is not hidden"
    );
    (0..10_000).for_each(|n| log.add_all(alarm(id(0), &format!("invented {n}"), 11)));
    assert_eq!(log.count(|event| event.detail == "02:00:00:00:77:77"), 1);
    let counted: u32 = log.1.values().map(|event| event.count).sum();
    assert_eq!(counted, 11_001, "nothing is lost");
    assert!(log.1.len() < 300, "{}", log.1.len());
    log.add_all(alarm(id(0), "02:00:00:00:66:66", 3 * 24 * 3600));
    assert_eq!(log.1.last_key_value().expect("a record").1.count, 1, "its budget has come back");
}

#[test]
fn fold_of_a_clock_in_the_future_ends_when_the_clock_goes_back() {
    let mut log = TestLog::default();
    let future = 80 * 365 * 24 * 3600;
    (0..1_000).for_each(|_| log.add_all(alarm(id(0), "02:00:00:00:66:66", future)));
    (0..100).for_each(|_| log.add_all(alarm(id(0), "02:00:00:00:66:66", 5)));
    let present: u32 =
        log.1.values().filter(|event| event.at == at(5)).map(|event| event.count).sum();
    assert_eq!(present, 100);
    assert!(log.1.values().all(|event| event.first_at.is_none_or(|first| first <= event.at)));
}

#[test]
fn folded_records_of_many_sources_are_bounded() {
    let mut log = TestLog::default();
    for n in 0..300 {
        (0..200).for_each(|source| log.add_all(alarm(id(source), &format!("{n}"), 1)));
    }
    assert!(log.0.folds.len() <= MAX_FOLDS + 1, "{}", log.0.folds.len());
    assert!(log.1.len() <= Event::share(Class::Alarm).records);
    let mut count_by_node: BTreeMap<_, usize> = BTreeMap::new();
    log.1.values().for_each(|event| *count_by_node.entry(event.node).or_default() += 1);
    assert!(
        count_by_node.len() == 200 && count_by_node.values().all(|count| *count >= 199),
        "{count_by_node:?}"
    );
}

#[test]
fn surplus_records_of_earlier_release_are_evicted_oldest_first() {
    let mut retained = Retained::default();
    let bound = Event::share(Class::Unknown).records as u64;
    let evicted: Vec<u64> =
        (0..bound + 5).filter_map(|number| retained.load(number, &started("", 1))).collect();
    assert_eq!(evicted, [0, 1, 2, 3, 4]);
    assert_eq!(retained.next(), bound + 5);
}
