//! Boot timelines of a node in JSON.

use meshd_model::fleet::{BootSession, BootStatus, Node, Stage, Stall, Wait};
use meshd_types::{BootSessionId, MacAddr, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use utoipa::ToSchema;

/// One boot, stage by stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelineView {
    #[schema(value_type = String)]
    pub node: NodeId,
    pub name: String,
    #[schema(value_type = String)]
    pub session: BootSessionId,
    /// The NIC that booted.
    #[schema(value_type = String)]
    pub mac: MacAddr,
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
    /// First DHCP exchange.
    #[schema(value_type = String)]
    pub opened_at: Timestamp,
    /// How it stands, or ended.
    #[schema(value_type = Object)]
    pub result: BootStatus,
    /// In the order in which they were reached.
    pub stages: Vec<StageView>,
    /// What the machine was told to wait for.
    #[schema(value_type = Vec<Object>)]
    pub waits: Vec<Wait>,
    /// The times that the boot stood still.
    #[schema(value_type = Vec<Object>)]
    pub stalls: Vec<Stall>,
    /// Why `mesh-init` refused to start the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// From the first stage to the last one so far, in milliseconds.
    pub total_ms: u64,
    /// All boots of the node that are kept, newest first, this one too.
    pub boots: Vec<BootSummary>,
}

/// One stage of a boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageView {
    #[schema(value_type = String)]
    pub stage: Stage,
    /// When it was reached first.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// From the stage before to this one, in milliseconds.
    pub duration_ms: u64,
    /// From the first stage to this one, in milliseconds.
    pub elapsed_ms: u64,
    /// How often it was seen; more than once when the machine tried again.
    pub count: u32,
}

/// One boot in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BootSummary {
    #[schema(value_type = String)]
    pub session: BootSessionId,
    /// First DHCP exchange.
    #[schema(value_type = String)]
    pub opened_at: Timestamp,
    /// How it stands, or ended.
    #[schema(value_type = Object)]
    pub result: BootStatus,
    /// The stage farthest along the chain.
    #[schema(value_type = Option<String>)]
    pub stage: Option<Stage>,
    /// From the first stage to the last one, in milliseconds.
    pub total_ms: u64,
    /// Why `mesh-init` refused to start the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

fn millis(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX)
}

/// Stages with what each took. A clock that went back takes nothing.
fn stages(session: &BootSession) -> Vec<StageView> {
    let first = session.stages.first().map_or(session.opened_at, |mark| mark.at);
    let mut before = first;
    let view = session.stages.iter().map(|mark| {
        let (duration_ms, elapsed_ms) = (millis(before, mark.at), millis(first, mark.at));
        before = mark.at;
        StageView { stage: mark.stage, at: mark.at, duration_ms, elapsed_ms, count: mark.count }
    });
    view.collect()
}

fn total(stages: &[StageView]) -> u64 {
    stages.iter().map(|stage| stage.elapsed_ms).max().unwrap_or(0)
}

impl TimelineView {
    /// One boot of a node, among all of its boots, newest first. `None` if the boot is not among them.
    pub fn new(node: &Node, session: BootSessionId, boots: &[&BootSession]) -> Option<Self> {
        let place = boots.iter().position(|boot| boot.id == session)?;
        let boot = boots.get(place)?;
        let stages = stages(boot);
        Some(TimelineView {
            node: node.id,
            name: node.name.clone(),
            session: boot.id,
            mac: boot.mac,
            address: boot.address,
            opened_at: boot.opened_at,
            result: boot.standing(place > 0),
            total_ms: total(&stages),
            stages,
            waits: boot.waits.clone(),
            stalls: boot.stalls.clone(),
            failure: boot.failure.clone(),
            boots: boots.iter().enumerate().map(|(place, boot)| BootSummary::new(boot, place > 0)).collect(),
        })
    }
}

impl TimelineView {
    /// The reason why this boot failed, or the boot before while this one has not come online.
    pub fn last_failure(&self) -> Option<(&BootSummary, &str)> {
        let place = self.boots.iter().position(|boot| boot.session == self.session)?;
        let mut recent = self.boots.iter().skip(place).take(2).take_while(|boot| boot.result != BootStatus::Online);
        recent.find_map(|boot| Some((boot, boot.failure.as_deref()?)))
    }
}

impl BootSummary {
    fn new(boot: &BootSession, over: bool) -> Self {
        BootSummary {
            session: boot.id,
            opened_at: boot.opened_at,
            result: boot.standing(over),
            stage: boot.furthest(),
            total_ms: total(&stages(boot)),
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
    fn timeline_adds_up_and_survives_a_clock_that_went_back() {
        let at = Timestamp::from_millis;
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut session = BootSession::open(BootSessionId([1; 12]), mac, Stage::Dhcp, at(1_000));
        session.mark(Stage::Script, at(3_500));
        session.mark(Stage::Kernel, at(3_000));
        session.mark(Stage::Online, at(61_000));
        let older = BootSession::open(BootSessionId([2; 12]), mac, Stage::Dhcp, at(0));
        let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at(0));
        let timeline = TimelineView::new(&node, session.id, &[&session, &older]).expect("it is there");
        let durations: Vec<u64> = timeline.stages.iter().map(|stage| stage.duration_ms).collect();
        assert_eq!((durations, timeline.total_ms), (vec![0, 2_500, 0, 58_000], 60_000));
        let results: Vec<_> = timeline.boots.iter().map(|boot| boot.result.as_str()).collect();
        assert_eq!(results, ["online", "stopped"]);
        assert_eq!(TimelineView::new(&node, BootSessionId([3; 12]), &[&session]), None);
    }
}
