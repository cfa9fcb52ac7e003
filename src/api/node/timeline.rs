//! Boot timelines of a node in JSON.

use meshd_model::{
    fleet::{BootSession, BootStatus, BootStepTime, Node, Stage, Stall, Wait, stage_times},
    work::task::{Task, TaskState},
};
use meshd_types::{BootSessionId, MacAddr, NodeId, TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use std::{net::Ipv4Addr, time::Duration};
use utoipa::ToSchema;

/// A boot session of a node with its stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelineView {
    pub node: NodeId,
    pub name: String,
    pub session: BootSessionId,
    /// MAC address of the NIC that booted.
    pub mac: MacAddr,
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
    /// Time of the first DHCP exchange.
    pub opened_at: Timestamp,
    /// State of the boot session, or its result after the end.
    pub result: BootStatus,
    /// Stages in the order in which the machine reached them.
    pub stages: Vec<StageView>,
    /// Reasons for which the machine had to wait, each with its first and last time.
    pub waits: Vec<Wait>,
    /// Stalls of the boot, each with the overdue stage and the likely cause.
    pub stalls: Vec<Stall>,
    /// Reason for which `mesh-init` or stage 1 refused to start the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Time from the first stage to the last reached stage, in milliseconds; of an unfinished boot,
    /// to the time of the response.
    pub total_ms: u64,
    /// Tasks that ran on the node in this boot session, oldest first.
    #[serde(default)]
    pub tasks: Vec<TaskStep>,
    /// All stored boot sessions of the node, including this one, newest first.
    pub boots: Vec<BootSummary>,
}

/// A stage of a boot session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageView {
    /// Stage of the boot chain, or `approval`: the wait for an operator, which is not part of
    /// `enrolled`.
    pub stage: String,
    /// Time at which the machine first reached the stage. For `approval`, the end of the wait, or
    /// the time of the response.
    pub at: Timestamp,
    /// Time from the previous stage to this stage, in milliseconds, without the wait for approval.
    pub duration_ms: u64,
    /// Time from the first stage to this stage, in milliseconds.
    pub elapsed_ms: u64,
    /// Number of times the machine reached the stage; more than 1 after a retry.
    pub count: u32,
}

/// A task that ran on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskStep {
    pub id: TaskId,
    pub state: TaskState,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Time of the order.
    pub created_at: Timestamp,
    /// Time from the order until the task ran on all its nodes, in milliseconds; absent if it never
    /// did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<u64>,
    /// Time from then until the end, in milliseconds; absent while the task runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_ms: Option<u64>,
}

impl TaskStep {
    fn new(task: &Task) -> Self {
        let start_ms = task.started_at.map(|started| millis(task.created_at, started));
        let run_ms =
            task.started_at.zip(task.ended_at).map(|(started, ended)| millis(started, ended));
        let argv = task.spec.argv.clone();
        let created_at = task.created_at;
        TaskStep { id: task.id, state: task.state, argv, created_at, start_ms, run_ms }
    }
}

/// Summary of a boot session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BootSummary {
    pub session: BootSessionId,
    /// Time of the first DHCP exchange.
    pub opened_at: Timestamp,
    /// State of the boot session, or its result after the end.
    pub result: BootStatus,
    /// Latest stage of the boot chain that the machine reached.
    pub stage: Option<Stage>,
    /// Time from the first stage to the last stage, in milliseconds; of an unfinished boot, to the
    /// time of the response.
    pub total_ms: u64,
    /// Reason for which `mesh-init` or stage 1 refused to start the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Returns the end of an unfinished boot: the time of the response. `over`: a newer session of the
/// machine exists.
pub(super) fn running_until(result: BootStatus, over: bool, now: Timestamp) -> Option<Timestamp> {
    (result.is_unfinished() && !over).then_some(now)
}

fn millis(from: Timestamp, to: Timestamp) -> u64 {
    duration_ms(to.since(from))
}

pub(super) fn duration_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The stages of a boot session with their durations. A clock that moved backwards gives a duration
/// of zero.
struct Durations {
    stages: Vec<StageView>,
    total_ms: u64,
}

impl Durations {
    /// `running_until` is the time of the response for an unfinished boot, else `None`.
    fn new(session: &BootSession, running_until: Option<Timestamp>) -> Self {
        let first = session.stages.first().map_or(session.opened_at, |mark| mark.at);
        let stage = |time: BootStepTime| StageView {
            stage: time.step.as_str().to_owned(),
            at: time.at,
            duration_ms: duration_ms(time.duration),
            elapsed_ms: millis(first, time.at),
            count: time.count,
        };
        let stages: Vec<_> = stage_times(session, running_until).into_iter().map(stage).collect();
        let last = stages.iter().map(|stage| stage.elapsed_ms).max().unwrap_or(0);
        Durations {
            stages,
            total_ms: running_until.map_or(last, |now| last.max(millis(first, now))),
        }
    }
}

