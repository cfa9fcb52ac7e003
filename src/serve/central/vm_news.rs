//! What nodes tell of their virtual machines. A node's word of all that it has is compared with what is on record: what is different
//! is written down, what is not known is shown and left alone.

use super::lock;
use super::{
    Central,
    vms::{known, story},
};
use crate::config::vm::VmAsk;
use crate::fleet::{Actor, Event, EventKind, Node, Phase};
use crate::id::{BootSessionId, NodeId, SystemUuid, Timestamp};
use crate::store::{Model, StoreError, Tx};
use crate::wire::UnitState;
use crate::wire::vm::{MAX_VMS, VmFetching, VmNews, VmReport, VmSpec};
use crate::work::{Vm, VmTold, VmWish};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

/// Longest reason that is kept, in characters.
const MAX_REASON: usize = 500;

/// Virtual machines that nodes told of and that are not on record there. In memory: nodes tell again after each welcome.
#[derive(Default)]
pub(super) struct Strangers(Mutex<BTreeMap<NodeId, BTreeMap<SystemUuid, VmReport>>>);

/// How far nodes are with the volumes that they fetch. In memory: it is told each second.
#[derive(Default)]
pub(super) struct Fetching(Mutex<BTreeMap<NodeId, BTreeMap<SystemUuid, VmFetching>>>);

impl Central {
    /// How far the fetch of a machine's volumes is.
    pub fn fetching(&self, node: NodeId, uuid: SystemUuid) -> Option<VmFetching> {
        lock(&self.fetching.0).get(&node)?.get(&uuid).copied()
    }

    fn told_fetching(&self, node: NodeId, vms: &[VmReport]) {
        let now: BTreeMap<_, _> = vms.iter().filter_map(|report| Some((report.uuid, report.fetching?))).collect();
        let mut all = lock(&self.fetching.0);
        if now.is_empty() { drop(all.remove(&node)) } else { drop(all.insert(node, now)) }
    }

    /// A node tells of its virtual machines.
    pub(super) async fn vm_news(&self, node: NodeId, news: VmNews) -> Result<(), StoreError> {
        match news {
            VmNews::All { mut vms } => {
                vms.truncate(MAX_VMS);
                self.told_fetching(node, &vms);
                self.told_all(node, vms).await
            }
            VmNews::Released { uuid } => self.released(node, uuid).await,
            VmNews::ReleaseBlocked { uuid, reason } => self.release_blocked(node, uuid, reason).await,
        }
    }

    async fn told_all(&self, node: NodeId, vms: Vec<VmReport>) -> Result<(), StoreError> {
        let now = self.now();
        let is_news = self.store.read(|model| {
            let own: Vec<&Vm> = model.vms_of(node).collect();
            let seen = |report: &VmReport| own.iter().any(|vm| vm.uuid() == report.uuid && vm.has_told(report));
            own.iter().any(|vm| vm.is_told() && !vms.iter().any(|report| report.uuid == vm.uuid()))
                || !vms.iter().all(seen)
        });
        if !is_news {
            self.forget_strangers(node);
            return Ok(());
        }
        self.store
            .commit(|tx| {
                let mut strangers = BTreeMap::new();
                for report in &vms {
                    let mine = tx.vm(report.uuid).filter(|vm| vm.node() == Some(node)).cloned();
                    match mine {
                        Some(mut vm) => {
                            let told = vm.tell(report.clone(), now);
                            record(tx, vm, node, told, now);
                        }
                        None => drop(strangers.insert(report.uuid, report.clone())),
                    }
                }
                for mut vm in absent(tx.before(), node, &vms) {
                    let told = vm.missing(now);
                    record(tx, vm, node, told, now);
                }
                self.meet(tx, node, strangers, now);
                Ok(())
            })
            .await?;
        // What is wanted of those that ended is another thing now.
        self.notify_unsettled(node);
        Ok(())
    }

    /// Those of whom nothing is known: shown, never ended. Each is an event once.
    fn meet(&self, tx: &mut Tx<'_>, node: NodeId, strangers: BTreeMap<SystemUuid, VmReport>, now: Timestamp) {
        let mut all = lock(&self.strangers.0);
        let before: BTreeSet<SystemUuid> = all.get(&node).into_iter().flat_map(BTreeMap::keys).copied().collect();
        for (uuid, report) in strangers.iter().filter(|(uuid, _)| !before.contains(uuid)) {
            let release = format!("to end it: meshd vm delete {uuid} --node {node}");
            let detail = format!("{} ({uuid}), {}, is not on record; {release}", report.name, report.state.as_str());
            tx.event(Event::new(now, Actor::Node, EventKind::VmUnknown, detail).of_node(node));
        }
        if strangers.is_empty() { drop(all.remove(&node)) } else { drop(all.insert(node, strangers)) }
    }

    fn forget_strangers(&self, node: NodeId) {
        lock(&self.strangers.0).remove(&node);
    }

