//! Where time and randomness come in.

use crate::id::Timestamp;
use std::{
    sync::OnceLock,
    time::{Duration, Instant, SystemTime},
};

/// Time, as an argument.
pub trait Clock: Send + Sync {
    /// Wall-clock time: for what is stored and shown.
    fn now(&self) -> Timestamp;
    /// Time that never goes back: for silence and limits.
    fn monotonic(&self) -> Duration;
}

/// Randomness, as an argument.
pub trait Entropy: Send + Sync {
    /// Fills with bytes that nobody can guess.
    fn fill(&self, bytes: &mut [u8]);
}

/// The machine's clocks.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// The kernel's random numbers.
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("getrandom(2) works on every Linux that meshd runs on");
    }
}
