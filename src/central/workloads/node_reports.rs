//! What nodes report of their virtual machines. A report is compared with the records: differences are recorded, and unknown virtual
//! machines are shown and left alone.

use super::disk_records;
use crate::workloads::{
    Workloads,
    vms::{known, story},
};
use meshd_config::vm::VmRequest;
use meshd_model::{
    fleet::{Actor, Event, EventKind, Node, Phase},
    work::{Vm, VmChange, VmDesiredState},
};
use meshd_proto::{
    DiskFacts, UnitState,
    vm::{DiskIdentity, MAX_VMS, VmFetching, VmReport, VmSpec, VmUpdate},
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{BootSessionId, CorrelationId, MacAddr, NodeId, SystemUuid, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// Longest reason that is kept, in characters.
const MAX_REASON: usize = 500;

/// Progress of fetched volumes. In memory: nodes report it each second.
pub(super) type Fetching = BTreeMap<NodeId, BTreeMap<SystemUuid, VmFetching>>;

/// Addresses of NICs in private networks. In memory: nodes report them after each welcome.
pub(super) type Addresses = BTreeMap<NodeId, VmAddresses>;

/// By machine and card.
type VmAddresses = BTreeMap<SystemUuid, BTreeMap<MacAddr, Ipv4Addr>>;

impl Workloads {
    /// Returns the private addresses of a VM's NICs.
    pub(crate) fn reported_addresses(&self, node: NodeId, uuid: SystemUuid) -> BTreeMap<MacAddr, Ipv4Addr> {
        self.addresses.lock().get(&node).and_then(|vms| vms.get(&uuid)).cloned().unwrap_or_default()
    }

    /// How far the fetch of a machine's volumes is.
    pub fn fetching(&self, node: NodeId, uuid: SystemUuid) -> Option<VmFetching> {
        self.fetching.lock().get(&node)?.get(&uuid).cloned()
    }

    fn keep_details(&self, node: NodeId, vms: &[VmReport]) {
        let now: BTreeMap<_, _> =
            vms.iter().filter_map(|report| Some((report.uuid, report.fetching.clone()?))).collect();
        replace(&mut self.fetching.lock(), node, now);
        let given = vms.iter().filter(|report| !report.addresses.is_empty());
        let given: VmAddresses = given.map(|report| (report.uuid, report.addresses.clone())).collect();
        replace(&mut self.addresses.lock(), node, given);
    }

    /// Handles a report about virtual machines.
    pub(crate) async fn vm_update(&self, node: NodeId, news: VmUpdate) -> Result<(), StoreError> {
        match news {
            VmUpdate::All { mut vms } => {
                vms.truncate(MAX_VMS);
                self.keep_details(node, &vms);
                self.apply_reports(node, vms).await
            }
            VmUpdate::Released { uuid } => self.released(node, uuid).await,
            VmUpdate::ReleaseBlocked { uuid, reason } => self.release_blocked(node, uuid, reason).await,
        }
    }

    async fn apply_reports(&self, node: NodeId, vms: Vec<VmReport>) -> Result<(), StoreError> {
        let now = self.env.now();
        let (is_news, odd) = self.env.store.read(|model| {
            let told = |report: &VmReport| match concern(model.vm(report.uuid), node) {
                Concern::Own(vm) => vm.has_reported(report),
                Concern::Going | Concern::Strange => true,
            };
            (!vms.iter().all(told) || absent(model, node, &vms).next().is_some(), strange(model, node, &vms))
        });
        if !is_news && !self.has_new(node, &odd) {
            self.orphans.vms.are(node, odd);
            return Ok(());
        }
        let order = CorrelationId(self.env.random());
        let refused = self
            .env
            .store
            .commit(|tx| {
                let (mut refused, serves) = (Vec::new(), tx.node(node).is_some_and(Node::serves));
                for report in &vms {
                    let Concern::Own(vm) = concern(tx.vm(report.uuid), node) else { continue };
                    let mut vm = vm.clone();
                    disk_records::given(tx, &vm, report, node, order, now);
                    let told = vm.apply_report(report.clone(), now);
                    if vm.withdraw_refused().is_some() {
                        refused.push(vm.uuid());
                    }
                    record(tx, vm, node, told, now);
                }
                let absent: Vec<Vm> = absent(tx.before(), node, &vms).cloned().collect();
                for mut vm in absent {
                    let told = vm.missing(serves, now);
                    record(tx, vm, node, told, now);
                }
                self.record_orphans(tx, node, strange(tx.before(), node, &vms), now);
                Ok::<_, StoreError>(refused)
            })
            .await?;
        // The desired state of ended VMs has changed.
        self.notify_unsettled(node);
        for uuid in refused {
            self.place_again(uuid).await;
        }
        Ok(())
    }

    fn has_new(&self, node: NodeId, strange: &BTreeMap<SystemUuid, VmReport>) -> bool {
        let all = self.orphans.vms.lock();
        let known = all.get(&node);
        strange.keys().any(|uuid| known.is_none_or(|known| !known.contains_key(uuid)))
    }

    /// Processes unknown VMs: they are shown and never ended. Each causes one event, with a limit for each node.
    fn record_orphans(&self, tx: &mut Tx<'_>, node: NodeId, strange: BTreeMap<SystemUuid, VmReport>, now: Timestamp) {
        let before: BTreeSet<SystemUuid> =
            self.orphans.vms.lock().get(&node).into_iter().flat_map(BTreeMap::keys).copied().collect();
        let cause = format!("orphans of {node}");
        for (uuid, report) in strange.iter().filter(|(uuid, _)| !before.contains(uuid)) {
            if !self.env.allows(&cause) {
                break;
            }
            let release = format!("to end it: meshd vm delete {uuid} --node {node}");
            let detail = format!("{} ({uuid}), {}, is not on record; {release}", report.name, report.state.as_str());
            tx.event(Event::new(now, Actor::Node, EventKind::VmUnknown, detail).of_node(node));
        }
        self.orphans.vms.are(node, strange);
    }

    /// VMs that nodes report and that are not on record there.
    pub fn orphan_vms(&self) -> Vec<(NodeId, VmReport)> {
        let all = self.orphans.vms.lock();
        all.iter().flat_map(|(node, vms)| vms.values().map(|report| (*node, report.clone()))).collect()
    }

    /// The little that is known of one, so that it can be released.
    pub(crate) fn orphan(&self, node: NodeId, uuid: SystemUuid) -> Option<VmRequest> {
        let report = self.orphans.vms.lock().get(&node)?.get(&uuid)?.clone();
        Some(VmRequest::new(VmSpec::unknown(report.name, uuid)))
    }

    async fn released(&self, node: NodeId, uuid: SystemUuid) -> Result<(), StoreError> {
        let (now, order) = (self.env.now(), CorrelationId(self.env.random()));
        // Only the node knows whether units and disks are clean; it reports them when its link opens.
        let unsure = self.env.store.read(|model| model.vm(uuid).is_some_and(|vm| looks_used(model, node, vm)));
        self.env
            .store
            .commit(|tx| {
                let Ok(mut vm) = known(tx, uuid) else { return Ok(()) };
                let before = vm.clone();
                let stray = vm.left(node);
                let own = vm.node() == Some(node) && vm.desired_state == VmDesiredState::Release;
                if !stray && !own {
                    return Ok(());
                }
                disk_records::wiped(tx, &before, node, order, now);
                tx.event(story(&vm, node, EventKind::VmReleased, Actor::Node, "nothing of it is left".to_owned(), now));
                if own {
                    vm.unplace("its node released it".to_owned());
                }
                if vm.desired_state == VmDesiredState::Release && vm.place.is_none() && vm.stray_nodes.is_empty() {
                    tx.remove_vm(uuid);
                } else {
                    tx.put_vm(vm);
                }
                Ok::<_, StoreError>(())
            })
            .await?;
        // It may have been given the same machine anew.
        self.links.notify_node(node, Some(uuid));
        if unsure {
            self.links.ask_checks(node);
        }
        Ok(())
    }

    async fn release_blocked(&self, node: NodeId, uuid: SystemUuid, reason: String) -> Result<(), StoreError> {
        let (now, reason) = (self.env.now(), reason.chars().take(MAX_REASON).collect::<String>());
        self.env
            .store
            .commit(|tx| {
                let Ok(mut vm) = known(tx, uuid) else { return Ok(()) };
                let concerned = vm.node() == Some(node) || vm.stray_nodes.contains(&node);
                if concerned && vm.obstacle.as_ref() != Some(&reason) {
                    vm.obstacle = Some(reason.clone());
                    tx.event(story(&vm, node, EventKind::VmReleaseBlocked, Actor::Node, reason, now));
                    tx.put_vm(vm);
                }
                Ok(())
            })
            .await
    }

    /// Repeats the orders that a node has not followed yet.
    pub(crate) fn notify_unsettled(&self, node: NodeId) {
        let open: Vec<SystemUuid> = self.env.store.read(|model| {
            let stray_nodes = model.stray_vms().filter(|vm| vm.stray_nodes.contains(&node));
            model.vms_of(node).filter(|vm| !vm.is_settled()).chain(stray_nodes).map(Vm::uuid).collect()
        });
        for uuid in open {
            self.links.notify_node(node, Some(uuid));
        }
    }
}

/// Replaces the former report of a node.
fn replace<T>(all: &mut BTreeMap<NodeId, BTreeMap<SystemUuid, T>>, node: NodeId, now: BTreeMap<SystemUuid, T>) {
    if now.is_empty() { drop(all.remove(&node)) } else { drop(all.insert(node, now)) }
}

/// What a machine had may still stand there as used, by what its node told while it ran.
fn looks_used(model: &Model, node: NodeId, vm: &Vm) -> bool {
    let Some(facts) = model.node(node).and_then(|node| node.facts.as_ref()) else { return false };
    let units = !vm.request.spec.units.is_empty() && facts.units.iter().any(|unit| unit.state == UnitState::InUse);
    let blocked = |disk: &DiskIdentity| {
        DiskFacts::called(&facts.disks, disk.as_str()).is_some_and(|found| found.blocked.is_some())
    };
    units || vm.request.spec.disks().any(blocked)
}

/// Records that the VMs of a node ended with its reboot.
pub(crate) fn rebooted(tx: &mut Tx<'_>, node: NodeId, session: BootSessionId, now: Timestamp) {
    let own: Vec<Vm> = tx.before().vms_of(node).cloned().collect();
    let was_lost = tx.node(node).is_some_and(|node| node.phase == Phase::Offline);
    let serves = tx.node(node).is_some_and(Node::serves);
    for mut vm in own {
        let before = vm.clone();
        let is_another = vm.place.as_ref().is_some_and(|place| place.session != Some(session));
        if was_lost && is_another && vm.may_move() {
            // Its credentials are of the boot before, and go before anything is started elsewhere.
            tx.edit_node(node, Node::revoke);
            let why = "its node was lost, and booted anew";
            tx.event(story(&vm, node, EventKind::VmLost, Actor::Node, why, now));
            vm.unplace(why.to_owned());
            tx.put_vm(vm);
            continue;
        }
        let told = vm.rebooted(session, serves, now);
        if vm != before {
            record(tx, vm, node, told, now);
        }
    }
}

fn record(tx: &mut Tx<'_>, vm: Vm, node: NodeId, told: Option<VmChange>, now: Timestamp) {
    if let Some(told) = told {
        let (kind, detail) = match told {
            VmChange::Started => (EventKind::VmStarted, "the guest runs".to_owned()),
            VmChange::Stopped => (EventKind::VmStopped, "it is off".to_owned()),
            VmChange::Paused(why) => (EventKind::VmPaused, why),
            VmChange::Failed(why) => (EventKind::VmFailed, why),
            VmChange::Restarted(why) => (EventKind::VmRestarted, why),
            VmChange::Lost(why) => (EventKind::VmLost, why),
        };
        tx.event(story(&vm, node, kind, Actor::Node, detail, now));
    }
    tx.put_vm(vm);
}

/// The relation of a report to the records.
enum Concern<'a> {
    /// It is on record there.
    Own(&'a Vm),
    /// The node has to release it, also where the node has been given it again.
    Going,
    /// It is not on record there.
    Strange,
}

fn concern(vm: Option<&Vm>, node: NodeId) -> Concern<'_> {
    match vm {
        Some(vm) if vm.stray_nodes.contains(&node) => Concern::Going,
        Some(vm) if vm.node() == Some(node) => Concern::Own(vm),
        _ => Concern::Strange,
    }
}

fn strange(model: &Model, node: NodeId, vms: &[VmReport]) -> BTreeMap<SystemUuid, VmReport> {
    let is = |report: &&VmReport| matches!(concern(model.vm(report.uuid), node), Concern::Strange);
    vms.iter().filter(is).map(|report| (report.uuid, report.clone())).collect()
}

/// VMs on record at a node that its report lacks.
fn absent<'a>(model: &'a Model, node: NodeId, vms: &[VmReport]) -> impl Iterator<Item = &'a Vm> {
    let told: BTreeSet<SystemUuid> = vms.iter().map(|report| report.uuid).collect();
    model.vms_of(node).filter(move |vm| vm.is_reported() && !told.contains(&vm.uuid()))
}