    /// What nodes have that is not on record there.
    pub fn strangers(&self) -> Vec<(NodeId, VmReport)> {
        let all = lock(&self.strangers.0);
        all.iter().flat_map(|(node, vms)| vms.values().map(|report| (*node, report.clone()))).collect()
    }

    /// The little that is known of one, so that it can be released.
    pub(super) fn stranger(&self, node: NodeId, uuid: SystemUuid) -> Option<VmAsk> {
        let report = lock(&self.strangers.0).get(&node)?.get(&uuid)?.clone();
        Some(VmAsk::new(VmSpec::unknown(report.name, uuid)))
    }

    async fn released(&self, node: NodeId, uuid: SystemUuid) -> Result<(), StoreError> {
        let now = self.now();
        // Whether the units are clean only the node can say, and it tells of them when its link comes up.
        let units_unsure = self.store.read(|model| {
            let facts = model.node(node).and_then(|node| node.facts.as_ref());
            let used = facts.is_some_and(|facts| facts.units.iter().any(|unit| unit.state == UnitState::InUse));
            used && model.vm(uuid).is_some_and(|vm| !vm.ask.spec.units.is_empty())
        });
        self.store
            .commit(|tx| {
                let Ok(mut vm) = known(tx, uuid) else { return Ok(()) };
                let stray = vm.strays.remove(&node);
                let own = vm.node() == Some(node) && vm.wish == VmWish::Release;
                if !stray && !own {
                    return Ok(());
                }
                tx.event(story(&vm, node, EventKind::VmReleased, Actor::Node, "nothing of it is left".to_owned(), now));
                if own {
                    vm.unplace("its node released it".to_owned());
                }
                if vm.wish == VmWish::Release && vm.place.is_none() && vm.strays.is_empty() {
                    tx.remove_vm(uuid);
                } else {
                    tx.put_vm(vm);
                }
                Ok::<_, StoreError>(())
            })
            .await?;
        if units_unsure {
            self.close_link(node, "it is to tell what its units are now");
        }
        Ok(())
    }

    async fn release_blocked(&self, node: NodeId, uuid: SystemUuid, reason: String) -> Result<(), StoreError> {
        let (now, reason) = (self.now(), reason.chars().take(MAX_REASON).collect::<String>());
        self.store
            .commit(|tx| {
                let Ok(mut vm) = known(tx, uuid) else { return Ok(()) };
                let concerned = vm.node() == Some(node) || vm.strays.contains(&node);
                if concerned && vm.trouble.as_ref() != Some(&reason) {
                    vm.trouble = Some(reason.clone());
                    tx.event(story(&vm, node, EventKind::VmReleaseBlocked, Actor::Node, reason, now));
                    tx.put_vm(vm);
                }
                Ok(())
            })
            .await
    }

    /// What is not yet as wanted on a node is said again.
    pub(super) fn notify_unsettled(&self, node: NodeId) {
        let open: Vec<SystemUuid> = self.store.read(|model| {
            let strays = model.stray_vms().filter(|vm| vm.strays.contains(&node));
            model.vms_of(node).filter(|vm| !vm.is_settled()).chain(strays).map(Vm::uuid).collect()
        });
        for uuid in open {
            self.notify_node(node, Some(uuid));
        }
    }
}

/// A node boots anew: what ran on it is gone, and the record says so.
pub(super) fn rebooted(tx: &mut Tx<'_>, node: NodeId, session: BootSessionId, now: Timestamp) {
    let own: Vec<Vm> = tx.before().vms_of(node).cloned().collect();
    let was_lost = tx.node(node).is_some_and(|node| node.phase == Phase::Offline);
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
        let told = vm.rebooted(session, now);
        if vm != before {
            record(tx, vm, node, told, now);
        }
    }
}

fn record(tx: &mut Tx<'_>, vm: Vm, node: NodeId, told: Option<VmTold>, now: Timestamp) {
    if let Some(told) = told {
        let (kind, detail) = match told {
            VmTold::Started => (EventKind::VmStarted, "the guest runs".to_owned()),
            VmTold::Stopped => (EventKind::VmStopped, "it is off".to_owned()),
            VmTold::Failed(why) => (EventKind::VmFailed, why),
            VmTold::Restarted(why) => (EventKind::VmRestarted, why),
            VmTold::Lost(why) => (EventKind::VmLost, why),
        };
        tx.event(story(&vm, node, kind, Actor::Node, detail, now));
    }
    tx.put_vm(vm);
}

/// Those on record at a node that are not among what it tells.
fn absent(model: &Model, node: NodeId, vms: &[VmReport]) -> Vec<Vm> {
    let is_told = |vm: &&Vm| vms.iter().any(|report| report.uuid == vm.uuid());
    model.vms_of(node).filter(|vm| vm.is_told() && !is_told(vm)).cloned().collect()
}
