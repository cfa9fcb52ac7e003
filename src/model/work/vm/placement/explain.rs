//! Every reason against a node, and the verdict over all nodes.

use super::{
    candidate::{CandidateNode, VmSupport, named},
    capacity_filter, device_selector, feature_filter,
    reject_reason::{NoPlacement, RejectReason, Rejection, Verdict},
    slot_resources,
};
use meshd_config::vm::VmAsk;
use meshd_proto::{DiskFacts, UnitFacts, UnitKind, UnitState, vm::MAX_VMS};
use meshd_types::NodeId;

/// Maximum number of nodes in an explanation.
pub const MAX_TOLD: usize = 5;

/// Returns every reason against a node.
pub fn lacks(ask: &VmAsk, only: Option<NodeId>, host: &CandidateNode<'_>) -> Vec<Rejection> {
    let spec = &ask.spec;
    let mut found = Vec::new();
    let mut add = |lack, detail: String| found.push(Rejection { lack, detail });
    if only.is_some_and(|only| only != host.node) {
        add(RejectReason::NotNamed, "another node was named".to_owned());
    }
    match host.runs {
        VmSupport::Nothing => add(RejectReason::RunsNoVms, "its profile runs no virtual machines".to_owned()),
        VmSupport::Emulated if !spec.allow_tcg => {
            add(RejectReason::KvmMissing, "/dev/kvm does not open, and allow_tcg is not set".to_owned());
        }
        VmSupport::Emulated | VmSupport::Kvm => {}
    }
    capacity_filter::lacks(ask, host, &mut add);
    for (lack, detail) in host.hosting.into_iter().flat_map(|hosting| feature_filter::lacks(spec, hosting)) {
        add(lack, detail);
    }
    if host.held.vms().len() >= MAX_VMS {
        add(RejectReason::Full, format!("it has {MAX_VMS} virtual machines"));
    }
    let foreign = |disk: &DiskFacts| {
        slot_resources::owner_of_disk(host, disk).filter(|slot| !device_selector::may_have(ask, host, slot))
    };
    for identity in named(ask) {
        match slot_resources::judge_disk(host, identity.as_str()).map(foreign) {
            Err((lack, detail)) => add(lack, detail),
            Ok(Some(slot)) => {
                let of = format!("disk {identity} belongs to slot {}", slot.id);
                add(RejectReason::DiskTaken, format!("{of}; ask for its unit, or write disk = \"slot\""));
            }
            Ok(None) => {}
        }
    }
    if let Some((lack, detail)) = device_selector::lack(ask, host) {
        add(lack, detail);
    }
    if let Some(why) = host.unready {
        add(RejectReason::NotReady, why.to_owned());
    }
    found
}

/// Explains why no node takes the VM.
pub fn explain<'a>(ask: &VmAsk, only: Option<NodeId>, hosts: impl Iterator<Item = CandidateNode<'a>>) -> NoPlacement {
    let (mut told, mut sum, mut nodes) = (Vec::new(), ClusterTotals::default(), 0);
    for host in hosts {
        nodes += 1;
        let lacks = lacks(ask, only, &host);
        if !lacks.iter().any(|lacking| {
            matches!(lacking.lack, RejectReason::RunsNoVms | RejectReason::KvmMissing | RejectReason::NotNamed)
        }) {
            sum.add(ask, &host);
        }
        told.push((host.node, lacks));
    }
    let lasting = |lacks: &[Rejection]| lacks.iter().filter(|lacking| lacking.lack.is_lasting()).count();
    let passing = told.iter().any(|(_, lacks)| lasting(lacks) == 0);
    let verdict = match (passing, sum.holds(ask)) {
        (true, _) => Verdict::NotReady,
        (false, true) => Verdict::NoSingleNode,
        (false, false) => Verdict::None,
    };
    if let Some(only) = only {
        told.retain(|(node, _)| *node == only);
    }
    told.sort_by_key(|(node, lacks)| (lasting(lacks), lacks.len(), *node));
    told.truncate(MAX_TOLD);
    NoPlacement { verdict, nearest: told, nodes }
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
    fn add(&mut self, ask: &VmAsk, host: &CandidateNode<'_>) {
        self.nodes += 1;
        self.threads += u64::from(host.threads);
        self.memory = self.memory.saturating_add(capacity_filter::memory(ask, host).has);
        let room = device_selector::MOST.saturating_sub(self.units.len());
        let usable = host.units.iter().filter(|unit| unit.kind == UnitKind::Device && unit.state != UnitState::Missing);
        self.units.extend(usable.filter(|unit| device_selector::helps(ask, unit)).take(room).cloned());
    }

    /// Returns whether all nodes together have the resources. Never true for a single node or a named disk.
    fn holds(&self, ask: &VmAsk) -> bool {
        self.nodes > 1
            && named(ask).next().is_none()
            && self.threads >= u64::from(ask.spec.vcpus)
            && self.memory >= ask.spec.memory.bytes()
            && (ask.units.whole || device_selector::grant(ask, &self.units, None, None).is_some())
    }
}
