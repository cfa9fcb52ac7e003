//! Events of a task. Each may come at any time, in any order and repeatedly.

use super::{Job, JobCause, JobEnd, JobState, Launcher, Member, MemberState};
use meshd_proto::job::{JobNodeState, MAX_DETAIL};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use std::time::Duration;

/// How long a job may take until it runs on all its nodes.
pub const START_LIMIT: Duration = Duration::from_secs(90);

/// How long after the failure of another node's proxy the head may take to say how the ranks ended. A head that misses a proxy ends
/// at once, but one that the proxy never reached waits for it without a limit.
pub const HEAD_PATIENCE: Duration = Duration::from_secs(30);

/// What is known of a node of a job without its word on the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeObservation {
    /// It is in service: linked, or not silent for long.
    There,
    /// It was not heard of for too long, or is out of service: in these words.
    Lost(String),
    /// An agent of this boot has shown its certificate.
    Linked(BootSessionId),
    /// An operator has declared it gone: in these words.
    Gone(String),
}

impl Job {
    /// A node tells of its part of this job; `None` where it tells of its jobs and this is none of them.
    pub fn told(&mut self, node: NodeId, report: Option<&JobNodeState>, now: Timestamp) {
        let is_head = self.members.first().is_some_and(|member| member.node == node);
        let Some(member) = self.member(node).filter(|member| member.is_held()) else { return };
        member.lost = false;
        match report {
            // The order may be on its way; what ran and is not there any more was forgotten.
            None if member.state == MemberState::Running => {
                let detail = "the node does not know of the task any more".to_owned();
                let fault = meshd_proto::job::JobFault::AgentRestarted;
                self.ends(JobState::Failed, JobCause::Fault(fault), detail, Some(node), now);
            }
            None | Some(JobNodeState::Starting) => {}
            Some(JobNodeState::Running { launch }) => {
                if member.state == MemberState::Claimed {
                    member.state = MemberState::Running;
                }
                if is_head && self.launch.is_none() {
                    self.launch.clone_from(launch);
                }
            }
            Some(JobNodeState::Exited { code }) => {
                (member.state, member.code) = (MemberState::Ended, Some(*code));
                member.ended_at.get_or_insert(now);
                self.exited(node, is_head, *code, now);
            }
            Some(JobNodeState::Failed { kind, detail }) => {
                member.state = MemberState::Ended;
                let detail = detail.chars().take(MAX_DETAIL).collect();
                self.ends(JobState::Failed, JobCause::Fault(*kind), detail, Some(node), now);
            }
        }
        self.settle(now);
    }

    /// Nothing of it is left on a node.
    pub fn released(&mut self, node: NodeId, now: Timestamp) {
        if self.end.is_none() {
            // Nobody asked for it: then it never was there, and the order is given again.
            return;
        }
        if let Some(member) = self.member(node) {
            (member.state, member.lost) = (MemberState::Released, false);
        }
        self.settle(now);
    }

    /// What is seen of a node.
    pub fn seen(&mut self, node: NodeId, seen: NodeObservation, now: Timestamp) {
        let Some(member) = self.member(node).filter(|member| member.is_held()) else { return };
        match seen {
            NodeObservation::There => {}
            NodeObservation::Linked(session) if session == member.session => member.lost = false,
            NodeObservation::Linked(_) => {
                (member.state, member.lost) = (MemberState::Released, false);
                let detail = "the node was started anew".to_owned();
                self.ends(JobState::Failed, JobCause::NodeRebooted, detail, Some(node), now);
            }
            NodeObservation::Lost(why) => {
                member.lost = true;
                self.ends(JobState::Failed, JobCause::NodeLost, why, Some(node), now);
            }
            NodeObservation::Gone(why) => {
                (member.state, member.lost) = (MemberState::Released, false);
                self.ends(JobState::Failed, JobCause::NodeLost, why, Some(node), now);
            }
        }
        self.settle(now);
    }