impl TimelineView {
    /// Stage of the wait for approval.
    pub const APPROVAL: &str = Wait::APPROVAL;

    /// Returns the timeline of a boot session at the time `now`. `boots` contains all sessions of
    /// the node, newest first. Returns `None` if `session` is not in `boots`.
    pub fn new(
        node: &Node,
        session: BootSessionId,
        boots: &[&BootSession],
        now: Timestamp,
    ) -> Option<Self> {
        let index = boots.iter().position(|boot| boot.id == session)?;
        let boot = boots.get(index)?;
        let result = boot.standing(index > 0);
        let Durations { stages, total_ms } =
            Durations::new(boot, running_until(result, index > 0, now));
        Some(TimelineView {
            node: node.id,
            name: node.name.clone(),
            session: boot.id,
            mac: boot.mac,
            address: boot.address,
            opened_at: boot.opened_at,
            result,
            total_ms,
            stages,
            waits: boot.waits.clone(),
            stalls: boot.stalls.clone(),
            failure: boot.failure.clone(),
            tasks: Vec::new(),
            boots: boots
                .iter()
                .enumerate()
                .map(|(index, boot)| BootSummary::new(boot, index > 0, now))
                .collect(),
        })
    }
}

impl TimelineView {
    /// Adds the tasks of the node in this boot session, in the order of their orders.
    pub fn with_tasks<'t>(mut self, tasks: impl Iterator<Item = &'t Task>) -> Self {
        let is_here = |task: &&Task| {
            task.members
                .iter()
                .any(|member| member.node == self.node && member.session == self.session)
        };
        self.tasks = tasks.filter(is_here).map(TaskStep::new).collect();
        self.tasks.sort_by_key(|task| (task.created_at, task.id));
        self
    }

    /// Returns the end of a wait: the next stage or wait after its last request; of a present wait,
    /// the time of the response.
    pub fn wait_end(&self, wait: &Wait) -> Timestamp {
        let stages =
            self.stages.iter().filter(|stage| stage.stage != Self::APPROVAL).map(|stage| stage.at);
        let next = stages
            .chain(self.waits.iter().map(|other| other.at))
            .filter(|at| *at > wait.last)
            .min();
        let present = || {
            let first = self.stages.first().map_or(self.opened_at, |stage| stage.at);
            first.after(Duration::from_millis(self.total_ms))
        };
        next.unwrap_or_else(
            || if self.result == BootStatus::Waiting { present() } else { wait.last },
        )
    }

    /// Returns the failure reason of this boot, or that of the previous boot while this boot is not
    /// online.
    pub fn last_failure(&self) -> Option<(&BootSummary, &str)> {
        let index = self.boots.iter().position(|boot| boot.session == self.session)?;
        let mut recent = self
            .boots
            .iter()
            .skip(index)
            .take(2)
            .take_while(|boot| boot.result != BootStatus::Online);
        recent.find_map(|boot| Some((boot, boot.failure.as_deref()?)))
    }
}

