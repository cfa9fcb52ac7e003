//! Events of a task. Each event may occur at any time, in any order and repeatedly.

use super::{Launcher, Member, MemberState, Task, TaskCause, TaskEnd, TaskState};
use meshd_proto::task::{MAX_DETAIL, TaskNodeState};
use meshd_types::{NodeId, Timestamp};

impl Task {
    /// Applies a report of a node; `None` if the report does not contain this task.
    pub fn apply_report(&mut self, node: NodeId, report: Option<&TaskNodeState>, now: Timestamp) {
        let is_head = self.members.first().is_some_and(|member| member.node == node);
        let Some(member) = self.member(node).filter(|member| member.is_held()) else { return };
        member.lost = false;
        match report {
            // A missing task is a failure only if it ran there. Otherwise the order may be in
            // transit.
            None if member.state == MemberState::Running => {
                let detail = "the node no longer reports the task".to_owned();
                let fault = meshd_proto::task::TaskFault::AgentRestarted;
                self.record_end(
                    TaskState::Failed,
                    TaskCause::Fault(fault),
                    detail,
                    Some(node),
                    now,
                );
            }
            None | Some(TaskNodeState::Starting) => {}
            Some(TaskNodeState::Running { launch }) => {
                if member.state == MemberState::Claimed {
                    member.state = MemberState::Running;
                }
                if is_head && self.launch.is_none() {
                    self.launch.clone_from(launch);
                }
            }
            Some(TaskNodeState::Exited { code }) => {
                (member.state, member.code) = (MemberState::Ended, Some(*code));
                member.ended_at.get_or_insert(now);
                self.apply_exit(node, is_head, *code, now);
            }
            Some(TaskNodeState::Failed { kind, detail }) => {
                member.state = MemberState::Ended;
                let detail = detail.chars().take(MAX_DETAIL).collect();
                self.record_end(
                    TaskState::Failed,
                    TaskCause::Fault(*kind),
                    detail,
                    Some(node),
                    now,
                );
            }
        }
        self.finish_if_free(now);
    }

    /// Records that a node has released the task.
    pub fn record_release(&mut self, node: NodeId, now: Timestamp) {
        if self.end.is_none() {
            // No release was ordered, so the node never had the task; the start order is repeated.
            return;
        }
        if let Some(member) = self.member(node) {
            (member.state, member.lost) = (MemberState::Released, false);
        }
        self.finish_if_free(now);
    }

    /// Cancels the task. Returns false if it has ended or ends already.
    pub fn cancel(&mut self, detail: String, now: Timestamp) -> bool {
        let first = self.end.is_none();
        self.record_end(TaskState::Cancelled, TaskCause::Cancelled, detail, None, now);
        self.finish_if_free(now);
        first
    }

    /// Returns the member of a node, preferably one that the task still holds.
    pub(super) fn member(&mut self, node: NodeId) -> Option<&mut Member> {
        let is_it = |member: &Member| member.node == node;
        // A record of an earlier meshd may name a node twice.
        let claimed = self.members.iter().position(|member| is_it(member) && member.is_held());
        let index = claimed.or_else(|| self.members.iter().position(is_it))?;
        self.members.get_mut(index)
    }

    /// Applies the exit on one node. With Hydra, the head decides the result; without Hydra, the
    /// first failure or the last exit.
    fn apply_exit(&mut self, node: NodeId, is_head: bool, code: u8, now: Timestamp) {
        let decides_result = match self.spec.launcher {
            Launcher::Mpich => is_head,
            Launcher::None => {
                code != 0 || self.members.iter().all(|member| member.state == MemberState::Ended)
            }
        };
        if !decides_result {
            return;
        }
        let (state, detail) = match code {
            0 => (TaskState::Succeeded, String::new()),
            code => (TaskState::Failed, format!("exit code {code}")),
        };
        let first = self.end.is_none();
        self.record_end(state, TaskCause::Exited, detail, (code != 0).then_some(node), now);
        if let Some(end) = self.end.as_mut().filter(|_| first) {
            end.code = Some(code);
        }
    }

    /// Records the end of the task; later causes are ignored.
    pub(super) fn record_end(
        &mut self,
        state: TaskState,
        cause: TaskCause,
        detail: String,
        node: Option<NodeId>,
        at: Timestamp,
    ) {
        if self.end.is_none() {
            self.end = Some(TaskEnd { state, cause, detail, node, code: None, at });
            self.state = TaskState::Ending;
        }
    }

    pub(super) fn finish_if_free(&mut self, now: Timestamp) {
        match &self.end {
            None => {
                let runs = |member: &Member| member.state != MemberState::Claimed;
                if self.state == TaskState::Starting && self.members.iter().all(runs) {
                    (self.state, self.started_at) = (TaskState::Running, Some(now));
                }
            }
            Some(end) => {
                let over = self.members.iter().all(|member| !member.is_held() || member.lost);
                if self.state == TaskState::Ending && over {
                    (self.state, self.ended_at) = (end.state, Some(now));
                }
            }
        }
    }
}
