//! Nodes and requests for tests of placement.

use super::{
    allocations::Allocations,
    candidate::{CandidateNode, PlacementFit, VmSupport},
    node_choice::place,
    reject_reason::NoPlacement,
};
use meshd_config::vm::{UnitSelector, VmRequest};
use meshd_proto::{PciFacts, UnitFacts, UnitState, vm::VmSpec};
use meshd_types::{Basis, MacAddr, NodeId, SystemUuid};

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn node_id(number: u16) -> NodeId {
    let [high, low] = number.to_be_bytes();
    Basis::Mac(MacAddr([2, 0, 0, 0, high, low])).node_id()
}

/// Chooses among candidates that have their slots.
pub(crate) fn choose_node<'a>(
    request: &VmRequest,
    required_node: Option<NodeId>,
    candidates: impl Iterator<Item = CandidateNode<'a>> + Clone,
) -> Result<PlacementFit, NoPlacement> {
    place(request, required_node, candidates, |_| {})
}

/// Returns a unit of one function.
pub(crate) fn unit(bus: u8, numa_node: Option<u32>) -> UnitFacts {
    let address = format!("0000:{bus:02x}:00.0");
    let members =
        vec![PciFacts { address: address.clone(), vendor: "10de".into(), ..PciFacts::default() }];
    UnitFacts {
        state: UnitState::Ready,
        selected: vec![address],
        members,
        numa_node,
        ..UnitFacts::default()
    }
}

/// Returns a node with KVM, 64 threads and 64 GiB.
pub(crate) fn candidate<'a>(
    node: NodeId,
    units: &'a [UnitFacts],
    allocations: &'a Allocations,
) -> CandidateNode<'a> {
    CandidateNode {
        node,
        unready: None,
        vm_support: VmSupport::Kvm,
        hosting: None,
        threads: 64,
        overcommit: 4,
        memory: 64 * GIB,
        hugepages: 0,
        units,
        disks: &[],
        allocations,
        closed: 0,
        unassignable_units: Vec::new(),
        slots: Vec::new(),
    }
}

/// Returns a request for 2 vCPUs, 1 GiB and any units.
pub(crate) fn request(number: u16, units: usize) -> VmRequest {
    let [high, low] = number.to_be_bytes();
    let uuid = SystemUuid([8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, high, low]);
    let mut request =
        VmRequest::new(VmSpec::unknown(format!("vm-{number}").parse().expect("a name"), uuid));
    (request.spec.vcpus, request.spec.memory) = (2, "1G".parse().expect("a size"));
    request.units.each = vec![UnitSelector::Any; units];
    request
}
