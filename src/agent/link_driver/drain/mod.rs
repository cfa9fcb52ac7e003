//! The section `drain`: runs the drain hooks of the node when it leaves service and when it
//! returns, one at a time, and reports their states.
//!
//! | module | content |
//! | --- | --- |
//! | `hook` | runs one hook, with limits of time and output |
//! | `orphans` | ends hooks of an agent that was killed |
//! | `schedule` | which hook runs next, and what is reported; pure |
//!
//! The agent stores nothing: hooks may run again at any time, also after a restart of the agent.

mod hook;
mod orphans;
mod schedule;

use self::{
    hook::HookResult,
    schedule::{HookRun, Schedule},
};
use crate::{facts, system::Tree};
use meshd_proto::{DRAIN_HOOKS, DrainEntry, DrainReport};
use std::time::Duration;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// The drain hooks of this node.
pub struct DrainHooks {
    tree: Tree,
    schedule: Schedule,
    started: Instant,
    /// At most one. Dropping it kills the hook.
    running: JoinSet<HookResult>,
    /// Hooks of an earlier agent have ended.
    has_ended_orphans: bool,
}

impl DrainHooks {
    pub fn new(tree: &Tree) -> Self {
        DrainHooks {
            tree: tree.clone(),
            schedule: Schedule::new(facts::drain_hooks(tree)),
            started: Instant::now(),
            running: JoinSet::new(),
            has_ended_orphans: false,
        }
    }

    /// Applies the desired state. `generation` is its number on the present link.
    pub fn apply(&mut self, generation: u64, entry: DrainEntry) {
        self.schedule.apply(self.elapsed(), generation, entry);
    }

    /// Reports again: the link is new.
    pub fn begin_link(&mut self) {
        self.schedule.begin_link();
    }

    /// Waits for the next report, with the generation of the last entry. Cancel-safe.
    pub async fn next(&mut self) -> (u64, DrainReport) {
        loop {
            if let Some(report) = self.schedule.take_report() {
                return report;
            }
            if !self.has_ended_orphans {
                orphans::end(&self.tree.path(DRAIN_HOOKS)).await;
                self.has_ended_orphans = true;
            }
            if let Some(run) = self.schedule.begin_run(self.elapsed()) {
                self.start(run);
            }
            let due = self.schedule.due().map(|at| self.started + at);
            tokio::select! {
                Some(ended) = self.running.join_next() => {
                    let result = ended.unwrap_or_else(|error| HookResult::failed(error.to_string()));
                    self.schedule.end_run(self.elapsed(), result);
                }
                () = async { match due { Some(due) => sleep_until(due).await, None => std::future::pending().await } } => {}
            }
        }
    }

    fn start(&mut self, run: HookRun) {
        let program = self.tree.path(DRAIN_HOOKS).join(run.name.as_str());
        tracing::debug!(hook = %run.name, drains = run.order.is_some(), "drain hook starts");
        self.running.spawn(hook::run(program, run.order));
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}
