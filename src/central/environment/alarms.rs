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
    /// its cause.
    ///
    /// # Errors
    /// The alarm is only counted, under this key.
    fn count(&self, now: Duration, cause: &str) -> Result<u32, String> {
        let mut causes = self.0.lock();
        if causes.len() >= MAX_CAUSES {
            // An alarm that is not recorded yet stays.
            causes.retain(|_, cause| {
                now.saturating_sub(cause.since) < WINDOW || cause.last.is_some()
            });
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
            return Err(key.to_owned());
        }
        known.last = None;
        Ok(1 + std::mem::take(&mut known.suppressed))
    }

    /// Keeps an alarm that was only counted, for the record of its window.
    fn keep(&self, key: &str, alarm: Alarm) {
        if let Some(cause) = self.0.lock().get_mut(key) {
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
        self.alarms.count(self.monotonic(), cause).is_ok()
    }

    /// Records an alarm as an event, and as a condition of the node if it is known. The end of the
    /// attacker's connection, which drops the caller, does not prevent the record.
    pub(crate) async fn alarm(self: &Arc<Self>, alarm: Alarm) {
        match self.alarms.count(self.monotonic(), &alarm.cause) {
            Ok(count) => {
                let env = Arc::clone(self);
                // A panic there is reported by the runtime.
                let _ = tokio::spawn(async move { env.store_alarm(alarm, count).await }).await;
            }
            Err(key) => self.alarms.keep(&key, alarm),
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

    fn alarm() -> Alarm {
        let kind = ConditionKind::BootImpersonated;
        let cause = "10.0.0.9".to_owned();
        Alarm { kind, node: None, session: None, cause, detail: "again".to_owned() }
    }

    #[test]
    fn suppressed_alarms_are_counted_with_next_recorded_one() {
        let limiter = Limiter::default();
        let second = Duration::from_secs(1);
        let counts: Vec<_> =
            (0..50).filter_map(|_| limiter.count(second, "10.0.0.9").ok()).collect();
        assert_eq!(counts, [1; 20]);
        assert_eq!(limiter.count(second, "10.0.0.8"), Ok(1), "another cause");
        assert_eq!(limiter.count(second + WINDOW, "10.0.0.9"), Ok(31));
        assert_eq!(limiter.count(second + WINDOW, "10.0.0.9"), Ok(1));
    }

    #[test]
    fn suppressed_alarms_are_recorded_after_their_window() {
        let limiter = Limiter::default();
        let second = Duration::from_secs(1);
        for _ in 0..50 {
            if let Err(key) = limiter.count(second, "10.0.0.9") {
                limiter.keep(&key, alarm());
            }
        }
        assert!(limiter.take_unrecorded(second).is_empty(), "the window is open");
        let unrecorded = limiter.take_unrecorded(second + WINDOW);
        assert_eq!(unrecorded.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [30]);
        assert!(limiter.take_unrecorded(second + WINDOW).is_empty(), "recorded once");
    }

    #[test]
    fn suppressed_alarms_of_many_causes_are_recorded_after_their_window() {
        let limiter = Limiter::default();
        let second = Duration::from_secs(1);
        let count_and_keep = |now, cause: &str| {
            if let Err(key) = limiter.count(now, cause) {
                limiter.keep(&key, Alarm { cause: cause.to_owned(), ..alarm() });
            }
        };
        (0..50).for_each(|_| count_and_keep(second, "10.0.0.9"));
        (0..MAX_CAUSES).for_each(|number| count_and_keep(second, &number.to_string()));
        (0..50).for_each(|number| count_and_keep(second, &format!("late {number}")));
        // A new cause makes room, before the alarms of the old ones are recorded.
        count_and_keep(second + WINDOW, "new");
        let unrecorded = limiter.take_unrecorded(second + WINDOW);
        let counts: Vec<u32> = unrecorded.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [30, 31], "of one cause, and of those that had no entry");
    }
}
