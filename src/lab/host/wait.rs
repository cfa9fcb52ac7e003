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

/// Interval between two checks of a state.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval between two checks of a state that changes within milliseconds.
const SHORT_PAUSE: Duration = Duration::from_millis(10);

/// Set by a signal handler to end every wait of the lab. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Result of one check of a state.
pub enum Wait<T> {
    /// The state is reached.
    Done(T),
    /// The present state, for the error at the deadline.
    NotYet(String),
}

impl<T> Wait<T> {
    /// Returns `Done` if there is a value.
    pub fn some(value: Option<T>, otherwise: impl Into<String>) -> Self {
        value.map_or_else(|| Wait::NotYet(otherwise.into()), Wait::Done)
    }
}

impl Wait<()> {
    /// Returns `Done` if the condition holds.
    pub fn on(holds: bool, otherwise: impl Into<String>) -> Self {
        if holds { Wait::Done(()) } else { Wait::NotYet(otherwise.into()) }
    }
}

/// Polls until the state is reached, a check fails, the deadline passes, or an interrupt is raised.
pub fn until<T>(
    interrupt: &Interrupt,
    timeout: Duration,
    awaited: &str,
    check: impl FnMut() -> Result<Wait<T>, LabError>,
) -> Result<T, LabError> {
    poll(interrupt, timeout, PAUSE, awaited, check)
}

/// As [`until`], for states that change within milliseconds.
pub fn until_soon<T>(
    interrupt: &Interrupt,
    timeout: Duration,
    awaited: &str,
    check: impl FnMut() -> Result<Wait<T>, LabError>,
) -> Result<T, LabError> {
    poll(interrupt, timeout, SHORT_PAUSE, awaited, check)
}

fn poll<T>(
    interrupt: &Interrupt,
    timeout: Duration,
    pause: Duration,
    awaited: &str,
    mut check: impl FnMut() -> Result<Wait<T>, LabError>,
) -> Result<T, LabError> {
    let start = Instant::now();
    loop {
        let observed = match check()? {
            Wait::Done(value) => return Ok(value),
            Wait::NotYet(observed) => observed,
        };
        if interrupt.is_raised() {
            return Err(LabError::Interrupted);
        }
        if start.elapsed() >= timeout {
            return Err(LabError::Deadline { awaited: awaited.to_owned(), timeout, observed });
        }
        thread::park_timeout(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_when_state_is_reached() {
        let mut checks = 0;
        let result = until_soon(&Interrupt::default(), Duration::from_secs(5), "three", || {
            checks += 1;
            Ok(Wait::some((checks == 3).then_some(checks), format!("{checks}")))
        });
        assert_eq!(result.ok(), Some(3));
    }

    #[test]
    fn wait_timeout_reports_last_state() {
        let result = until_soon(&Interrupt::default(), Duration::ZERO, "rain", || {
            Ok(Wait::on(false, "sun"))
        });
        let text = result.expect_err("it never comes").to_string();
        assert_eq!(text, "waited 0 s for rain; last seen: sun");
    }

    #[test]
    fn wait_ends_on_interrupt() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        let result =
            until(&interrupt, Duration::from_secs(60), "rain", || Ok(Wait::on(false, "sun")));
        assert!(matches!(result, Err(LabError::Interrupted)));
    }
}
