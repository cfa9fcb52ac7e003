//! Which node takes a virtual machine: by what it is able to, never by a number of devices alone. Pure.
//!
//! A request never spans nodes. Where nothing fits the answer says why, in one of three words, with what each of the nearest nodes lacks.

use super::{Held, wishes};
use crate::config::vm::VmAsk;
use crate::id::{NodeId, PciAddress};
use crate::wire::vm::{ByteSize, VolumeSource};
use crate::wire::{DiskFacts, PciFacts, UnitFacts, UnitKind, UnitState};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Memory that a node keeps for itself, in bytes: kernel, agent, QEMU's own.
pub const NODE_RESERVE: u64 = 256 << 20;
/// Most nodes whose lacks are told.
pub const MAX_TOLD: usize = 5;

/// How a node runs virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runs {
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
    pub runs: Runs,
    /// Hardware threads.
    pub threads: u32,
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
    pub held: &'a Held,
    /// Units whose slot cannot be given, by their first function, with the reason.
    pub barred: Vec<(PciAddress, String)>,
}

/// What a node lacks, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// It is not the one that was named.
    NotNamed,
    /// Its profile runs no virtual machines.
    RunsNoVms,
    /// `/dev/kvm` does not open, and emulation is not allowed.
    KvmMissing,
    /// More processors than it has threads.
    CpusExceeded,
    /// More memory than it has.
    MemoryExceeded,
    /// More huge pages than it has.
    HugepagesExceeded,
    /// There is no such NUMA node.
    NumaMissing,
    /// It has too few units of that kind.
    UnitMissing,
    /// It has no disk of that identity, or several.
    DiskMissing,
    /// It takes no work now.
    NotReady,
    /// Others have its memory.
    MemoryTaken,
    /// Others have its huge pages.
    HugepagesTaken,
    /// Others have its units.
    UnitTaken,
    /// Its units cannot be given now.
    UnitNotReady,
    /// The slots of its units are not approved, disabled, or share a fabric device with one that is taken.
    SlotClosed,
    /// Another has the disk, or the node itself.
    DiskTaken,
}

impl Lack {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Lack::NotNamed => "not_named",
            Lack::RunsNoVms => "runs_no_vms",
            Lack::KvmMissing => "kvm_missing",
            Lack::CpusExceeded => "cpus_exceeded",
            Lack::MemoryExceeded => "memory_exceeded",
            Lack::HugepagesExceeded => "hugepages_exceeded",
            Lack::NumaMissing => "numa_missing",
            Lack::UnitMissing => "unit_missing",
            Lack::DiskMissing => "disk_missing",
            Lack::NotReady => "not_ready",
            Lack::MemoryTaken => "memory_taken",
            Lack::HugepagesTaken => "hugepages_taken",
            Lack::UnitTaken => "unit_taken",
            Lack::UnitNotReady => "unit_not_ready",
            Lack::SlotClosed => "slot_closed",
            Lack::DiskTaken => "disk_taken",
        }
    }

    /// True if it will not pass by itself, nor by others going.
    pub fn is_lasting(self) -> bool {
        self < Lack::NotReady
    }
}

/// One thing that a node lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// What.
    pub lack: Lack,
    /// In words.
    pub detail: String,
}

/// Why no node takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not even all nodes together have it.
    None,
    /// Together they have it, no single one does.
    NoSingleNode,
    /// A node has it, and is not ready, or others use it now.
    NotReady,
}

impl Verdict {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::None => "none",
            Verdict::NoSingleNode => "no_single_node",
            Verdict::NotReady => "not_ready",
        }
    }
}

/// Nothing fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// In one word.
    pub verdict: Verdict,
    /// The nearest nodes, at most [`MAX_TOLD`], with everything that each lacks.
    pub nearest: Vec<(NodeId, Vec<Lacking>)>,
    /// How many nodes were looked at.
    pub nodes: usize,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.verdict {
            _ if self.nodes == 0 => "no node is known",
            Verdict::None => "no node has it, nor all together",
            Verdict::NoSingleNode => "all nodes together have it, but no single one",
            Verdict::NotReady => "a node has it, but cannot give it now",
        })?;
        for (node, lacks) in &self.nearest {
            let words = lacks.iter().map(|lacking| format!("{} ({})", lacking.lack.as_str(), lacking.detail));
            write!(f, ", {node}: {}", words.collect::<Vec<_>>().join(" and "))?;
        }
        Ok(())
    }
}

