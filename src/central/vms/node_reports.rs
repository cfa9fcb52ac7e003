//! Processes reports of nodes about their VMs. Differences to the records are recorded. Unknown VMs
//! are listed and left running.

use super::{disk_records, failover::put_or_remove};
use crate::links::SpecPart;
use crate::vms::{
    Vms,
    lifecycle::{existing_vm, vm_event},
};
use meshd_config::vm::VmRequest;
use meshd_model::{
    fleet::{Actor, Event, EventKind, Node, Phase},
    work::{Vm, VmChange, VmDesiredState},
};
use meshd_proto::{
    DiskFacts, DiskIdentity, Section, UnitState,
    vm::{MAX_VMS, VmFetching, VmReport, VmSpec, VmUpdate},
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{BootSessionId, MacAddr, NodeId, SystemUuid, Timestamp, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// Maximum length of a stored reason, in characters.
const MAX_REASON: usize = 500;
/// Maximum number of VMs whose orders are sent one by one. The queue of a link drops what does not
/// fit, and the next heartbeat would begin with the same VMs.
const MAX_SINGLE_ORDERS: usize = 16;

impl Vms {
    /// Returns the private addresses of a VM's NICs.
    pub(crate) fn reported_addresses(
        &self,
        node: NodeId,
        uuid: SystemUuid,
    ) -> BTreeMap<MacAddr, Ipv4Addr> {
        self.reported
            .addresses
            .lock()
            .get(&node)
            .and_then(|vms| vms.get(&uuid))
            .cloned()
            .unwrap_or_default()
    }

    /// Progress of fetching a VM's volumes.
    pub fn fetching(&self, node: NodeId, uuid: SystemUuid) -> Option<VmFetching> {
        self.reported.fetching.lock().get(&node)?.get(&uuid).cloned()
    }

    /// Returns whether a guest has answered since its start; `None` if it is not asked.
    pub fn guest_ready(&self, node: NodeId, uuid: SystemUuid) -> Option<bool> {
        self.reported.ready.lock().get(&node)?.get(&uuid).copied()
    }

    /// Stores progress, addresses and readiness of the VMs that the node has on record.
    fn store_details(&self, node: NodeId, vms: &[VmReport]) {
        let mut fetching = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        let mut ready = BTreeMap::new();
        self.env.store.read(|model| {
            for report in vms {
                let ReportRelation::Own(vm) = relation_of(model.vm(report.uuid), node) else {
                    continue;
                };
                if let Some(mut progress) = report.fetching.clone() {
                    progress.obstacle =
                        progress.obstacle.map(|why| why.chars().take(MAX_REASON).collect());
                    fetching.insert(report.uuid, progress);
                }
                if let Some(is_ready) = report.ready.filter(|_| vm.request.spec.ready.is_some()) {
                    ready.insert(report.uuid, is_ready);
                }
                let is_own = |mac: &MacAddr| vm.nics().any(|nic| nic.mac == *mac);
                let own = report.addresses.iter().filter(|(mac, _)| is_own(mac));
                let own: BTreeMap<MacAddr, Ipv4Addr> =
                    own.map(|(mac, address)| (*mac, *address)).collect();
                if !own.is_empty() {
                    addresses.insert(report.uuid, own);
                }
            }
        });
        self.reported.set_details(node, fetching, addresses, ready);
    }

    /// Handles a report about VMs.
    pub(crate) async fn vm_update(&self, node: NodeId, update: VmUpdate) -> Result<(), StoreError> {
        let handled = self.handle_update(node, update).await;
        self.links.forget_unlinked(node);
        handled
    }

    async fn handle_update(&self, node: NodeId, update: VmUpdate) -> Result<(), StoreError> {
        match update {
            VmUpdate::All { mut vms } => {
                vms.truncate(MAX_VMS);
                self.store_details(node, &vms);
                self.apply_reports(node, vms).await?;
                self.reported.record_section(node, Section::Vms);
                Ok(())
            }
            VmUpdate::Released { uuid } => self.record_release(node, uuid).await,
            VmUpdate::ReleaseBlocked { uuid, reason } => {
                self.record_blocked_release(node, uuid, reason).await
            }
        }
    }

    async fn apply_reports(&self, node: NodeId, vms: Vec<VmReport>) -> Result<(), StoreError> {
        let now = self.env.now();
        let (has_changes, orphans) = self.env.store.read(|model| {
            let is_unchanged = |report: &VmReport| match relation_of(model.vm(report.uuid), node) {
                ReportRelation::Own(vm) => vm.has_reported(report),
                ReportRelation::Stray | ReportRelation::Orphan => true,
            };
            (
                !vms.iter().all(is_unchanged) || missing_vms(model, node, &vms).next().is_some(),
                orphans_in(model, node, &vms),
            )
        });
        if !has_changes && !self.has_new_orphans(node, &orphans) {
            self.reported.orphan_vms.set(node, orphans);
            return Ok(());
        }
        let correlation = self.env.new_correlation();
        let committed = self.env.store.commit(|tx| {
            let serves = tx.node(node).is_some_and(Node::serves);
            let mut refused = Vec::new();
            let mut reordered = Vec::new();
            for report in &vms {
                let ReportRelation::Own(vm) = relation_of(tx.vm(report.uuid), node) else {
                    continue;
                };
                let before = vm.clone();
                let mut vm = before.clone();
                disk_records::record_assigned_disks(tx, &vm, report, node, correlation, now);
                let change = vm.apply_report(report.clone(), now);
                if vm.withdraw_refused().is_some() {
                    refused.push(vm.uuid());
                }
                reordered.extend(reordered_vm(&before, &vm, node));
                put_changed(tx, vm, node, change, now);
            }
            let missing_vms: Vec<Vm> = missing_vms(tx.before(), node, &vms).cloned().collect();
            for before in missing_vms {
                let mut vm = before.clone();
                let change = vm.apply_absence(serves, now);
                reordered.extend(reordered_vm(&before, &vm, node));
                put_changed(tx, vm, node, change, now);
            }
            self.record_orphans(tx, node, orphans_in(tx.before(), node, &vms), now);
            Ok::<_, StoreError>((refused, reordered))
        });
        let (refused, reordered) = committed.await?;
        for uuid in reordered {
            self.links.notify_node(node, SpecPart::Vm(uuid));
        }
        for uuid in refused {
            self.place_vm(uuid).await;
        }
        Ok(())
    }

    fn has_new_orphans(&self, node: NodeId, orphans: &BTreeMap<SystemUuid, VmReport>) -> bool {
        let all = self.reported.orphan_vms.lock();
        let known = all.get(&node);
        orphans.keys().any(|uuid| known.is_none_or(|known| !known.contains_key(uuid)))
    }

    /// Processes unknown VMs: they are shown and never ended. Each causes one event, with a limit
    /// for each node.
    fn record_orphans(
        &self,
        tx: &mut Tx<'_>,
        node: NodeId,
        orphans: BTreeMap<SystemUuid, VmReport>,
        now: Timestamp,
    ) {
        let before: BTreeSet<SystemUuid> = self
            .reported
            .orphan_vms
            .lock()
            .get(&node)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .copied()
            .collect();
        let cause = format!("orphans of {node}");
        for (uuid, report) in orphans.iter().filter(|(uuid, _)| !before.contains(uuid)) {
            if !self.env.allows(&cause) {
                break;
            }
            let release = format!("to end it: meshd vm delete {uuid} --node {node}");
            let detail = format!(
                "{} ({uuid}), {}, is not on record; {release}",
                report.name,
                report.state.as_str()
            );
            tx.event(Event::new(now, Actor::Node, EventKind::VmUnknown, detail).of_node(node));
        }
        self.reported.orphan_vms.set(node, orphans);
    }

    /// VMs that nodes report and that are not on record there.
    pub fn orphan_vms(&self) -> Vec<(NodeId, VmReport)> {
        let all = self.reported.orphan_vms.lock();
        all.iter()
            .flat_map(|(node, vms)| vms.values().map(|report| (*node, report.clone())))
            .collect()
    }

    /// Creates a minimal specification of an orphan VM, so that its node can release it.
    pub(crate) fn orphan_vm(&self, node: NodeId, uuid: SystemUuid) -> Option<VmRequest> {
        let report = self.reported.orphan_vms.lock().get(&node)?.get(&uuid)?.clone();
        Some(VmRequest::new(VmSpec::unknown(report.name, uuid)))
    }

    async fn record_release(&self, node: NodeId, uuid: SystemUuid) -> Result<(), StoreError> {
        let now = self.env.now();
        let correlation = self.env.new_correlation();
        // Only the node knows whether units and disks are clean; it reports them when its link
        // opens.
        let needs_recheck = self
            .env
            .store
            .read(|model| model.vm(uuid).is_some_and(|vm| may_be_in_use(model, node, vm)));
        let stored = self.env.store.commit(|tx| {
            let Ok(mut vm) = existing_vm(tx, uuid) else { return Ok(false) };
            let before = vm.clone();
            let was_stray = vm.confirm_release(node);
            let is_there = vm.node() == Some(node) || !failpoint::defends("released-node");
            let is_own = is_there && vm.desired_state == VmDesiredState::Release;
            if !was_stray && !is_own {
                return Ok(false);
            }
            disk_records::record_wiped_disks(tx, &before, node, correlation, now);
            tx.event(vm_event(
                &vm,
                node,
                EventKind::VmReleased,
                Actor::Node,
                "the node has released everything",
                now,
            ));
            if is_own {
                vm.unplace("its node released it".to_owned());
            }
            vm.former_nodes.remove(&node);
            put_or_remove(tx, vm);
            Ok::<_, StoreError>(true)
        });
        if stored.await? {
            // The node may have the same VM again.
            self.links.notify_node(node, SpecPart::Vm(uuid));
        }
        if needs_recheck {
            self.links.request_checks(node);
        }
        Ok(())
    }

    async fn record_blocked_release(
        &self,
        node: NodeId,
        uuid: SystemUuid,
        reason: String,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let reason = reason.chars().take(MAX_REASON).collect::<String>();
        let committed = self.env.store.commit(|tx| {
            let Ok(mut vm) = existing_vm(tx, uuid) else { return Ok(()) };
            let is_affected = vm.node() == Some(node) || vm.stray_nodes.contains(&node);
            if is_affected && vm.obstacle.as_ref() != Some(&reason) {
                vm.obstacle = Some(reason.clone());
                tx.event(vm_event(
                    &vm,
                    node,
                    EventKind::VmReleaseBlocked,
                    Actor::Node,
                    reason,
                    now,
                ));
                tx.put_vm(vm);
            }
            Ok(())
        });
        committed.await
    }

    /// Repeats the orders that a node has taken and not followed yet.
    pub(crate) fn repeat_orders(&self, node: NodeId) {
        if self.links.has_observed_all(node, Section::Vms) {
            self.notify_unsettled(node);
        }
    }

    /// Sends the orders that a node has not followed yet.
    pub(crate) fn notify_unsettled(&self, node: NodeId) {
        let unsettled: Vec<SystemUuid> = self.env.store.read(|model| {
            let strays = model.stray_vms().filter(|vm| vm.stray_nodes.contains(&node));
            model.vms_of(node).filter(|vm| !vm.is_settled()).chain(strays).map(Vm::uuid).collect()
        });
        if unsettled.len() > MAX_SINGLE_ORDERS {
            self.links.notify_node(node, SpecPart::All);
            return;
        }
        for uuid in unsettled {
            self.links.notify_node(node, SpecPart::Vm(uuid));
        }
    }
}

/// Returns the VM if its order for a node is another one than before.
fn reordered_vm(before: &Vm, vm: &Vm, node: NodeId) -> Option<SystemUuid> {
    (before != vm && before.entry_for(node) != vm.entry_for(node)).then(|| vm.uuid())
}

/// True if units or disks of the VM may still count as used in the last facts of the node.
fn may_be_in_use(model: &Model, node: NodeId, vm: &Vm) -> bool {
    let Some(facts) = model.node(node).and_then(|node| node.facts.as_ref()) else { return false };
    let units = !vm.assigned.units.is_empty()
        && facts.units.iter().any(|unit| unit.state == UnitState::InUse);
    let blocked = |disk: DiskIdentity| {
        DiskFacts::by_identity(&facts.disks, disk.as_str())
            .is_some_and(|found| found.blocked.is_some())
    };
    units || vm.used_disks().any(blocked)
}

/// Records that the VMs of a node ended with its reboot. If the node was lost and a VM may move,
/// revokes the certificates of the node and unplaces the VM.
pub(crate) fn record_reboot(tx: &mut Tx<'_>, node: NodeId, session: BootSessionId, now: Timestamp) {
    let own_vms: Vec<Vm> = tx.before().vms_of(node).cloned().collect();
    let was_lost = tx.node(node).is_some_and(|node| node.phase == Phase::Offline);
    let serves = tx.node(node).is_some_and(Node::serves);
    for mut vm in own_vms {
        let before = vm.clone();
        let is_another =
            vm.placement.as_ref().is_some_and(|placement| placement.session != Some(session));
        if was_lost && is_another && vm.may_move() {
            // The credentials of the former boot are revoked before the VM starts elsewhere.
            tx.edit_node(node, Node::revoke);
            let why = "its node was lost, and booted again";
            tx.event(vm_event(&vm, node, EventKind::VmLost, Actor::Node, why, now));
            vm.unplace(why.to_owned());
            tx.put_vm(vm);
            continue;
        }
        let change = vm.apply_reboot(session, serves, now);
        if vm != before {
            put_changed(tx, vm, node, change, now);
        }
    }
}

fn put_changed(tx: &mut Tx<'_>, vm: Vm, node: NodeId, change: Option<VmChange>, now: Timestamp) {
    if let Some(change) = change {
        let (kind, detail) = match change {
            VmChange::Started => (EventKind::VmStarted, "the guest runs".to_owned()),
            VmChange::Stopped => (EventKind::VmStopped, "the guest is off".to_owned()),
            VmChange::Paused(why) => (EventKind::VmPaused, why),
            VmChange::Failed(why) => (EventKind::VmFailed, why),
            VmChange::Restarted(why) => (EventKind::VmRestarted, why),
            VmChange::Lost(why) => (EventKind::VmLost, why),
        };
        tx.event(vm_event(&vm, node, kind, Actor::Node, detail, now));
    }
    tx.put_vm(vm);
}

/// The relation of a report to the records.
enum ReportRelation<'a> {
    /// The record places the VM there.
    Own(&'a Vm),
    /// The node must release the VM, even if it is placed there again.
    Stray,
    /// No record places the VM there.
    Orphan,
}

fn relation_of(vm: Option<&Vm>, node: NodeId) -> ReportRelation<'_> {
    match vm {
        Some(vm) if vm.stray_nodes.contains(&node) => ReportRelation::Stray,
        Some(vm) if vm.node() == Some(node) => ReportRelation::Own(vm),
        _ => ReportRelation::Orphan,
    }
}

fn orphans_in(model: &Model, node: NodeId, vms: &[VmReport]) -> BTreeMap<SystemUuid, VmReport> {
    let is = |report: &&VmReport| {
        matches!(relation_of(model.vm(report.uuid), node), ReportRelation::Orphan)
    };
    vms.iter().filter(is).map(|report| (report.uuid, report.clone())).collect()
}

/// VMs that are placed on a node and missing in its report.
fn missing_vms<'a>(
    model: &'a Model,
    node: NodeId,
    vms: &[VmReport],
) -> impl Iterator<Item = &'a Vm> {
    let reported: BTreeSet<SystemUuid> = vms.iter().map(|report| report.uuid).collect();
    model.vms_of(node).filter(move |vm| vm.is_reported() && !reported.contains(&vm.uuid()))
}
