//! Which node takes a virtual machine: by what it is able to, never by a number of devices alone. Pure.
//!
//! A request never spans nodes. Where nothing fits the answer says why, in one of three words, with what each of the nearest nodes lacks.

use super::{Allocations, Approved, Lacking, RejectReason, SlotCard, Unfit, Verdict, capacity, means, parts, wishes};
use meshd_config::vm::VmAsk;
use meshd_proto::{
    DiskFacts, Hosting, PciFacts, UnitFacts, UnitKind, UnitState,
    vm::{DiskIdentity, MAX_VMS, RawDisk},
};
use meshd_types::{NodeId, PciAddress};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

/// Most nodes whose lacks are told.
pub const MAX_TOLD: usize = 5;

/// How a node runs virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VmSupport {
    /// Its profile runs none.
    Nothing,
    /// It has no KVM.
    Emulated,
    /// `/dev/kvm` opens.
    Kvm,
}

/// A node, as far as it matters to a placement.
#[derive(Clone, Debug)]
pub struct Host<'a> {
    /// Which.
    pub node: NodeId,
    /// Why it takes no work now; `None` when it does.
    pub unready: Option<&'a str>,
    /// Whether virtual machines run on it.
    pub runs: VmSupport,
    /// What it has to run them, as it told in this boot; `None` where its agent does not tell.
    pub hosting: Option<&'a Hosting>,
    /// Hardware threads.
    pub threads: u32,
    /// Virtual processors of machines that share threads, to one thread.
    pub overcommit: u32,
    /// Memory without that of huge pages, in bytes.
    pub memory: u64,
    /// Memory of huge pages, in bytes.
    pub hugepages: u64,
    /// What can be given away.
    pub units: &'a [UnitFacts],
    /// Whole disks.
    pub disks: &'a [DiskFacts],
    /// All its functions, which say which NUMA nodes there are.
    pub pci: &'a [PciFacts],
    /// What is given away.
    pub held: &'a Allocations,
    /// Units that are not given away and still cannot be given: so many at least.
    pub closed: usize,
    /// Units whose slot cannot be given, by their first function, with the reason.
    pub barred: Vec<(PciAddress, String)>,
    /// Its approved slots to which a disk, a fabric device or addresses belongs.
    pub slots: Vec<&'a Approved>,
}

/// A node that takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Which.
    pub node: NodeId,
    /// One function of each unit that it gets; those that go with a slot come last.
    pub units: Vec<PciAddress>,
    /// For each volume that is the disk of a slot, which disk that is.
    pub disks: Vec<DiskIdentity>,
    /// For each card that has the addresses of a slot, which these are.
    pub cards: Vec<SlotCard>,
    /// The NUMA node that it is bound to because its units are there.
    pub near: Option<u32>,
    /// Units that are far from each other, or from the processors that were asked for.
    pub numa_mismatch: bool,
}

/// How good a node is: less is better. Units that it has left, whether they are far from each other, how full it is, memory that it has used.
type Rank = (usize, bool, u64, u64);

/// Chooses. Devices are packed, so that whole nodes stay free for those who want all of one; processors and memory are spread.
///
/// # Errors
/// Why nothing fits.
pub fn place<'a>(
    ask: &VmAsk,
    only: Option<NodeId>,
    hosts: impl Iterator<Item = Host<'a>> + Clone,
) -> Result<Fit, Unfit> {
    place_by(ask, only, hosts, |_| {})
}

