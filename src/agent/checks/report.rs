//! One run of all checks on this machine, with what says when and where it ran.

use super::{Context, Linux, Reference, run};
use crate::{
    agent::facts::{self, Tree},
    id::Timestamp,
    wire::{AgentConfig, BootPart, CheckReport},
};

/// Runs every check; `clock` is what a link told of the central node's time, `now` this node's clock.
pub fn report(
    tree: &Tree,
    config: &AgentConfig,
    boot: &BootPart,
    clock: Option<Reference>,
    now: Timestamp,
) -> CheckReport {
    let resources = facts::resources(tree, config);
    let central = clock.and_then(|clock| clock.now(tree));
    let checks = run(&Context { tree, config, boot, units: &resources.units, now, central, probe: &Linux(tree) });
    CheckReport {
        checks,
        session: Some(boot.session),
        kernel_boot_id: facts::kernel_boot_id(tree),
        asked: None,
        resources: Some(resources),
    }
}