    /// An operator ends it; false if it has ended, or ends already.
    pub fn cancel(&mut self, detail: String, now: Timestamp) -> bool {
        let first = self.end.is_none();
        self.ends(JobState::Cancelled, JobCause::Cancelled, detail, None, now);
        self.settle(now);
        first
    }

    /// Time passed.
    pub fn timer(&mut self, now: Timestamp) {
        let age = now.since(self.created_at);
        if self.spec.timeout_s.is_some_and(|limit| age >= Duration::from_secs(limit)) {
            let detail = format!("not over within {} s", self.spec.timeout_s.unwrap_or_default());
            self.ends(JobState::TimedOut, JobCause::TimeLimit, detail, None, now);
        } else if self.state == JobState::Starting && age >= START_LIMIT {
            let late = self.members.iter().find(|member| member.state == MemberState::Claimed);
            let node = late.map(|member| member.node);
            let detail = format!("does not run on all nodes after {} s", START_LIMIT.as_secs());
            self.ends(JobState::Failed, JobCause::StartTimeout, detail, node, now);
        }
        self.misses_a_proxy(now);
        self.settle(now);
    }

    /// Hydra's head waits for all of its proxies. One that has ended by itself with 0 has told the head all there was to tell; one that
    /// failed may never have reached it.
    fn misses_a_proxy(&mut self, now: Timestamp) {
        let failed = |member: &Member| {
            let code = member.code.filter(|code| *code != 0 && member.state == MemberState::Ended)?;
            (now.since(member.ended_at?) >= HEAD_PATIENCE).then_some((member.node, code))
        };
        let is_hydra = self.spec.launcher == Launcher::Mpich;
        let Some((node, code)) = self.members.iter().skip(1).find_map(failed).filter(|_| is_hydra) else { return };
        let detail = format!("the proxy of this node ended with exit code {code}, and the head said nothing since");
        self.ends(JobState::Failed, JobCause::ProxyFailed, detail, Some(node), now);
    }

    /// What a node has of it: while it is held, what holds it.
    fn member(&mut self, node: NodeId) -> Option<&mut Member> {
        let is_it = |member: &Member| member.node == node;
        // A record of an earlier meshd may name a node twice.
        let held = self.members.iter().position(|member| is_it(member) && member.is_held());
        let place = held.or_else(|| self.members.iter().position(is_it))?;
        self.members.get_mut(place)
    }

    /// A part has ended by itself. Hydra's head speaks for all ranks; without Hydra the first failure does, or all.
    fn exited(&mut self, node: NodeId, is_head: bool, code: u8, now: Timestamp) {
        let speaks = match self.spec.launcher {
            Launcher::Mpich => is_head,
            Launcher::None => code != 0 || self.members.iter().all(|member| member.state == MemberState::Ended),
        };
        if !speaks {
            return;
        }
        let (state, detail) = match code {
            0 => (JobState::Succeeded, String::new()),
            code => (JobState::Failed, format!("exit code {code}")),
        };
        let first = self.end.is_none();
        self.ends(state, JobCause::Exited, detail, (code != 0).then_some(node), now);
        if let Some(end) = self.end.as_mut().filter(|_| first) {
            end.code = Some(code);
        }
    }

    /// The first word counts.
    fn ends(&mut self, state: JobState, cause: JobCause, detail: String, node: Option<NodeId>, at: Timestamp) {
        if self.end.is_none() {
            self.end = Some(JobEnd { state, cause, detail, node, code: None, at });
            self.state = JobState::Ending;
        }
    }

    fn settle(&mut self, now: Timestamp) {
        match &self.end {
            None => {
                let runs = |member: &Member| member.state != MemberState::Claimed;
                if self.state == JobState::Starting && self.members.iter().all(runs) {
                    (self.state, self.started_at) = (JobState::Running, Some(now));
                }
            }
            Some(end) => {
                let over = self.members.iter().all(|member| !member.is_held() || member.lost);
                if self.state == JobState::Ending && over {
                    (self.state, self.ended_at) = (end.state, Some(now));
                }
            }
        }
    }
}
