//! Time limits of a task: for the whole task, for its start, and for a head that waits for a lost
//! proxy.

use super::{Launcher, Member, MemberState, Task, TaskCause, TaskState};
use meshd_types::{NodeId, Timestamp};
use std::time::Duration;

/// Maximum time until a task runs on all its nodes.
pub const START_LIMIT: Duration = Duration::from_secs(90);

/// Maximum time between the failure of a proxy and the exit of the head. A head exits at once when
/// it loses a connected proxy, but waits without limit for a proxy that never connected.
pub const HEAD_EXIT_LIMIT: Duration = Duration::from_secs(30);

/// Times that a task has taken, by a clock that does not jump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskAges {
    /// Since its creation.
    pub task: Duration,
    /// Since [`Task::failed_proxy`] was first seen.
    pub failed_proxy: Duration,
}

impl Task {
    /// Applies the time limits. The times of the record are those of the wall clock, which may have
    /// jumped meanwhile.
    pub fn timer(&mut self, ages: TaskAges, now: Timestamp) {
        let age = ages.task;
        if self.spec.timeout_s.is_some_and(|limit| age >= Duration::from_secs(limit)) {
            let detail =
                format!("exceeded the time limit of {} s", self.spec.timeout_s.unwrap_or_default());
            self.record_end(TaskState::TimedOut, TaskCause::TimeLimit, detail, None, now);
        } else if self.state == TaskState::Starting && age >= START_LIMIT {
            let late = self.members.iter().find(|member| member.state == MemberState::Claimed);
            let node = late.map(|member| member.node);
            let detail = format!("does not run on all nodes after {} s", START_LIMIT.as_secs());
            self.record_end(TaskState::Failed, TaskCause::StartTimeout, detail, node, now);
        }
        if ages.failed_proxy >= HEAD_EXIT_LIMIT {
            self.fail_on_silent_head(now);
        }
        self.finish_if_free(now);
    }

    /// Returns the node of a proxy that has failed, and its exit code. A proxy that exits with 0
    /// has reported to the head. A failed proxy may never have connected.
    pub fn failed_proxy(&self) -> Option<(NodeId, u8)> {
        let failed = |member: &Member| {
            let code =
                member.code.filter(|code| *code != 0 && member.state == MemberState::Ended)?;
            Some((member.node, code))
        };
        let is_hydra = self.spec.launcher == Launcher::Mpich;
        self.members.iter().skip(1).find_map(failed).filter(|_| is_hydra)
    }

    /// Ends a task whose head does not exit after a proxy failed.
    fn fail_on_silent_head(&mut self, now: Timestamp) {
        let Some((node, code)) = self.failed_proxy() else { return };
        let detail = format!(
            "the proxy of this node ended with exit code {code}, and the head has not exited since"
        );
        self.record_end(TaskState::Failed, TaskCause::ProxyFailed, detail, Some(node), now);
    }
}
