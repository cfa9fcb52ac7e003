//! Filters nodes by CPUs, memory and huge pages, for the node and each NUMA node. Pure.
//!
//! A machine that is bound to a NUMA node, has units or huge pages has its processors for itself; the others share the remaining threads,
//! as many to one as the site says. What is not bound to a NUMA node is reckoned to lie on all of them, by their size.

use super::{candidate::CandidateNode, reject_reason::RejectReason};
use meshd_config::vm::VmAsk;
use meshd_proto::{
    HugepageFacts, NumaFacts,
    vm::{ByteSize, NODE_RESERVE},
};

/// Requested, total and free amount of one resource.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    pub asked: u64,
    pub has: u64,
    pub left: u64,
}

impl Capacity {
    fn holds(self) -> bool {
        self.asked <= self.has && self.asked <= self.left
    }
}

/// Utilization of a node with the VM: promised thousandths of its scarcest resource, and free bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Utilization {
    pub scarcest: u64,
    pub free: u64,
}

/// Returns true if the VM has dedicated CPUs, also if its units are not chosen yet.
fn is_alone(ask: &VmAsk) -> bool {
    ask.units.whole || !ask.units.each.is_empty() || !ask.spec.shares_processors()
}

/// CPUs of the node.
pub fn processors(ask: &VmAsk, host: &CandidateNode<'_>) -> Capacity {
    let (threads, ratio, held) = (u64::from(host.threads), u64::from(host.overcommit.max(1)), host.held.all());
    let unbound = threads.saturating_sub(held.alone);
    let left = if is_alone(ask) {
        unbound.saturating_sub(held.shared.div_ceil(ratio))
    } else {
        unbound.saturating_mul(ratio).saturating_sub(held.shared)
    };
    Capacity { asked: ask.spec.vcpus.into(), has: threads, left }
}

/// Memory of the node: ordinary or huge pages, as requested.
pub fn memory(ask: &VmAsk, host: &CandidateNode<'_>) -> Capacity {
    let asked = ask.spec.memory.bytes();
    if !ask.spec.hugepages {
        let (asked, has) = (ask.spec.node_memory(), host.memory.saturating_sub(NODE_RESERVE));
        return Capacity { asked, has, left: has.saturating_sub(host.held.all().memory) };
    }
    match host.hosting {
        None => Capacity { asked, has: host.hugepages, left: host.hugepages.saturating_sub(host.held.all().hugepages) },
        Some(hosting) => pages(asked, hosting.hugepages.iter(), host.held.all().hugepages),
    }
}

/// Huge pages of sizes that divide the requested memory. A VM uses one page size.
fn pages<'a>(asked: u64, pools: impl Iterator<Item = &'a HugepageFacts> + Clone, held: u64) -> Capacity {
    let pools = pools.filter(|pool| pool.page() > 0 && asked.is_multiple_of(pool.page()));
    let of = |page: u64| pools.clone().filter(|pool| pool.page() == page).map(HugepageFacts::bytes).sum::<u64>();
    let has = pools.clone().map(|pool| of(pool.page())).max().unwrap_or(0);
    let all: u64 = pools.map(HugepageFacts::bytes).sum();
    Capacity { asked, has, left: all.saturating_sub(held).min(has) }
}

/// A NUMA node, if the node reported any.
fn numa<'a>(host: &CandidateNode<'a>, id: u32) -> Option<&'a NumaFacts> {
    host.hosting?.numa.iter().find(|node| node.id == id && node.threads > 0)
}

/// Returns whether a NUMA node exists. Older agents show NUMA nodes only by their devices; node 0 always exists.
fn has_numa(host: &CandidateNode<'_>, id: u32) -> bool {
    match host.hosting.filter(|hosting| !hosting.numa.is_empty()) {
        Some(_) => numa(host, id).is_some(),
        None => id == 0 || host.pci.iter().any(|function| function.numa_node == Some(id)),
    }
}

/// CPUs of a NUMA node; `None` if unknown.
fn numa_processors(ask: &VmAsk, host: &CandidateNode<'_>, id: u32) -> Option<Capacity> {
    let has = u64::from(numa(host, id)?.threads);
    Some(Capacity { asked: ask.spec.vcpus.into(), has, left: has.saturating_sub(host.held.bound(id).alone) })
}

/// Memory of a NUMA node of the requested kind; `None` if unknown.
fn numa_memory(ask: &VmAsk, host: &CandidateNode<'_>, id: u32) -> Option<Capacity> {
    let (asked, hosting, node) = (ask.spec.memory.bytes(), host.hosting?, numa(host, id)?);
    let (bound, (memory, hugepages)) = (host.held.bound(id), host.held.roaming());
    let here = hosting.hugepages.iter().filter(|pool| pool.numa_node == Some(id));
    let huge: u64 = here.clone().map(HugepageFacts::bytes).sum();
    if ask.spec.hugepages {
        let all = hosting.hugepages.iter().map(HugepageFacts::bytes).sum();
        return Some(pages(asked, here, bound.hugepages.saturating_add(part(hugepages, huge, all))));
    }
    let whole = node.memory_kib.saturating_mul(1024);
    let all = hosting.numa.iter().map(|node| node.memory_kib.saturating_mul(1024)).sum();
    let has = whole.saturating_sub(huge).saturating_sub(part(NODE_RESERVE, whole, all));
    let left = has.saturating_sub(bound.memory).saturating_sub(part(memory, whole, all));
    Some(Capacity { asked: ask.spec.node_memory(), has, left })
}

