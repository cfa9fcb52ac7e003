//! An operator spoke of a node's life: turned away, held, drained, taken out of service and back, replaced, forgotten.

use super::{
    Central, OperateError, Shared, Workloads, admit::retire, fence::forget, lock, revoke::disown, script::phase_event,
    stalls,
};
use crate::fleet::{
    Actor, BootSession, By, ConditionKind, Event, EventKind, Lease, Node, Phase, PhaseChange, Stage, UnlawfulTransition,
};
use crate::id::{NodeId, Timestamp};
use crate::store::{StoreError, Tx};
use crate::wire::CheckStatus;
use crate::work::VmWish;

impl Central {
    /// Turns a machine away: it is refused at its next boot, and told so if it waits.
    pub async fn reject(&self, id: NodeId, by: &By) -> Result<Node, OperateError> {
        self.end_service(id, by, "an operator rejected this node", Node::reject).await
    }

    /// Holds a node in iPXE until an operator releases it. If it runs, it is cut off at once.
    pub async fn quarantine(&self, id: NodeId, by: &By) -> Result<Node, OperateError> {
        self.spare(id, by)?;
        let because = by.reason.clone();
        self.end_service(id, by, "an operator holds this node", |node| node.quarantine(because)).await
    }

    /// Forgets a node: its certificates, tokens and address are void, its link is cut, and everything that was said of it is gone.
    /// The machine is discovered anew if it ever boots again.
    pub async fn remove(&self, id: NodeId, by: &By) -> Result<Node, OperateError> {
        self.spare_all(id, by)?;
        let why = "an operator removed this node";
        let now = self.now();
        let removed = self
            .store
            .commit(|tx| {
                let node = known(tx, id)?;
                node.phase.on(PhaseChange::Remove)?;
                disown(tx, id, by, why, now);
                let freed = leases_of(tx, &node);
                freed.iter().for_each(|lease| tx.remove_lease(lease.address));
                forget(tx, id, by, now);
                let node = retire(tx, id, by, now).unwrap_or(node);
                Ok::<_, OperateError>((node, freed))
            })
            .await;
        self.cut_off_after(&removed, id, why);
        let (node, freed) = removed?;
        self.free(freed);
        Ok(node)
    }

    /// What an operator takes a node's credentials for.
    async fn end_service(
        &self,
        id: NodeId,
        by: &By,
        why: &str,
        change: impl FnOnce(&mut Node) -> Result<Option<(Phase, Phase)>, UnlawfulTransition>,
    ) -> Result<Node, OperateError> {
        let now = self.now();
        let ended = self
            .store
            .commit(|tx| {
                let mut node = known(tx, id)?;
                let changed = change(&mut node)?;
                if changed.is_some() {
                    let boot = node.boot;
                    // Counted by `disown`, so that the event says how many there were.
                    node.certificates = tx.node(id).map(|node| node.certificates.clone()).unwrap_or_default();
                    tx.put_node(node);
                    disown(tx, id, by, why, now);
                    phase_event(tx, id, boot, changed, by, now);
                }
                known(tx, id)
            })
            .await;
        self.cut_off_after(&ended, id, why);
        ended
    }

    /// Takes no new work; in maintenance as soon as nothing runs any more.
    pub async fn drain(&self, id: NodeId, by: &By) -> Result<Node, OperateError> {
        self.drain_with(id, Workloads::Wait, by).await
    }

    /// The same, and what runs is stopped if that is wanted.
    pub async fn drain_with(&self, id: NodeId, workloads: Workloads, by: &By) -> Result<Node, OperateError> {
        let told = self.link_state(id).heartbeat.is_some_and(|heartbeat| heartbeat.workloads == 0);
        let idle = told && !self.runs_vms(id);
        let node = self
            .serve_otherwise(id, by, |node| {
                let began = node.drain()?;
                let ended = if idle { node.change(PhaseChange::Drained)? } else { None };
                Ok(vec![began, ended])
            })
            .await?;
        if workloads == Workloads::Stop {
            self.stop_vms_of(id, by).await?;
        }
        Ok(node)
    }

    /// True while a virtual machine runs on a node, or is ordered to.
    fn runs_vms(&self, id: NodeId) -> bool {
        self.store.read(|model| model.vms_of(id).any(|vm| vm.is_running() || vm.wish == VmWish::Run && vm.is_up()))
    }

    /// Out of service now, whatever runs.
    pub async fn maintain(&self, id: NodeId, by: &By) -> Result<Node, OperateError> {
        self.serve_otherwise(id, by, |node| Ok(vec![node.change(PhaseChange::Drained)?])).await
    }

    /// Back to service. Its checks decide between online and degraded; without a link it is offline.
    pub async fn resume(&self, id: NodeId, by: &By) -> Result<Node, OperateError> {
        let linked = self.link_state(id).since.is_some();
        let ready =
            linked && self.store.read(|model| model.node(id).is_some_and(|node| passes(node, model.boot_of(node))));
        let node = self.serve_otherwise(id, by, |node| {
            let back = node.change(PhaseChange::Resume)?;
            let then = match (linked, ready) {
                (false, _) => node.change(PhaseChange::Silent)?,
                (true, true) => node.change(PhaseChange::ChecksPass)?,
                (true, false) => None,
            };
            Ok(vec![back, then])
        });
        let node = node.await?;
        self.watch_over(id, self.clock.monotonic());
        Ok(node)
    }

