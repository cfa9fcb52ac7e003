//! Response types of the admin API; the CLI prints the same values.

pub use super::query::search::{SearchHit, SearchView};
pub use super::routes::catalog_view::{ImageView, OverlayView};
pub use super::routes::slots::{ApproveSlot, SlotView};
pub use super::routes::trust::{CreateToken, CreatedToken, RootView, RotateCa, TokenView};
pub use super::routes::vms::{CreateVm, DeleteVm, TemplateView, VmView};
pub use super::routes::volumes::VolumeView;
pub use super::views::bodies::{
    AcceptNic, ApiTokenView, Approve, AssignProfile, AuditView, BootOnce, BulkDone, BulkNode, BulkRequest,
    ChangeLabels, ChangeVars, CreateApiToken, CreatedApiToken, DiffView, DoctorView, Drain, Fence, GenerationView, Pin,
    ReloadView, Rename, Replace, Replaced, RevisionView, Rollback,
};
pub use super::views::profile_view::ProfileView;
pub use super::views::task_view::{RunTask, TaskNode, TaskOutput, TaskView};
pub use super::views::timeline::{BootSummary, StageView, TimelineView};
use crate::serve::admin::doctor::Finding;
use meshd_config::Site;
use meshd_model::fleet::{
    AuditContext, BootSession, CheckProvenance, Condition, ConditionKind, ConflictingMachine, Event, EventKind,
    EventSeq, Fingerprint, Generation, Labels, LinkState, NextBootOverride, Node, Phase, Stage, StageMark,
};
use meshd_proto::{Check, Facts, Heartbeat};
use meshd_types::{Basis, BootSessionId, GroupName, MacAddr, NodeId, ProfileName, Timestamp, Vars};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::IpAddr};
use utoipa::ToSchema;

/// Header of a rendered overlay: the generation that it belongs to.
pub const GENERATION_HEADER: &str = "x-meshd-generation";
/// Header of a rendered overlay: the profile that it was rendered for.
pub const PROFILE_HEADER: &str = "x-meshd-profile";

/// Why a request was not done. The body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorView {
    /// One word for programs.
    pub code: String,
    /// What went wrong, for people.
    pub message: String,
    /// What to do next; empty when the message says it.
    #[serde(default)]
    pub hint: String,
    /// Finds this answer in the log of the central node.
    pub correlation_id: String,
}

/// The central node at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatusView {
    /// The site's name.
    pub site: String,
    /// Version and commit of the meshd that answers.
    pub version: String,
    pub pid: u32,
    /// SHA-256 of the certificate of `[admin.https]`, for `--server-fingerprint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https_fingerprint: Option<String>,
    /// Machines boot: nothing is wrong that keeps them from it.
    #[serde(default)]
    pub ready: bool,
    /// How many nodes there are.
    #[serde(default)]
    pub nodes: usize,
    /// How many nodes are in each phase; phases without a node are left out.
    pub phases: BTreeMap<String, usize>,
    /// What nodes can give to virtual machines.
    #[serde(default)]
    pub units: UnitCount,
    /// How many nodes have each condition; those that none has are left out.
    #[serde(default)]
    pub conditions: BTreeMap<String, usize>,
    /// What somebody should look at.
    #[serde(default)]
    pub warnings: Vec<Finding>,
    /// What keeps machines from booting.
    #[serde(default)]
    pub errors: Vec<Finding>,
}

/// Units of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnitCount {
    /// Those that can be given: of nodes that are online.
    pub ready: usize,
    /// All that nodes tell of.
    pub total: usize,
}

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

/// One event: one line of `meshd events -o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Its place in the record.
    #[schema(value_type = u64)]
    pub seq: EventSeq,
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// One word: what happened. A raised condition goes by its own word.
    pub kind: String,
    /// Which node, where one is known.
    #[schema(value_type = Option<String>)]
    pub node: Option<NodeId>,
    /// Which boot, where one is known.
    #[schema(value_type = Option<String>)]
    pub session: Option<BootSessionId>,
    #[schema(value_type = String)]
    pub actor: meshd_model::fleet::Actor,
    /// For people.
    pub detail: String,
    /// The order that it came of: who gave it, which, why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub by: Option<AuditContext>,
    /// The stage that was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub stage: Option<Stage>,
    /// The phase before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub from: Option<Phase>,
    /// The phase now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub to: Option<Phase>,
    /// The condition that was raised or cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub condition: Option<ConditionKind>,
    /// How often it happened; 1 is left out. Repeats of a source that is over its budget are folded into one record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The first of these times; `at` is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub first_at: Option<Timestamp>,
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

impl EventView {
    /// One event with its place in the record.
    pub fn new(seq: EventSeq, event: &Event) -> Self {
        let mut view = EventView {
            seq,
            at: event.at,
            kind: event.kind.word().to_owned(),
            node: event.node,
            session: event.session,
            actor: event.actor,
            detail: event.detail.clone(),
            by: event.by.clone(),
            stage: None,
            from: None,
            to: None,
            condition: None,
            count: (event.count > 1).then_some(event.count),
            first_at: event.first_at,
        };
        match event.kind {
            EventKind::Stage { stage } => view.stage = Some(stage),
            EventKind::Phase { from, to } => (view.from, view.to) = (Some(from), Some(to)),
            EventKind::Raised { condition } | EventKind::Cleared { condition } => view.condition = Some(condition),
            _ => {}
        }
        view
    }
}
