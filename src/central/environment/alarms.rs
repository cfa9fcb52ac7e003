//! Alarms: events and conditions for attacks on the boot network, with a rate limit per cause.

use crate::{
    environment::{Environment, records::condition_event},
    locks::Leaf,
};
use meshd_model::fleet::{Actor, ConditionKind, Event};
use meshd_store::{StoreError, Tx};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Maximum number of recorded alarms of one cause within [`WINDOW`]; the rest is counted.
const BURST: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of causes with a separate limit; further ones share a limit.
const MAX_CAUSES: usize = 4096;

/// Limits how often one cause is recorded.
#[derive(Default)]
pub(crate) struct Limiter(Leaf<BTreeMap<String, Cause>>);

/// The alarms of one cause within a window.
struct Cause {
    since: Duration,
    count: u32,
    /// Number of alarms since the last recorded one.
    suppressed: u32,
    /// The last of them.
    last: Option<Alarm>,
}

impl Limiter {
    /// Returns the number of alarms that a record covers: this one and earlier unrecorded ones of
    /// its cause. `None`: the alarm is only counted.
    fn count(&self, now: Duration, cause: &str) -> Option<u32> {
        let mut causes = self.0.lock();
        if causes.len() >= MAX_CAUSES {
            causes.retain(|_, cause| now.saturating_sub(cause.since) < WINDOW);
        }
        let key = if causes.len() >= MAX_CAUSES { "everything else" } else { cause };
        let known = causes.entry(key.to_owned()).or_insert(Cause {
            since: now,
            count: 0,
            suppressed: 0,
            last: None,
        });
        if now.saturating_sub(known.since) >= WINDOW {
            if known.suppressed > 0 {
                tracing::warn!(
                    cause,
                    suppressed = known.suppressed,
                    "alarms were not recorded one by one"
                );
            }
            (known.since, known.count) = (now, 0);
        }
        known.count = known.count.saturating_add(1);
        if known.count > BURST {
            known.suppressed = known.suppressed.saturating_add(1);
            return None;
        }
        known.last = None;
        Some(1 + std::mem::take(&mut known.suppressed))
    }

    /// Keeps an alarm that was only counted, for the record of its window.
    fn keep(&self, alarm: Alarm) {
        if let Some(cause) = self.0.lock().get_mut(&alarm.cause) {
            cause.last = Some(alarm);
        }
    }

    /// Takes the last alarm of each cause whose window is over, with the number of unrecorded ones.
    fn take_unrecorded(&self, now: Duration) -> Vec<(Alarm, u32)> {
        let mut causes = self.0.lock();
        let over = causes.values_mut().filter(|cause| now.saturating_sub(cause.since) >= WINDOW);
        over.filter_map(|cause| Some((cause.last.take()?, std::mem::take(&mut cause.suppressed))))
            .collect()
    }
}

/// An alarm: kind, node, boot session.
pub(crate) struct Alarm {
    pub(crate) kind: ConditionKind,
    pub(crate) node: Option<NodeId>,
    pub(crate) session: Option<BootSessionId>,
    /// The cause for the rate limit: an address.
    pub(crate) cause: String,
    pub(crate) detail: String,
}

impl Environment {
    /// True if an event of this cause is recorded now, and not only counted.
    pub(crate) fn allows(&self, cause: &str) -> bool {
        self.alarms.count(self.monotonic(), cause).is_some()
    }

    /// Records an alarm as an event, and as a condition of the node if it is known. The end of the
    /// attacker's connection, which drops the caller, does not prevent the record.
    pub(crate) async fn alarm(self: &Arc<Self>, alarm: Alarm) {
        match self.alarms.count(self.monotonic(), &alarm.cause) {
            Some(count) => {
                let env = Arc::clone(self);
                // A panic there is reported by the runtime.
                let _ = tokio::spawn(async move { env.store_alarm(alarm, count).await }).await;
            }
            None => self.alarms.keep(alarm),
        }
    }

    /// Records the alarms that were only counted, so that the record of a flood is complete after
    /// its end.
    pub(crate) async fn record_counted_alarms(&self) {
        for (alarm, count) in self.alarms.take_unrecorded(self.monotonic()) {
            self.store_alarm(alarm, count).await;
        }
    }

    async fn store_alarm(&self, alarm: Alarm, count: u32) {
        let Alarm { kind, node, session, detail, .. } = alarm;
        tracing::warn!(
            kind = kind.as_str(),
            node = node.map(tracing::field::display),
            detail,
            "alarm"
        );
        let now = self.now();
        let recorded = self.store.commit(|tx| {
            if let Some(node) = node {
                tx.edit_node(node, |node| node.raise(kind, &detail, now));
            }
            let event = Event { count, ..condition_event(now, Actor::Stranger, kind, detail) };
            tx.event(event.of_node(node).in_session(session));
            Ok(())
        });
        log_failure(recorded.await, "cannot record an alarm");
    }

    /// Stores an event in a separate transaction.
    pub(crate) async fn store_event(&self, event: Event) -> Result<(), StoreError> {
        let stored = self.store.commit(|tx| {
            tx.event(event);
            Ok(())
        });
        stored.await
    }

    /// Stores an event in a separate transaction; a failure is only logged.
    pub(crate) async fn record(&self, event: Event) {
        log_failure(self.store_event(event).await, "cannot record an event");
    }
}

/// Raises a condition of a node and records the alarm, inside another transaction.
pub(crate) fn raise_condition(
    tx: &mut Tx<'_>,
    node: NodeId,
    session: BootSessionId,
    kind: ConditionKind,
    detail: &str,
    now: Timestamp,
) {
    tracing::warn!(kind = kind.as_str(), %node, detail, "alarm");
    tx.edit_node(node, |node| node.raise(kind, detail, now));
    tx.event(condition_event(now, Actor::Central, kind, detail).of_node(node).in_session(session));
}

/// Logs a change that could not be stored; the caller continues.
pub(crate) fn log_failure(stored: Result<(), StoreError>, message: &'static str) {
    if let Err(error) = stored {
        tracing::error!(error = &error as &dyn std::error::Error, "{message}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_alarms_are_counted_with_next_recorded_one() {
        let (limiter, second) = (Limiter::default(), Duration::from_secs(1));
        let counts: Vec<_> = (0..50).filter_map(|_| limiter.count(second, "10.0.0.9")).collect();
        assert_eq!(counts, [1; 20]);
        assert_eq!(limiter.count(second, "10.0.0.8"), Some(1), "another cause");
        assert_eq!(limiter.count(second + WINDOW, "10.0.0.9"), Some(31));
        assert_eq!(limiter.count(second + WINDOW, "10.0.0.9"), Some(1));
    }

    #[test]
    fn suppressed_alarms_are_recorded_after_their_window() {
        let (limiter, second) = (Limiter::default(), Duration::from_secs(1));
        let alarm = || {
            let (kind, cause, detail) =
                (ConditionKind::BootImpersonated, "10.0.0.9".to_owned(), "again".to_owned());
            Alarm { kind, node: None, session: None, cause, detail }
        };
        for _ in 0..50 {
            if limiter.count(second, "10.0.0.9").is_none() {
                limiter.keep(alarm());
            }
        }
        assert!(limiter.take_unrecorded(second).is_empty(), "the window is open");
        let unrecorded = limiter.take_unrecorded(second + WINDOW);
        assert_eq!(unrecorded.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [30]);
        assert!(limiter.take_unrecorded(second + WINDOW).is_empty(), "recorded once");
    }
}
