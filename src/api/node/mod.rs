//! A node in a listing, and everything that is known of one.
//!
//! | module | content |
//! | --- | --- |
//! | `timeline` | one boot, stage by stage |

mod timeline;

pub use timeline::{BootSummary, StageView, TimelineView};

use meshd_config::Site;
use meshd_model::fleet::{
    BootSession, CheckProvenance, Condition, ConflictingMachine, Fingerprint, Generation, Labels, LinkState,
    NextBootOverride, Node, Phase, Stage, StageMark,
};
use meshd_proto::{Check, Facts, Heartbeat};
use meshd_types::{Basis, BootSessionId, GroupName, MacAddr, NodeId, ProfileName, Timestamp, Vars};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;

/// One node in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    #[schema(value_type = String)]
    pub id: NodeId,
    /// What an operator calls it.
    pub name: String,
    /// What it boots next: what was assigned to it, else the site's default.
    #[schema(value_type = String)]
    pub profile: ProfileName,
    /// Whether an operator assigned the profile.
    pub assigned: bool,
    /// Where it is in its life.
    #[schema(value_type = String)]
    pub phase: Phase,
    /// What is wrong with it.
    #[schema(value_type = Vec<Object>)]
    pub conditions: Vec<Condition>,
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    /// The NIC that it boots from.
    #[schema(value_type = String)]
    pub mac: MacAddr,
    /// What its agent says that it booted; before it says so, what its newest overlay was made from.
    #[schema(value_type = Option<String>)]
    pub generation: Option<Generation>,
    /// What it would boot now; `reboot_required` says where it is not what it runs.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub next_generation: Option<Generation>,
    /// The generation that it is pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub pinned: Option<Generation>,
    /// The generation that its profile is rolled back to. A pinned node boots what it is pinned to all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub rolled_back: Option<Generation>,
    /// Last sign of life.
    #[schema(value_type = String)]
    pub last_seen: Timestamp,
    pub boot: Option<BootView>,
    /// Labels: where it is and what it is for.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(value_type = Object)]
    pub labels: Labels,
    /// Changes with everything that an operator decides by; a bulk order names it.
    #[serde(default)]
    pub revision: String,
    /// What works on it, or is ordered to: what a drain waits for. Told of one node only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<String>,
}

/// How far a boot came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BootView {
    /// The boot session's ID.
    #[schema(value_type = String)]
    pub session: BootSessionId,
    /// The stage farthest along the chain.
    #[schema(value_type = Option<String>)]
    pub stage: Option<Stage>,
    /// When that stage was reached.
    #[schema(value_type = Option<String>)]
    pub stage_at: Option<Timestamp>,
    /// First DHCP exchange of the session.
    #[schema(value_type = String)]
    pub opened_at: Timestamp,
    /// Every stage with its times, in the order in which they were reached.
    #[schema(value_type = Vec<Object>)]
    pub stages: Vec<StageMark>,
}

/// Everything that is known of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeDetail {
    /// What a listing shows.
    #[serde(flatten)]
    pub node: NodeView,
    /// What its ID was derived from.
    #[schema(value_type = String)]
    pub basis: Basis,
    #[schema(value_type = Object)]
    pub fingerprint: Fingerprint,
    /// First seen.
    #[schema(value_type = String)]
    pub discovered_at: Timestamp,
    /// Since when its link is up.
    #[schema(value_type = Option<String>)]
    pub link_since: Option<Timestamp>,
    /// Memory, storage and workloads as of the last heartbeat of its link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub heartbeat: Option<Heartbeat>,
    /// When an operator last released it from quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub released_at: Option<Timestamp>,
    /// Why an operator holds it, if one said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_because: Option<String>,
    /// IDs of nodes that it stands for: their hardware is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub former: Vec<NodeId>,
    /// Other machines that asked to be this node, and were refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub rivals: Vec<ConflictingMachine>,
    /// The groups that it is in, in the order in which they are applied.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub groups: Vec<GroupName>,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub vars: Vars,
    /// What was ordered for one boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub once: Option<NextBootOverride>,
    /// Serial numbers of the certificates that are honoured, newest last.
    pub certificates: Vec<String>,
    /// Its last readiness checks.
    #[schema(value_type = Vec<Object>)]
    pub checks: Vec<Check>,
    /// The boot that they ran in, and when they were told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub evidence: Option<CheckProvenance>,
    /// They are of the boot that it is in; else they prove nothing.
    #[serde(default)]
    pub checks_count: bool,
    /// What it last told of itself.
    #[schema(value_type = Option<Object>)]
    pub facts: Option<Facts>,
}

impl NodeView {
    /// A node with its newest boot and its link.
    pub fn new(node: &Node, boot: Option<&BootSession>, site: &Site, link: &LinkState) -> Self {
        NodeView {
            id: node.id,
            name: node.name.clone(),
            profile: node.profile.clone().unwrap_or_else(|| site.default_profile.clone()),
            assigned: node.profile.is_some(),
            phase: node.phase,
            conditions: node.conditions.clone(),
            address: node.address,
            mac: node.mac,
            generation: node.booted.or(node.generation),
            next_generation: node.generation,
            pinned: node.pinned,
            rolled_back: None,
            last_seen: link.heard.map_or(node.last_seen, |heard| heard.max(node.last_seen)),
            boot: boot.map(BootView::new),
            labels: node.labels.clone(),
            revision: node.revision(),
            work: Vec::new(),
        }
    }

    /// The same with what works on it.
    pub fn working(self, work: Vec<String>) -> Self {
        NodeView { work, ..self }
    }

    /// The same with what its profile is rolled back to.
    pub fn rolled_back(self, held: impl FnOnce(&ProfileName) -> Option<Generation>) -> Self {
        NodeView { rolled_back: held(&self.profile), ..self }
    }
}

impl BootView {
    fn new(session: &BootSession) -> Self {
        let furthest = session.stages.iter().max_by_key(|mark| mark.stage);
        BootView {
            session: session.id,
            stage: furthest.map(|mark| mark.stage),
            stage_at: furthest.map(|mark| mark.at),
            opened_at: session.opened_at,
            stages: session.stages.clone(),
        }
    }
}

/// The part that a list shows.
impl From<NodeDetail> for NodeView {
    fn from(detail: NodeDetail) -> Self {
        detail.node
    }
}

impl NodeDetail {
    /// Everything of a node.
    pub fn new(node: &Node, boot: Option<&BootSession>, site: &Site, link: &LinkState) -> Self {
        NodeDetail {
            node: NodeView::new(node, boot, site, link),
            basis: node.basis.clone(),
            fingerprint: node.fingerprint.clone(),
            discovered_at: node.discovered_at,
            link_since: link.since,
            heartbeat: link.heartbeat.clone(),
            released_at: node.released_at,
            held_because: node.held_because.clone(),
            former: node.former.clone(),
            rivals: node.rivals.clone(),
            groups: site
                .groups
                .iter()
                .filter(|group| node.known_as().any(|id| group.nodes.contains(&id)))
                .map(|it| it.name.clone())
                .collect(),
            vars: node.vars.clone(),
            once: node.once.clone(),
            certificates: node.certificates.iter().map(|certificate| certificate.serial.clone()).collect(),
            checks: node.checks.clone(),
            evidence: node.evidence.clone(),
            checks_count: node.valid_checks().is_some(),
            facts: node.facts.clone(),
        }
    }

    /// The same with what works on it.
    pub fn working(mut self, work: Vec<String>) -> Self {
        self.node.work = work;
        self
    }
}
