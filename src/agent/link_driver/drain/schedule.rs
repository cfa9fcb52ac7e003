//! Which drain hook runs next, and what is reported: pure, with the time as an argument.
//!
//! ```text
//! order: leaves service ─▶ pending ─ drain ─▶ waiting, failed ─ again ─▶ done ─ again, rarely
//! order: in service     ─▶ pending ─ resume ─▶ waiting, failed ─ again ─▶ done
//! ```
//! A hook that runs when the order changes runs to its end, because its effect may be under way.
//! Its result does not count.

use super::hook::HookResult;
use meshd_proto::{DrainEntry, DrainOrder, DrainReport, HookName, HookReport, HookState};
use std::time::Duration;

/// Time from the end of a run with work left to the next one.
const WAIT: Duration = Duration::from_secs(5);
/// Longest time after a failed run. The first one is [`WAIT`], and each is twice as long.
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Time from the end of a drain to the next look. Another scheduler may have lost its state.
const RECHECK: Duration = Duration::from_secs(60);

/// A run that is to begin.
#[derive(Debug, PartialEq, Eq)]
pub struct HookRun {
    pub name: HookName,
    /// `drain` with this order, else `resume`.
    pub order: Option<DrainOrder>,
}

pub struct Schedule {
    hooks: Vec<Hook>,
    /// `None` before the first entry: nothing runs.
    entry: Option<DrainEntry>,
    /// Generation of the last entry of this link.
    observed: u64,
    is_changed: bool,
    running: Option<Running>,
}

struct Hook {
    name: HookName,
    result: HookResult,
    /// `None` if nothing is left to do.
    due: Option<Duration>,
    /// Failed runs in a row.
    failures: u32,
}

struct Running {
    hook: usize,
    /// The order has changed since the run began.
    is_outdated: bool,
}

impl Schedule {
    pub fn new(names: Vec<HookName>) -> Self {
        let hook = |name| Hook { name, result: HookResult::pending(), due: None, failures: 0 };
        Schedule {
            hooks: names.into_iter().map(hook).collect(),
            entry: None,
            observed: 0,
            is_changed: false,
            running: None,
        }
    }

    /// Applies an entry. The same state again, or another reason, starts nothing.
    pub fn apply(&mut self, now: Duration, generation: u64, entry: DrainEntry) {
        self.observed = generation;
        self.is_changed = true;
        let drains = entry.drain.is_some();
        let stops = stops_work(&entry);
        let before = self.entry.replace(entry);
        if before.as_ref().is_none_or(|before| before.drain.is_some() != drains) {
            for hook in &mut self.hooks {
                hook.result = HookResult::pending();
                hook.due = Some(now);
                hook.failures = 0;
            }
            if let Some(running) = &mut self.running {
                running.is_outdated = true;
            }
        } else if stops && !before.is_some_and(|before| stops_work(&before)) {
            self.hooks.iter_mut().for_each(|hook| hook.due = Some(now));
        }
    }

    /// Reports again. Generations begin anew.
    pub fn begin_link(&mut self) {
        self.observed = 0;
        self.is_changed = true;
    }

    /// Begins the next run that is due, unless one is in progress.
    pub fn begin_run(&mut self, now: Duration) -> Option<HookRun> {
        let entry = self.entry.as_ref().filter(|_| self.running.is_none())?;
        let is_due = |hook: &Hook| hook.due.is_some_and(|due| due <= now);
        let hook = self.hooks.iter().position(is_due)?;
        self.running = Some(Running { hook, is_outdated: false });
        self.hooks[hook].due = None;
        Some(HookRun { name: self.hooks[hook].name.clone(), order: entry.drain.clone() })
    }

    /// Returns when the next run is due; `None` while one is in progress.
    pub fn due(&self) -> Option<Duration> {
        let dues = self.hooks.iter().filter_map(|hook| hook.due);
        dues.min().filter(|_| self.running.is_none())
    }

