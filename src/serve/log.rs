//! A rate-limited log for network events: one line for each cause and minute, not for each packet.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Interval between log lines with one cause.
const EVERY: Duration = Duration::from_secs(60);
/// Maximum number of tracked causes.
const MAX_CAUSES: usize = 64;

/// A rate-limited log. Each line contains the number of suppressed ones.
#[derive(Default)]
pub(crate) struct Log(Mutex<BTreeMap<&'static str, (Instant, u64)>>);

impl Log {
    /// Logs a warning, unless this cause was logged within [`EVERY`].
    pub(crate) fn warn(&self, cause: &'static str, text: impl FnOnce() -> String) {
        let mut causes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let known = causes.len();
        let left_out = match causes.get_mut(cause) {
            Some((since, count)) if now.duration_since(*since) < EVERY => {
                *count += 1;
                return;
            }
            Some((_, count)) => *count,
            None if known >= MAX_CAUSES => return,
            None => 0,
        };
        causes.insert(cause, (now, 0));
        tracing::warn!(left_out, "{}", text());
    }
}
