//! Filters nodes by CPUs, memory and huge pages, for the node and each NUMA node. Pure.
//!
//! A VM with a NUMA node, units or huge pages has dedicated CPUs. Other VMs share the remaining
//! threads with the overcommit ratio of the site. A VM without NUMA node counts on all NUMA nodes,
//! in proportion to their size.

use super::{candidate::CandidateNode, reject_reason::RejectReason};
use meshd_config::vm::VmRequest;
use meshd_proto::{
    HugepageFacts, NumaFacts,
    vm::{ByteSize, NODE_RESERVE},
};

/// Requested, total and free amount of one resource.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    pub requested: u64,
    pub total: u64,
    pub free: u64,
}

impl Capacity {
    fn fits(self) -> bool {
        self.requested <= self.total && self.requested <= self.free
    }
}

/// Utilization of a node with the VM: allocated thousandths of its scarcest resource, and free
/// bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Utilization {
    pub scarcest: u64,
    pub free: u64,
}

/// Returns true if the VM has dedicated CPUs, also if its units are not chosen yet.
fn is_alone(request: &VmRequest) -> bool {
    request.units.whole || !request.units.each.is_empty() || !request.spec.shares_processors()
}

/// Returns the CPU capacity of the node.
pub fn processors(request: &VmRequest, host: &CandidateNode<'_>) -> Capacity {
    let threads = u64::from(host.threads);
    let ratio = u64::from(host.overcommit.max(1));
    let allocated = host.allocations.all();
    let unbound = threads.saturating_sub(allocated.alone);
    let free = if is_alone(request) {
        unbound.saturating_sub(allocated.shared.div_ceil(ratio))
    } else {
        unbound.saturating_mul(ratio).saturating_sub(allocated.shared)
    };
    Capacity { requested: request.spec.vcpus.into(), total: threads, free }
}

/// Returns the memory capacity of the node: ordinary or huge pages, as requested.
pub fn memory(request: &VmRequest, host: &CandidateNode<'_>) -> Capacity {
    let requested = request.spec.memory.bytes();
    if !request.spec.hugepages {
        let requested = request.spec.node_memory();
        let total = host.memory.saturating_sub(NODE_RESERVE);
        return Capacity {
            requested,
            total,
            free: total.saturating_sub(host.allocations.all().memory),
        };
    }
    let allocated = host.allocations.all().hugepages;
    match host.hosting {
        None => Capacity {
            requested,
            total: host.hugepages,
            free: host.hugepages.saturating_sub(allocated),
        },
        Some(hosting) => pages(requested, hosting.hugepages.iter(), allocated),
    }
}

/// Returns the huge pages of sizes that divide the requested memory. A VM uses one page size.
fn pages<'a>(
    requested: u64,
    pools: impl Iterator<Item = &'a HugepageFacts> + Clone,
    allocated: u64,
) -> Capacity {
    let pools = pools.filter(|pool| pool.page() > 0 && requested.is_multiple_of(pool.page()));
    let of = |page: u64| {
        pools.clone().filter(|pool| pool.page() == page).map(HugepageFacts::bytes).sum::<u64>()
    };
    let total = pools.clone().map(|pool| of(pool.page())).max().unwrap_or(0);
    let all: u64 = pools.map(HugepageFacts::bytes).sum();
    Capacity { requested, total, free: all.saturating_sub(allocated).min(total) }
}

/// Returns a NUMA node by number, if the node reported its NUMA nodes.
fn numa<'a>(host: &CandidateNode<'a>, id: u32) -> Option<&'a NumaFacts> {
    host.hosting?.numa.iter().find(|node| node.id == id && node.threads > 0)
}

/// Returns whether a NUMA node exists. A node without NUMA has node 0.
fn has_numa(host: &CandidateNode<'_>, id: u32) -> bool {
    match host.hosting.filter(|hosting| !hosting.numa.is_empty()) {
        Some(_) => numa(host, id).is_some(),
        None => id == 0,
    }
}

/// Returns the CPU capacity of a NUMA node; `None` if unknown.
fn numa_processors(request: &VmRequest, host: &CandidateNode<'_>, id: u32) -> Option<Capacity> {
    let total = u64::from(numa(host, id)?.threads);
    let free = total.saturating_sub(host.allocations.bound(id).alone);
    Some(Capacity { requested: request.spec.vcpus.into(), total, free })
}

/// Returns the memory capacity of a NUMA node, of the requested kind; `None` if unknown.
fn numa_memory(request: &VmRequest, host: &CandidateNode<'_>, id: u32) -> Option<Capacity> {
    let requested = request.spec.memory.bytes();
    let hosting = host.hosting?;
    let node = numa(host, id)?;
    let (bound, (memory, hugepages)) = (host.allocations.bound(id), host.allocations.roaming());
    let local = hosting.hugepages.iter().filter(|pool| pool.numa_node == Some(id));
    let huge: u64 = local.clone().map(HugepageFacts::bytes).sum();
    if request.spec.hugepages {
        let all = hosting.hugepages.iter().map(HugepageFacts::bytes).sum();
        return Some(pages(
            requested,
            local,
            bound.hugepages.saturating_add(part(hugepages, huge, all)),
        ));
    }
    let whole = node.memory_kib.saturating_mul(1024);
    let all = hosting.numa.iter().map(|node| node.memory_kib.saturating_mul(1024)).sum();
    let total = whole.saturating_sub(huge).saturating_sub(part(NODE_RESERVE, whole, all));
    let free = total.saturating_sub(bound.memory).saturating_sub(part(memory, whole, all));
    Some(Capacity { requested: request.spec.node_memory(), total, free })
}

