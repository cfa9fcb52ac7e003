//! Mutexes with a fixed order, so that no two threads wait for each other. The table of all locks
//! is in [`super`].

use std::{
    cell::Cell,
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Level of the heartbeat deadlines: 4 in the table of all locks.
pub(crate) const DEADLINES: usize = 0;
/// Level of all other mutexes: 6 in that table. A thread takes no further mutex while it holds one of them.
const INNERMOST: usize = 1;

/// A mutex of the innermost level.
pub(crate) type Leaf<T> = Ordered<INNERMOST, T>;

thread_local! {
    /// Number of locks of each level that this thread holds.
    static LOCK_COUNTS: Cell<[usize; INNERMOST + 1]> = const { Cell::new([0; INNERMOST + 1]) };
}

/// A mutex that a thread takes only while it holds none of the same or a higher level. Debug builds
/// check the order.
///
/// A panic in another thread does not poison the mutex: the boot services continue, and joining the
/// task reports the panic.
#[derive(Default)]
pub(crate) struct Ordered<const LEVEL: usize, T>(Mutex<T>);

/// The guard of a [`Leaf`].
pub(crate) type LeafGuard<'a, T> = Guard<'a, INNERMOST, T>;

pub(crate) struct Guard<'a, const LEVEL: usize, T>(MutexGuard<'a, T>);

impl<const LEVEL: usize, T> Ordered<LEVEL, T> {
    pub(crate) fn new(value: T) -> Self {
        Ordered(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Guard<'_, LEVEL, T> {
        let mut counts = LOCK_COUNTS.get();
        debug_assert!(
            counts[LEVEL..].iter().all(|count| *count == 0),
            "lock order: level {LEVEL} under {counts:?}"
        );
        counts[LEVEL] += 1;
        LOCK_COUNTS.set(counts);
        Guard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<const LEVEL: usize, T> Drop for Guard<'_, LEVEL, T> {
    fn drop(&mut self) {
        let mut counts = LOCK_COUNTS.get();
        counts[LEVEL] -= 1;
        LOCK_COUNTS.set(counts);
    }
}

impl<const LEVEL: usize, T> Deref for Guard<'_, LEVEL, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<const LEVEL: usize, T> DerefMut for Guard<'_, LEVEL, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_a_higher_level_is_taken_under_a_lower_one() {
        let (deadlines, leaf) = (Ordered::<DEADLINES, _>::new(1), Leaf::new(2));
        let sum = *deadlines.lock() + *leaf.lock();
        assert_eq!(sum, 3);
        let under = deadlines.lock();
        assert_eq!(*under + *leaf.lock(), 3);
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn lock_of_the_same_level_is_refused() {
        let one = Leaf::new(1);
        let other = Leaf::new(2);
        let _held = one.lock();
        drop(other.lock());
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn lock_of_a_lower_level_is_refused() {
        let (deadlines, leaf) = (Ordered::<DEADLINES, _>::new(1), Leaf::new(2));
        let _held = leaf.lock();
        drop(deadlines.lock());
    }
}
