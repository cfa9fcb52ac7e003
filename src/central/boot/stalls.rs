//! Finds boots that stall, repeat, or have no overlay. The script step holds a machine that repeats its boot.

use crate::{
    boot::BootService,
    environment::{
        alarms::report,
        records::{clear, phase_event},
    },
};
use meshd_model::fleet::{
    Actor, BootLoop, BootSession, Chain, ConditionKind, Event, EventKind, Node, Phase, Stage, Stall, boot_loop, stall,
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use std::time::Duration;

/// Interval of the scan of all boots. The shortest limit of a stage is minutes.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// A machine that runs Linux has fetched its overlay within this time since its kernel, or boots without one.
const OVERLAY_GRACE: Duration = Duration::from_secs(10 * 60);
/// Maximum number of boots that one scan records; the next scan records the rest.
const MAX_FOUND: usize = 256;

/// The result of one scan.
#[derive(Default)]
struct Found {
    stalled: Vec<(BootSessionId, Option<NodeId>)>,
    looping: Vec<(BootSessionId, Option<NodeId>, BootLoop)>,
    /// Nodes whose newest boot is no longer stalled.
    going_on: Vec<NodeId>,
}

impl BootService {
    /// Scans the newest boot of every machine.
    pub(crate) async fn watch_boots(&self) {
        let now = self.env.now();
        let uptime = self.env.monotonic().saturating_sub(self.env.started);
        let since = Timestamp::from_millis(now.millis() - i64::try_from(uptime.as_millis()).unwrap_or(i64::MAX));
        let found = self.env.store.read(|model| self.look(model, since, now));
        if found.stalled.is_empty() && found.looping.is_empty() && found.going_on.is_empty() {
            return;
        }
        // A flood of invented machines must not evict other events.
        let told = |node: Option<NodeId>| node.is_some() || self.env.allows("strange boots");
        let recorded = self.env.store.commit(|tx| {
            for (session, node) in &found.stalled {
                let Some(stall) = tx.session(*session).and_then(|boot| self.stall_of(tx.before(), boot, since, now))
                else {
                    continue;
                };
                put_stall(tx, *session, *node, stall, told(*node), now);
            }
            for (session, node, looping) in &found.looping {
                put_loop(tx, *session, *node, looping, told(*node), now);
            }
            for node in &found.going_on {
                clear(tx, *node, ConditionKind::BootStalled, Actor::Node, now);
            }
            Ok::<_, StoreError>(())
        });
        if let Err(error) = recorded.await {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot record what became of boots");
        }
    }

    fn look(&self, model: &Model, since: Timestamp, now: Timestamp) -> Found {
        let mut found = Found::default();
        for boot in model.newest_sessions().filter(|boot| boot.furthest() != Some(Stage::Online)) {
            let node = boot.node.and_then(|id| model.node(id)).or_else(|| model.node_of_mac(boot.mac));
            if node.is_some_and(|node| !self.boots_now(model, node, boot)) {
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
                found.looping.extend(looping.filter(|found| !found.reaches_script()).map(|found| (boot.id, id, found)));
            }
        }
        let stands =
            |node: &&Node| node.conditions.iter().any(|condition| condition.kind == ConditionKind::BootStalled);
        let moves = |node: &&Node| model.boots_of(node).first().is_none_or(|boot| boot.stalled().is_none());
        found.going_on.extend(model.nodes().filter(stands).filter(moves).map(|node| node.id).take(MAX_FOUND));
        found.stalled.truncate(MAX_FOUND);
        found.looping.truncate(MAX_FOUND);
        found
    }

    /// Returns whether a session is the present boot of its node: not the attempt of a second NIC, and not another machine that
    /// uses its MAC address while the node runs.
    fn boots_now(&self, model: &Model, node: &Node, boot: &BootSession) -> bool {
        let gone = matches!(node.phase, Phase::Removed | Phase::Rejected);
        let works = node.boot != Some(boot.id) && self.links.link_state(node.id).since.is_some();
        !gone && !works && model.boots_of(node).first().is_some_and(|newest| newest.id == boot.id)
    }

    fn stall_of(&self, model: &Model, boot: &BootSession, since: Timestamp, now: Timestamp) -> Option<Stall> {
        let site = self.env.site();
        let chain = Chain {
            transport: site.boot.kernel_transport,
            delivery: site.boot.delivery,
            leases: boot.address.and_then(|own| model.lease(own)).is_some_and(|lease| lease.mac == boot.mac),
        };
        stall(boot, chain, since, now)
    }

    /// Quarantines a node that requests its script again after failed boots.
    pub(crate) async fn hold_if_looping(&self, node: Node, session: BootSessionId) -> Result<Node, StoreError> {
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
        self.env
            .store
            .commit(|tx| {
                put_loop(tx, session, Some(node.id), &looping, true, now);
                let change = tx.edit_node(node.id, |node| node.quarantine(None).ok().flatten()).flatten();
                phase_event(tx, node.id, session, change, Actor::Central, now);
                Ok(tx.node(node.id).cloned().unwrap_or(node))
            })
            .await
    }

    /// Raises a condition for nodes that run Linux and never fetched their overlay.
    pub(crate) async fn watch_overlays(&self) {
        let now = self.env.now();
        let bare = self.without_overlay(now);
        if bare.is_empty() {
            return;
        }
        let recorded = self.env.store.commit(|tx| {
            for id in &bare {
                let detail = "Linux runs, and its overlay was not fetched";
                let raised = tx.edit_node(*id, |node| node.raise(ConditionKind::OverlayMissing, detail, now));
                if raised == Some(true) {
                    let kind = EventKind::Raised { condition: ConditionKind::OverlayMissing };
                    tx.event(Event::new(now, Actor::Central, kind, detail).of_node(*id));
                }
            }
            Ok::<_, StoreError>(())
        });
        report(recorded.await);
    }

    fn without_overlay(&self, now: Timestamp) -> Vec<NodeId> {
        self.env.store.read(|model| {
            let bare = model.nodes().filter(|node| {
                let Some(session) = node.boot.and_then(|id| model.session(id)) else { return false };
                // A boot that does not reach this stage is stalled, which is another condition.
                let runs = [Stage::OsDhcp, Stage::Modloop].into_iter().any(|stage| session.reached(stage).is_some());
                let kernel = session.reached(Stage::Kernel);
                runs && kernel.is_some_and(|at| now.since(at) > OVERLAY_GRACE)
                    && session.reached(Stage::Overlay).is_none()
                    && !node.conditions.iter().any(|condition| condition.kind == ConditionKind::OverlayMissing)
            });
            bare.map(|node| node.id).collect()
        })
    }
}

fn put_stall(tx: &mut Tx<'_>, session: BootSessionId, node: Option<NodeId>, stall: Stall, told: bool, now: Timestamp) {
    let Stall { after, missing, since, cause, .. } = &stall;
    let detail = format!("stopped after {after}, {missing} is missing since {since}: {cause}");
    tracing::warn!(%session, node = node.map(tracing::field::display), %after, %missing, "boot stalled");
    if told {
        raise(tx, session, node, ConditionKind::BootStalled, detail, now);
    }
    tx.edit_session(session, |session| session.stalls.push(stall));
}

fn put_loop(
    tx: &mut Tx<'_>,
    session: BootSessionId,
    node: Option<NodeId>,
    looping: &BootLoop,
    told: bool,
    now: Timestamp,
) {
    if told {
        raise(tx, session, node, ConditionKind::BootLoop, looping.to_string(), now);
    }
    tx.edit_session(session, |session| session.looping = true);
}

/// Raises a condition if the node is known; otherwise only the event names the machine.
fn raise(
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
    let event = Event::new(now, Actor::Central, EventKind::Raised { condition: kind }, detail);
    tx.event(event.of_node(node).in_session(session));
}
