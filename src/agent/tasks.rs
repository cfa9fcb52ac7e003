//! Runs each administrative task at most once, and repeats its outcome until it is acknowledged. Pure.

use meshd_proto::{FromAgent, Task, TaskAction, TaskId, TaskOutcome};
use meshd_types::{NodeId, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// Most outcomes that are remembered; the acknowledged ones are forgotten first, oldest first.
pub const MAX_REMEMBERED: usize = 256;
/// How long the acknowledgement of a reboot is waited for before the machine goes down all the same.
pub const REBOOT_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
struct Ended {
    outcome: TaskOutcome,
    acknowledged: bool,
}

/// What is known of the tasks of this node.
#[derive(Debug)]
pub struct Tasks {
    node: NodeId,
    ended: BTreeMap<TaskId, Ended>,
    reboot: Option<(TaskId, Duration)>,
}

impl Tasks {
    /// None yet.
    pub fn new(node: NodeId) -> Self {
        Tasks { node, ended: BTreeMap::new(), reboot: None }
    }

    /// Knows these from an earlier run of the agent. Whether they were acknowledged it does not know, so they are told again.
    pub fn remember(&mut self, ended: impl IntoIterator<Item = (TaskId, TaskOutcome)>) {
        let ended = ended.into_iter().take(MAX_REMEMBERED);
        self.ended.extend(ended.map(|(task, outcome)| (task, Ended { outcome, acknowledged: false })));
    }

    /// Takes a task on, and gives what is to be said about it now. `wall` is the central node's clock, `now` our timer.
    pub fn accept(&mut self, task: &Task, wall: Timestamp, now: Duration) -> FromAgent {
        if let Some(known) = self.ended.get_mut(&task.task) {
            // It came again: it is not done again, but its outcome is.
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

    /// A task whose action this agent does not know.
    pub fn unknown(&mut self, task: TaskId) -> FromAgent {
        if let Some(known) = self.ended.get(&task) {
            return done(task, &known.outcome);
        }
        self.end(task, refused("this agent does not know the action".into()))
    }

    /// The central node has stored an outcome.
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

    /// When the machine shall go down, if it shall.
    pub fn reboot_at(&self) -> Option<Duration> {
        self.reboot.map(|(_, deadline)| deadline)
    }

    /// True once, when it is time to go down.
    pub fn reboots_now(&mut self, now: Duration) -> bool {
        let due = self.reboot.is_some_and(|(_, deadline)| deadline <= now);
        if due {
            // No second try: if the machine is still there, somebody says so through `reboot_failed`.
            self.reboot = self.reboot.map(|(task, _)| (task, Duration::MAX));
        }
        due
    }

    /// The machine could not be restarted after all.
    pub fn reboot_failed(&mut self, reason: String) -> Option<FromAgent> {
        let (task, _) = self.reboot.take()?;
        Some(self.end(task, TaskOutcome::Failed { reason }))
    }

    /// Outcomes that nobody has acknowledged.
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
