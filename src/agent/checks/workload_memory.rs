//! Memory that VMs and tasks use, which the memory check counts as available.

use super::Context;
use crate::vm;

/// Returns the bytes that VMs, their files in memory, and tasks use.
pub fn memory(context: &Context) -> u64 {
    vm::used_memory(&context.tree, &context.vms).saturating_add(tasks(context))
}

/// Returns the resident bytes of the processes in control groups of tasks.
fn tasks(Context { tree, config, .. }: &Context) -> u64 {
    let group = format!("/meshd-{}/", config.node);
    let in_group = |process: &u32| {
        tree.read(&format!("/proc/{process}/cgroup")).is_some_and(|text| text.contains(&group))
    };
    let resident = |process| vm::resident(tree, process);
    tree.processes().filter(in_group).filter_map(resident).fold(0, u64::saturating_add)
}
