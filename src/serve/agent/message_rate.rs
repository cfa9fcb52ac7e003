//! Limits how often a node may send messages that cost a write of the store. Pure, but for
//! [`MessageRates::admit`].
//!
//! The limits are per node, so that another link or connection brings no further messages. A
//! message above its limit waits, and its link reads no further one meanwhile: nothing is lost.

use meshd_proto::FromAgent;
use meshd_types::{NodeId, failpoint};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Maximum number of nodes whose limits are partly used. Beyond it, those that are unused longest
/// are forgotten.
const MAX_NODES: usize = 32_768;

/// A kind of message with a separate limit.
#[derive(Clone, Copy, Debug)]
pub(super) enum MessageClass {
    /// Each costs a write: hello, checks, outcome of an action, renewal, goodbye. An agent reports
    /// checks that fail and change every 5 seconds.
    Record,
    /// Heartbeats and reports of VMs and tasks. An agent reports its VMs at most twice a second,
    /// and the end of each of 256 VMs.
    Report,
    /// Output of tasks and log, in pieces of up to 8 KiB.
    Stream,
}

const CLASSES: usize = 3;

impl MessageClass {
    pub(super) fn of(message: &FromAgent) -> Self {
        match message {
            FromAgent::Hello(_)
            | FromAgent::Checks(_)
            | FromAgent::ActionDone { .. }
            | FromAgent::Renew { .. }
            | FromAgent::Renewed
            | FromAgent::Goodbye => MessageClass::Record,
            FromAgent::Heartbeat(_) | FromAgent::Report(_) => MessageClass::Report,
            FromAgent::Log(_) | FromAgent::Output(_) => MessageClass::Stream,
        }
    }

    /// Number of messages at once, and per second.
    fn limits(self) -> (u32, u32) {
        match self {
            MessageClass::Record => (64, 1),
            MessageClass::Report => (512, 16),
            MessageClass::Stream => (4096, 1024),
        }
    }
}

/// The token buckets of one node, one for each class. A bucket is stored as the time at which it is
/// full again.
#[derive(Clone, Copy)]
struct Buckets([Instant; CLASSES]);

impl Buckets {
    /// Takes a token.
    ///
    /// # Errors
    /// There is none: returns the time until the next one.
    fn take(&mut self, class: MessageClass, now: Instant) -> Result<(), Duration> {
        let (burst, per_second) = class.limits();
        let interval = Duration::from_secs(1) / per_second;
        let full_at = &mut self.0[class as usize];
        let after = (*full_at).max(now) + interval;
        let excess = after.saturating_duration_since(now + interval * burst);
        if !excess.is_zero() && failpoint::defends("link-message-rate") {
            return Err(excess);
        }
        *full_at = after;
        Ok(())
    }

    fn full_at(&self) -> Instant {
        let [record, report, stream] = self.0;
        record.max(report).max(stream)
    }
}

/// The message rates of all nodes.
#[derive(Default)]
pub(super) struct MessageRates(Mutex<BTreeMap<NodeId, Buckets>>);

impl MessageRates {
    /// Waits until a node may send one message of a class. Cancel-safe: a cancelled wait takes
    /// nothing.
    pub(super) async fn admit(&self, node: NodeId, class: MessageClass) {
        while let Err(wait) = self.take(node, class, Instant::now()) {
            tokio::time::sleep(wait).await;
        }
    }

    fn take(&self, node: NodeId, class: MessageClass, now: Instant) -> Result<(), Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_NODES && !all.contains_key(&node) {
            all.retain(|_, buckets| buckets.full_at() > now);
            let next_full = all.iter().min_by_key(|(_, buckets)| buckets.full_at());
            if let Some(unused) = next_full.map(|(id, _)| *id).filter(|_| all.len() >= MAX_NODES) {
                all.remove(&unused);
            }
        }
        all.entry(node).or_insert(Buckets([now; CLASSES])).take(class, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> NodeId {
        text.parse().expect("an ID")
    }

    #[test]
    fn messages_of_a_node_are_limited_by_class_to_burst_and_rate() {
        let rates = MessageRates::default();
        let begin = Instant::now();
        let admitted = |name: &str, class, after: Duration| {
            (0..10_000).filter(|_| rates.take(node(name), class, begin + after).is_ok()).count()
        };
        let second = Duration::from_secs(1);
        assert_eq!(admitted("aaaaaaaa", MessageClass::Record, Duration::ZERO), 64);
        assert_eq!(admitted("aaaaaaaa", MessageClass::Report, Duration::ZERO), 512);
        assert_eq!(admitted("aaaaaaaa", MessageClass::Stream, Duration::ZERO), 4096);
        assert_eq!(admitted("bbbbbbbb", MessageClass::Record, Duration::ZERO), 64, "another node");
        let wait = rates.take(node("aaaaaaaa"), MessageClass::Record, begin).expect_err("empty");
        assert_eq!(wait, second, "a refused message uses nothing");
        assert_eq!(admitted("aaaaaaaa", MessageClass::Record, second * 3), 3);
        assert_eq!(admitted("aaaaaaaa", MessageClass::Record, second * 1000), 64);
    }

    #[test]
    fn number_of_limited_nodes_is_bounded() {
        let rates = MessageRates::default();
        let begin = Instant::now();
        let nodes = (0..u32::try_from(MAX_NODES).expect("small") + 100)
            .map(|number| meshd_types::Basis::Serial(number.to_string()).node_id());
        for (number, node) in nodes.enumerate() {
            let now = begin + Duration::from_millis(u64::try_from(number).expect("small"));
            assert!(rates.take(node, MessageClass::Report, now).is_ok());
        }
        assert!(rates.0.lock().expect("no panic").len() <= MAX_NODES);
    }
}
