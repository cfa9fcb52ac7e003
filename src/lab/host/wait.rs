//! Waits for a state with a deadline and interruption. The lab never sleeps for a fixed time.

use crate::LabError;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Between two looks at a state.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two looks at a state that changes within milliseconds.
const SHORT_PAUSE: Duration = Duration::from_millis(10);

/// Set by a signal handler; every wait of the lab ends soon after. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Ends all waits.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True once raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a look at a state yields.
pub enum Wait<T> {
    /// It is as wanted.
    Done(T),
    /// Not yet; this is what is there, for the message at the deadline.
    NotYet(String),
}

impl<T> Wait<T> {
    /// Done if there is something.
    pub fn some(value: Option<T>, otherwise: impl Into<String>) -> Self {
        value.map_or_else(|| Wait::NotYet(otherwise.into()), Wait::Done)
    }
}

impl Wait<()> {
    /// Done if it holds.
    pub fn on(holds: bool, otherwise: impl Into<String>) -> Self {
        if holds { Wait::Done(()) } else { Wait::NotYet(otherwise.into()) }
    }
}

/// Looks again and again until the state is as wanted, the look fails, the deadline passes, or somebody interrupts.
pub fn until<T>(
    interrupt: &Interrupt,
    after: Duration,
    what: &str,
    look: impl FnMut() -> Result<Wait<T>, LabError>,
) -> Result<T, LabError> {
    looking(interrupt, after, PAUSE, what, look)
}

/// As [`until`], for what takes milliseconds.
pub fn until_soon<T>(
    interrupt: &Interrupt,
    after: Duration,
    what: &str,
    look: impl FnMut() -> Result<Wait<T>, LabError>,
) -> Result<T, LabError> {
    looking(interrupt, after, SHORT_PAUSE, what, look)
}

fn looking<T>(
    interrupt: &Interrupt,
    after: Duration,
    pause: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Wait<T>, LabError>,
) -> Result<T, LabError> {
    let start = Instant::now();
    loop {
        let seen = match look()? {
            Wait::Done(value) => return Ok(value),
            Wait::NotYet(seen) => seen,
        };
        if interrupt.is_raised() {
            return Err(LabError::Interrupted);
        }
        if start.elapsed() >= after {
            return Err(LabError::Deadline { what: what.to_owned(), after, seen });
        }
        thread::park_timeout(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_that_comes_ends_the_wait() {
        let mut looks = 0;
        let result = until_soon(&Interrupt::default(), Duration::from_secs(5), "three", || {
            looks += 1;
            Ok(Wait::some((looks == 3).then_some(looks), format!("{looks}")))
        });
        assert_eq!(result.ok(), Some(3));
    }

    #[test]
    fn missed_deadline_reports_the_last_state() {
        let result = until_soon(&Interrupt::default(), Duration::ZERO, "rain", || Ok(Wait::on(false, "sun")));
        let text = result.expect_err("it never comes").to_string();
        assert_eq!(text, "waited 0 s for rain; last seen: sun");
    }

    #[test]
    fn interrupt_ends_the_wait() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        let result = until(&interrupt, Duration::from_secs(60), "rain", || Ok(Wait::on(false, "sun")));
        assert!(matches!(result, Err(LabError::Interrupted)));
    }
}
