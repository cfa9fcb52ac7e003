//! What becomes of virtual machines when something becomes of their node. Never two copies: one leaves its node only when the node said
//! so, or when its credentials were taken and it is certain that the machine runs no more: it booted anew, or an operator says so.

use super::{
    Central, JobError, OperateError,
    jobs::{edit_job, lose_node},
    revoke::disown,
    script::phase_event,
    slots::forget_slots,
    vms::{VmError, story},
};
use meshd_model::{
    fleet::{Actor, AuditContext, Cause, Event, EventKind, Node, Phase, PhaseChange},
    work::{Vm, VmWish},
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{NodeId, SystemUuid, Timestamp, fail};

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
    pub(super) fn spare(&self, id: NodeId, by: &AuditContext) -> Result<(), OperateError> {
        self.store.read(|model| spare(model, id, by))
    }

    /// A node that drains stops what runs on it. With a patience of the operator's, also what is being stopped has that one, if it is shorter.
    pub(super) async fn stop_vms_of(
        &self,
        id: NodeId,
        grace_s: Option<u32>,
        by: &AuditContext,
    ) -> Result<(), StoreError> {
        let now = self.now();
        let within = grace_s.map_or_else(String::new, |seconds| format!(", within {seconds} s"));
        let detail = format!("shutdown ordered{within}: the node is drained");
        let hurries = |vm: &Vm| vm.wish == VmWish::Stop && vm.is_running() && grace_s.is_some();
        self.store
            .commit(|tx| {
                let own: Vec<Vm> =
                    tx.before().vms_of(id).filter(|vm| vm.wish == VmWish::Run || hurries(vm)).cloned().collect();
                for mut vm in own {
                    vm.stop(grace_s);
                    tx.event(story(&vm, id, EventKind::VmOrdered, by, detail.clone(), now));
                    tx.put_vm(vm);
                }
                let task = tx.job_on(id).filter(|job| job.end.is_none()).map(|job| job.id);
                edit_job(tx, task, now, |job| {
                    job.cancel("its node is drained".to_owned(), now);
                });
                Ok::<_, StoreError>(())
            })
            .await?;
        self.notify_unsettled(id);
        self.tell_job_of(id);
        Ok(())
    }

    /// Refuses to fence a node of which anything was heard within `offline_after`: a link that broke says nothing of its machine.
    fn is_silent(&self, id: NodeId) -> Result<(), OperateError> {
        let (silence, needed) = (self.silence(id), self.site().agent.offline_after);
        if silence > needed || !fail::defends("fence-silence") {
            return Ok(());
        }
        let wait = needed.saturating_sub(silence).as_secs() + 1;
        Err(OperateError::StillHeard { node: id, seconds: silence.as_secs(), wait })
    }

    /// An operator says that a node runs no more and will not go on. Its credentials are taken first; then nothing of it holds a
    /// virtual machine, and those that may be moved are started elsewhere.
    pub async fn fence(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let (now, why) = (self.now(), "an operator fenced this node");
        let silent = self.link_number(id);
        if self.probe(id).await {
            return Err(OperateError::StillLinked { node: id });
        }
        self.is_silent(id)?;
        let node = self
            .store
            .commit(|tx| {
                self.no_newer_link(id, silent)?;
                let node = tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
                disown(tx, id, &self.link_state(id), by, why, now);
                // Whatever it was, nothing is placed there until it links again.
                let change = tx.edit_node(id, |node| node.change(PhaseChange::Silent).ok().flatten()).flatten();
                phase_event(tx, id, node.boot, change, by, now);
                tx.event(Event::new(now, by, EventKind::NodeFenced, why).of_node(id));
                free(tx, id, by, "its node was fenced", now);
                lose_node(tx, id, why, now);
                Ok::<_, OperateError>(node)
            })
            .await?;
        self.cut_off(id, why);
        self.forget_strange(id);
        // Nodes of a task that it had are free before anybody else asks for one.
        self.remind_of_jobs();
        self.place_waiting().await;
        Ok(self.store.read(|model| model.node(id).cloned()).unwrap_or(node))
    }

    /// Gives a node to those that lost theirs and may be moved, or were refused by theirs. What does not fit now is tried again at the
    /// next look.
    pub(super) async fn place_waiting(&self) {
        let waiting: Vec<SystemUuid> =
            self.store.read(|model| model.unplaced_vms().filter(|vm| vm.waits_for_node()).map(Vm::uuid).collect());
        for uuid in waiting {
            self.place_again(uuid).await;
        }
    }

    /// The same for one.
    pub(super) async fn place_again(&self, uuid: SystemUuid) {
        let (site, now) = (self.site(), self.now());
        let placed = self.store.commit(|tx| {
            let Some(before) = tx.vm(uuid).filter(|vm| vm.waits_for_node()).cloned() else { return Ok(None) };
            self.not_elsewhere(uuid)?;
            let mut vm = before.clone();
            vm.run();
            match self.settle(tx, &mut vm, &site, now) {
                Ok(node) => {
                    let detail = format!("is started on {node}");
                    tx.event(story(&vm, node, EventKind::VmMoved, Actor::Central, detail, now));
                    tx.put_vm(vm.clone());
                    Ok(Some(vm))
                }
                Err(error) if !before.may_move() => {
                    vm = before;
                    vm.no_node(&error.to_string());
                    let detail = format!("it has no node: {error}");
                    tx.event(story(&vm, None, EventKind::VmFailed, Actor::Central, detail, now));
                    tx.put_vm(vm);
                    Ok(None)
                }
                Err(error) => Err(OperateError::from(error)),
            }
        });
        match placed.await {
            Ok(Some(vm)) => self.notify(&vm),
            Ok(None) => {}
            Err(error) => tracing::debug!(%uuid, %error, "a virtual machine finds no other node yet"),
        }
    }
}

