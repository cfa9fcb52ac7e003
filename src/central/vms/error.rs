//! Errors of orders about VMs.

use super::MAX_SITE_VMS;
use meshd_model::work::{NoPlacement, SlotId, SlotState};
use meshd_proto::vm::{SpecFault, VolumeName};
use meshd_store::StoreError;
use meshd_types::{Digest, NodeId, SystemUuid, VmName};

/// Why an order about a VM is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    #[error("there is no VM `{0}`")]
    None(String),
    #[error("cannot create VM `{name}`: {uuid} has this name")]
    NameTaken { name: VmName, uuid: SystemUuid },
    #[error("VM `{name}` has the UUID {uuid}")]
    UuidTaken { name: VmName, uuid: SystemUuid },
    #[error("cannot create a VM: the site has {MAX_SITE_VMS}")]
    TooMany,
    #[error("invalid VM specification: {}", faults(.0))]
    Unsound(Vec<SpecFault>),
    #[error("invalid NIC configuration: {}", faults(.0))]
    Nics(Vec<SpecFault>),
    #[error("{0}")]
    NoPlacement(NoPlacement),
    #[error("VM `{name}` is on node {node}, which is {why}")]
    NotInService { name: VmName, node: NodeId, why: String, hint: String },
    #[error("VM `{name}` has slot {slot}, which is {}: {why}", state.as_str())]
    SlotClosed { name: VmName, slot: SlotId, state: SlotState, why: String },
    #[error("node {node} has a VM {uuid} that is not on record there")]
    Elsewhere { uuid: SystemUuid, node: NodeId },
    #[error("volume `{volume}` has the digest {digest}, which is missing")]
    NoVolume { volume: VolumeName, digest: Digest },
    #[error("VM `{0}` is being deleted")]
    Releasing(VmName),
    #[error("there is no node `{0}`")]
    NoNode(NodeId),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(VmError {
    VmError::None(_) => "`meshd vm list` lists all VMs";
    VmError::NameTaken { .. } => "use another name, or delete that VM";
    VmError::UuidTaken { .. } => "omit the UUID, or delete that VM";
    VmError::TooMany => "delete some";
    VmError::Unsound(faults) => "{}", faults.first().map_or("", |fault| &fault.hint);
    VmError::Nics(_) => "correct it";
    VmError::NoPlacement(_) => "`meshd node list` shows which nodes are ready";
    VmError::NotInService { hint, .. } => "{hint}";
    VmError::SlotClosed { slot, .. } => "see meshd slot show {slot}, or delete the VM and create it again";
    VmError::Elsewhere { uuid, node } => "release that one: meshd vm delete {uuid} --node {node}; if the node is compromised: meshd node quarantine {node}";
    VmError::NoVolume { .. } => "add the file first: meshd volume add FILE";
    VmError::Releasing(_) => "retry after it disappears from `meshd vm list`";
    VmError::NoNode(_) => "`meshd node list` lists all nodes";
    @source VmError::Store(source) => source;
});

fn faults(faults: &[SpecFault]) -> String {
    let words = faults.iter().map(|fault| format!("{}: {}", fault.key, fault.message));
    words.collect::<Vec<_>>().join(", ")
}
