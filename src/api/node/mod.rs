//! Nodes: list entries, details, boot timelines, and orders to them.
//!
//! | module | content |
//! | --- | --- |
//! | `boot_times` | where the time of a boot goes |
//! | `machine` | machines that have not booted yet |
//! | `operation` | operations: orders to nodes, with the state of each node |
//! | `power` | power of nodes, by their BMCs |
//! | `bisection` | bisections: searches for the first bad generation |
//! | `rollout` | rollouts: planned changes of many nodes |
//! | `timeline` | the stages of a boot session |
//! | `warm_reboot` | the last order to reboot without the firmware |

mod boot_times;
mod machine;
mod operation;
mod power;
mod bisection;
mod rollout;
mod timeline;
mod warm_reboot;

pub use bisection::{BisectionView, ProbeView, StartBisection};
pub use boot_times::{BootDelayView, BootStepView, BootTimesView};
pub use machine::{ImportMachines, ImportedMachines, MachineView, RemoveMachines};
pub use operation::{CancelledOperation, NodeOperationView, OperationView};
pub use power::{
    BmcEventView, BmcVerb, BootDeviceOrder, FirmwareView, Identify, PowerOrder, PowerView,
    SensorView,
};
pub use rollout::{
    RolloutNodeView, RolloutPlan, RolloutView, StartRollout, UndoRollout, WaveProgress, WaveView,
};
pub use timeline::{BootSummary, StageView, TaskStep, TimelineView};
pub use warm_reboot::{ColdBootView, WarmRebootView};

use meshd_config::{Segment, Site};
use meshd_model::fleet::{
    BootSession, CheckProvenance, Condition, ConflictingMachine, Fingerprint, Generation,
    LinkState, NextBootOverride, Node, Phase, Stage, StageMark, Wait,
};
use meshd_proto::{Check, Facts, GpuFacts, Heartbeat, NicFacts, PciFacts};
use meshd_types::{
    Basis, BootSessionId, GroupName, LabelKey, LabelValue, MacAddr, NodeId, ProfileName, Timestamp,
    VarName, VarValue, relay_id_text,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::IpAddr};
use utoipa::ToSchema;

/// An entry in the list of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    pub id: NodeId,
    /// Host name of the node.
    pub name: String,
    /// Profile of the next boot: the assigned profile, else the default profile of the site.
    pub profile: ProfileName,
    /// True if an operator assigned the profile; false if the node uses the site default.
    pub assigned: bool,
    /// Phase of the node in its lifecycle.
    pub phase: Phase,
    /// Current problems of the node.
    pub conditions: Vec<Condition>,
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    /// MAC address of the NIC from which the node boots.
    pub mac: MacAddr,
    /// Manufacturer and product, as the firmware reports them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Serial number, as the firmware reports it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// Memory in bytes, as the node reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Number of GPUs and other accelerators, as the node reported them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<usize>,
    /// Segment from which the node boots, if its address shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// Circuit ID of its switch port, as the DHCP relay reports it; as a rule of the site takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit_id: Option<String>,
    /// Remote ID of its switch port, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_id: Option<String>,
    /// Generation that the agent reported for the current boot. Before the first report: generation
    /// of the newest rendered overlay.
    pub generation: Option<Generation>,
    /// Generation of the next boot. The condition `reboot_required` states that it differs from the
    /// running one.
    #[serde(default)]
    pub next_generation: Option<Generation>,
    /// Generation to which the node is pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Generation>,
    /// Generation to which the profile is rolled back. A pin of the node takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<Generation>,
    /// Time of the last message from the node.
    pub last_seen: Timestamp,
    pub boot: Option<BootView>,
    /// Labels of the node, as an object of keys and values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<LabelKey, LabelValue>,
    /// Revision of the record, required in a bulk order. The revision changes with every value on
    /// which an operator's decision depends.
    #[serde(default)]
    pub revision: String,
    /// Workloads that run on the node or are placed on it, and drain hooks that are not done while
    /// the node is out of service; a drain waits for them. Absent in lists of nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<String>,
}

impl NodeView {
    /// Returns true if the node has its generated name.
    pub fn has_generated_name(&self) -> bool {
        self.name.strip_prefix("node-") == Some(&self.id.to_string())
    }
}

