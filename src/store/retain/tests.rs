//! Tests of retention: isolation of sources, and counted repeats.

use super::*;
use meshd_model::fleet::{Actor, Audit, AuditContext, AuditOutcome, ConditionKind, Event, EventKind, Verb};
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

fn by(who: &str, verb: Verb) -> AuditContext {
    AuditContext::new(who.parse().expect("somebody"), verb, CorrelationId([1; 8]))
}

fn line(who: &str, verb: Verb, target: &str, seconds: i64) -> Audit {
    Audit { target: Some(target.to_owned()), ..Audit::done(at(seconds), by(who, verb)) }
}

fn refused(who: &str, target: &str, seconds: i64) -> Audit {
    Audit { outcome: AuditOutcome::Refused("forbidden".to_owned()), ..line(who, Verb::Approve, target, seconds) }
}

/// What a store holds after all of it.
struct Held<T>(Retained<T>, BTreeMap<u64, T>);

impl<T> Default for Held<T> {
    fn default() -> Self {
        Held(Retained::default(), BTreeMap::new())
    }
}

impl<T: Record> Held<T> {
    fn add_all(&mut self, record: T) {
        let NewRecords { all, evicted } = self.0.add_all(vec![record]);
        self.1.extend(all);
        evicted.iter().for_each(|number| drop(self.1.remove(number)));
        assert_eq!(self.1.len(), self.0.len(), "what is counted is what is kept");
    }

    fn count(&self, fits: impl Fn(&T) -> bool) -> usize {
        self.1.values().filter(|record| fits(record)).count()
    }
}

#[test]
fn invented_machines_evict_neither_alarms_nor_orders_nor_nodes() {
    let mut held = Held::default();
    held.add_all(alarm(id(0), "02:00:00:00:66:66", 1));
    held.add_all(Event::new(at(1), &by("uid:0", Verb::Approve), EventKind::Discovered, "").of_node(id(0)));
    held.add_all(started("the node's own", 1).of_node(id(0)));
    for n in 0..100_000 {
        held.add_all(started(&format!("MAC {n}"), 2 + n / 5_000));
    }
    assert_eq!(held.count(|event| event.detail == "02:00:00:00:66:66"), 1);
    assert_eq!(held.count(|event| event.by.is_some()), 1);
    assert_eq!(held.count(|event| event.detail == "the node's own"), 1);
    assert!(held.1.len() <= Event::share(Class::Unknown).records + 3, "{}", held.1.len());
}

#[test]
fn refused_requests_of_a_token_evict_no_line_of_an_operator() {
    let mut held = Held::default();
    (0..1000).for_each(|n| held.add_all(line("uid:0", Verb::Vars, &format!("node-{n}"), n)));
    (0..3).for_each(|n| held.add_all(refused("token:other", &format!("node-{n}"), 1001)));
    for n in 0..100_000 {
        held.add_all(refused("token:viewer", &format!("x{n}"), 1001 + n / 1_290));
    }
    assert_eq!(held.count(|line| line.by.who.to_string() == "uid:0"), 1000, "the last 1,000 orders are there");
    assert_eq!(held.count(|line| line.by.who.to_string() == "token:other"), 3);
    let refused: Vec<_> = held.1.values().filter(|line| line.by.who.to_string() == "token:viewer").collect();
    assert!(refused.len() < 1_000, "{} lines", refused.len());
    assert_eq!(refused.iter().map(|line| line.count).sum::<u32>(), 100_000, "every one is counted");
}

#[test]
fn node_that_floods_its_events_loses_its_own_and_no_others() {
    let mut held = Held::default();
    for n in 1..=40 {
        (0..100).for_each(|_| held.add_all(started("boot", 1).of_node(id(n))));
    }
    for n in 0..200_000 {
        // Slow enough for its budget.
        held.add_all(started(&format!("renewal {n}"), 10 * n).of_node(id(99)));
    }
    for n in 1..=40 {
        assert_eq!(held.count(|event| event.node == Some(id(n))), 100);
    }
    assert!(held.1.len() <= Event::share(Class::Routine).records);
}

#[test]
fn repeats_beyond_the_budget_are_one_record_with_count_and_times() {
    let mut held = Held::default();
    (0..1_000).for_each(|n| held.add_all(alarm(id(0), "02:00:00:00:66:66", n / 100)));
    held.add_all(alarm(id(0), "02:00:00:00:77:77", 10));
    let burst = Event::share(Class::Alarm).burst;
    let folded = held.1.values().find(|event| event.count > 1).expect("a folded record");
    assert_eq!((folded.count, folded.first_at, folded.at), (1_000 - burst, Some(at(2)), at(9)));
    let (number, last) = held.1.last_key_value().expect("a record");
    assert_eq!(
        (*number, last.detail.as_str(), last.count),
        (1_000, "02:00:00:00:77:77", 1),
        "another one is not hidden"
    );
    (0..10_000).for_each(|n| held.add_all(alarm(id(0), &format!("invented {n}"), 11)));
    assert_eq!(held.count(|event| event.detail == "02:00:00:00:77:77"), 1);
    let counted: u32 = held.1.values().map(|event| event.count).sum();
    assert_eq!(counted, 11_001, "nothing is lost");
    assert!(held.1.len() < 300, "{}", held.1.len());
    held.add_all(alarm(id(0), "02:00:00:00:66:66", 3 * 24 * 3600));
    assert_eq!(held.1.last_key_value().expect("a record").1.count, 1, "its budget has come back");
}

#[test]
fn folded_records_of_many_sources_are_bounded() {
    let mut held = Held::default();
    for n in 0..300 {
        (0..200).for_each(|source| held.add_all(alarm(id(source), &format!("{n}"), 1)));
    }
    assert!(held.0.folds.len() <= MAX_FOLDS + 1, "{}", held.0.folds.len());
    assert!(held.1.len() <= Event::share(Class::Alarm).records);
    let mut of: BTreeMap<_, usize> = BTreeMap::new();
    held.1.values().for_each(|event| *of.entry(event.node).or_default() += 1);
    assert!(of.len() == 200 && of.values().all(|count| *count >= 199), "{of:?}");
}

#[test]
fn records_of_an_earlier_release_beyond_the_bounds_go_oldest_first() {
    let mut retained = Retained::default();
    let bound = Event::share(Class::Unknown).records as u64;
    let evicted: Vec<u64> = (0..bound + 5).filter_map(|number| retained.load(number, &started("", 1))).collect();
    assert_eq!(evicted, [0, 1, 2, 3, 4]);
    assert_eq!(retained.next(), bound + 5);
}
