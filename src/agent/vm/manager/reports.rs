//! Combines the state reports of all VMs.

use super::Reconciler;
use crate::vm::{disks::ownership_marker, net::nic_addresses};
use meshd_proto::vm::{MAX_VMS, Nic, ReportedVmState, VmFetching, VmReport, VmSpec};
use meshd_types::SystemUuid;
use std::collections::BTreeMap;

impl Reconciler {
    /// Publishes the reports if they changed.
    pub(super) fn publish(&self) {
        let cards: Vec<Nic> = self.vms.specs().flat_map(|spec| spec.nics.clone()).collect();
        self.cards.send_if_modified(|told| {
            *told != cards && {
                *told = cards;
                true
            }
        });
        let mut all: BTreeMap<SystemUuid, VmReport> =
            self.vms.reports().into_iter().map(|report| (report.uuid, report)).collect();
        for run in self.waiting.all() {
            let report = all.entry(run.spec.uuid).or_insert_with(|| fresh(&run.spec));
            if !report.state.is_live() {
                (report.state, report.start) = (ReportedVmState::Starting, Some(run.start));
                let fetched = || self.volumes.progress(run.spec.files().map(|(_, digest)| digest));
                report.fetching = Some(self.writes.progress(run.spec.uuid).unwrap_or_else(fetched));
            }
        }
        for spec in self.vms.specs().chain(self.waiting.all().map(|run| &*run.spec)) {
            if let Some(report) = all.get_mut(&spec.uuid) {
                (report.disks, report.contents) = ownership_marker::disk_uses(&self.vms.files(spec.uuid), spec);
            }
        }
        for (uuid, fault) in &self.faults {
            if let Some(report) = all.get_mut(uuid) {
                report.failure = Some(fault.clone());
            }
        }
        let given = self.given.borrow().clone();
        for spec in self.vms.specs() {
            if let Some(report) = all.get_mut(&spec.uuid) {
                report.addresses = nic_addresses::of(spec, &given);
            }
        }
        let all: Vec<VmReport> = all.into_values().take(MAX_VMS).collect();
        self.told.send_if_modified(|told| {
            let is_new = *told != all;
            *told = all;
            is_new
        });
    }
}

fn fresh(spec: &VmSpec) -> VmReport {
    let plain = VmReport::new(spec.uuid, spec.name.clone(), ReportedVmState::Starting);
    VmReport { fetching: Some(VmFetching::default()), ..plain }
}