/// The same for many nodes: `hosts` are without what is dear to find out, their slots, and `complete` adds it to those few that are
/// looked at in full. A node is looked at only if it could be better than the best so far.
///
/// # Errors
/// Why nothing fits.
pub fn place_by<'a>(
    ask: &VmAsk,
    only: Option<NodeId>,
    hosts: impl Iterator<Item = Host<'a>> + Clone,
    complete: impl Fn(&mut Host<'a>),
) -> Result<Fit, Unfit> {
    let named = hosts.clone().filter(|host| only.is_none_or(|only| host.node == only));
    let bounded: Vec<(Rank, Host<'a>)> = named.filter_map(|host| Some((bound(ask, &host)?, host))).collect();
    let mut nearest: BinaryHeap<_> = bounded.iter().enumerate().map(|(at, (rank, _))| Reverse((*rank, at))).collect();
    let mut best: Option<(Rank, Fit)> = None;
    while let Some(Reverse((bound, at))) = nearest.pop() {
        if best.as_ref().is_some_and(|(rank, _)| *rank <= bound) {
            break;
        }
        let mut host = bounded[at].1.clone();
        complete(&mut host);
        if let Some((rank, fit)) = fit(ask, &host)
            && best.as_ref().is_none_or(|(other, _)| rank < *other)
        {
            best = Some((rank, fit));
        }
    }
    best.map(|(_, fit)| fit).ok_or_else(|| {
        explain(
            ask,
            only,
            hosts.map(|mut host| {
                complete(&mut host);
                host
            }),
        )
    })
}

/// The best that a node could be; `None` if it is certain without a look at its units that it does not take the machine.
fn bound(ask: &VmAsk, host: &Host<'_>) -> Option<Rank> {
    let spec = &ask.spec;
    let runs = host.runs == VmSupport::Kvm || (host.runs == VmSupport::Emulated && spec.allow_tcg);
    if host.unready.is_some() || !runs || host.held.vms().len() >= MAX_VMS {
        return None;
    }
    let fill = capacity::fill(ask, host, spec.numa_node)?;
    let left = units_left(ask, host)?;
    Some((left, false, fill.scarcest, u64::MAX - fill.free))
}

/// Units that can still be given once the machine has its own; `None` if there are not so many.
fn units_left(ask: &VmAsk, host: &Host<'_>) -> Option<usize> {
    let free = host.units.len().saturating_sub(host.held.unit_count() + host.closed);
    if ask.units.whole { (free == host.units.len()).then_some(0) } else { free.checked_sub(ask.units.each.len()) }
}

/// Without a word of explanation: most nodes are looked at only to be passed by.
fn fit(ask: &VmAsk, host: &Host<'_>) -> Option<(Rank, Fit)> {
    let (spec, (left, ..)) = (&ask.spec, bound(ask, host)?);
    if host.hosting.is_some_and(|hosting| means::lacks(spec, hosting).next().is_some()) {
        return None;
    }
    if named(ask).any(|disk| parts::judge_disk(host, disk.as_str()).is_err()) {
        return None;
    }
    let granted = together(ask, host)?;
    let disks = wishes::disk_units(ask, &granted, host).map(|unit| parts::slot_disk(host, unit).ok().cloned());
    let disks = disks.collect::<Option<Vec<_>>>()?;
    let cards = wishes::card_units(ask, &granted, host).map(|unit| parts::slot_card(host, unit).ok());
    let cards = cards.collect::<Option<Vec<_>>>()?;
    let units = parts::with_fabric(host, &granted);
    let at = |unit: &UnitFacts| unit.numa_node.or(spec.numa_node);
    let mut places = granted.iter().map(|unit| at(unit)).collect::<Vec<_>>();
    places.extend(spec.numa_node.map(Some));
    let numa_mismatch = places.windows(2).any(|two| two[0] != two[1]);
    let near = places.first().copied().flatten().filter(|_| !numa_mismatch && spec.numa_node.is_none());
    let near = near.filter(|id| !ask.numa_anywhere && capacity::surely_fits_numa(ask, host, *id));
    let fill = capacity::fill(ask, host, spec.numa_node.or(near))?;
    let units = units.iter().filter_map(|unit| wishes::name(unit)).collect();
    let rank = (left, numa_mismatch, fill.scarcest, u64::MAX - fill.free);
    Some((rank, Fit { node: host.node, units, disks, cards, near, numa_mismatch }))
}

/// Disks that are asked for by their own names.
pub(super) fn named(ask: &VmAsk) -> impl Iterator<Item = &DiskIdentity> {
    ask.spec.volumes.iter().filter_map(|volume| match volume.source.disk()? {
        RawDisk::Named(disk) => Some(disk),
        RawDisk::Slot(_) => None,
    })
}

/// Units for all wishes, of one NUMA node if that can be.
fn together<'a>(ask: &VmAsk, host: &Host<'a>) -> Option<Vec<&'a UnitFacts>> {
    let any = wishes::grant(ask, host.units, Some(host), ask.spec.numa_node)?;
    let apart = |units: &[&UnitFacts]| units.windows(2).any(|two| two[0].numa_node != two[1].numa_node);
    if ask.spec.numa_node.is_some() || ask.units.whole || !apart(&any) {
        return Some(any);
    }
    let nodes: BTreeSet<u32> = host.units.iter().filter_map(|unit| unit.numa_node).collect();
    let mut near = nodes.into_iter().filter_map(|id| wishes::grant(ask, host.units, Some(host), Some(id)));
    near.find(|units| !apart(units)).or(Some(any))
}

