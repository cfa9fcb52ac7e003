//! Checks count only if they ran in the current boot of the node (DR-13). Pure.

use super::record::{CheckProvenance, Node};
use meshd_proto::{Check, CheckReport, CheckStatus, blocks_approval};
use meshd_types::{BootSessionId, Timestamp, failpoint};
use std::time::Duration;

/// Repeated checks are stored once in this time: each change of a record is a write.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

impl Node {
    /// Stores check results. Returns false if the results belong to another boot. `linked` is the
    /// boot session of the link.
    pub fn take_checks(
        &mut self,
        report: CheckReport,
        linked: BootSessionId,
        at: Timestamp,
    ) -> bool {
        let session = report.session.unwrap_or(linked);
        if session != linked
            || self.boot != Some(session)
            || !self.runs_kernel(&report.kernel_boot_id)
        {
            return false;
        }
        let is_repeated = self.checks == report.checks
            && self.evidence.as_ref().is_some_and(|known| {
                known.session == session
                    && known.kernel_boot_id == report.kernel_boot_id
                    && at.distance(known.at) < REPEAT_INTERVAL
            })
            && failpoint::defends("repeated-checks");
        self.checks = report.checks;
        if !is_repeated {
            self.evidence =
                Some(CheckProvenance { session, kernel_boot_id: report.kernel_boot_id, at });
        }
        if let (Some(facts), Some(resources)) = (self.facts.as_mut(), report.resources) {
            facts.units = resources.units;
            facts.disks = resources.disks;
            facts.slots = resources.slots;
            facts.store = resources.store;
            facts.hosting = resources.hosting;
        }
        true
    }

    /// Returns the checks of the current boot.
    pub fn valid_checks(&self) -> Option<&[Check]> {
        let evidence = self.evidence.as_ref()?;
        let is_of_now =
            self.boot == Some(evidence.session) && self.runs_kernel(&evidence.kernel_boot_id);
        is_of_now.then_some(self.checks.as_slice())
    }

    /// Returns true if checks of the current boot are known and none fails.
    pub fn passes(&self) -> bool {
        self.valid_checks()
            .is_some_and(|checks| checks.iter().all(|check| check.status != CheckStatus::Fail))
    }

    /// Returns the reason why the node cannot be approved or receive work now (DR-12, DR-13).
    pub fn unproven(&self) -> Option<String> {
        self.unproven_beside("")
    }

    /// As [`Node::unproven`], but ignores the results of the check `name`.
    pub fn unproven_beside(&self, name: &str) -> Option<String> {
        let Some(checks) = self.valid_checks() else {
            return Some(
                "its checks have not run in this boot; see `meshd node doctor`".to_owned(),
            );
        };
        let mut others = checks.iter().filter(|check| check.name != name);
        let check = others.find(|check| blocks_approval(std::slice::from_ref(check)).is_some())?;
        Some(format!("check {} says {}: {}", check.name, check.status, check.detail))
    }

    /// Returns whether the node runs this kernel boot. Without boot IDs only the boot session is
    /// compared.
    fn runs_kernel(&self, kernel_boot_id: &str) -> bool {
        let known = self.facts.as_ref().map_or("", |facts| facts.system.kernel_boot_id.as_str());
        known.is_empty() || kernel_boot_id.is_empty() || known == kernel_boot_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_proto::{DiskFacts, Facts, Resources};

    const BOOT: BootSessionId = BootSessionId([1; 12]);
    const OTHER: BootSessionId = BootSessionId([2; 12]);

    fn node() -> Node {
        let mut node = Node::fixture(1);
        node.boot = Some(BOOT);
        let mut facts = Facts::default();
        facts.system.kernel_boot_id = "a".into();
        node.facts = Some(facts);
        node
    }

    fn report(
        session: Option<BootSessionId>,
        kernel: &str,
        status: CheckStatus,
        unproven: bool,
    ) -> CheckReport {
        let detail = String::new();
        let remediation = String::new();
        let check = Check { name: "kvm".into(), status, detail, remediation, unproven };
        CheckReport {
            checks: vec![check],
            session,
            kernel_boot_id: kernel.into(),
            ..CheckReport::default()
        }
    }

    #[test]
    fn checks_of_another_boot_or_kernel_are_ignored() {
        for (session, kernel, linked, taken) in [
            (Some(BOOT), "a", BOOT, true),
            (None, "", BOOT, true),
            (Some(OTHER), "a", BOOT, false),
            (Some(BOOT), "b", BOOT, false),
            (None, "a", OTHER, false),
            (Some(OTHER), "a", OTHER, false),
        ] {
            let mut node = node();
            let report = report(session, kernel, CheckStatus::Pass, false);
            assert_eq!(
                node.take_checks(report, linked, Timestamp::EPOCH),
                taken,
                "{session:?} {kernel} {linked}"
            );
            assert_eq!((node.checks.len(), node.unproven().is_none()), (usize::from(taken), taken));
        }
    }

    #[test]
    fn checks_are_void_after_next_boot_or_kernel() {
        let mut node = node();
        assert!(node.take_checks(
            report(Some(BOOT), "a", CheckStatus::Pass, false),
            BOOT,
            Timestamp::EPOCH
        ));
        assert!(node.valid_checks().is_some());
        node.facts.as_mut().expect("facts").system.kernel_boot_id = "b".into();
        assert!(node.valid_checks().is_none() && node.unproven().is_some());
        node.facts.as_mut().expect("facts").system.kernel_boot_id = "a".into();
        node.boot = Some(OTHER);
        assert!(node.valid_checks().is_none());
        assert_eq!(node.checks.len(), 1, "they can still be shown");
    }

    #[test]
    fn failed_or_unproven_check_is_named() {
        let mut node = node();
        for (status, unproven, blocks) in [
            (CheckStatus::Warn, false, false),
            (CheckStatus::Warn, true, true),
            (CheckStatus::Fail, false, true),
            (CheckStatus::Skip, false, false),
        ] {
            assert!(node.take_checks(report(None, "a", status, unproven), BOOT, Timestamp::EPOCH));
            assert_eq!(
                node.unproven().is_some_and(|why| why.contains("kvm")),
                blocks,
                "{status} {unproven}"
            );
        }
    }

    #[test]
    fn resources_in_check_report_update_facts() {
        let mut node = node();
        let disks = vec![DiskFacts { name: "sda".into(), ..DiskFacts::default() }];
        let report = CheckReport {
            resources: Some(Resources { disks: disks.clone(), ..Resources::default() }),
            ..report(None, "a", CheckStatus::Pass, false)
        };
        assert!(node.take_checks(report, BOOT, Timestamp::EPOCH));
        assert_eq!(node.facts.map(|facts| facts.disks), Some(disks));
    }
}