    async fn serve_otherwise(
        &self,
        id: NodeId,
        by: &By,
        change: impl FnOnce(&mut Node) -> Result<Vec<Option<(Phase, Phase)>>, UnlawfulTransition>,
    ) -> Result<Node, OperateError> {
        let now = self.now();
        self.store
            .commit(|tx| {
                let mut node = known(tx, id)?;
                let changes = change(&mut node)?;
                tx.put_node(node.clone());
                for change in changes {
                    phase_event(tx, id, node.boot, change, by, now);
                }
                Ok(node)
            })
            .await
    }

    /// A node says that nothing runs on it; if it drains, that was all there was to wait for.
    pub(super) async fn drained(&self, id: NodeId) -> Result<(), StoreError> {
        let drains = self.store.read(|model| model.node(id).is_some_and(|node| node.phase == Phase::Draining));
        let has_task = self.store.read(|model| model.job_on(id).is_some());
        if !drains || has_task || self.runs_vms(id) {
            return Ok(());
        }
        let now = self.now();
        self.store
            .commit(|tx| {
                let ends = |node: &mut Node| match node.phase {
                    Phase::Draining => node.change(PhaseChange::Drained).ok().flatten(),
                    _ => None,
                };
                let change = tx.edit_node(id, ends).flatten();
                let boot = tx.node(id).and_then(|node| node.boot);
                phase_event(tx, id, boot, change, Actor::Node, now);
                Ok(())
            })
            .await
    }

    /// New hardware is what the old one was: name, profile, variables, groups and reservations. The old node is removed; the new one is
    /// let in, and what it has taken over holds from its next boot on.
    pub async fn replace(self: &Shared, old: NodeId, new: NodeId, by: &By) -> Result<Node, OperateError> {
        if old == new {
            return Err(OperateError::SameNode { node: old });
        }
        // The old hardware runs: whoever wants to replace it has to say so by switching it off, or by removing it.
        if self.probe(old).await {
            return Err(OperateError::StillLinked { node: old });
        }
        self.spare_all(old, by)?;
        let now = self.now();
        let why = "other hardware replaces this node";
        let freed = self
            .store
            .commit(|tx| {
                let (gone, mut node) = (known(tx, old)?, known(tx, new)?);
                if gone.phase == Phase::Removed {
                    // What it was is forgotten, or the new one has it already.
                    return if node.former.contains(&old) { Ok(Vec::new()) } else { Err(no_node(old)) };
                }
                let changed = match node.phase {
                    Phase::Discovered | Phase::Rejected => node.change(PhaseChange::Approve)?,
                    phase if phase.is_admitted() => None,
                    phase => return Err(UnlawfulTransition { from: phase, change: PhaseChange::Approve }.into()),
                };
                node.take_over(&gone);
                let freed = leases_of(tx, &gone);
                freed.iter().for_each(|lease| tx.remove_lease(lease.address));
                disown(tx, old, by, why, now);
                forget(tx, old, by, now);
                retire(tx, old, by, now);
                let boot = node.boot;
                tx.put_node(node);
                phase_event(tx, new, boot, changed, by, now);
                let detail = format!("{new} is what {old} was");
                for of in [old, new] {
                    tx.event(Event::new(now, by, EventKind::Replaced, detail.clone()).of_node(of));
                }
                Ok::<_, OperateError>(freed)
            })
            .await;
        self.cut_off_after(&freed, old, why);
        self.free(freed?);
        self.reconsider_all();
        self.store.read(|model| model.node(new).cloned()).ok_or_else(|| no_node(new))
    }

    /// Addresses that their machines need no longer, for the DHCP service to give to others.
    fn free(&self, leases: Vec<Lease>) {
        let mut freed = lock(&self.freed);
        // Without a DHCP service nobody takes them; they are gone from the store in any case.
        if freed.len() < MAX_FREED {
            freed.extend(leases);
        }
    }

    /// What [`Central::remove`] freed since the last time.
    pub fn take_freed(&self) -> Vec<Lease> {
        std::mem::take(&mut lock(&self.freed))
    }
}

/// Freed addresses that wait for the DHCP service, which looks four times a second.
const MAX_FREED: usize = 20_000;

fn leases_of(tx: &Tx<'_>, node: &Node) -> Vec<Lease> {
    let macs = &node.fingerprint.macs;
    tx.before().leases().filter(|lease| macs.contains(&lease.mac)).cloned().collect()
}

/// A node that is on record.
fn known(tx: &Tx<'_>, id: NodeId) -> Result<Node, OperateError> {
    tx.node(id).cloned().ok_or_else(|| no_node(id))
}

fn no_node(id: NodeId) -> OperateError {
    OperateError::NoNode { name: id.to_string() }
}

/// True if the checks of this boot pass as far as they are known.
fn passes(node: &Node, boot: Option<&BootSession>) -> bool {
    let told = boot.is_some_and(|boot| boot.reached(Stage::Online).is_some());
    told && node.valid_checks().is_some_and(|checks| checks.iter().all(|check| check.status != CheckStatus::Fail))
}

/// An operator takes a node as it is: parts, rivals and units as they are now are right.
pub(super) fn acknowledge(tx: &mut Tx<'_>, id: NodeId, by: &By, now: Timestamp) {
    let seen: Vec<ConditionKind> = tx.edit_node(id, Node::acknowledged).unwrap_or_default();
    for kind in seen {
        stalls::clear(tx, id, kind, by, now);
    }
}