/// Proportional share of a NUMA node in something that is spread over all of them.
fn part(bytes: u64, one: u64, all: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(one) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Utilization with the VM; `None` if it does not fit. `near` is the NUMA node to which the VM would be bound.
pub fn fill(ask: &VmAsk, host: &CandidateNode<'_>, near: Option<u32>) -> Option<Utilization> {
    let (processors, memory) = (processors(ask, host), memory(ask, host));
    let fits = processors.holds() && memory.holds() && near.is_none_or(|id| fits_numa(ask, host, id));
    let free = memory.left.saturating_sub(memory.asked);
    let promised = |room: Capacity| part(1000, room.has.saturating_sub(free).min(room.has), room.has);
    let (threads, ratio, held) = (u64::from(host.threads), u64::from(host.overcommit.max(1)), host.held.all());
    let (alone, shared) = if is_alone(ask) { (processors.asked, 0) } else { (0, processors.asked) };
    let busy =
        held.alone.saturating_add(alone).saturating_mul(ratio).saturating_add(held.shared.saturating_add(shared));
    let busy = part(1000, busy, threads.saturating_mul(ratio));
    fits.then_some(Utilization { scarcest: busy.max(promised(memory)), free })
}

/// Returns true if the VM fits into a NUMA node, or its capacity is unknown.
fn fits_numa(ask: &VmAsk, host: &CandidateNode<'_>, id: u32) -> bool {
    has_numa(host, id)
        && numa_processors(ask, host, id).is_none_or(Capacity::holds)
        && numa_memory(ask, host, id).is_none_or(Capacity::holds)
}

/// Returns true if the VM certainly fits into a NUMA node.
pub fn surely_fits_numa(ask: &VmAsk, host: &CandidateNode<'_>, id: u32) -> bool {
    let rooms = [numa_processors(ask, host, id), numa_memory(ask, host, id)];
    rooms.into_iter().all(|room| room.is_some_and(Capacity::holds))
}

/// Adds the reasons against a node: CPUs, memory, NUMA node.
pub fn lacks(ask: &VmAsk, host: &CandidateNode<'_>, add: &mut impl FnMut(RejectReason, String)) {
    let at = ask.spec.numa_node;
    let mut say = |processors: Option<Capacity>, memory: Option<Capacity>, of: &str| {
        let mut said = false;
        if let Some(room) = processors.filter(|room| !room.holds()) {
            said = true;
            add_processors(room, of, host.overcommit, add);
        }
        if let Some(room) = memory.filter(|room| !room.holds()) {
            said = true;
            add_memory(ask, room, of, add);
        }
        said
    };
    let said = say(Some(processors(ask, host)), Some(memory(ask, host)), "it");
    let Some(id) = at else { return };
    if !has_numa(host, id) {
        add(RejectReason::NumaMissing, format!("it has no NUMA node {id}"));
    } else if !said {
        say(numa_processors(ask, host, id), numa_memory(ask, host, id), &format!("its NUMA node {id}"));
    }
}

fn add_processors(room: Capacity, of: &str, ratio: u32, add: &mut impl FnMut(RejectReason, String)) {
    let Capacity { asked, has, left } = room;
    if asked > has {
        add(RejectReason::CpusExceeded, format!("{asked} processors, and {of} has {has} threads"));
    } else {
        let shared = format!("{left} are left of {has} threads, {ratio} of machines that share them to one");
        add(RejectReason::CpusTaken, format!("{asked} processors, and {shared}"));
    }
}

fn add_memory(ask: &VmAsk, room: Capacity, of: &str, add: &mut impl FnMut(RejectReason, String)) {
    let (asked, size) = (ask.spec.memory, |bytes| ByteSize::from_bytes(bytes).mib());
    let kind = if ask.spec.hugepages { "huge pages" } else { "memory" };
    let (exceeded, taken) = if ask.spec.hugepages {
        (RejectReason::HugepagesExceeded, RejectReason::HugepagesTaken)
    } else {
        (RejectReason::MemoryExceeded, RejectReason::MemoryTaken)
    };
    let (has, left) = (size(room.has), size(room.left));
    if room.asked > room.has {
        add(exceeded, format!("{asked} of {kind}, and {of} has {has} MiB to give"));
    } else {
        add(taken, format!("{asked} of {kind}, and {left} MiB of the {has} MiB of {of} are left"));
    }
}

#[cfg(test)]
#[path = "tests/capacity_filter.rs"]
mod tests;
