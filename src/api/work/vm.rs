//! VMs. No response contains cloud-init data.

use meshd_config::vm::{NewVm, OnNodeLoss, VmRequest, VmTemplate};
use meshd_model::work::{Vm, VmDesiredState, VmPhase};
use meshd_proto::vm::{ByteSize, Nic, ReadyCheck, VmFailure, VmFetching, VmReport, Volume};
use meshd_types::{NodeId, SystemUuid, TemplateName, Timestamp, VmName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of an order that creates a VM.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVm {
    /// The VM, as `meshd vm create` reads it from a `vm.toml`. Settings that are absent come from
    /// the template.
    pub vm: NewVm,
    /// ID or name of the only node on which meshd may place the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// True to start the VM immediately.
    #[serde(default)]
    pub start: bool,
}

/// Body of an order that deletes a VM.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeleteVm {
    /// ID or name of a node that has the VM without a record. meshd deletes the VM from that node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmView {
    /// Name of the VM.
    pub name: VmName,
    /// Stable identifier of the VM.
    pub uuid: SystemUuid,
    pub state: VmPhase,
    /// Desired state; absent for a VM that a node reports but that has no record.
    pub desired_state: Option<VmDesiredState>,
    /// Node on which the VM is placed.
    pub node: Option<NodeId>,
    /// Time since which the node reports that state.
    pub since: Option<Timestamp>,
    /// True once the node reports that the newest order is carried out, or cannot be carried out.
    #[serde(default)]
    pub settled: bool,
    /// Number of consecutive restarts by the node.
    pub restarts: u32,
    /// Cause of the failure or of the last restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<VmFailure>,
    /// Progress of the node in downloading the volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetching: Option<VmFetching>,
    /// When the guest is ready: `ssh`, `ssh:PORT` or `tcp:PORT`; absent if it is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_check: Option<ReadyCheck>,
    /// True once the guest has answered since its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Reason for which the VM is not released or has no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// Number of virtual processors.
    pub vcpus: u32,
    pub memory: ByteSize,
    /// Allocated units, each by the PCI address of one of its functions.
    pub units: Vec<String>,
    /// Selectors of the requested units.
    pub unit_selectors: Vec<String>,
    /// NUMA node of the VM, from its specification or from its units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// True if the units span several NUMA nodes, or are not on the NUMA node of the specification.
    #[serde(default)]
    pub numa_mismatch: bool,
    pub volumes: Vec<Volume>,
    /// NICs of the VM, each with its IPv4 address if the address is known.
    pub nics: Vec<Nic>,
    /// Policy for the VM when its node is lost.
    pub on_node_loss: OnNodeLoss,
    /// Number of start orders for the VM.
    pub start: u32,
    /// Time of the order that created the VM.
    pub created_at: Option<Timestamp>,
}

/// A template with defaults for VM specifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateView {
    /// Name of the template in the site file.
    pub name: TemplateName,
    /// Default values, by the keys of a VM specification.
    pub template: VmTemplate,
}

impl VmView {
    /// Creates the view of a VM with a record. `is_linked` is true while its node has a link.
    pub fn new(vm: &Vm, is_linked: bool) -> Self {
        let spec = &vm.request.spec;
        let seen = vm.last_report.as_ref();
        let whole = vm.request.units.whole.then(|| "all".to_owned());
        VmView {
            name: vm.name().clone(),
            uuid: vm.uuid(),
            state: vm.phase(is_linked),
            desired_state: Some(vm.desired_state),
            node: vm.node(),
            since: seen.map(|seen| seen.since),
            settled: vm.is_settled(),
            restarts: seen.map_or(0, |seen| seen.restarts),
            failure: seen.and_then(|seen| seen.failure.clone()),
            fetching: None,
            ready_check: spec.ready,
            ready: None,
            obstacle: vm.obstacle.clone(),
            vcpus: spec.vcpus,
            memory: spec.memory,
            units: vm.assigned.units.iter().map(ToString::to_string).collect(),
            unit_selectors: vm
                .request
                .units
                .each
                .iter()
                .map(ToString::to_string)
                .chain(whole)
                .collect(),
            numa_node: vm.numa_node(),
            numa_mismatch: vm.assigned.numa_mismatch,
            volumes: vm.volumes().collect(),
            nics: vm.nics().collect(),
            on_node_loss: vm.request.on_node_loss,
            start: vm.start,
            created_at: Some(vm.created_at),
        }
    }

    /// Returns the disks that the deletion of the VM wipes, with the names of their volumes, for
    /// operators.
    pub fn wiped_disks(&self) -> Vec<String> {
        let disk = |volume: &Volume| {
            let disk = volume.source.disk().filter(|_| volume.source.is_wiped())?;
            Some(format!("{disk} (volume {})", volume.name))
        };
        self.volumes.iter().filter_map(disk).collect()
    }

    /// Creates the view of a VM that a node reports but that has no record.
    pub fn orphan(node: NodeId, report: VmReport) -> Self {
        let vm = Vm::unknown(
            VmRequest::new(meshd_proto::vm::VmSpec::unknown(report.name, report.uuid)),
            node,
            Timestamp::EPOCH,
        );
        VmView {
            state: report.state.into(),
            desired_state: None,
            restarts: report.restarts,
            failure: report.failure,
            created_at: None,
            ..VmView::new(&vm, true)
        }
    }
}