/// Progress of a boot session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BootView {
    /// ID of the boot session.
    pub session: BootSessionId,
    /// Latest stage of the boot chain that the machine reached.
    pub stage: Option<Stage>,
    /// Time at which the machine reached that stage.
    pub stage_at: Option<Timestamp>,
    /// Time of the first DHCP exchange.
    pub opened_at: Timestamp,
    /// Stages with their times, in the order in which the machine reached them.
    pub stages: Vec<StageMark>,
}

/// All information about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeDetail {
    /// Fields of the list entry.
    #[serde(flatten)]
    pub node: NodeView,
    /// System UUID, serial number or MAC address from which the node ID is derived.
    pub basis: Basis,
    pub fingerprint: Fingerprint,
    /// Time at which meshd first saw the machine.
    pub discovered_at: Timestamp,
    /// Time at which the link was established; absent without a link.
    pub link_since: Option<Timestamp>,
    /// Memory, storage and workloads in the last heartbeat of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Heartbeat>,
    /// Time of the last release from quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Timestamp>,
    /// Reason that an operator gave for holding the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_reason: Option<String>,
    /// IDs of former nodes whose identity moved to this hardware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<NodeId>,
    /// Other machines that claimed the identity of this node and were refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicting_machines: Vec<ConflictingMachine>,
    /// Groups of the node, in the order in which meshd applies them.
    #[serde(default)]
    pub groups: Vec<GroupName>,
    #[serde(default)]
    pub vars: BTreeMap<VarName, VarValue>,
    /// Override of profile or kernel arguments for a single boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_override: Option<NextBootOverride>,
    /// Reason why the newest boot of the machine is deferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deferred: Option<String>,
    /// The last order to reboot without the firmware, once it has a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_reboot: Option<WarmRebootView>,
    /// Serial numbers of the valid certificates, newest last.
    pub certificates: Vec<String>,
    /// Results of the last readiness checks.
    pub checks: Vec<Check>,
    /// Boot session and time of the last readiness checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<CheckProvenance>,
    /// True if the checks ran in the current boot session. Checks of an earlier session do not
    /// count.
    #[serde(default)]
    pub checks_count: bool,
    /// Hardware and software facts of the last report.
    pub facts: Option<Facts>,
    /// Names of its PCI devices by `VENDOR:DEVICE`, if the central node has the file `pci.ids`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pci_names: BTreeMap<String, String>,
}

impl NodeView {
    /// Creates the list entry of a node from its record, its newest boot session and its link.
    pub fn new(node: &Node, boot: Option<&BootSession>, site: &Site, link: &LinkState) -> Self {
        let port = boot.and_then(|boot| boot.relay_port.as_ref());
        // Rules count no other: a machine without a relay may have written the option itself.
        let port = port.filter(|port| port.relay.is_some());
        let id = |id: &Option<String>| id.as_deref().map(relay_id_text);
        NodeView {
            id: node.id,
            name: node.name.clone(),
            profile: node.profile.clone().unwrap_or_else(|| site.default_profile.clone()),
            assigned: node.profile.is_some(),
            phase: node.phase,
            conditions: node.conditions.clone(),
            address: node.address,
            mac: node.mac,
            model: format!("{} {}", node.fingerprint.manufacturer, node.fingerprint.product)
                .trim()
                .to_owned(),
            serial: node.fingerprint.serial.clone(),
            memory: node.facts.as_ref().map(|facts| facts.memory.total_kib << 10),
            gpus: node.facts.as_ref().map(|facts| gpus(facts).count()),
            segment: site.segment_at(node.address).map(Segment::name),
            circuit_id: port.and_then(|port| id(&port.circuit_id)),
            remote_id: port.and_then(|port| id(&port.remote_id)),
            generation: node.booted.or(node.generation),
            next_generation: node.generation,
            pinned: node.pinned,
            rolled_back: None,
            last_seen: link.last_message_at.map_or(node.last_seen, |at| at.max(node.last_seen)),
            boot: boot.map(BootView::new),
            labels: node.labels.clone(),
            revision: node.revision(),
            work: Vec::new(),
        }
    }

    /// Adds the workloads of the node.
    pub fn working(self, work: Vec<String>) -> Self {
        NodeView { work, ..self }
    }

    /// Adds the generation to which the profile is rolled back. `rollback_of` returns that
    /// generation for a profile.
    pub fn rolled_back(self, rollback_of: impl FnOnce(&ProfileName) -> Option<Generation>) -> Self {
        NodeView { rolled_back: rollback_of(&self.profile), ..self }
    }
}