/// A node that takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Which.
    pub node: NodeId,
    /// One function of each unit that it gets.
    pub units: Vec<PciAddress>,
    /// Units that are far from each other, or from the processors that were asked for.
    pub numa_mismatch: bool,
}

/// Chooses. Devices are packed, so that whole nodes stay free for those who want all of one; memory is spread.
///
/// # Errors
/// Why nothing fits.
pub fn place<'a>(
    ask: &VmAsk,
    only: Option<NodeId>,
    hosts: impl Iterator<Item = Host<'a>> + Clone,
) -> Result<Fit, Unfit> {
    let mut best: Option<((usize, bool, u64), Fit)> = None;
    for host in hosts.clone().filter(|host| only.is_none_or(|only| host.node == only)) {
        if let Some((rank, fit)) = fit(ask, &host)
            && best.as_ref().is_none_or(|(other, _)| rank < *other)
        {
            best = Some((rank, fit));
        }
    }
    best.map(|(_, fit)| fit).ok_or_else(|| explain(ask, only, hosts))
}

/// Without a word of explanation: most nodes are looked at only to be passed by.
fn fit(ask: &VmAsk, host: &Host<'_>) -> Option<((usize, bool, u64), Fit)> {
    let spec = &ask.spec;
    let asked = spec.memory.bytes();
    let (pool, promised) = pool(ask, host);
    let free = pool.saturating_sub(promised);
    let runs = host.runs == Runs::Kvm || (host.runs == Runs::Emulated && spec.allow_tcg);
    let numa = spec.numa_node.is_none_or(|node| has_numa(host, node));
    if host.unready.is_some() || !runs || host.threads < spec.vcpus || free < asked || !numa {
        return None;
    }
    let disks = spec.volumes.iter().all(|volume| match &volume.source {
        VolumeSource::Raw { disk } => judge_disk(host, disk.as_str()).is_ok(),
        _ => true,
    });
    let units = disks.then(|| wishes::grant(ask, host.units, Some(host))).flatten()?;
    let at = |unit: &UnitFacts| unit.numa_node.or(spec.numa_node);
    let mut places = units.iter().map(|unit| at(unit)).collect::<Vec<_>>();
    places.extend(spec.numa_node.map(Some));
    let numa_mismatch = places.windows(2).any(|two| two[0] != two[1]);
    let left = host.units.len().saturating_sub(host.held.unit_count() + units.len());
    let units = units.iter().filter_map(|unit| wishes::name(unit)).collect();
    Some(((left, numa_mismatch, u64::MAX - (free - asked)), Fit { node: host.node, units, numa_mismatch }))
}

/// The first one is everywhere; further ones are known by the devices at them.
fn has_numa(host: &Host<'_>, node: u32) -> bool {
    node == 0 || host.pci.iter().any(|function| function.numa_node == Some(node))
}

/// Memory of the kind that is asked for: what there is, and what is promised of it, in bytes.
fn pool(ask: &VmAsk, host: &Host<'_>) -> (u64, u64) {
    if ask.spec.hugepages {
        (host.hugepages, host.held.hugepages())
    } else {
        (host.memory.saturating_sub(NODE_RESERVE), host.held.memory())
    }
}

fn judge_disk(host: &Host<'_>, identity: &str) -> Result<(), Lack> {
    let disk = DiskFacts::called(host.disks, identity).ok_or(Lack::DiskMissing)?;
    // What the node uses itself, and what its profile marks as data, is nobody's (ST-3, ST-4).
    let is_free = disk.blocked.is_none() && host.held.disk(disk.names()).is_none();
    if is_free { Ok(()) } else { Err(Lack::DiskTaken) }
}