    /// Ends the run in progress.
    pub fn end_run(&mut self, now: Duration, result: HookResult) {
        let Some(Running { hook, is_outdated: false }) = self.running.take() else { return };
        let drains = self.drains();
        let hook = &mut self.hooks[hook];
        hook.failures = match result.state {
            HookState::Failed => hook.failures.saturating_add(1),
            _ => 0,
        };
        let delay = match result.state {
            HookState::Done if drains => Some(RECHECK),
            HookState::Done => None,
            HookState::Failed => {
                let factor = 2_u32.saturating_pow(hook.failures - 1);
                Some(WAIT.saturating_mul(factor).min(MAX_BACKOFF))
            }
            HookState::Waiting | HookState::Pending => Some(WAIT),
        };
        // An order to stop the work that came meanwhile is due already.
        hook.due = hook.due.or(delay.map(|delay| now + delay));
        if hook.result != result {
            let state = result.state.as_str();
            tracing::info!(hook = %hook.name, drains, state, detail = result.detail, "drain hook");
            self.is_changed = true;
        }
        hook.result = result;
    }

    /// Returns a report that has not been sent, with the generation of the last entry. A node
    /// without hooks or without an entry reports nothing.
    pub fn take_report(&mut self) -> Option<(u64, DrainReport)> {
        if self.hooks.is_empty() || self.entry.is_none() || !self.is_changed {
            return None;
        }
        self.is_changed = false;
        let report = |hook: &Hook| HookReport {
            name: hook.name.clone(),
            state: hook.result.state,
            detail: hook.result.detail.clone(),
        };
        let hooks = self.hooks.iter().map(report).collect();
        Some((self.observed, DrainReport { drains: self.drains(), hooks }))
    }

    fn drains(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.drain.is_some())
    }
}

fn stops_work(entry: &DrainEntry) -> bool {
    entry.drain.as_ref().is_some_and(|order| order.stop_work)
}

