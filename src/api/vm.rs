//! Virtual machines. No answer contains cloud-init data.

use meshd_config::vm::{OnNodeLoss, VmRequest, VmTemplate};
use meshd_model::work::{Vm, VmDesiredState, VmPhase};
use meshd_proto::vm::{ByteSize, Nic, VmFailure, VmFetching, VmReport, Volume};
use meshd_types::{NodeId, SystemUuid, TemplateName, Timestamp, VmName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of an order for a new virtual machine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVm {
    /// What it shall be, as `meshd vm create` makes it of a vm.toml.
    #[schema(value_type = Object)]
    pub vm: VmRequest,
    /// The only node that it may be placed on: ID or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Start it at once.
    #[serde(default)]
    pub start: bool,
}

/// Body of an order that ends a virtual machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeleteVm {
    /// What this node has of it, which is not on record there: ID or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmView {
    /// What people call it.
    #[schema(value_type = String)]
    pub name: VmName,
    /// What everything else calls it.
    #[schema(value_type = String)]
    pub uuid: SystemUuid,
    #[schema(value_type = String)]
    pub state: VmPhase,
    /// What is wanted of it; absent for one that a node has and that is not on record.
    #[schema(value_type = Option<String>)]
    #[serde(rename = "wish")]
    pub desired_state: Option<VmDesiredState>,
    /// The node that has it.
    #[schema(value_type = Option<String>)]
    pub node: Option<NodeId>,
    /// Since when the node tells that state.
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
    /// True once its node has told that it is as it was ordered last, or cannot be.
    #[serde(default)]
    pub settled: bool,
    /// How often its node started it again in a row.
    pub restarts: u32,
    /// Why it failed, or was started again last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub failure: Option<VmFailure>,
    /// How far its node is with fetching its volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub fetching: Option<VmFetching>,
    /// Why it is not released, or has no node.
    #[serde(rename = "trouble", default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// Virtual processors.
    pub vcpus: u32,
    #[schema(value_type = String)]
    pub memory: ByteSize,
    /// One function of each unit that it has.
    pub units: Vec<String>,
    /// The units that it wants.
    pub wants: Vec<String>,
    /// The NUMA node that it is bound to: as its file says, or because its units are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Its units are not all on one NUMA node, or not on the one that its file names.
    #[serde(default)]
    pub numa_mismatch: bool,
    #[schema(value_type = Vec<Object>)]
    pub volumes: Vec<Volume>,
    /// Its network cards, each with the address that it has as far as that is known.
    #[schema(value_type = Vec<Object>)]
    pub nics: Vec<Nic>,
    /// What becomes of it when its node is lost.
    #[schema(value_type = String)]
    pub on_node_loss: OnNodeLoss,
    /// How often it was ordered to start.
    pub start: u32,
    /// When it was ordered.
    #[schema(value_type = Option<String>)]
    pub created_at: Option<Timestamp>,
}

/// What a vm.toml need not say if it names this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateView {
    /// Its name in the site file.
    #[schema(value_type = String)]
    pub name: TemplateName,
    /// What it says, by the keys of a specification.
    #[schema(value_type = Object)]
    pub template: VmTemplate,
}

impl VmView {
    /// One on record.
    pub fn new(vm: &Vm, is_linked: bool) -> Self {
        let (spec, seen) = (&vm.request.spec, vm.seen.as_ref());
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
            obstacle: vm.obstacle.clone(),
            vcpus: spec.vcpus,
            memory: spec.memory,
            units: if vm.place.is_some() { spec.units.iter().map(ToString::to_string).collect() } else { Vec::new() },
            wants: vm.request.units.each.iter().map(ToString::to_string).chain(whole).collect(),
            numa_node: spec.numa_node,
            numa_mismatch: vm.locality.mismatch,
            volumes: spec.volumes.clone(),
            nics: spec.nics.clone(),
            on_node_loss: vm.request.on_node_loss,
            start: vm.start,
            created_at: Some(vm.created_at),
        }
    }

    /// One that a node has and that is not on record there.
    pub fn stranger(node: NodeId, report: VmReport) -> Self {
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