/// Everything that stands against a node.
pub fn lacks(ask: &VmAsk, only: Option<NodeId>, host: &Host<'_>) -> Vec<Lacking> {
    let spec = &ask.spec;
    let mut found = Vec::new();
    let mut add = |lack, detail: String| found.push(Lacking { lack, detail });
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
    capacity::lacks(ask, host, &mut add);
    for (lack, detail) in host.hosting.into_iter().flat_map(|hosting| means::lacks(spec, hosting)) {
        add(lack, detail);
    }
    if host.held.vms().len() >= MAX_VMS {
        add(RejectReason::Full, format!("it has {MAX_VMS} virtual machines"));
    }
    let foreign = |disk: &DiskFacts| parts::owner_of_disk(host, disk).filter(|slot| !wishes::may_have(ask, host, slot));
    for identity in named(ask) {
        match parts::judge_disk(host, identity.as_str()).map(foreign) {
            Err((lack, detail)) => add(lack, detail),
            Ok(Some(slot)) => {
                let of = format!("disk {identity} belongs to slot {}", slot.id);
                add(RejectReason::DiskTaken, format!("{of}; ask for its unit, or write disk = \"slot\""));
            }
            Ok(None) => {}
        }
    }
    if let Some((lack, detail)) = wishes::lack(ask, host) {
        add(lack, detail);
    }
    if let Some(why) = host.unready {
        add(RejectReason::NotReady, why.to_owned());
    }
    found
}

fn explain<'a>(ask: &VmAsk, only: Option<NodeId>, hosts: impl Iterator<Item = Host<'a>>) -> Unfit {
    let (mut told, mut sum, mut nodes) = (Vec::new(), Sum::default(), 0);
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
    let lasting = |lacks: &[Lacking]| lacks.iter().filter(|lacking| lacking.lack.is_lasting()).count();
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
    Unfit { verdict, nearest: told, nodes }
}

/// What all nodes have together.
#[derive(Default)]
struct Sum {
    threads: u64,
    memory: u64,
    units: Vec<UnitFacts>,
    nodes: usize,
}

impl Sum {
    fn add(&mut self, ask: &VmAsk, host: &Host<'_>) {
        self.nodes += 1;
        self.threads += u64::from(host.threads);
        self.memory = self.memory.saturating_add(capacity::memory(ask, host).has);
        let room = wishes::MOST.saturating_sub(self.units.len());
        let usable = host.units.iter().filter(|unit| unit.kind == UnitKind::Device && unit.state != UnitState::Missing);
        self.units.extend(usable.filter(|unit| wishes::helps(ask, unit)).take(room).cloned());
    }

    /// Whether all together have what is asked for. One node is no "together", and nobody else has the disk that is named.
    fn holds(&self, ask: &VmAsk) -> bool {
        self.nodes > 1
            && named(ask).next().is_none()
            && self.threads >= u64::from(ask.spec.vcpus)
            && self.memory >= ask.spec.memory.bytes()
            && (ask.units.whole || wishes::grant(ask, &self.units, None, None).is_some())
    }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