/// Returns the proportional share of a NUMA node in an amount that is spread over all NUMA nodes.
fn part(bytes: u64, one: u64, all: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(one) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Returns the utilization with the VM; `None` if it does not fit. `near` is the NUMA node to which
/// the VM would be bound.
pub fn fill(
    request: &VmRequest,
    host: &CandidateNode<'_>,
    near: Option<u32>,
) -> Option<Utilization> {
    let processors = processors(request, host);
    let memory = memory(request, host);
    let fits =
        processors.fits() && memory.fits() && near.is_none_or(|id| fits_numa(request, host, id));
    let free = memory.free.saturating_sub(memory.requested);
    let utilized = |capacity: Capacity| {
        part(1000, capacity.total.saturating_sub(free).min(capacity.total), capacity.total)
    };
    let threads = u64::from(host.threads);
    let ratio = u64::from(host.overcommit.max(1));
    let allocated = host.allocations.all();
    let (alone, shared) =
        if is_alone(request) { (processors.requested, 0) } else { (0, processors.requested) };
    let alone = allocated.alone.saturating_add(alone);
    let shared = allocated.shared.saturating_add(shared);
    let busy = alone.saturating_mul(ratio).saturating_add(shared);
    let busy = part(1000, busy, threads.saturating_mul(ratio));
    fits.then_some(Utilization { scarcest: busy.max(utilized(memory)), free })
}

/// Returns true if the VM fits into a NUMA node, or its capacity is unknown.
fn fits_numa(request: &VmRequest, host: &CandidateNode<'_>, id: u32) -> bool {
    has_numa(host, id)
        && numa_processors(request, host, id).is_none_or(Capacity::fits)
        && numa_memory(request, host, id).is_none_or(Capacity::fits)
}

/// Returns true if the VM certainly fits into a NUMA node.
pub fn surely_fits_numa(request: &VmRequest, host: &CandidateNode<'_>, id: u32) -> bool {
    let capacities = [numa_processors(request, host, id), numa_memory(request, host, id)];
    capacities.into_iter().all(|capacity| capacity.is_some_and(Capacity::fits))
}

/// Adds the reasons against a node: CPUs, memory, NUMA node.
pub fn add_rejections(
    request: &VmRequest,
    host: &CandidateNode<'_>,
    add: &mut impl FnMut(RejectReason, String),
) {
    let numa_node = request.spec.numa_node;
    let mut add_capacity = |processors: Option<Capacity>, memory: Option<Capacity>, of: &str| {
        let mut is_rejected = false;
        if let Some(capacity) = processors.filter(|capacity| !capacity.fits()) {
            is_rejected = true;
            add_processors(capacity, of, host.overcommit, add);
        }
        if let Some(capacity) = memory.filter(|capacity| !capacity.fits()) {
            is_rejected = true;
            add_memory(request, capacity, of, add);
        }
        is_rejected
    };
    let is_rejected =
        add_capacity(Some(processors(request, host)), Some(memory(request, host)), "it");
    let Some(id) = numa_node else { return };
    if !has_numa(host, id) {
        add(RejectReason::NumaMissing, format!("it has no NUMA node {id}"));
    } else if !is_rejected {
        let processors = numa_processors(request, host, id);
        let memory = numa_memory(request, host, id);
        add_capacity(processors, memory, &format!("its NUMA node {id}"));
    }
}

fn add_processors(
    capacity: Capacity,
    of: &str,
    ratio: u32,
    add: &mut impl FnMut(RejectReason, String),
) {
    let Capacity { requested, total, free } = capacity;
    if requested > total {
        add(
            RejectReason::CpusExceeded,
            format!("{requested} processors, and {of} has {total} threads"),
        );
    } else {
        let shared =
            format!("{free} are free of {total} threads, with {ratio} shared CPUs per thread");
        add(RejectReason::CpusTaken, format!("{requested} processors, and {shared}"));
    }
}

fn add_memory(
    request: &VmRequest,
    capacity: Capacity,
    of: &str,
    add: &mut impl FnMut(RejectReason, String),
) {
    let requested = request.spec.memory;
    let size = |bytes| ByteSize::from_bytes(bytes).mib();
    let kind = if request.spec.hugepages { "huge pages" } else { "memory" };
    let (exceeded, taken) = if request.spec.hugepages {
        (RejectReason::HugepagesExceeded, RejectReason::HugepagesTaken)
    } else {
        (RejectReason::MemoryExceeded, RejectReason::MemoryTaken)
    };
    let total = size(capacity.total);
    let free = size(capacity.free);
    if capacity.requested > capacity.total {
        add(exceeded, format!("{requested} of {kind}, and {of} has {total} MiB"));
    } else {
        add(taken, format!("{requested} of {kind}, and {free} of {total} MiB of {of} are free"));
    }
}

#[cfg(test)]
#[path = "tests/capacity_filter.rs"]
mod tests;
