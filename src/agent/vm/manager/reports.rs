//! Combines the state reports of all VMs.

use super::{PublishedReports, reconciler::Reconciler};
use crate::vm::{disks::ownership_marker, lock_helpers::send_if_changed, net::nic_addresses};
use meshd_proto::vm::{MAX_VMS, ReportedVmState, VmFetching, VmReport};
use meshd_types::SystemUuid;
use std::collections::BTreeMap;

impl Reconciler {
    /// Publishes the reports if they changed.
    pub(super) fn publish(&self) {
        send_if_changed(&self.nics, self.vms.specs().flat_map(|spec| spec.nics.clone()).collect());
        let mut reports: BTreeMap<SystemUuid, VmReport> =
            self.vms.reports().into_iter().map(|report| (report.uuid, report)).collect();
        for pending in self.waiting.all() {
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
        for spec in self.vms.specs().chain(self.waiting.all().map(|pending| &*pending.spec)) {
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
            }
        }
        let vms = reports.into_values().take(MAX_VMS).collect();
        send_if_changed(&self.reports, PublishedReports { observed: self.observed, vms });
    }
}
