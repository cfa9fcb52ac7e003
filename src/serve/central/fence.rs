//! What becomes of virtual machines when something becomes of their node. Never two copies: one leaves its node only when the node said
//! so, or when its credentials were taken and it is certain that the machine runs no more: it booted anew, or an operator says so.

use super::{
    Central, JobError, OperateError,
    revoke::disown,
    script::phase_event,
    slots::forget_slots,
    vms::{VmError, settle, story},
};
use crate::fleet::{Actor, By, Cause, Event, EventKind, Node, Phase, PhaseChange};
use crate::id::{NodeId, SystemUuid, Timestamp};
use crate::store::{Model, StoreError, Tx};
use crate::work::{Vm, VmWish};

/// Most names that a refusal tells.
const MAX_TOLD: usize = 5;

/// What a drained node does with what runs on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workloads {
    /// It ends by itself.
    #[default]
    Wait,
    /// It is stopped.
    Stop,
}

impl Central {
    /// Refuses what would end or lose the work of a node, unless it was drained, or whoever orders it says that it may be lost.
    pub(super) fn spare(&self, id: NodeId, by: &By) -> Result<(), OperateError> {
        if by.forced {
            return Ok(());
        }
        self.spare_task(id)?;
        let held = self.store.read(|model| {
            let drained = model.node(id).is_some_and(|node| node.phase == Phase::Maintenance);
            let all: Vec<String> =
                model.vms_of(id).filter(|vm| !drained || vm.is_running()).map(|vm| vm.name().to_string()).collect();
            all
        });
        if held.is_empty() {
            return Ok(());
        }
        let more = held.len().saturating_sub(MAX_TOLD);
        let mut names = held.into_iter().take(MAX_TOLD).collect::<Vec<_>>().join(", ");
        if more > 0 {
            names += &format!(" and {more} more");
        }
        Err(VmError::Holds { node: id, names }.into())
    }

    /// The same where nothing of a node is left afterwards: being drained is not enough.
    pub(super) fn spare_all(&self, id: NodeId, by: &By) -> Result<(), OperateError> {
        let names: Vec<String> =
            self.store.read(|model| model.vms_of(id).map(|vm| vm.name().to_string()).take(MAX_TOLD).collect());
        if by.forced {
            return Ok(());
        }
        self.spare_task(id)?;
        if names.is_empty() { Ok(()) } else { Err(VmError::Holds { node: id, names: names.join(", ") }.into()) }
    }

    /// A task that is over may hold a node that was lost; nothing of it is left to lose.
    fn spare_task(&self, id: NodeId) -> Result<(), JobError> {
        let runs = |model: &Model| model.job_on(id).filter(|job| !job.state.is_final()).map(|job| job.id);
        self.store.read(runs).map_or(Ok(()), |job| Err(JobError::Holds { node: id, id: job }))
    }

    /// A node that drains stops what runs on it.
    pub(super) async fn stop_vms_of(&self, id: NodeId, by: &By) -> Result<(), StoreError> {
        let now = self.now();
        self.store
            .commit(|tx| {
                let own: Vec<Vm> = tx.before().vms_of(id).filter(|vm| vm.wish == VmWish::Run).cloned().collect();
                for mut vm in own {
                    vm.wish = VmWish::Stop;
                    tx.event(story(&vm, id, EventKind::VmOrdered, by, "shall be off: its node is drained", now));
                    tx.put_vm(vm);
                }
                Ok(())
            })
            .await?;
        self.notify_unsettled(id);
        Ok(())
    }

    /// An operator says that a node runs no more and will not go on. Its credentials are taken first; then nothing of it holds a
    /// virtual machine, and those that may be moved are started elsewhere.
    pub async fn fence(&self, id: NodeId, by: &By) -> Result<Node, OperateError> {
        let (now, why) = (self.now(), "an operator fenced this node");
        if self.probe(id).await {
            return Err(OperateError::StillLinked { node: id });
        }
        let node = self
            .store
            .commit(|tx| {
                let node = tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
                disown(tx, id, by, why, now);
                // Whatever it was, nothing is placed there until it links again.
                let change = tx.edit_node(id, |node| node.change(PhaseChange::Silent).ok().flatten()).flatten();
                phase_event(tx, id, node.boot, change, by, now);
                tx.event(Event::new(now, by, EventKind::NodeFenced, why).of_node(id));
                free(tx, id, by, "its node was fenced", now);
                Ok::<_, OperateError>(node)
            })
            .await?;
        self.cut_off(id, why);
        self.place_waiting().await;
        Ok(self.store.read(|model| model.node(id).cloned()).unwrap_or(node))
    }

    /// Gives a node to those that lost theirs and may be moved. What does not fit now is tried again at the next look.
    pub(super) async fn place_waiting(&self) {
        let waiting: Vec<SystemUuid> =
            self.store.read(|model| model.unplaced_vms().filter(|vm| vm.may_move()).map(Vm::uuid).collect());
        for uuid in waiting {
            let (site, now) = (self.site(), self.now());
            let placed = self.store.commit(|tx| {
                let Some(mut vm) = tx.vm(uuid).filter(|vm| vm.place.is_none() && vm.may_move()).cloned() else {
                    return Ok(None);
                };
                vm.run();
                let node = settle(tx, &mut vm, &site, now)?;
                let detail = format!("is started on {node}");
                tx.event(story(&vm, node, EventKind::VmMoved, Actor::Central, detail, now));
                tx.put_vm(vm.clone());
                Ok::<_, OperateError>(Some(vm))
            });
            match placed.await {
                Ok(Some(vm)) => self.notify(&vm),
                Ok(None) => {}
                Err(error) => tracing::debug!(%uuid, %error, "a virtual machine that lost its node finds no other yet"),
            }
        }
    }
}

/// Nothing of a node holds a virtual machine any more. Those that were being deleted are gone.
pub(super) fn free(tx: &mut Tx<'_>, id: NodeId, cause: impl Into<Cause> + Clone, why: &str, now: Timestamp) {
    let own: Vec<Vm> = tx.before().vms_of(id).cloned().collect();
    let strays: Vec<Vm> = tx.before().stray_vms().filter(|vm| vm.strays.contains(&id)).cloned().collect();
    for mut vm in own {
        vm.strays.remove(&id);
        if vm.wish == VmWish::Release && vm.strays.is_empty() {
            tx.event(story(&vm, id, EventKind::VmReleased, cause.clone(), why, now));
            tx.remove_vm(vm.uuid());
        } else {
            tx.event(story(&vm, id, EventKind::VmLost, cause.clone(), why, now));
            vm.unplace(why.to_owned());
            tx.put_vm(vm);
        }
    }
    for vm in strays {
        let Some(mut vm) = tx.vm(vm.uuid()).cloned() else { continue };
        vm.strays.remove(&id);
        if vm.wish == VmWish::Release && vm.place.is_none() && vm.strays.is_empty() {
            tx.remove_vm(vm.uuid());
        } else {
            tx.put_vm(vm);
        }
    }
}

/// A node is forgotten: what it held is free, and nothing starts elsewhere by itself, for the machine may still run.
pub(super) fn forget(tx: &mut Tx<'_>, id: NodeId, by: &By, now: Timestamp) {
    let own: Vec<SystemUuid> = tx.before().vms_of(id).map(Vm::uuid).collect();
    forget_slots(tx, id);
    free(tx, id, by, "its node was removed; it may run there until that machine is switched off", now);
    for uuid in own {
        if let Some(mut vm) = tx.vm(uuid).cloned() {
            vm.wish = VmWish::Stop;
            tx.put_vm(vm);
        }
    }
}
