//! Which events and audit lines are kept: each class has its own bound, each source its share of it, and repeats are folded.
//!
//! - **Class.** A record drives out only records of its own [`Class`]. Nobody who forges packets can drive out an alarm, and no refused
//!   request an order that was followed.
//! - **Source.** Within a class, the source with the most records loses its oldest one. A node, a caller, and everybody without a name
//!   are one source each.
//! - **Budget.** A source writes [`Share::burst`] records at once and one more in each [`Share::refill`]. Beyond that, its repeats are
//!   folded: a newer record with a count and the time of the first one takes the place of the older one.
//!
//! Pure: the time is that of the records. What goes is removed in the transaction that brings the newer record.

use crate::fail;
use crate::fleet::{Audit, AuditOutcome, ConditionKind, Event, EventKind, Who};
use crate::id::{NodeId, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Sources whose budget is remembered; all further ones share that of [`Source::Nobody`].
const MAX_BUDGETS: usize = 65_536;
/// Folded records that are open at once, of all sources; beyond it only kind and class tell them apart.
const MAX_FOLDS: usize = 16_384;
/// A folded record counts so long; then the next repeat begins a new one.
const FOLD_LIFE: Duration = Duration::from_secs(24 * 3600);

/// What drives out what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// An attack, or something that looks like one.
    Alarm,
    /// An operator did something.
    Order,
    /// Somebody was refused something.
    Refusal,
    /// What nodes do from day to day.
    Routine,
    /// What machines do that nobody let in.
    Unknown,
}

/// Who causes records.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Somebody without a name that meshd could check.
    Nobody,
    /// A node that was let in.
    Node(NodeId),
    /// An operator, a token, a rule, or meshd itself.
    Caller(Who),
}

/// What one class may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Records that are kept.
    pub(super) records: usize,
    /// Records that a source writes at once.
    pub(super) burst: u32,
    /// Time in which a source gets one more.
    pub(super) refill: Duration,
    /// Folded records of a source that are told apart by more than their kind.
    pub(super) distinct: usize,
}

const fn share(records: usize, burst: u32, refill_seconds: u64, distinct: usize) -> Share {
    Share { records, burst, refill: Duration::from_secs(refill_seconds), distinct }
}

/// A kind of records that is kept this way.
pub(super) trait Record: Clone {
    /// What it is told apart by, for its bound.
    fn class(&self) -> Class;
    /// Who caused it, within its class.
    fn source(&self) -> Source;
    /// When.
    fn at(&self) -> Timestamp;
    /// What, in general, and what in particular: repeats agree in both.
    fn topic(&self) -> (String, String);
    /// Counts what an earlier record stands for.
    fn add_earlier(&mut self, earlier: &Self);
    /// What a class of these records may take.
    fn share(class: Class) -> Share;
}

/// True if a condition is an everyday one: it is about a node's health, not about who it is.
fn is_routine(condition: ConditionKind) -> bool {
    matches!(
        condition,
        ConditionKind::WeakIdentity
            | ConditionKind::BootStalled
            | ConditionKind::BootLoop
            | ConditionKind::OverlayMissing
            | ConditionKind::RebootRequired
            | ConditionKind::Drift
            | ConditionKind::UnitDrift
            | ConditionKind::CheckFailed
            | ConditionKind::ImageMissing
            | ConditionKind::RenderFailed
    )
}

fn is_caller(who: &Who) -> bool {
    matches!(who, Who::Operator(_) | Who::Token(_))
}

impl Record for Event {
    fn class(&self) -> Class {
        let is_nobodys = self.is_unknown || self.node.is_none();
        match &self.kind {
            _ if self.by.as_ref().is_some_and(|by| is_caller(&by.who)) => Class::Order,
            EventKind::Raised { condition } | EventKind::Cleared { condition } if !is_routine(*condition) => Class::Alarm,
            EventKind::OtherDhcpServer | EventKind::PoolExhausted => Class::Alarm,
            EventKind::EnrolRefused | EventKind::BootRefused => Class::Refusal,
            EventKind::Reloaded | EventKind::ReloadRefused | EventKind::BackedUp | EventKind::Restored => Class::Order,
            EventKind::AuthorityChanged => Class::Order,
            _ if is_nobodys => Class::Unknown,
            _ => Class::Routine,
        }
    }

    fn source(&self) -> Source {
        match (&self.by, self.node) {
            (Some(by), _) if is_caller(&by.who) => Source::Caller(by.who.clone()),
            (_, Some(node)) if !self.is_unknown => Source::Node(node),
            _ => Source::Nobody,
        }
    }

    fn at(&self) -> Timestamp {
        self.at
    }

