//! Retention of events and audit lines: bounds for each class, shares for each source, folding of repeats.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `record` | classes and sources of events and audit lines, and the bound of each class |
//!
//! - **Class.** A record evicts only records of its own [`Class`]. Forged packets cannot evict an alarm, and refused requests cannot evict
//!   a completed order.
//! - **Source.** Within a class, the source with the most records loses its oldest one. Each node and each caller is a source; all
//!   unidentified ones together are one.
//! - **Budget.** A source may write [`Share::burst`] records at once, and one more in each [`Share::refill`]. Further repeats are folded:
//!   a new record with a count and the time of the first one replaces the old one.
//!
//! Pure: the time is that of the records. Eviction happens in the transaction that adds the new record.

mod record;

pub(super) use record::{Class, Record, Source};

use meshd_types::{Timestamp, fail};
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

/// Shortest time between two looks at what is over.
const SWEEP: Duration = Duration::from_secs(60);

/// The numbers of all records of one class that are kept.
#[derive(Debug, Default)]
struct Ring {
    by_source: BTreeMap<Source, BTreeSet<u64>>,
    by_size: BTreeSet<(usize, Source)>,
    total: usize,
}

impl Ring {
    fn edit<R>(&mut self, source: &Source, edit: impl FnOnce(&mut BTreeSet<u64>) -> R) -> R {
        let mut own = self.by_source.remove(source).unwrap_or_default();
        self.by_size.remove(&(own.len(), source.clone()));
        self.total -= own.len();
        let result = edit(&mut own);
        self.total += own.len();
        if !own.is_empty() {
            self.by_size.insert((own.len(), source.clone()));
            self.by_source.insert(source.clone(), own);
        }
        result
    }

    fn insert(&mut self, source: &Source, number: u64) {
        self.edit(source, |own| own.insert(number));
    }

    fn remove(&mut self, source: &Source, number: u64) {
        self.edit(source, |own| own.remove(&number));
    }

    /// The oldest record of the source that has most.
    fn evict(&mut self) -> Option<u64> {
        let (_, source) = self.by_size.last()?.clone();
        self.edit(&source, BTreeSet::pop_first)
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
    /// When budgets and folds that are over were forgotten last.
    swept: Timestamp,
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
        Retained {
            next: 0,
            rings: BTreeMap::new(),
            budgets: BTreeMap::new(),
            folds: BTreeMap::new(),
            swept: Timestamp::EPOCH,
        }
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
            let may_fold = fail::defends("evidence-folding") && fail::defends("evidence-classes");
            if may_fold && !self.may_write(class, &source, record.at()) {
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
            self.sweep(now);
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
            self.sweep(now);
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

    /// Forgets folded records that count no longer, and budgets that are whole; at most once in [`SWEEP`].
    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.swept).max(self.swept.since(now)) < SWEEP {
            return;
        }
        self.swept = now;
        let budgets = &mut self.budgets;
        self.folds.retain(|(class, source, _, subject), fold| {
            let stays = now.since(fold.record.at()) <= FOLD_LIFE;
            if !stays
                && subject.is_some()
                && let Some(budget) = budgets.get_mut(&(*class, source.clone()))
            {
                budget.folds = budget.folds.saturating_sub(1);
            }
            stays
        });
        let is_whole =
            |class: Class, budget: &Budget| now.since(budget.at) > T::share(class).refill * T::share(class).burst;
        budgets.retain(|(class, _), budget| budget.folds > 0 || !is_whole(*class, budget));
    }
}

/// Class and source of a record.
fn place<T: Record>(record: &T) -> (Class, Source) {
    if !fail::defends("evidence-classes") {
        return (Class::Routine, Source::Nobody);
    }
    let class = record.class();
    let source = if fail::defends("evidence-shares") { record.source() } else { Source::Nobody };
    (class, source)
}

#[cfg(test)]
mod tests;
