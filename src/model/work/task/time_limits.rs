//! Time limits of a task: its own, that of its start, and that of a head that waits for a lost proxy.

use super::{Launcher, Member, MemberState, Task, TaskCause, TaskState};
use meshd_types::Timestamp;
use std::time::Duration;

/// How long a task may take until it runs on all its nodes.
pub const START_LIMIT: Duration = Duration::from_secs(90);

/// How long after the failure of another node's proxy the head may take to say how the ranks ended. A head that misses a proxy ends
/// at once, but one that the proxy never reached waits for it without a limit.
pub const HEAD_PATIENCE: Duration = Duration::from_secs(30);

impl Task {
    /// Time passed.
    pub fn timer(&mut self, now: Timestamp) {
        let age = now.since(self.created_at);
        if self.spec.timeout_s.is_some_and(|limit| age >= Duration::from_secs(limit)) {
            let detail = format!("not over within {} s", self.spec.timeout_s.unwrap_or_default());
            self.ends(TaskState::TimedOut, TaskCause::TimeLimit, detail, None, now);
        } else if self.state == TaskState::Starting && age >= START_LIMIT {
            let late = self.members.iter().find(|member| member.state == MemberState::Claimed);
            let node = late.map(|member| member.node);
            let detail = format!("does not run on all nodes after {} s", START_LIMIT.as_secs());
            self.ends(TaskState::Failed, TaskCause::StartTimeout, detail, node, now);
        }
        self.fail_on_silent_head(now);
        self.finish_if_free(now);
    }

    /// Hydra's head waits for all of its proxies. One that has ended by itself with 0 has told the head all there was to tell; one that
    /// failed may never have reached it.
    fn fail_on_silent_head(&mut self, now: Timestamp) {
        let failed = |member: &Member| {
            let code = member.code.filter(|code| *code != 0 && member.state == MemberState::Ended)?;
            (now.since(member.ended_at?) >= HEAD_PATIENCE).then_some((member.node, code))
        };
        let is_hydra = self.spec.launcher == Launcher::Mpich;
        let Some((node, code)) = self.members.iter().skip(1).find_map(failed).filter(|_| is_hydra) else { return };
        let detail = format!("the proxy of this node ended with exit code {code}, and the head said nothing since");
        self.ends(TaskState::Failed, TaskCause::ProxyFailed, detail, Some(node), now);
    }
}
