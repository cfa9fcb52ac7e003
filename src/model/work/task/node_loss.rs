//! The effect of a node that is lost, boots again or is removed on its task.

use super::{MemberState, Task, TaskCause, TaskState};
use meshd_types::{BootSessionId, NodeId, Timestamp};

/// An observation of a node of a task, other than its task reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeObservation {
    /// The node is in service: linked, or without a link for a short time.
    There,
    /// The node was offline for too long or is out of service, with the reason.
    Lost(String),
    /// The agent of this boot session has linked.
    Linked(BootSessionId),
    /// An operator fenced or removed the node, with the reason.
    Gone(String),
}

impl Task {
    /// Applies an observation of a node.
    pub fn observe(&mut self, node: NodeId, observation: NodeObservation, now: Timestamp) {
        let Some(member) = self.member(node).filter(|member| member.is_held()) else { return };
        match observation {
            NodeObservation::There => {}
            NodeObservation::Linked(session) if session == member.session => member.lost = false,
            NodeObservation::Linked(_) => {
                (member.state, member.lost) = (MemberState::Released, false);
                let detail = "the node booted again".to_owned();
                self.record_end(
                    TaskState::Failed,
                    TaskCause::NodeRebooted,
                    detail,
                    Some(node),
                    now,
                );
            }
            NodeObservation::Lost(why) => {
                member.lost = true;
                self.record_end(TaskState::Failed, TaskCause::NodeLost, why, Some(node), now);
            }
            NodeObservation::Gone(why) => {
                (member.state, member.lost) = (MemberState::Released, false);
                self.record_end(TaskState::Failed, TaskCause::NodeLost, why, Some(node), now);
            }
        }
        self.finish_if_free(now);
    }
}
