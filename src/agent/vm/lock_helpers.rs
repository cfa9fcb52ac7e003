//! Helpers for mutexes and watch channels.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Sends a value to the watchers if it differs from the last one. Returns whether it does.
pub fn send_if_changed<T: PartialEq>(sender: &watch::Sender<T>, value: T) -> bool {
    sender.send_if_modified(|last| {
        let is_new = *last != value;
        *last = value;
        is_new
    })
}

/// Locks a mutex whose value is consistent even after a panic of another thread.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
