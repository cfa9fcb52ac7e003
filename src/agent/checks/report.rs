//! Runs all checks, each in its thread with a deadline. A check that exceeds its deadline has
//! failed.

use super::{ALL, CentralClock, CheckFn, Context, apply_rule, fail, probe::SystemProbe};
use crate::{
    facts,
    system::{self, Tree, source},
    vm,
};
use meshd_proto::{AgentConfig, BootPart, CHECKS, Check, CheckReport, Resources};
use meshd_types::Timestamp;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Deadline of the checks. A request of an operator has a slightly longer timeout.
const DEADLINE: Duration = Duration::from_secs(15);

/// Runs all checks. `vms` is the folder of VMs, `now` the time of this node.
pub fn report(
    tree: &Tree,
    vms: &Path,
    config: &AgentConfig,
    boot: &BootPart,
    clock: Option<CentralClock>,
    now: Timestamp,
) -> CheckReport {
    let mut resources = facts::resources(tree, vms, config, Resources::default());
    let context = Context {
        tree: tree.clone(),
        vms: vms.to_owned(),
        config: config.clone(),
        boot: boot.clone(),
        units: resources.units.clone(),
        now,
        central: clock.and_then(|clock| clock.now(tree)),
        probe: Box::new(SystemProbe(tree.clone())),
    };
    let checks = run(context, &ALL, Instant::now() + DEADLINE);
    let hosting = source::read(tree, "programs", |tree| vm::hosting(tree, true));
    if let Ok(hosting) = hosting.wait_until(Instant::now() + source::DEADLINE) {
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
fn run(context: Context, checks: &[CheckFn], deadline: Instant) -> Vec<Check> {
    // A thread may outlive the run.
    let context = Arc::new(context);
    let start = |(name, check): (&'static str, &CheckFn)| {
        let thread_context = context.clone();
        let check = *check;
        (
            name,
            source::read(&context.tree, &format!("check {name}"), move |_| check(&thread_context)),
        )
    };
    let started: Vec<_> = CHECKS.into_iter().zip(checks).map(start).collect();
    let end = |(name, read): (&str, source::DeadlineRead<Check>)| {
        let check = read.wait_until(deadline).unwrap_or_else(|error| timed_out(name, error));
        apply_rule(&context.config.checks, check)
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
    use super::*;
    use crate::checks::{
        pass,
        tests::{config, context},
    };
    use meshd_proto::CheckStatus;
    use std::sync::{Mutex, PoisonError};

    /// A test locks this mutex to make its check hang.
    static BLOCK: Mutex<()> = Mutex::new(());

    fn hangs(_: &Context) -> Check {
        drop(BLOCK.lock().unwrap_or_else(PoisonError::into_inner));
        pass("services", "")
    }

    fn passes(_: &Context) -> Check {
        pass("identity", "")
    }

    const TWO_CHECKS: [CheckFn; 2] = [hangs, passes];

    #[test]
    fn hanging_check_fails_and_other_checks_report() {
        let dir = tempfile::tempdir().expect("a folder");
        let input = || context(&Tree::new(dir.path()), &config(&[]), 0);
        let guard = BLOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, receiver) = std::sync::mpsc::channel();
        let context = input();
        let now = Instant::now();
        std::thread::spawn(move || sender.send(run(context, &TWO_CHECKS, now)));
        let results = receiver
            .recv_timeout(Duration::from_secs(20))
            .expect("results despite the check that hangs");
        drop(guard);
        let found: Vec<_> = results
            .iter()
            .map(|check| (check.name.as_str(), check.status, check.unproven))
            .collect();
        assert_eq!(found[0], ("services", CheckStatus::Fail, true));
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(
            run(input(), &TWO_CHECKS, deadline)
                .iter()
                .all(|check| check.status == CheckStatus::Pass)
        );
    }
}
