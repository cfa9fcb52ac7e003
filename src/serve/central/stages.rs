//! A stage of a boot was reached: written down with its session, and told once.

use meshd_model::fleet::{Actor, Event, EventKind, Stage};
use meshd_store::Tx;
use meshd_types::{BootSessionId, Timestamp};

/// Marks a stage in its session, with an event when it is new there. True if it is.
pub(super) fn reach(tx: &mut Tx<'_>, session: BootSessionId, stage: Stage, now: Timestamp) -> bool {
    if tx.edit_session(session, |session| session.mark(stage, now)) != Some(true) {
        return false;
    }
    let node = tx.session(session).and_then(|session| {
        // Before the script has decided it, the machine is known by its network card.
        session.node.or_else(|| tx.before().node_of_mac(session.mac).map(|node| node.id))
    });
    tx.event(Event::new(now, Actor::Node, EventKind::Stage { stage }, "").of_node(node).in_session(session));
    true
}
