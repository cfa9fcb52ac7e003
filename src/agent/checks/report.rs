//! One run of all checks on this machine, with what says when and where it ran.

use super::{Context, Linux, Reference, run};
use crate::{
    agent::{
        facts::{self, Tree},
        vm,
    },
    id::Timestamp,
    wire::{AgentConfig, BootPart, CheckReport},
};
use std::path::Path;

/// Runs every check; `vms` is the folder of virtual machines, `clock` is what a link told of the central node's time, `now` this node's clock.
pub fn report(
    tree: &Tree,
    vms: &Path,
    config: &AgentConfig,
    boot: &BootPart,
    clock: Option<Reference>,
    now: Timestamp,
) -> CheckReport {
    let mut resources = facts::resources(tree, vms, config);
    let central = clock.and_then(|clock| clock.now(tree));
    let checks = run(&Context { tree, vms, config, boot, units: &resources.units, now, central, probe: &Linux(tree) });
    // What the checks found to be there is told as being there.
    resources.hosting = Some(Box::new(vm::hosting(tree, true)));
    CheckReport {
        checks,
        session: Some(boot.session),
        kernel_boot_id: facts::kernel_boot_id(tree),
        asked: None,
        resources: Some(resources),
    }
}
