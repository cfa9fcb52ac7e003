//! Runs all checks and stamps the report with boot and time. Each check has a thread and a deadline; a check that exceeds it has failed.

use super::{ALL, CheckFn, Context, Reference, SystemProbe, counted, verdict};
use crate::{
    facts,
    system::{self, Tree, source},
    vm,
};
use meshd_proto::{AgentConfig, BootPart, CHECKS, Check, CheckReport, CheckStatus, UnitFacts};
use meshd_types::Timestamp;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Deadline of the checks. An operator who requests them waits slightly longer.
const DEADLINE: Duration = Duration::from_secs(15);

/// Owned input of the checks, for threads that may outlive a run.
struct Subject {
    vms: PathBuf,
    config: AgentConfig,
    boot: BootPart,
    units: Vec<UnitFacts>,
    now: Timestamp,
    central: Option<Timestamp>,
}

/// Runs all checks. `vms` is the folder of VMs, `clock` the central node's time from a link, `now` this node's clock.
pub fn report(
    tree: &Tree,
    vms: &Path,
    config: &AgentConfig,
    boot: &BootPart,
    clock: Option<Reference>,
    now: Timestamp,
) -> CheckReport {
    let mut resources = facts::resources(tree, vms, config);
    let subject = Subject {
        vms: vms.to_owned(),
        config: config.clone(),
        boot: boot.clone(),
        units: resources.units.clone(),
        now,
        central: clock.and_then(|clock| clock.now(tree)),
    };
    let checks = run_by(tree, subject, &ALL, Instant::now() + DEADLINE);
    // Report the units that the checks saw.
    let hosting = source::read(tree, "programs", |tree| vm::hosting(tree, true)).by(Instant::now() + source::DEADLINE);
    if let Ok(hosting) = hosting {
        resources.hosting = Some(Box::new(hosting));
    }
    CheckReport {
        checks,
        session: Some(boot.session),
        kernel_boot_id: system::kernel_boot_id(tree),
        asked: None,
        resources: Some(resources),
    }
}

/// Runs all checks at once, in the order of [`CHECKS`].
fn run_by(tree: &Tree, subject: Subject, checks: &[CheckFn], deadline: Instant) -> Vec<Check> {
    let subject = Arc::new(subject);
    let start = |(name, check): (&'static str, &CheckFn)| {
        let (subject, check) = (subject.clone(), *check);
        let read = source::read(tree, &format!("check {name}"), move |tree| {
            let Subject { vms, config, boot, units, now, central } = &*subject;
            check(&Context { tree, vms, config, boot, units, now: *now, central: *central, probe: &SystemProbe(tree) })
        });
        (name, read)
    };
    let started: Vec<_> = CHECKS.into_iter().zip(checks).map(start).collect();
    let end = |(name, read): (&str, source::DeadlineRead<Check>)| {
        let check = read.by(deadline).unwrap_or_else(|late| did_not_end(name, late));
        counted(subject.config.checks.rule(&check.name), check)
    };
    started.into_iter().map(end).collect()
}

/// A check that exceeds its deadline has failed.
fn did_not_end(name: &str, late: source::Late) -> Check {
    let why = match late {
        source::Late::Deadline => format!("it did not end within {} s", DEADLINE.as_secs()),
        source::Late::Hangs => "earlier runs of it have not ended".to_owned(),
        source::Late::Broken => "it broke off".to_owned(),
    };
    let remedy = "look for a device that hangs: `dmesg` on the node";
    Check { unproven: true, ..verdict(name, CheckStatus::Fail, why, remedy) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    /// A test holds it while its check must hang.
    static HOLD: Mutex<()> = Mutex::new(());

    fn hangs(_: &Context<'_>) -> Check {
        drop(HOLD.lock().unwrap_or_else(PoisonError::into_inner));
        verdict("services", CheckStatus::Pass, "", "")
    }

    fn passes(_: &Context<'_>) -> Check {
        verdict("identity", CheckStatus::Pass, "", "")
    }

    #[test]
    fn check_that_does_not_end_fails_and_the_others_are_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(dir.path());
        let (config, boot) = super::super::tests::made_up();
        let subject = || Subject {
            vms: "/nowhere".into(),
            config: config.clone(),
            boot: boot.clone(),
            units: Vec::new(),
            now: Timestamp::EPOCH,
            central: None,
        };
        let held = HOLD.lock().unwrap_or_else(PoisonError::into_inner);
        let checks: [CheckFn; 2] = [hangs, passes];
        let (sender, told) = std::sync::mpsc::channel();
        let (own, made) = (tree.clone(), subject());
        let now = Instant::now();
        std::thread::spawn(move || sender.send(run_by(&own, made, &checks, now)));
        let told = told.recv_timeout(Duration::from_secs(20)).expect("nobody waits for it");
        drop(held);
        let found: Vec<_> = told.iter().map(|check| (check.name.as_str(), check.status, check.unproven)).collect();
        assert_eq!(found[0], ("services", CheckStatus::Fail, true));
        let deadline = Instant::now() + Duration::from_secs(60);
        let checks: [CheckFn; 2] = [hangs, passes];
        assert!(run_by(&tree, subject(), &checks, deadline).iter().all(|check| check.status == CheckStatus::Pass));
    }
}
