//! What the DHCP service counts, and how it is published: once a second, so that a packet costs no look-up. How full the pools
//! are, central says.

use super::{
    engine::{Counters, ReplyKind},
    request::Kind,
};
use std::time::Instant;

/// Sums since the start.
#[derive(Default)]
pub(super) struct Figures {
    received: u64,
    sent: [u64; 3],
    unsent: u64,
}

impl Figures {
    pub(super) fn received(&mut self) {
        self.received += 1;
    }

    /// An answer went out to a client that waits since then.
    pub(super) fn sent(&mut self, kind: ReplyKind, since: Instant) {
        self.sent[kind as usize] += 1;
        if kind == ReplyKind::Ack {
            metrics::histogram!("meshd_dhcp_ack_seconds").record(since.elapsed());
        }
    }

    pub(super) fn unsent(&mut self) {
        self.unsent += 1;
    }

    pub(super) fn publish(&self, counters: Counters) {
        for (kind, word) in [
            (Kind::Discover, "discover"),
            (Kind::Request, "request"),
            (Kind::Decline, "decline"),
            (Kind::Release, "release"),
            (Kind::Inform, "inform"),
        ] {
            metrics::counter!("meshd_dhcp_requests_total", "kind" => word).absolute(counters.requests[kind as usize]);
        }
        for (kind, word) in [(ReplyKind::Offer, "offer"), (ReplyKind::Ack, "ack"), (ReplyKind::Nak, "nak")] {
            metrics::counter!("meshd_dhcp_answers_total", "kind" => word).absolute(self.sent[kind as usize]);
        }
        let Counters { odd, flood, forged, foreign, refused, .. } = counters;
        for (reason, count) in [
            ("odd", odd),
            ("flood", flood),
            ("forged", forged),
            ("foreign_relay", foreign),
            ("pool_exhausted", refused),
            ("not_sent", self.unsent),
        ] {
            metrics::counter!("meshd_dhcp_dropped_total", "reason" => reason).absolute(count);
        }
        metrics::counter!("meshd_dhcp_received_total").absolute(self.received);
    }
}