/// Vendors of the graphics of BMCs: ASPEED, Matrox.
const BMC_GRAPHICS: [&str; 2] = ["1a03", "102b"];

/// Returns the GPUs and other accelerators of a node. The graphics of a BMC do not count.
pub fn gpus(facts: &Facts) -> impl Iterator<Item = &PciFacts> {
    let is_gpu = |class: &str| class.starts_with("03") || class.starts_with("12");
    let functions = facts.pci.iter().filter(move |function| is_gpu(&function.class));
    functions.filter(|function| !BMC_GRAPHICS.contains(&function.vendor.as_str()))
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

/// Returns the fields of the list entry.
impl From<NodeDetail> for NodeView {
    fn from(detail: NodeDetail) -> Self {
        detail.node
    }
}

impl NodeDetail {
    /// Adds the reason why the newest boot is deferred, also before that boot has its script. An
    /// old wait of a machine that was switched off does not count.
    pub fn deferred(self, newest: Option<&BootSession>, now: Timestamp) -> Self {
        let waiting = newest.filter(|boot| boot.is_fresh(now)).and_then(BootSession::waiting);
        NodeDetail { deferred: waiting.map(Wait::reason), ..self }
    }

    /// Creates the details of a node from its record, its newest boot session and its link.
    pub fn new(node: &Node, boot: Option<&BootSession>, site: &Site, link: &LinkState) -> Self {
        NodeDetail {
            node: NodeView::new(node, boot, site, link),
            basis: node.basis.clone(),
            fingerprint: node.fingerprint.clone(),
            discovered_at: node.discovered_at,
            link_since: link.since,
            heartbeat: link.heartbeat.clone(),
            released_at: node.released_at,
            quarantine_reason: node.quarantine_reason.clone(),
            former: node.former.clone(),
            conflicting_machines: node.conflicting_machines.clone(),
            groups: site
                .groups
                .iter()
                .filter(|group| group.lists(node.known_as(), Some(node.name.as_str())))
                .map(|it| it.name.clone())
                .collect(),
            vars: node.vars.clone(),
            boot_override: node.boot_override.clone(),
            deferred: None,
            warm_reboot: node.warm_reboot.as_ref().map(WarmRebootView::new),
            certificates: node
                .certificates
                .iter()
                .map(|certificate| certificate.serial.clone())
                .collect(),
            checks: node.checks.clone(),
            evidence: node.evidence.clone(),
            checks_count: node.valid_checks().is_some(),
            facts: node.facts.clone(),
            pci_names: BTreeMap::new(),
        }
    }

    /// Adds names of PCI devices.
    pub fn with_pci_names(self, pci_names: BTreeMap<String, String>) -> Self {
        NodeDetail { pci_names, ..self }
    }

    /// Returns the name of a PCI device; its vendor and device ID if it has none.
    pub fn pci_name(&self, function: &PciFacts) -> String {
        let id = format!("{}:{}", function.vendor, function.device);
        self.pci_names.get(&id).cloned().unwrap_or(id)
    }

    /// Returns the name of the PCI device of a NIC, if it has one.
    pub fn nic_name(&self, nic: &NicFacts) -> Option<String> {
        let functions = &self.facts.as_ref()?.pci;
        let is_own = |function: &&PciFacts| Some(&function.address) == nic.function.as_ref();
        functions.iter().find(is_own).map(|function| self.pci_name(function))
    }

    /// Returns the model of a GPU, by its driver, else by its IDs.
    pub fn gpu_model(&self, function: &PciFacts) -> String {
        let model = self.gpu_facts(function).map(|gpu| gpu.model.clone()).unwrap_or_default();
        if model.is_empty() { self.pci_name(function) } else { model }
    }

    /// Returns the size of the memory of a GPU in bytes, if its driver reports it.
    pub fn gpu_memory(&self, function: &PciFacts) -> Option<u64> {
        self.gpu_facts(function)?.memory
    }

    fn gpu_facts(&self, function: &PciFacts) -> Option<&GpuFacts> {
        self.facts.as_ref()?.gpus.iter().find(|gpu| gpu.function == function.address)
    }

    /// Adds the workloads of the node.
    pub fn working(mut self, work: Vec<String>) -> Self {
        self.node.work = work;
        self
    }
}
