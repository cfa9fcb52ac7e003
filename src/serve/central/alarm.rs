//! Alarms: something on the boot network is not what it says. Recorded each time, but never faster than the disk can bear.

use super::{Central, lock};
use crate::fleet::{Actor, ConditionKind, Event, EventKind};
use crate::id::{BootSessionId, NodeId, Timestamp};
use crate::store::{StoreError, Tx};
use std::{collections::BTreeMap, sync::Mutex, time::Duration};

/// Alarms of one cause that are recorded within [`WINDOW`]; the rest is counted.
const BURST: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);
/// Causes told apart; beyond it they share one bound.
const MAX_CAUSES: usize = 4096;

/// Bounds how often one cause is recorded.
#[derive(Default)]
pub(super) struct Limiter(Mutex<BTreeMap<String, (Duration, u32)>>);

impl Limiter {
    /// True if this one is to be recorded.
    pub(super) fn allow(&self, now: Duration, cause: &str) -> bool {
        let mut causes = lock(&self.0);
        if causes.len() >= MAX_CAUSES {
            causes.retain(|_, (since, _)| now.saturating_sub(*since) < WINDOW);
        }
        let key = if causes.len() >= MAX_CAUSES { "everything else" } else { cause };
        let (since, count) = causes.entry(key.to_owned()).or_insert((now, 0));
        if now.saturating_sub(*since) >= WINDOW {
            if *count > BURST {
                tracing::warn!(cause, suppressed = *count - BURST, "alarms were not recorded one by one");
            }
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count <= BURST
    }
}

/// An alarm: what, about which node, in which session.
pub(super) struct Alarm {
    pub(super) kind: ConditionKind,
    pub(super) node: Option<NodeId>,
    pub(super) session: Option<BootSessionId>,
    /// Who, for the bound: an address.
    pub(super) cause: String,
    pub(super) detail: String,
}

impl Central {
    /// Records an alarm as an event, and as a condition of the node if it is known.
    pub(super) async fn alarm(&self, alarm: Alarm) {
        if !self.alarms.allow(self.clock.monotonic(), &alarm.cause) {
            return;
        }
        let Alarm { kind, node, session, detail, .. } = alarm;
        tracing::warn!(kind = kind.as_str(), node = node.map(tracing::field::display), detail, "alarm");
        let now = self.now();
        let recorded = self
            .store
            .commit(|tx| {
                if let Some(node) = node {
                    tx.edit_node(node, |node| node.raise(kind, &detail, now));
                }
                let event = Event::new(now, Actor::Stranger, EventKind::Raised { condition: kind }, detail);
                tx.event(event.of_node(node).in_session(session));
                Ok::<_, StoreError>(())
            })
            .await;
        report(recorded);
    }

    /// Records an event by itself.
    pub(super) async fn record(&self, event: Event) {
        let recorded = self.store.commit(|tx| {
            tx.event(event);
            Ok::<_, StoreError>(())
        });
        report(recorded.await);
    }
}

/// Raises a condition of a node, with its event, inside a transaction that does something else too.
pub(super) fn raise(
    tx: &mut Tx<'_>,
    node: NodeId,
    session: BootSessionId,
    kind: ConditionKind,
    detail: &str,
    now: Timestamp,
) {
    tracing::warn!(kind = kind.as_str(), %node, detail, "alarm");
    tx.edit_node(node, |node| node.raise(kind, detail, now));
    let event = Event::new(now, Actor::Central, EventKind::Raised { condition: kind }, detail.to_owned());
    tx.event(event.of_node(node).in_session(session));
}

/// Logs an event that could not be recorded.
pub(super) fn report(recorded: Result<(), StoreError>) {
    if let Err(error) = recorded {
        tracing::error!(error = &error as &dyn std::error::Error, "cannot record an event");
    }
}
