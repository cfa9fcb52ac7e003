//! Finds boots that stall, repeat, or have no overlay. The script step holds a machine that repeats
//! its boot.

use crate::{
    boot::BootService,
    environment::{
        alarms::log_failure,
        records::{clear_condition, condition_event, phase_event, raise_if_new},
    },
};
use meshd_model::{
    boot::choose,
    fleet::{
        Actor, BootLoop, BootSession, Chain, Condition, ConditionKind, Node, Phase, Stage, Stall,
        boot_loop, stall,
    },
    image_kind::ImageKindName,
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use std::time::Duration;

/// Interval of the scan of all boots. The shortest limit of a stage is minutes.
pub(crate) const SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// Time from the kernel to the overlay. After it, a machine that runs Linux counts as booted
/// without overlay.
const OVERLAY_GRACE: Duration = Duration::from_secs(10 * 60);
/// Maximum number of boots that one scan records; the next scan records the rest.
const MAX_RECORDED: usize = 256;

#[derive(Default)]
struct ScanResult {
    stalled: Vec<(BootSessionId, Option<NodeId>)>,
    looping: Vec<(BootSessionId, Option<NodeId>, BootLoop)>,
    /// Nodes whose newest boot is no longer stalled.
    recovered: Vec<NodeId>,
}

impl BootService {
    /// Scans the newest boot of every machine.
    pub(crate) async fn scan_boots(&self) {
        let now = self.env.now();
        let uptime = self.env.monotonic().saturating_sub(self.env.started);
        let since = Timestamp::from_millis(
            now.millis() - i64::try_from(uptime.as_millis()).unwrap_or(i64::MAX),
        );
        let found = self.env.store.read(|model| self.find_stalls(model, since, now));
        if found.stalled.is_empty() && found.looping.is_empty() && found.recovered.is_empty() {
            return;
        }
        // A flood of invented machines must not evict other events.
        let is_recorded = |node: Option<NodeId>| node.is_some() || self.env.allows("strange boots");
        let recorded = self.env.store.commit(|tx| {
            for (session, node) in &found.stalled {
                let Some(stall) = tx
                    .session(*session)
                    .and_then(|boot| self.stall_of(tx.before(), boot, since, now))
                else {
                    continue;
                };
                put_stall(tx, *session, *node, stall, is_recorded(*node), now);
            }
            for (session, node, looping) in &found.looping {
                put_loop(tx, *session, *node, looping, is_recorded(*node), now);
            }
            for node in &found.recovered {
                clear_condition(tx, *node, ConditionKind::BootStalled, Actor::Node, now);
            }
            Ok::<_, StoreError>(())
        });
        log_failure(recorded.await, "cannot record stalled boots");
    }

    fn find_stalls(&self, model: &Model, since: Timestamp, now: Timestamp) -> ScanResult {
        let mut found = ScanResult::default();
        for boot in model.newest_sessions().filter(|boot| boot.furthest() != Some(Stage::Online)) {
            let node =
                boot.node.and_then(|id| model.node(id)).or_else(|| model.node_of_mac(boot.mac));
            if node.is_some_and(|node| !self.is_current_boot(model, node, boot)) {
                continue;
            }
            let id = node.map(|node| node.id);
            if boot.stalled().is_none() && self.stall_of(model, boot, since, now).is_some() {
                found.stalled.push((boot.id, id));
            }
            if !boot.looping && boot.reached(Stage::Script).is_none() {
                let before = model.sessions_of(boot.mac).filter(|other| other.id != boot.id);
                let looping = boot_loop(before, node.and_then(|node| node.released_at), now);
                // The script step holds machines that reach it.
                found.looping.extend(
                    looping
                        .filter(|found| !found.reaches_script())
                        .map(|found| (boot.id, id, found)),
                );
            }
        }
        let is_marked_stalled = |node: &&Node| {
            node.conditions.iter().any(|condition| condition.kind == ConditionKind::BootStalled)
        };
        let progresses =
            |node: &&Node| model.begun_boot_of(node).is_none_or(|boot| boot.stalled().is_none());
        found.recovered.extend(
            model
                .nodes()
                .filter(is_marked_stalled)
                .filter(progresses)
                .map(|node| node.id)
                .take(MAX_RECORDED),
        );
        found.stalled.truncate(MAX_RECORDED);
        found.looping.truncate(MAX_RECORDED);
        found
    }

    /// True for the present boot of a node: neither the attempt of a second NIC, nor another
    /// machine that uses its MAC address while the node runs.
    fn is_current_boot(&self, model: &Model, node: &Node, boot: &BootSession) -> bool {
        let is_inactive = matches!(node.phase, Phase::Removed | Phase::Rejected);
        let runs_another_boot = node.boot != Some(boot.id) && self.links.is_linked(node.id);
        !is_inactive
            && !runs_another_boot
            && model.begun_boot_of(node).is_some_and(|newest| newest.id == boot.id)
    }

    fn stall_of(
        &self,
        model: &Model,
        boot: &BootSession,
        since: Timestamp,
        now: Timestamp,
    ) -> Option<Stall> {
        let site = self.env.site();
        let chain = Chain {
            transport: site.boot.kernel_transport,
            delivery: site.boot.delivery,
            leases: boot
                .address
                .and_then(|address| model.lease(address))
                .is_some_and(|lease| lease.mac == boot.mac),
            skipped: self.image_kind_of(model, boot).skipped_stages(),
        };
        stall(boot, chain, since, now)
    }

    /// Returns the kind of the image of a boot's profile; the default for a machine that is no node.
    pub(super) fn image_kind_of(&self, model: &Model, boot: &BootSession) -> ImageKindName {
        let kind = || {
            let snapshot = self.env.snapshot();
            let node = model.node(boot.node?)?;
            let profile = choose(&snapshot.site, node, Some(boot.id)).ok()?;
            Some(snapshot.catalog.image(&profile.image)?.manifest.parts.name())
        };
        kind().unwrap_or_default()
    }

    /// Quarantines a node that requests its script again after failed boots.
    pub(crate) async fn hold_if_looping(
        &self,
        node: Node,
        session: BootSessionId,
    ) -> Result<Node, StoreError> {
        // An operator observes a node in maintenance; other nodes are held or refused already.
        if matches!(node.phase, Phase::Quarantined | Phase::Maintenance | Phase::Rejected) {
            return Ok(node);
        }
        let now = self.env.now();
        let looping = self.env.store.read(|model| {
            let before = model.boots_of(&node).into_iter().filter(|boot| boot.id != session);
            boot_loop(before, node.released_at, now).filter(BootLoop::reaches_script)
        });
        let Some(looping) = looping else { return Ok(node) };
        tracing::warn!(node = %node.id, %looping, "quarantined: a boot loop");
        let stored = self.env.store.commit(|tx| {
            put_loop(tx, session, Some(node.id), &looping, true, now);
            let change =
                tx.edit_node(node.id, |node| node.quarantine(None).ok().flatten()).flatten();
            phase_event(tx, node.id, session, change, Actor::Central, now);
            Ok(tx.node(node.id).cloned().unwrap_or(node))
        });
        stored.await
    }

    /// Raises a condition for nodes that run Linux and never fetched their overlay.
    pub(crate) async fn watch_overlays(&self) {
        let now = self.env.now();
        let without_overlay = self.without_overlay(now);
        if without_overlay.is_empty() {
            return;
        }
        let recorded = self.env.store.commit(|tx| {
            for id in &without_overlay {
                let detail = "Linux runs, and its overlay was not fetched".to_owned();
                raise_if_new(
                    tx,
                    *id,
                    None,
                    Condition { kind: ConditionKind::OverlayMissing, since: now, detail },
                    Actor::Central,
                );
            }
            Ok::<_, StoreError>(())
        });
        log_failure(recorded.await, "cannot record missing overlays");
    }

    fn without_overlay(&self, now: Timestamp) -> Vec<NodeId> {
        self.env.store.read(|model| {
            let without_overlay = model.nodes().filter(|node| {
                let Some(session) = node.boot.and_then(|id| model.session(id)) else {
                    return false;
                };
                // A boot that does not reach this stage is stalled, which is another condition.
                let runs =
                    Stage::OF_LINUX.into_iter().any(|stage| session.reached(stage).is_some());
                let kernel = session.reached(Stage::Kernel);
                runs && kernel.is_some_and(|at| now.distance(at) > OVERLAY_GRACE)
                    && session.reached(Stage::Overlay).is_none()
                    && !node
                        .conditions
                        .iter()
                        .any(|condition| condition.kind == ConditionKind::OverlayMissing)
            });
            without_overlay.map(|node| node.id).collect()
        })
    }
}

fn put_stall(
    tx: &mut Tx<'_>,
    session: BootSessionId,
    node: Option<NodeId>,
    stall: Stall,
    is_recorded: bool,
    now: Timestamp,
) {
    let Stall { after, missing, since, cause, .. } = &stall;
    let detail = format!("stopped after {after}, {missing} is missing since {since}: {cause}");
    tracing::warn!(%session, node = node.map(tracing::field::display), %after, %missing, "boot stalled");
    if is_recorded {
        raise_condition(tx, session, node, ConditionKind::BootStalled, detail, now);
    }
    tx.edit_session(session, |session| session.stalls.push(stall));
}

fn put_loop(
    tx: &mut Tx<'_>,
    session: BootSessionId,
    node: Option<NodeId>,
    looping: &BootLoop,
    is_recorded: bool,
    now: Timestamp,
) {
    if is_recorded {
        raise_condition(tx, session, node, ConditionKind::BootLoop, looping.to_string(), now);
    }
    tx.edit_session(session, |session| session.looping = true);
}

/// Raises a condition if the node is known; otherwise only the event names the machine.
fn raise_condition(
    tx: &mut Tx<'_>,
    session: BootSessionId,
    node: Option<NodeId>,
    kind: ConditionKind,
    detail: String,
    now: Timestamp,
) {
    let detail = match (node, tx.session(session)) {
        (None, Some(boot)) => format!("MAC {}: {detail}", boot.mac),
        _ => detail,
    };
    if let Some(node) = node {
        tx.edit_node(node, |node| {
            // The condition belongs to another boot than the former one.
            node.clear(kind);
            node.raise(kind, &detail, now)
        });
    }
    tx.event(condition_event(now, Actor::Central, kind, detail).of_node(node).in_session(session));
}