    fn topic(&self) -> (String, String) {
        let node = self.node.map(|node| node.to_string()).unwrap_or_default();
        match &self.by {
            Some(by) => (format!("{} {}", self.kind.word(), by.verb), node),
            None => (self.kind.word().to_owned(), format!("{node} {}", self.detail)),
        }
    }

    fn add_earlier(&mut self, earlier: &Self) {
        self.count = self.count.saturating_add(earlier.count);
        self.first_at = Some(earlier.first_at.unwrap_or(earlier.at));
    }

    fn share(class: Class) -> Share {
        match class {
            Class::Alarm => share(40_000, 200, 300, 64),
            Class::Order => share(40_000, 2_000, 10, 4_096),
            Class::Refusal => share(20_000, 200, 300, 64),
            Class::Routine => share(80_000, 2_000, 10, 64),
            // A rack of 10,000 new machines may power on at once.
            Class::Unknown => share(20_000, 20_000, 1, 64),
        }
    }
}

impl Record for Audit {
    fn class(&self) -> Class {
        match self.outcome {
            _ if !is_caller(&self.by.who) => Class::Routine,
            AuditOutcome::Refused(_) => Class::Refusal,
            AuditOutcome::Done | AuditOutcome::Failed(_) => Class::Order,
        }
    }

    fn source(&self) -> Source {
        match self.node {
            Some(node) if self.by.who == Who::Node => Source::Node(node),
            _ => Source::Caller(self.by.who.clone()),
        }
    }

    fn at(&self) -> Timestamp {
        self.at
    }

    fn topic(&self) -> (String, String) {
        (format!("{} {}", self.by.verb, self.outcome.code()), self.target.clone().unwrap_or_default())
    }

    fn add_earlier(&mut self, earlier: &Self) {
        self.count = self.count.saturating_add(earlier.count);
        self.first_at = Some(earlier.first_at.unwrap_or(earlier.at));
    }

    fn share(class: Class) -> Share {
        match class {
            Class::Order => share(60_000, 2_000, 10, 4_096),
            Class::Alarm | Class::Refusal => share(20_000, 200, 60, 64),
            Class::Routine | Class::Unknown => share(20_000, 2_000, 10, 64),
        }
    }
}

/// The numbers of all records of one class that are kept.
#[derive(Debug, Default)]
struct Ring {
    by_source: BTreeMap<Source, BTreeSet<u64>>,
    by_size: BTreeSet<(usize, Source)>,
    total: usize,
}

impl Ring {
    fn edit(&mut self, source: &Source, edit: impl FnOnce(&mut BTreeSet<u64>)) {
        let mut own = self.by_source.remove(source).unwrap_or_default();
        self.by_size.remove(&(own.len(), source.clone()));
        self.total -= own.len();
        edit(&mut own);
        self.total += own.len();
        if !own.is_empty() {
            self.by_size.insert((own.len(), source.clone()));
            self.by_source.insert(source.clone(), own);
        }
    }

    fn insert(&mut self, source: &Source, number: u64) {
        self.edit(source, |own| drop(own.insert(number)));
    }

    fn remove(&mut self, source: &Source, number: u64) {
        self.edit(source, |own| drop(own.remove(&number)));
    }

    /// The oldest record of the source that has most.
    fn evict(&mut self) -> Option<u64> {
        let (_, source) = self.by_size.last()?.clone();
        let mut oldest = None;
        self.edit(&source, |own| oldest = own.pop_first());
        oldest
    }
}

/// What a source may still write.
#[derive(Debug)]
struct Budget {
    left: u32,
    /// The last refill.
    at: Timestamp,
    /// Folded records that are open.
    folds: usize,
}

/// A folded record that counts on.
#[derive(Debug)]
struct Fold<T> {
    number: u64,
    source: Source,
    record: T,
}

/// Class, source, what in general, what in particular.
type Topic = (Class, Source, String, Option<String>);

/// Everything that is known of one kind of records.
#[derive(Debug)]
pub(super) struct Retained<T> {
    next: u64,
    rings: BTreeMap<Class, Ring>,
    budgets: BTreeMap<(Class, Source), Budget>,
    folds: BTreeMap<Topic, Fold<T>>,
}

/// What becomes of new records.
#[derive(Debug)]
pub(super) struct Taken<T> {
    /// All of them, with their numbers.
    pub(super) all: Vec<(u64, T)>,
    /// Records that go, new ones too.
    pub(super) gone: BTreeSet<u64>,
}

impl<T> Default for Retained<T> {
    fn default() -> Self {
        Retained { next: 0, rings: BTreeMap::new(), budgets: BTreeMap::new(), folds: BTreeMap::new() }
    }
}

