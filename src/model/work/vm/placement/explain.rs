//! Collects every reason against a node, and the verdict over all nodes.

use super::{
    candidate::{CandidateNode, VmSupport, named_disks},
    capacity_filter, device_selector, feature_filter,
    reject_reason::{NoPlacement, RejectReason, Rejection, Verdict},
    slot_resources,
};
use meshd_config::vm::VmRequest;
use meshd_proto::{DiskFacts, UnitFacts, UnitKind, UnitState, vm::MAX_VMS};
use meshd_types::NodeId;
use std::cmp::Reverse;

/// Maximum number of nodes in an explanation.
pub const MAX_EXPLAINED: usize = 5;

/// Returns every reason against a node.
pub fn rejections(
    request: &VmRequest,
    required_node: Option<NodeId>,
    host: &CandidateNode<'_>,
) -> Vec<Rejection> {
    let spec = &request.spec;
    let mut found = Vec::new();
    let mut add = |reason, detail: String| found.push(Rejection { reason, detail });
    if required_node.is_some_and(|node| node != host.node) {
        add(RejectReason::NotNamed, "another node was named".to_owned());
    }
    match host.vm_support {
        VmSupport::Nothing => add(RejectReason::RunsNoVms, "its profile runs no VMs".to_owned()),
        VmSupport::Emulated if !spec.allow_tcg => {
            add(
                RejectReason::KvmMissing,
                "/dev/kvm does not open, and allow_tcg is not set".to_owned(),
            );
        }
        VmSupport::Emulated | VmSupport::Kvm => {}
    }
    capacity_filter::add_rejections(request, host, &mut add);
    for (reason, detail) in
        host.hosting.into_iter().flat_map(|hosting| feature_filter::missing_features(spec, hosting))
    {
        add(reason, detail);
    }
    if host.allocations.vms().len() >= MAX_VMS {
        add(RejectReason::Full, format!("it has {MAX_VMS} VMs"));
    }
    let foreign = |disk: &DiskFacts| {
        slot_resources::owner_of_disk(host, disk)
            .filter(|slot| !device_selector::may_have(request, host, slot))
    };
    for identity in named_disks(request) {
        match slot_resources::assignable_disk(host, identity.as_str()).map(foreign) {
            Err((reason, detail)) => add(reason, detail),
            Ok(Some(slot)) => {
                let of = format!("disk {identity} belongs to slot {}", slot.id);
                add(
                    RejectReason::DiskTaken,
                    format!("{of}; request its unit, or write disk = \"slot\""),
                );
            }
            Ok(None) => {}
        }
    }
    if let Some((reason, detail)) = device_selector::rejection(request, host) {
        add(reason, detail);
    }
    if let Some(why) = host.unready {
        add(RejectReason::NotReady, why.to_owned());
    }
    found
}

/// Explains why no node takes the VM.
pub fn explain<'a>(
    request: &VmRequest,
    required_node: Option<NodeId>,
    hosts: impl Iterator<Item = CandidateNode<'a>>,
) -> NoPlacement {
    let mut explained = Vec::new();
    let mut sum = ClusterTotals::default();
    let mut nodes = 0;
    for host in hosts {
        nodes += 1;
        let rejections = rejections(request, required_node, &host);
        if !rejections.iter().any(|rejection| {
            matches!(
                rejection.reason,
                RejectReason::RunsNoVms | RejectReason::KvmMissing | RejectReason::NotNamed
            )
        }) {
            sum.add(request, &host);
        }
        explained.push((host.node, rejections));
    }
    let lasting = |rejections: &[Rejection]| {
        rejections.iter().filter(|rejection| rejection.reason.is_lasting()).count()
    };
    let passing = explained.iter().any(|(_, rejections)| lasting(rejections) == 0);
    let verdict = match (passing, sum.suffices(request)) {
        (true, _) => Verdict::NotReady,
        (false, true) => Verdict::NoSingleNode,
        (false, false) => Verdict::None,
    };
    if let Some(required) = required_node {
        explained.retain(|(node, _)| *node == required);
    }
    let counts = if required_node.is_none() { count_reasons(&explained) } else { Vec::new() };
    explained.sort_by_key(|(node, rejections)| (lasting(rejections), rejections.len(), *node));
    explained.truncate(MAX_EXPLAINED);
    NoPlacement { verdict, nearest: explained, nodes, counts }
}

/// Counts the nodes with each reason, the most frequent first.
fn count_reasons(explained: &[(NodeId, Vec<Rejection>)]) -> Vec<(RejectReason, usize)> {
    let mut counts: Vec<(RejectReason, usize)> = Vec::new();
    for rejection in explained.iter().flat_map(|(_, rejections)| rejections) {
        match counts.iter_mut().find(|(reason, _)| *reason == rejection.reason) {
            Some((_, count)) => *count += 1,
            None => counts.push((rejection.reason, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| Reverse(*count));
    counts
}

/// Resources of all nodes together.
#[derive(Default)]
struct ClusterTotals {
    threads: u64,
    memory: u64,
    units: Vec<UnitFacts>,
    nodes: usize,
}

impl ClusterTotals {
    fn add(&mut self, request: &VmRequest, host: &CandidateNode<'_>) {
        self.nodes += 1;
        self.threads += u64::from(host.threads);
        self.memory = self.memory.saturating_add(capacity_filter::memory(request, host).total);
        let remaining = device_selector::MAX_SELECTORS.saturating_sub(self.units.len());
        let usable = host
            .units
            .iter()
            .filter(|unit| unit.kind == UnitKind::Device && unit.state != UnitState::Missing);
        self.units.extend(
            usable
                .filter(|unit| device_selector::matches_any(request, unit))
                .take(remaining)
                .cloned(),
        );
    }

    /// Returns whether all nodes together have the resources. Never true for a single node or a
    /// named disk.
    fn suffices(&self, request: &VmRequest) -> bool {
        self.nodes > 1
            && named_disks(request).next().is_none()
            && self.threads >= u64::from(request.spec.vcpus)
            && self.memory >= request.spec.memory.bytes()
            && (request.units.whole
                || device_selector::assign(request, &self.units, None, None).is_some())
    }
}
