//! Combines the state reports of all VMs, within the size of a message.

use super::{PublishedReports, guest_readiness::RunningGuest, reconciler::Reconciler};
use crate::vm::{disks::ownership_marker, lock_helpers::send_if_changed, net::nic_addresses};
use meshd_proto::{
    MAX_MESSAGE,
    vm::{MAX_VMS, ReportedVmState, VmFetching, VmReport},
};
use meshd_types::{SystemUuid, truncate};
use std::collections::BTreeMap;

/// Maximum size of all reports in a message, in bytes: the rest is for its other keys.
const MAX_REPORTS: usize = MAX_MESSAGE - 1024;
/// Maximum length of a text in a report that would be too long otherwise, in bytes.
const SHORT_TEXT: usize = 100;

impl Reconciler {
    /// Asks the guests that run whether they are ready.
    pub(super) fn ask_guests(&mut self) {
        let addresses = self.nic_addresses.borrow().clone();
        let running = self.vms.specs().filter_map(|spec| {
            let report = self.vms.watch(spec.uuid)?.borrow().clone();
            let guest = RunningGuest {
                run: (report.start, report.restarts),
                check: spec.ready.filter(|_| report.state == ReportedVmState::Running)?,
                addresses: nic_addresses::known_addresses(spec, &addresses).into_values().collect(),
            };
            Some((spec.uuid, guest))
        });
        let running = running.collect();
        self.readiness.update(running);
    }

    /// Publishes the reports if they changed.
    pub(super) fn publish(&self) {
        send_if_changed(&self.nics, self.vms.specs().flat_map(|spec| spec.nics.clone()).collect());
        let mut reports: BTreeMap<SystemUuid, VmReport> =
            self.vms.reports().into_iter().map(|report| (report.uuid, report)).collect();
        for pending in self.pending_starts.all() {
            let spec = &pending.spec;
            let report = reports.entry(spec.uuid).or_insert_with(|| VmReport {
                fetching: Some(VmFetching::default()),
                ..VmReport::new(spec.uuid, spec.name.clone(), ReportedVmState::Starting)
            });
            if !report.state.is_live() {
                (report.state, report.start) = (ReportedVmState::Starting, Some(pending.start));
                let fetched = || self.volumes.progress(spec.files().map(|(_, digest)| digest));
                report.fetching =
                    Some(self.disk_writes.progress(spec.uuid).unwrap_or_else(fetched));
            }
        }
        for spec in self.vms.specs().chain(self.pending_starts.all().map(|pending| &*pending.spec))
        {
            if let Some(report) = reports.get_mut(&spec.uuid) {
                (report.disks, report.contents) =
                    ownership_marker::disk_uses(&self.vms.files(spec.uuid), spec);
            }
        }
        for (uuid, failure) in &self.start_failures {
            if let Some(report) = reports.get_mut(uuid) {
                report.failure = Some(failure.clone());
            }
        }
        for spec in self.vms.specs() {
            if let Some(report) = reports.get_mut(&spec.uuid) {
                report.addresses =
                    nic_addresses::known_addresses(spec, &self.nic_addresses.borrow());
                report.ready = spec.ready.map(|_| self.readiness.is_ready(spec.uuid));
            }
        }
        let mut vms: Vec<VmReport> = reports.into_values().take(MAX_VMS).collect();
        shorten(&mut vms);
        send_if_changed(&self.reports, PublishedReports { observed: self.observed, vms });
    }
}

/// Shortens reports until all fit into one message: logs of failures first, then their texts.
/// The central node would end the link at a longer message, and each link begins with a report.
fn shorten(reports: &mut [VmReport]) {
    let mut size: usize = reports.iter().map(serialised_size).sum();
    let steps: [fn(&mut VmReport); 2] = [remove_log, shorten_texts];
    for step in steps {
        for report in reports.iter_mut().rev() {
            if size <= MAX_REPORTS {
                return;
            }
            size -= serialised_size(report);
            step(report);
            size += serialised_size(report);
        }
    }
}

fn remove_log(report: &mut VmReport) {
    if let Some(failure) = &mut report.failure {
        failure.log.clear();
    }
}

fn shorten_texts(report: &mut VmReport) {
    let failure = report.failure.as_mut().map(|failure| &mut failure.detail);
    let obstacle = report.fetching.as_mut().and_then(|fetching| fetching.obstacle.as_mut());
    for text in failure.into_iter().chain(obstacle) {
        *text = truncate(std::mem::take(text), SHORT_TEXT);
    }
}

/// Returns the length of a report in a message, with its comma.
fn serialised_size(report: &VmReport) -> usize {
    serde_json::to_string(report).map_or(0, |text| text.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_proto::{
        DiskUse, FromAgent, NodeReport, SectionReport, json_element_limit,
        vm::{MAX_FAILURE_LINES, MAX_FAILURE_TEXT, VmFailure, VmFailureKind, VmUpdate},
    };
    use meshd_types::MacAddr;

    /// A VM with four NICs and eight disks that failed with long texts.
    fn failed_vm(number: u8) -> VmReport {
        let mut uuid = SystemUuid([7; 16]);
        uuid.0[1] = number;
        let name = "n".repeat(60).parse().expect("a name");
        let failure = VmFailure {
            log: vec!["\"".repeat(400); MAX_FAILURE_LINES],
            ..VmFailure::new(VmFailureKind::Crashed, "\"".repeat(MAX_FAILURE_TEXT))
        };
        let disk = |number| (format!("d{number}").parse().expect("a name"), DiskUse::Done);
        VmReport {
            failure: Some(failure),
            addresses: (0..4).map(|nic| (MacAddr([nic; 6]), [172, 30, 0, nic].into())).collect(),
            disks: (0..8).map(disk).collect(),
            ..VmReport::new(uuid, name, ReportedVmState::Failed)
        }
    }

    #[test]
    fn report_of_many_failed_vms_fits_into_one_message() {
        for count in [1, 24, 200, MAX_VMS] {
            let numbers = (0..=u8::MAX).take(count);
            let mut vms: Vec<VmReport> = numbers.map(failed_vm).collect();
            shorten(&mut vms);
            let has_log = |vm: &&VmReport| vm.failure.as_ref().is_some_and(|f| !f.log.is_empty());
            assert_eq!(vms.iter().filter(has_log).count() == count, count <= 24, "{count}");
            let state = SectionReport::Vms(VmUpdate::All { vms });
            let message = FromAgent::Report(NodeReport { observed: u64::MAX, state });
            let text = serde_json::to_string(&message).expect("plain data");
            assert!(text.len() <= MAX_MESSAGE, "{count}: {}", text.len());
            assert_eq!(json_element_limit::read::<FromAgent>(text.as_bytes()), Ok(message));
        }
    }
}
