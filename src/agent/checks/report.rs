//! Runs all checks, each in its thread with a deadline. A check that exceeds its deadline has failed.

use super::{ALL, CentralClock, CheckFn, Context, SystemProbe, apply_rule, fail};
use crate::{
    facts,
    system::{self, Tree, source},
    vm,
};
use meshd_proto::{AgentConfig, BootPart, CHECKS, Check, CheckReport, UnitFacts};
use meshd_types::Timestamp;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Deadline of the checks. A request of an operator has a slightly longer timeout.
const DEADLINE: Duration = Duration::from_secs(15);

/// Owned input of the checks, for threads that may outlive a run.
struct OwnedContext {
    vms: PathBuf,
    config: AgentConfig,
    boot: BootPart,
    units: Vec<UnitFacts>,
    now: Timestamp,
    central: Option<Timestamp>,
}

/// Runs all checks. `vms` is the folder of VMs, `now` the time of this node.
pub fn report(
    tree: &Tree,
    vms: &Path,
    config: &AgentConfig,
    boot: &BootPart,
    clock: Option<CentralClock>,
    now: Timestamp,
) -> CheckReport {
    let mut resources = facts::resources(tree, vms, config);
    let input = OwnedContext {
        vms: vms.to_owned(),
        config: config.clone(),
        boot: boot.clone(),
        units: resources.units.clone(),
        now,
        central: clock.and_then(|clock| clock.now(tree)),
    };
    let checks = run(tree, input, &ALL, Instant::now() + DEADLINE);
    let hosting =
        source::read(tree, "programs", |tree| vm::hosting(tree, true)).wait_until(Instant::now() + source::DEADLINE);
    if let Ok(hosting) = hosting {
        resources.hosting = Some(Box::new(hosting));
    }
    CheckReport {
        checks,
        session: Some(boot.session),
        kernel_boot_id: system::kernel_boot_id(tree),
        request_id: None,
        resources: Some(resources),
    }
}

/// Runs all checks at once, in the order of [`CHECKS`].
fn run(tree: &Tree, input: OwnedContext, checks: &[CheckFn], deadline: Instant) -> Vec<Check> {
    let input = Arc::new(input);
    let start = |(name, check): (&'static str, &CheckFn)| {
        let (input, check) = (input.clone(), *check);
        let read = source::read(tree, &format!("check {name}"), move |tree| {
            let OwnedContext { vms, config, boot, units, now, central } = &*input;
            check(&Context { tree, vms, config, boot, units, now: *now, central: *central, probe: &SystemProbe(tree) })
        });
        (name, read)
    };
    let started: Vec<_> = CHECKS.into_iter().zip(checks).map(start).collect();
    let end = |(name, read): (&str, source::DeadlineRead<Check>)| {
        let check = read.wait_until(deadline).unwrap_or_else(|error| timed_out(name, error));
        apply_rule(input.config.checks.rule(&check.name), check)
    };
    started.into_iter().map(end).collect()
}

fn timed_out(name: &str, error: source::ReadError) -> Check {
    let detail = match error {
        source::ReadError::Timeout => format!("no result within {} s", DEADLINE.as_secs()),
        source::ReadError::Hangs => "earlier runs have not ended".to_owned(),
        source::ReadError::Failed => "the check failed without result".to_owned(),
    };
    let remedy = "look for a device that hangs: `dmesg` on the node";
    Check { unproven: true, ..fail(name, detail, remedy) }
}

#[cfg(test)]
mod tests {
    use super::{super::pass, *};
    use meshd_proto::CheckStatus;
    use std::sync::{Mutex, PoisonError};

    /// A test locks this mutex to make its check hang.
    static BLOCK: Mutex<()> = Mutex::new(());

    fn hangs(_: &Context<'_>) -> Check {
        drop(BLOCK.lock().unwrap_or_else(PoisonError::into_inner));
        pass("services", "")
    }

    fn passes(_: &Context<'_>) -> Check {
        pass("identity", "")
    }

    #[test]
    fn hanging_check_fails_and_other_checks_report() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(dir.path());
        let (config, boot) = super::super::tests::config_and_boot();
        let input = || OwnedContext {
            vms: "/nowhere".into(),
            config: config.clone(),
            boot: boot.clone(),
            units: Vec::new(),
            now: Timestamp::EPOCH,
            central: None,
        };
        let guard = BLOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let checks: [CheckFn; 2] = [hangs, passes];
        let (sender, receiver) = std::sync::mpsc::channel();
        let (own, made) = (tree.clone(), input());
        let now = Instant::now();
        std::thread::spawn(move || sender.send(run(&own, made, &checks, now)));
        let results = receiver.recv_timeout(Duration::from_secs(20)).expect("results despite the check that hangs");
        drop(guard);
        let found: Vec<_> = results.iter().map(|check| (check.name.as_str(), check.status, check.unproven)).collect();
        assert_eq!(found[0], ("services", CheckStatus::Fail, true));
        let deadline = Instant::now() + Duration::from_secs(60);
        let checks: [CheckFn; 2] = [hangs, passes];
        assert!(run(&tree, input(), &checks, deadline).iter().all(|check| check.status == CheckStatus::Pass));
    }
}
