//! Runs each administrative task at most once, and repeats its outcome until it is acknowledged. Pure.

use meshd_proto::{FromAgent, Task, TaskAction, TaskId, TaskOutcome};
use meshd_types::{NodeId, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// Maximum number of outcomes that are remembered; acknowledged ones are forgotten first, oldest first.
pub const MAX_REMEMBERED: usize = 256;
/// Timeout for the acknowledgement before a reboot.
pub const REBOOT_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
struct Ended {
    outcome: TaskOutcome,
    acknowledged: bool,
}

/// The administrative tasks of this node.
#[derive(Debug)]
pub struct Tasks {
    node: NodeId,
    ended: BTreeMap<TaskId, Ended>,
    reboot: Option<(TaskId, Duration)>,
}

impl Tasks {
    /// Starts empty.
    pub fn new(node: NodeId) -> Self {
        Tasks { node, ended: BTreeMap::new(), reboot: None }
    }

    /// Restores outcomes of an earlier run. Their acknowledgements are unknown, so they are repeated.
    pub fn remember(&mut self, ended: impl IntoIterator<Item = (TaskId, TaskOutcome)>) {
        let ended = ended.into_iter().take(MAX_REMEMBERED);
        self.ended.extend(ended.map(|(task, outcome)| (task, Ended { outcome, acknowledged: false })));
    }

    /// Accepts a task and returns the message about it. `wall` is the central node's clock, `now` the timer.
    pub fn accept(&mut self, task: &Task, wall: Timestamp, now: Duration) -> FromAgent {
        if let Some(known) = self.ended.get_mut(&task.task) {
            // A repeated task: repeat only its outcome.
            known.acknowledged = false;
            return done(task.task, &known.outcome);
        }
        let outcome = if task.node != self.node {
            refused(format!("the task is for {}, this is {}", task.node, self.node))
        } else if wall > task.expires_at {
            refused(format!("the task expired at {}", task.expires_at))
        } else if self.reboot.is_some() {
            refused("the machine is going down".into())
        } else {
            match task.action {
                TaskAction::Reboot => self.reboot = Some((task.task, now + REBOOT_PATIENCE)),
            }
            TaskOutcome::Done
        };
        self.end(task.task, outcome)
    }

    /// Rejects a task with an unknown action.
    pub fn unknown(&mut self, task: TaskId) -> FromAgent {
        if let Some(known) = self.ended.get(&task) {
            return done(task, &known.outcome);
        }
        self.end(task, refused("this agent does not know the action".into()))
    }

    /// The central node stored an outcome.
    pub fn acknowledge(&mut self, task: TaskId, now: Duration) {
        if let Some(known) = self.ended.get_mut(&task) {
            known.acknowledged = true;
        }
        if let Some((reboot, deadline)) = &mut self.reboot
            && *reboot == task
        {
            *deadline = now.min(*deadline);
        }
    }

    /// Returns when the machine must reboot.
    pub fn reboot_at(&self) -> Option<Duration> {
        self.reboot.map(|(_, deadline)| deadline)
    }

    /// Returns true once when the reboot is due.
    pub fn reboots_now(&mut self, now: Duration) -> bool {
        let due = self.reboot.is_some_and(|(_, deadline)| deadline <= now);
        if due {
            // No second try: a failed reboot reports `reboot_failed`.
            self.reboot = self.reboot.map(|(task, _)| (task, Duration::MAX));
        }
        due
    }

    /// The reboot failed.
    pub fn reboot_failed(&mut self, reason: String) -> Option<FromAgent> {
        let (task, _) = self.reboot.take()?;
        Some(self.end(task, TaskOutcome::Failed { reason }))
    }

    /// Returns the outcomes without acknowledgement.
    pub fn unacknowledged(&self) -> Vec<FromAgent> {
        let open = self.ended.iter().filter(|(_, ended)| !ended.acknowledged);
        open.map(|(task, ended)| done(*task, &ended.outcome)).collect()
    }

    fn end(&mut self, task: TaskId, outcome: TaskOutcome) -> FromAgent {
        let message = done(task, &outcome);
        self.ended.insert(task, Ended { outcome, acknowledged: false });
        while self.ended.len() > MAX_REMEMBERED {
            let acknowledged = self.ended.iter().find(|(_, ended)| ended.acknowledged).map(|(task, _)| *task);
            let Some(oldest) = acknowledged.or_else(|| self.ended.keys().next().copied()) else { break };
            self.ended.remove(&oldest);
        }
        message
    }
}

fn done(task: TaskId, outcome: &TaskOutcome) -> FromAgent {
    FromAgent::TaskDone { task, outcome: outcome.clone() }
}

fn refused(reason: String) -> TaskOutcome {
    TaskOutcome::Refused { reason }
}