impl<T: Record> Retained<T> {
    /// The number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// How many records are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.rings.values().map(|ring| ring.total).sum()
    }

    /// Numbers go on here.
    pub(super) fn go_on_at(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Remembers a stored record; gives those that go for it.
    pub(super) fn load(&mut self, number: u64, record: &T) -> Option<u64> {
        self.go_on_at(number + 1);
        let (class, source) = place(record);
        self.keep(class, &source, number)
    }

    /// Numbers new records and decides what goes for them.
    pub(super) fn take(&mut self, records: Vec<T>) -> Taken<T> {
        let mut taken = Taken { all: Vec::with_capacity(records.len()), gone: BTreeSet::new() };
        for mut record in records {
            let number = self.next;
            self.next += 1;
            let (class, source) = place(&record);
            if !self.may_write(class, &source, record.at()) && fail::defends("evidence-folding") {
                taken.gone.extend(self.fold(class, &source, number, &mut record));
            }
            taken.gone.extend(self.keep(class, &source, number));
            taken.all.push((number, record));
        }
        taken
    }

    fn keep(&mut self, class: Class, source: &Source, number: u64) -> Option<u64> {
        let ring = self.rings.entry(class).or_default();
        ring.insert(source, number);
        if ring.total > T::share(class).records { ring.evict() } else { None }
    }

    /// Spends one record of a source's budget; false if nothing is left.
    fn may_write(&mut self, class: Class, source: &Source, now: Timestamp) -> bool {
        let share = T::share(class);
        let budget = self.budget(class, source, now);
        let refill = u64::try_from(share.refill.as_millis()).unwrap_or(u64::MAX);
        let since = u64::try_from(now.since(budget.at).as_millis()).unwrap_or(u64::MAX);
        let more = since / refill;
        if more > 0 {
            budget.left = budget.left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(share.burst);
            budget.at = budget.at.after(share.refill * u32::try_from(more).unwrap_or(u32::MAX));
        }
        // After the clock was set back.
        budget.at = budget.at.min(now);
        let may = budget.left > 0;
        budget.left = budget.left.saturating_sub(1);
        may
    }

    fn budget(&mut self, class: Class, source: &Source, now: Timestamp) -> &mut Budget {
        let mut key = (class, source.clone());
        let burst = T::share(class).burst;
        if self.budgets.len() >= MAX_BUDGETS && !self.budgets.contains_key(&key) {
            self.budgets.retain(|_, budget| budget.left < burst || budget.folds > 0);
            if self.budgets.len() >= MAX_BUDGETS {
                key.1 = Source::Nobody;
            }
        }
        self.budgets.entry(key).or_insert(Budget { left: burst, at: now, folds: 0 })
    }

    /// Makes a record stand for its earlier repeats too; gives the earlier one, which goes.
    fn fold(&mut self, class: Class, source: &Source, number: u64, record: &mut T) -> Option<u64> {
        let topic = self.topic(class, source, record);
        let earlier = self.folds.remove(&topic);
        let gone = earlier.and_then(|fold| {
            if record.at().since(fold.record.at()) > FOLD_LIFE {
                return None;
            }
            record.add_earlier(&fold.record);
            self.rings.entry(class).or_default().remove(&fold.source, fold.number);
            Some(fold.number)
        });
        self.folds.insert(topic, Fold { number, source: source.clone(), record: record.clone() });
        gone
    }

    /// What a record is a repeat of. There are few of them for each source, and few in all.
    fn topic(&mut self, class: Class, source: &Source, record: &T) -> Topic {
        let now = record.at();
        if self.folds.len() >= MAX_FOLDS {
            self.close_old(now);
        }
        let (kind, subject) = record.topic();
        let topic = (class, source.clone(), kind.clone(), Some(subject));
        if self.folds.contains_key(&topic) {
            return topic;
        }
        if self.folds.len() >= MAX_FOLDS {
            return (class, Source::Nobody, kind, None);
        }
        let distinct = T::share(class).distinct;
        let budget = self.budget(class, source, now);
        if budget.folds >= distinct {
            return (class, source.clone(), kind, None);
        }
        budget.folds += 1;
        topic
    }

    /// Closes folded records that count no longer.
    fn close_old(&mut self, now: Timestamp) {
        let budgets = &mut self.budgets;
        self.folds.retain(|(class, source, _, subject), fold| {
            let stays = now.since(fold.record.at()) <= FOLD_LIFE;
            if !stays && subject.is_some()
                && let Some(budget) = budgets.get_mut(&(*class, source.clone()))
            {
                budget.folds = budget.folds.saturating_sub(1);
            }
            stays
        });
    }
}

/// Class and source of a record.
fn place<T: Record>(record: &T) -> (Class, Source) {
    let class = if fail::defends("evidence-classes") { record.class() } else { Class::Routine };
    let source = if fail::defends("evidence-shares") { record.source() } else { Source::Nobody };
    (class, source)
}

#[cfg(test)]
#[path = "retain_tests.rs"]
mod tests;
