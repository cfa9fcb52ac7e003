//! Mutexes with a fixed order, so that no two threads wait for each other. The table of all locks is in [`super`].

use std::{
    cell::Cell,
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Level of the lock that is held while a node is sent the order of a task.
pub(crate) const TASK_ORDERS: usize = 0;
/// Level of the heartbeat deadlines.
pub(crate) const DEADLINES: usize = 1;
/// Level of all other mutexes: no other one is taken under it.
const INNERMOST: usize = 2;

/// A mutex under which no other one is taken.
pub(crate) type Leaf<T> = Ordered<INNERMOST, T>;

thread_local! {
    /// How many locks of each level this thread holds.
    static HELD: Cell<[usize; INNERMOST + 1]> = const { Cell::new([0; INNERMOST + 1]) };
}

/// A mutex that a thread takes only while it holds none of the same or a higher level. Debug builds check that.
///
/// A panic elsewhere does not poison it: the boot services go on, and the panic is seen where the task is joined.
#[derive(Default)]
pub(crate) struct Ordered<const LEVEL: usize, T>(Mutex<T>);

/// The guard of a [`Leaf`].
pub(crate) type LeafGuard<'a, T> = Guard<'a, INNERMOST, T>;

/// A lock that is held.
pub(crate) struct Guard<'a, const LEVEL: usize, T>(MutexGuard<'a, T>);

impl<const LEVEL: usize, T> Ordered<LEVEL, T> {
    pub(crate) fn new(value: T) -> Self {
        Ordered(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Guard<'_, LEVEL, T> {
        let mut held = HELD.get();
        debug_assert!(held[LEVEL..].iter().all(|count| *count == 0), "lock order: level {LEVEL} under {held:?}");
        held[LEVEL] += 1;
        HELD.set(held);
        Guard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<const LEVEL: usize, T> Drop for Guard<'_, LEVEL, T> {
    fn drop(&mut self) {
        let mut held = HELD.get();
        held[LEVEL] -= 1;
        HELD.set(held);
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
        let (one, other) = (Leaf::new(1), Leaf::new(2));
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