/// What works on a node, or is ordered to, in words: what a drain waits for.
pub fn work_on(model: &Model, id: NodeId) -> Vec<String> {
    let machines = model.vms_of(id).filter(|vm| vm.may_work()).map(|vm| format!("virtual machine {}", vm.name()));
    machines.chain(model.job_on(id).map(|job| format!("task {}", job.id))).collect()
}

/// See [`Central::spare`].
pub(super) fn spare(model: &Model, id: NodeId, by: &AuditContext) -> Result<(), OperateError> {
    let drained = model.node(id).is_some_and(|node| node.phase == Phase::Maintenance);
    refuse_loss(model, id, by, |vm| !drained || vm.is_running())
}

/// The same where nothing of a node is left afterwards: being drained is not enough.
pub(super) fn spare_all(model: &Model, id: NodeId, by: &AuditContext) -> Result<(), OperateError> {
    refuse_loss(model, id, by, |_| true)
}

fn refuse_loss(model: &Model, id: NodeId, by: &AuditContext, counts: impl Fn(&Vm) -> bool) -> Result<(), OperateError> {
    spare_task(model, id, by)?;
    let held: Vec<String> = model.vms_of(id).filter(|vm| counts(vm)).map(|vm| vm.name().to_string()).collect();
    if held.is_empty() || by.forced {
        return Ok(());
    }
    let more = held.len().saturating_sub(MAX_TOLD);
    let mut names = held.into_iter().take(MAX_TOLD).collect::<Vec<_>>().join(", ");
    if more > 0 {
        names += &format!(" and {more} more");
    }
    Err(VmError::Holds { node: id, names }.into())
}

/// A task that is over may hold a node that was lost; nothing of it is left to lose.
pub(super) fn spare_task(model: &Model, id: NodeId, by: &AuditContext) -> Result<(), JobError> {
    let runs = model.job_on(id).filter(|job| !job.state.is_final() && !by.forced);
    runs.map_or(Ok(()), |job| Err(JobError::Holds { node: id, id: job.id }))
}

/// Nothing of a node holds a virtual machine any more. Those that were being deleted are gone.
pub(super) fn free(tx: &mut Tx<'_>, id: NodeId, cause: impl Into<Cause> + Clone, why: &str, now: Timestamp) {
    let own: Vec<Vm> = tx.before().vms_of(id).cloned().collect();
    let strays: Vec<Vm> = tx.before().stray_vms().filter(|vm| vm.strays.contains(&id)).cloned().collect();
    for mut vm in own {
        vm.left(id);
        vm.leave_unclean();
        if vm.wish == VmWish::Release && vm.strays.is_empty() {
            tx.event(story(&vm, id, EventKind::VmReleased, cause.clone(), why, now));
            tx.remove_vm(vm.uuid());
        } else {
            tx.event(story(&vm, id, EventKind::VmLost, cause.clone(), why, now));
            let unclean =
                if vm.owes.contains_key(&id) { "; its disks there are wiped when that node is back" } else { "" };
            vm.unplace(format!("{why}{unclean}"));
            tx.put_vm(vm);
        }
    }
    for vm in strays.into_iter().filter(|vm| !vm.owes.contains_key(&id)) {
        let Some(mut vm) = tx.vm(vm.uuid()).cloned() else { continue };
        vm.left(id);
        if vm.wish == VmWish::Release && vm.place.is_none() && vm.strays.is_empty() {
            tx.remove_vm(vm.uuid());
        } else {
            tx.put_vm(vm);
        }
    }
}

/// A node is forgotten: what it held is free, and nothing starts elsewhere by itself, for the machine may still run.
pub(super) fn forget(tx: &mut Tx<'_>, id: NodeId, by: &AuditContext, now: Timestamp) {
    let own: Vec<Vm> = tx.before().vms_of(id).cloned().collect();
    forget_slots(tx, id);
    lose_node(tx, id, "an operator removed the node", now);
    free(tx, id, by, "its node was removed; it may run there until that machine is switched off", now);
    for before in own {
        if let Some(mut vm) = tx.vm(before.uuid()).filter(|vm| vm.wish != VmWish::Release).cloned() {
            vm.wish = VmWish::Stop;
            // Its guest may use the addresses of the slot still: they are nobody else's before it has other ones, or is deleted.
            vm.ask.spec.nics = before.ask.spec.nics;
            tx.put_vm(vm);
        }
    }
    // Nobody is left to wipe its disks, nor to give them to anybody.
    for mut vm in tx.all_vms().filter(|vm| vm.owes.contains_key(&id)).cloned().collect::<Vec<_>>() {
        vm.left(id);
        if vm.wish == VmWish::Release && vm.place.is_none() && vm.strays.is_empty() {
            tx.remove_vm(vm.uuid());
        } else {
            tx.put_vm(vm);
        }
    }
}
