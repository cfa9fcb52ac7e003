//! Retention of records: bounds of events and audit lines for each class, shares for each source,
//! folding of repeats; bound of tasks.
//!
//! | module | content |
//! | --- | --- |
//! | `record` | classes and sources of events and audit lines, and the bound of each class |
//! | `finished_tasks` | the oldest finished tasks, which are removed for new ones |
//!
//! - **Class.** A record evicts only records of its own [`Class`]. Forged packets cannot evict an
//!   alarm, and refused requests cannot evict a completed order.
//! - **Source.** Within a class, the source with the most records loses its oldest one. Each node
//!   and each caller is a source; all unidentified ones together are one.
//! - **Budget.** A source may write [`Share::burst`] records at once, and one more in each
//!   [`Share::refill`]. Further repeats are folded: a new record with a count and the time of the
//!   first one replaces the old one.
//!
//! Pure: the time is that of the records. Eviction happens in the transaction that adds the new
//! record.

mod finished_tasks;
mod record;

pub(super) use finished_tasks::surplus_tasks;
pub(super) use record::{Class, Record, Source};

use meshd_types::{Timestamp, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A record that is later than the present by more comes from a clock that was wrong.
pub(super) const CLOCK_TOLERANCE: Duration = Duration::from_secs(86_400);
/// Maximum number of sources with a separate budget; further ones share that of
/// [`Source::Unidentified`].
const MAX_BUDGETS: usize = 65_536;
/// Maximum number of open folded records. Beyond it, records are folded by class and kind only.
const MAX_FOLDS: usize = 16_384;
/// Time in which repeats are folded into one record.
const FOLD_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Minimum interval between two removals of expired budgets and folds.
const SWEEP: Duration = Duration::from_secs(60);

/// The numbers of the stored records of one class.
#[derive(Debug, Default)]
struct Ring {
    by_source: BTreeMap<Source, BTreeSet<u64>>,
    by_size: BTreeSet<(usize, Source)>,
    total: usize,
}

impl Ring {
    fn edit<R>(&mut self, source: &Source, edit: impl FnOnce(&mut BTreeSet<u64>) -> R) -> R {
        let mut numbers = self.by_source.remove(source).unwrap_or_default();
        self.by_size.remove(&(numbers.len(), source.clone()));
        self.total -= numbers.len();
        let result = edit(&mut numbers);
        self.total += numbers.len();
        if !numbers.is_empty() {
            self.by_size.insert((numbers.len(), source.clone()));
            self.by_source.insert(source.clone(), numbers);
        }
        result
    }

    fn insert(&mut self, source: &Source, number: u64) {
        self.edit(source, |numbers| numbers.insert(number));
    }

    fn remove(&mut self, source: &Source, number: u64) {
        self.edit(source, |numbers| numbers.remove(&number));
    }

    /// Removes the oldest record of the source with the most records.
    fn evict(&mut self) -> Option<u64> {
        let (_, source) = self.by_size.last()?.clone();
        self.edit(&source, BTreeSet::pop_first)
    }
}

/// The remaining budget of a source.
#[derive(Debug)]
struct Budget {
    left: u32,
    /// The last refill.
    at: Timestamp,
    /// Folded records that are open.
    folds: usize,
}

/// An open folded record.
#[derive(Debug)]
struct Fold<T> {
    number: u64,
    source: Source,
    record: T,
}

/// Class, source, kind, subject.
type Topic = (Class, Source, String, Option<String>);

/// The retention state of events or audit lines.
#[derive(Debug)]
pub(super) struct Retained<T> {
    next: u64,
    rings: BTreeMap<Class, Ring>,
    budgets: BTreeMap<(Class, Source), Budget>,
    folds: BTreeMap<Topic, Fold<T>>,
    /// Time of the last removal of expired budgets and folds.
    swept: Timestamp,
    /// Records that an undone change evicted: they are stored, and the next change evicts them.
    restored: BTreeSet<u64>,
}

/// New records, and the records that they evict.
#[derive(Debug)]
pub(super) struct NewRecords<T> {
    /// All of them, with their numbers.
    pub(super) all: Vec<(u64, T)>,
    /// May contain new records.
    pub(super) evicted: BTreeSet<u64>,
}

impl<T> NewRecords<T> {
    pub(super) fn none() -> Self {
        NewRecords { all: Vec::new(), evicted: BTreeSet::new() }
    }
}

impl<T> Default for Retained<T> {
    fn default() -> Self {
        Retained {
            next: 0,
            rings: BTreeMap::new(),
            budgets: BTreeMap::new(),
            folds: BTreeMap::new(),
            swept: Timestamp::EPOCH,
            restored: BTreeSet::new(),
        }
    }
}

impl<T: Record> Retained<T> {
    /// The number of the next record.
    #[cfg(test)]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.rings.values().map(|ring| ring.total).sum()
    }

    /// Continues numbering at `next`.
    pub(super) fn advance_to(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Registers a stored record. Returns the record that it evicts.
    pub(super) fn load(&mut self, number: u64, record: &T) -> Option<u64> {
        self.advance_to(number + 1);
        let (class, source) = class_and_source(record);
        self.add(class, &source, number)
    }

    /// Numbers new records, folds repeats and evicts records beyond the bounds.
    pub(super) fn add_all(&mut self, records: Vec<T>) -> NewRecords<T> {
        let mut taken = NewRecords {
            all: Vec::with_capacity(records.len()),
            evicted: std::mem::take(&mut self.restored),
        };
        for mut record in records {
            let number = self.next;
            self.next += 1;
            let (class, source) = class_and_source(&record);
            let may_fold =
                failpoint::defends("evidence-folding") && failpoint::defends("evidence-classes");
            if may_fold && !self.spend_budget(class, &source, record.at()) {
                taken.evicted.extend(self.fold(class, &source, number, &mut record));
            }
            taken.evicted.extend(self.add(class, &source, number));
            taken.all.push((number, record));
        }
        taken
    }

    /// Handles an undone change. Its new records stay counted until they are evicted; their numbers
    /// are not reused.
    pub(super) fn restore(&mut self, evicted: BTreeSet<u64>) {
        self.restored.extend(evicted);
    }

    fn add(&mut self, class: Class, source: &Source, number: u64) -> Option<u64> {
        let ring = self.rings.entry(class).or_default();
        ring.insert(source, number);
        if ring.total > T::share(class).records { ring.evict() } else { None }
    }

    /// Spends one record of a source's budget. Returns false if the budget is empty.
    fn spend_budget(&mut self, class: Class, source: &Source, now: Timestamp) -> bool {
        let share = T::share(class);
        let budget = self.budget(class, source, now);
        let refill = u64::try_from(share.refill.as_millis()).unwrap_or(u64::MAX);
        let since = u64::try_from(now.since(budget.at).as_millis()).unwrap_or(u64::MAX);
        let more = since / refill;
        if more > 0 {
            budget.left = budget
                .left
                .saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
                .min(share.burst);
            budget.at = budget.at.after(share.refill * u32::try_from(more).unwrap_or(u32::MAX));
        }
        // The clock may have been set back.
        budget.at = budget.at.min(now);
        let is_allowed = budget.left > 0;
        budget.left = budget.left.saturating_sub(1);
        is_allowed
    }

    fn budget(&mut self, class: Class, source: &Source, now: Timestamp) -> &mut Budget {
        let mut key = (class, source.clone());
        let burst = T::share(class).burst;
        if self.budgets.len() >= MAX_BUDGETS && !self.budgets.contains_key(&key) {
            self.sweep(now);
            if self.budgets.len() >= MAX_BUDGETS {
                key.1 = Source::Unidentified;
            }
        }
        self.budgets.entry(key).or_insert(Budget { left: burst, at: now, folds: 0 })
    }

    /// Adds the count of an earlier repeat to a record. Returns the number of the replaced record.
    fn fold(&mut self, class: Class, source: &Source, number: u64, record: &mut T) -> Option<u64> {
        let topic = self.topic(class, source, record);
        let earlier = self.folds.remove(&topic);
        let evicted = earlier.and_then(|fold| {
            if record.at().distance(fold.record.at()) > FOLD_LIFETIME {
                return None;
            }
            record.add_earlier(&fold.record);
            self.rings.entry(class).or_default().remove(&fold.source, fold.number);
            Some(fold.number)
        });
        self.folds.insert(topic, Fold { number, source: source.clone(), record: record.clone() });
        evicted
    }

    /// The key of a record's repeats. The number of keys is bounded for each source and in total.
    fn topic(&mut self, class: Class, source: &Source, record: &T) -> Topic {
        let now = record.at();
        if self.folds.len() >= MAX_FOLDS {
            self.sweep(now);
        }
        let (kind, subject) = record.topic();
        let topic = (class, source.clone(), kind.clone(), Some(subject));
        if self.folds.contains_key(&topic) {
            return topic;
        }
        if self.folds.len() >= MAX_FOLDS {
            return (class, Source::Unidentified, kind, None);
        }
        let distinct = T::share(class).distinct;
        let budget = self.budget(class, source, now);
        if budget.folds >= distinct {
            return (class, source.clone(), kind, None);
        }
        budget.folds += 1;
        topic
    }

    /// Removes expired folds and full budgets; at most once in [`SWEEP`].
    fn sweep(&mut self, now: Timestamp) {
        if now.distance(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        let budgets = &mut self.budgets;
        self.folds.retain(|(class, source, _, subject), fold| {
            let is_open = now.distance(fold.record.at()) <= FOLD_LIFETIME;
            if !is_open
                && subject.is_some()
                && let Some(budget) = budgets.get_mut(&(*class, source.clone()))
            {
                budget.folds = budget.folds.saturating_sub(1);
            }
            is_open
        });
        let is_whole = |class: Class, budget: &Budget| {
            now.since(budget.at) > T::share(class).refill * T::share(class).burst
        };
        budgets.retain(|(class, _), budget| budget.folds > 0 || !is_whole(*class, budget));
    }
}

fn class_and_source<T: Record>(record: &T) -> (Class, Source) {
    if !failpoint::defends("evidence-classes") {
        return (Class::Routine, Source::Unidentified);
    }
    let class = record.class();
    let source =
        if failpoint::defends("evidence-shares") { record.source() } else { Source::Unidentified };
    (class, source)
}

#[cfg(test)]
mod tests;
