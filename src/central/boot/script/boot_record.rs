//! Records that a node boots in a session.

use crate::{
    boot::BootService,
    containers::record_replica_reboot,
    environment::records::{phase_event, raise_if_new, record_stage},
    vms::record_reboot,
};
use meshd_model::fleet::{
    Actor, BootSession, Condition, ConditionKind, Event, EventKind, PhaseChange, Stage, Transition,
    WarmReboot,
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{BootSessionId, NodeId, Timestamp, failpoint};
use std::net::Ipv4Addr;

impl BootService {
    /// Records that the node boots in this session, with the time at which the used next-boot
    /// override was set. A repeated script in the same session is only counted.
    pub(in crate::boot) async fn record_boot(
        &self,
        id: NodeId,
        session: BootSessionId,
        from: Ipv4Addr,
        central_address: Ipv4Addr,
        once: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        if self.env.store.read(|model| is_recorded(model, id, session, from)) {
            self.count_repeat(session, now);
            return Ok(());
        }
        let stored = self.env.store.commit(|tx| {
            tx.edit_session(session, |session| session.node = Some(id));
            record_stage(tx, session, Stage::Script, now);
            record_reboot(tx, id, session, now);
            record_replica_reboot(tx, id, session, now);
            let mut change = None;
            let former = tx.node(id).and_then(|node| node.boot).filter(|former| *former != session);
            let bare_session =
                former.filter(|former| tx.session(*former).is_some_and(ran_without_overlay));
            end_warm_boot(tx, id, session, now);
            let used = tx.edit_node(id, |node| {
                let same_boot = node.boot == Some(session);
                node.boot = Some(session);
                node.address = Some(from.into());
                node.central_address = Some(central_address);
                node.last_seen = now;
                // The condition of the former boot stays until the node enrols.
                for condition in PER_BOOT_CONDITIONS
                    .into_iter()
                    .filter(|condition| !same_boot || *condition != OVERLAY_MISSING)
                {
                    node.clear(condition);
                }
                change = node.change(PhaseChange::Boot).ok().flatten();
                node.use_boot_override(session, once)
            });
            phase_event(tx, id, session, change, Actor::Node, now);
            if let Some(bare_session) = bare_session {
                let detail = format!(
                    "Linux ran in boot {bare_session} without its overlay, and the node boots again"
                );
                raise_if_new(
                    tx,
                    id,
                    bare_session,
                    Condition { kind: OVERLAY_MISSING, since: now, detail },
                    Actor::Central,
                );
            }
            if used == Some(true) {
                let event =
                    Event::new(now, Actor::Node, EventKind::BootOnce, "applied to this boot only");
                tx.event(event.of_node(id).in_session(session));
            }
            Ok(())
        });
        stored.await
    }
}

/// Records the end of the last warm boot of a node in the node: its session is removed in time.
fn end_warm_boot(tx: &mut Tx<'_>, id: NodeId, next: BootSessionId, now: Timestamp) {
    let reboot = tx.node(id).and_then(|node| node.warm_reboot.as_ref());
    let former = reboot.and_then(WarmReboot::warm_boot).filter(|warm| *warm != next);
    let Some(boot) = former.and_then(|warm| tx.session(warm)).cloned() else { return };
    tx.edit_node(id, |node| {
        if let Some(reboot) = &mut node.warm_reboot {
            reboot.end_warm_boot(&boot, now);
        }
    });
}

const OVERLAY_MISSING: ConditionKind = ConditionKind::OverlayMissing;

/// True for a boot in which the kernel ran and nothing fetched the overlay. With
/// `delivery = "url"`, Alpine continues without the overlay, panics because mesh-init is missing,
/// and boots again before the periodic scan reports it.
fn ran_without_overlay(session: &BootSession) -> bool {
    let runs = Stage::OF_LINUX.into_iter().any(|stage| session.reached(stage).is_some());
    runs && session.reached(Stage::Overlay).is_none() && failpoint::defends("overlay-missing")
}

/// Conditions of one boot, which end when the next boot begins.
const PER_BOOT_CONDITIONS: [ConditionKind; 5] = [
    ConditionKind::OverlayMissing,
    ConditionKind::ImageMissing,
    ConditionKind::RenderFailed,
    ConditionKind::CheckFailed,
    ConditionKind::BootLoop,
];

/// True if the store already contains this boot, so that a repeated script changes no record.
pub(super) fn is_recorded(
    model: &Model,
    id: NodeId,
    session: BootSessionId,
    from: Ipv4Addr,
) -> bool {
    let known = model.session(session).is_some_and(|session| {
        let is_progressing = session.stalled().is_none() && session.waiting().is_none();
        let has_script = session.reached(Stage::Script).is_some();
        session.node == Some(id) && session.address == Some(from) && has_script && is_progressing
    });
    known
        && model.node(id).is_some_and(|node| {
            let settled = matches!(node.phase.apply(PhaseChange::Boot), Ok(Transition::Stay));
            let is_past = |kind| kind != OVERLAY_MISSING && PER_BOOT_CONDITIONS.contains(&kind);
            let has_old_condition = node.conditions.iter().any(|condition| is_past(condition.kind));
            let once = node.boot_override.as_ref().is_none_or(|once| once.used_by == Some(session));
            node.boot == Some(session)
                && node.address == Some(from.into())
                && settled
                && !has_old_condition
                && once
        })
}