impl HookResult {
    fn pending() -> Self {
        HookResult { state: HookState::Pending, detail: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn schedule(names: &[&str]) -> Schedule {
        Schedule::new(names.iter().map(|name| name.parse().expect("a name")).collect())
    }

    fn drain(stop_work: bool) -> DrainEntry {
        let reason = "meshd: uid:0".to_owned();
        DrainEntry { drain: Some(DrainOrder { reason, stop_work, grace_s: None }) }
    }

    fn result(state: HookState) -> HookResult {
        HookResult { state, detail: state.as_str().to_owned() }
    }

    /// Runs the hook that is due and returns its argument.
    fn run(schedule: &mut Schedule, now: u64, state: HookState) -> Option<String> {
        let run = schedule.begin_run(at(now))?;
        assert!(schedule.begin_run(at(now)).is_none(), "one at a time");
        assert_eq!(schedule.due(), None, "nothing is due while a hook runs");
        schedule.end_run(at(now), result(state));
        let verb = if run.order.is_some() { "drain" } else { "resume" };
        Some(format!("{verb} {}", run.name))
    }

    fn states(schedule: &mut Schedule) -> Option<(u64, bool, Vec<&'static str>)> {
        let (observed, report) = schedule.take_report()?;
        let states = report.hooks.iter().map(|hook| hook.state.as_str()).collect();
        Some((observed, report.drains, states))
    }

    #[test]
    fn nothing_runs_or_is_reported_before_the_first_entry() {
        let mut schedule = schedule(&["slurm"]);
        schedule.begin_link();
        assert_eq!((schedule.due(), schedule.begin_run(at(9))), (None, None));
        assert_eq!(states(&mut schedule), None);
    }

    #[test]
    fn drain_runs_until_no_work_is_left_and_resume_once() {
        use HookState::{Done, Failed, Waiting};
        let mut schedule = schedule(&["slurm"]);
        schedule.apply(at(0), 1, drain(false));
        assert_eq!(states(&mut schedule), Some((1, true, vec!["pending"])));
        for (now, state, next) in [
            (0, Waiting, 5),
            (5, Failed, 10),
            (10, Failed, 20),
            (20, Failed, 40),
            (40, Failed, 80),
            (80, Failed, 140),
            (140, Failed, 200),
            (200, Waiting, 205),
            (205, Failed, 210),
            (210, Done, 270),
            (270, Waiting, 275),
            (275, Done, 335),
        ] {
            assert_eq!(schedule.due(), Some(at(now)));
            assert_eq!(run(&mut schedule, now, state).as_deref(), Some("drain slurm"));
            assert_eq!(schedule.due(), Some(at(next)), "after {now} s");
        }
        assert_eq!(states(&mut schedule), Some((1, true, vec!["done"])));
        schedule.apply(at(300), 2, DrainEntry::default());
        assert_eq!(states(&mut schedule), Some((2, false, vec!["pending"])));
        assert_eq!(run(&mut schedule, 300, Failed).as_deref(), Some("resume slurm"));
        assert_eq!(schedule.due(), Some(at(305)));
        assert_eq!(run(&mut schedule, 305, Done).as_deref(), Some("resume slurm"));
        assert_eq!(schedule.due(), None, "a node in service is not looked at again");
    }

    #[test]
    fn repeated_entry_is_reported_and_starts_nothing() {
        let mut schedule = schedule(&["slurm"]);
        schedule.apply(at(0), 1, drain(false));
        run(&mut schedule, 0, HookState::Done);
        assert_eq!(states(&mut schedule), Some((1, true, vec!["done"])));
        assert_eq!(states(&mut schedule), None, "it is reported once");
        schedule.begin_link();
        assert_eq!(states(&mut schedule), Some((0, true, vec!["done"])));
        let mut other = drain(false);
        other.drain.as_mut().expect("an order").reason = "meshd: maintenance".to_owned();
        schedule.apply(at(1), 1, other);
        assert_eq!(schedule.due(), Some(at(60)));
        assert_eq!(states(&mut schedule), Some((1, true, vec!["done"])));
    }

    #[test]
    fn order_to_stop_the_work_runs_waiting_hooks_at_once() {
        let mut schedule = schedule(&["slurm"]);
        schedule.apply(at(0), 1, drain(false));
        run(&mut schedule, 0, HookState::Waiting);
        schedule.apply(at(1), 2, drain(true));
        let order = schedule.begin_run(at(1)).and_then(|run| run.order);
        assert!(order.is_some_and(|order| order.stop_work));
        schedule.end_run(at(1), result(HookState::Waiting));
        // An order that comes while the hook runs is not lost.
        let mut schedule = self::schedule(&["slurm"]);
        schedule.apply(at(0), 1, drain(false));
        assert!(schedule.begin_run(at(0)).is_some());
        schedule.apply(at(1), 2, drain(true));
        schedule.end_run(at(2), result(HookState::Waiting));
        assert_eq!(schedule.due(), Some(at(1)));
    }

    #[test]
    fn result_of_a_run_before_the_change_of_the_order_does_not_count() {
        let mut schedule = schedule(&["slurm"]);
        schedule.apply(at(0), 1, drain(false));
        assert!(schedule.begin_run(at(0)).is_some());
        schedule.apply(at(1), 2, DrainEntry::default());
        assert_eq!(schedule.begin_run(at(1)), None, "the drain may be under way");
        schedule.end_run(at(2), result(HookState::Done));
        assert_eq!(states(&mut schedule), Some((2, false, vec!["pending"])));
        assert_eq!(run(&mut schedule, 2, HookState::Done).as_deref(), Some("resume slurm"));
        // Back and forth: the run is still the old one.
        schedule.apply(at(3), 3, drain(false));
        assert!(schedule.begin_run(at(3)).is_some());
        schedule.apply(at(4), 4, DrainEntry::default());
        schedule.apply(at(5), 5, drain(false));
        schedule.end_run(at(6), result(HookState::Done));
        assert_eq!(states(&mut schedule), Some((5, true, vec!["pending"])));
    }

    #[test]
    fn hooks_run_in_order_and_a_failing_one_holds_up_no_other() {
        let mut schedule = schedule(&["10-slurm", "20-lsf"]);
        schedule.apply(at(0), 1, drain(false));
        assert_eq!(run(&mut schedule, 0, HookState::Failed).as_deref(), Some("drain 10-slurm"));
        assert_eq!(run(&mut schedule, 0, HookState::Done).as_deref(), Some("drain 20-lsf"));
        assert_eq!(states(&mut schedule), Some((1, true, vec!["failed", "done"])));
        assert_eq!(run(&mut schedule, 0, HookState::Done), None);
        assert_eq!(schedule.due(), Some(at(5)));
    }
}