impl BootSummary {
    fn new(boot: &BootSession, over: bool, now: Timestamp) -> Self {
        let result = boot.standing(over);
        BootSummary {
            session: boot.id,
            opened_at: boot.opened_at,
            result,
            stage: boot.furthest(),
            total_ms: Durations::new(boot, running_until(result, over, now)).total_ms,
            failure: boot.failure.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_model::fleet::Fingerprint;
    use meshd_types::Basis;

    #[test]
    fn timeline_durations_sum_to_total_despite_backward_clock() {
        let at = Timestamp::from_millis;
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut session = BootSession::open(BootSessionId([1; 12]), mac, Stage::Dhcp, at(1_000));
        session.mark(Stage::Script, at(3_500));
        session.mark(Stage::Kernel, at(3_000));
        session.mark(Stage::Online, at(61_000));
        let older = BootSession::open(BootSessionId([2; 12]), mac, Stage::Dhcp, at(0));
        let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at(0));
        let timeline = TimelineView::new(&node, session.id, &[&session, &older], at(90_000))
            .expect("it is there");
        let durations: Vec<u64> = timeline.stages.iter().map(|stage| stage.duration_ms).collect();
        assert_eq!((durations, timeline.total_ms), (vec![0, 2_500, 0, 58_000], 60_000));
        let results: Vec<_> = timeline.boots.iter().map(|boot| boot.result.as_str()).collect();
        assert_eq!(results, ["online", "stopped"]);
        assert_eq!(TimelineView::new(&node, BootSessionId([3; 12]), &[&session], at(0)), None);
        let task = |id: u8, session: BootSessionId| {
            let task = serde_json::json!({
                "id": TaskId([id; 4]), "owner": "uid:0", "created_at": at(2_000), "started_at": at(2_500), "ended_at": at(9_500),
                "state": "succeeded",
                "spec": { "group": "pair", "argv": ["/bin/true"], "nodes": 1, "ranks_per_node": 1, "launcher": "none" },
                "members": [{ "node": node.id, "session": session, "address": "10.77.0.9", "state": "released" }],
            });
            serde_json::from_value::<Task>(task).expect("a task")
        };
        let here = task(1, session.id);
        let before = task(2, older.id);
        let timeline = timeline.with_tasks([&before, &here].into_iter());
        let steps: Vec<_> =
            timeline.tasks.iter().map(|step| (step.id, step.start_ms, step.run_ms)).collect();
        assert_eq!(steps, [(here.id, Some(500), Some(7_000))]);
    }

    fn durations(timeline: &TimelineView) -> Vec<(&str, u64)> {
        timeline.stages.iter().map(|stage| (stage.stage.as_str(), stage.duration_ms)).collect()
    }

    #[test]
    fn wait_for_approval_is_a_stage_and_not_part_of_enrolled() {
        let at = Timestamp::from_millis;
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut session = BootSession::open(BootSessionId([1; 12]), mac, Stage::Dhcp, at(0));
        session.mark(Stage::Modloop, at(20_000));
        session.record_wait(Wait::APPROVAL, at(30_000));
        let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at(0));
        let view = |session: &BootSession, now| {
            TimelineView::new(&node, session.id, &[session], at(now)).expect("there")
        };
        let waiting = view(&session, 90_000);
        assert_eq!(durations(&waiting), [("dhcp", 0), ("modloop", 20_000), ("approval", 60_000)]);
        assert_eq!((waiting.result, waiting.total_ms), (BootStatus::Waiting, 90_000));
        session.mark(Stage::Enrolled, at(630_000));
        session.mark(Stage::Online, at(640_000));
        let approved = view(&session, 990_000);
        let expected = [
            ("dhcp", 0),
            ("modloop", 20_000),
            ("approval", 600_000),
            ("enrolled", 10_000),
            ("online", 10_000),
        ];
        assert_eq!(
            (durations(&approved).as_slice(), approved.total_ms),
            (expected.as_slice(), 640_000)
        );
    }

    #[test]
    fn wait_of_one_request_lasts_until_the_next_stage_or_wait() {
        let at = Timestamp::from_millis;
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut session = BootSession::open(BootSessionId([1; 12]), mac, Stage::Dhcp, at(0));
        session.mark(Stage::Script, at(5_000));
        session.record_wait(Wait::RECENTLY_ONLINE, at(5_000));
        session.record_wait("busy", at(20_000));
        let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at(0));
        let ends = |session: &BootSession| {
            let view = TimelineView::new(&node, session.id, &[session], at(90_000)).expect("there");
            view.waits.iter().map(|wait| view.wait_end(wait)).collect::<Vec<_>>()
        };
        assert_eq!(ends(&session), [at(20_000), at(90_000)], "the second one is the present state");
        session.mark(Stage::Kernel, at(31_000));
        assert_eq!(ends(&session), [at(20_000), at(31_000)]);
    }

    #[test]
    fn time_of_a_silent_boot_runs_until_a_newer_boot() {
        let at = Timestamp::from_millis;
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let session = BootSession::open(BootSessionId([1; 12]), mac, Stage::Dhcp, at(0));
        let newer = BootSession::open(BootSessionId([2; 12]), mac, Stage::Dhcp, at(60_000));
        let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at(0));
        let total = |boots: &[&BootSession], now| {
            let view = TimelineView::new(&node, session.id, boots, at(now)).expect("there");
            assert_eq!(view.boots.last().map(|boot| boot.total_ms), Some(view.total_ms));
            view.total_ms
        };
        assert_eq!((total(&[&session], 5_000), total(&[&session], 50_000)), (5_000, 50_000));
        assert_eq!(total(&[&newer, &session], 90_000), 0, "it stopped at its first stage");
    }
}