/// Everything that stands against a node.
pub fn lacks(ask: &VmAsk, only: Option<NodeId>, host: &Host<'_>) -> Vec<Lacking> {
    let spec = &ask.spec;
    let mut found = Vec::new();
    let mut add = |lack, detail: String| found.push(Lacking { lack, detail });
    if only.is_some_and(|only| only != host.node) {
        add(Lack::NotNamed, "another node was named".to_owned());
    }
    match host.runs {
        Runs::Nothing => add(Lack::RunsNoVms, "its profile runs no virtual machines".to_owned()),
        Runs::Emulated if !spec.allow_tcg => {
            add(Lack::KvmMissing, "/dev/kvm does not open, and allow_tcg is not set".to_owned());
        }
        Runs::Emulated | Runs::Kvm => {}
    }
    if host.threads < spec.vcpus {
        add(Lack::CpusExceeded, format!("{} processors, and it has {} threads", spec.vcpus, host.threads));
    }
    memory_lacks(ask, host, &mut add);
    if let Some(node) = spec.numa_node.filter(|node| !has_numa(host, *node)) {
        add(Lack::NumaMissing, format!("nothing of it is at NUMA node {node}"));
    }
    for volume in &spec.volumes {
        if let VolumeSource::Raw { disk } = &volume.source
            && let Err(lack) = judge_disk(host, disk.as_str())
        {
            add(lack, format!("disk {disk}"));
        }
    }
    if let Some((lack, detail)) = wishes::lack(ask, host) {
        add(lack, detail);
    }
    if let Some(why) = host.unready {
        add(Lack::NotReady, why.to_owned());
    }
    found
}

fn memory_lacks(ask: &VmAsk, host: &Host<'_>, add: &mut impl FnMut(Lack, String)) {
    let asked = ask.spec.memory.bytes();
    let (pool, promised) = pool(ask, host);
    let kind = if ask.spec.hugepages { "huge pages" } else { "memory" };
    let words = if ask.spec.hugepages {
        (Lack::HugepagesExceeded, Lack::HugepagesTaken)
    } else {
        (Lack::MemoryExceeded, Lack::MemoryTaken)
    };
    let size = |bytes| ByteSize::from_bytes(bytes).mib();
    if pool < asked {
        add(words.0, format!("{} of {kind}, and it has {} MiB to give", ask.spec.memory, size(pool)));
    } else if pool.saturating_sub(promised) < asked {
        let free = size(pool.saturating_sub(promised));
        add(words.1, format!("{} of {kind}, and {free} MiB of {} MiB are left", ask.spec.memory, size(pool)));
    }
}

fn explain<'a>(ask: &VmAsk, only: Option<NodeId>, hosts: impl Iterator<Item = Host<'a>>) -> Unfit {
    let (mut told, mut sum, mut nodes) = (Vec::new(), Sum::default(), 0);
    for host in hosts {
        nodes += 1;
        let lacks = lacks(ask, only, &host);
        if !lacks.iter().any(|lacking| matches!(lacking.lack, Lack::RunsNoVms | Lack::KvmMissing | Lack::NotNamed)) {
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
        self.memory = self.memory.saturating_add(pool(ask, host).0);
        let room = wishes::MOST.saturating_sub(self.units.len());
        let usable = host.units.iter().filter(|unit| unit.kind == UnitKind::Device && unit.state != UnitState::Missing);
        self.units.extend(usable.filter(|unit| wishes::helps(ask, unit)).take(room).cloned());
    }

    /// Whether all together have what is asked for. One node is no "together", and nobody else has the disk that is named.
    fn holds(&self, ask: &VmAsk) -> bool {
        let named = ask.spec.volumes.iter().any(|volume| matches!(volume.source, VolumeSource::Raw { .. }));
        self.nodes > 1
            && !named
            && self.threads >= u64::from(ask.spec.vcpus)
            && self.memory >= ask.spec.memory.bytes()
            && (ask.units.whole || wishes::grant(ask, &self.units, None).is_some())
    }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
