//! Metrics of the DHCP service, published once a second, so that no packet needs a look-up. Pool
//! usage is a gauge of the central node.

use super::warnings::drop_reason;
use meshd_dhcp::{ClientMessageType, Counters, DropReason, ReplyKind};
use std::time::Instant;

/// Counters since the start.
#[derive(Default)]
pub(super) struct DhcpTelemetry {
    received: u64,
    sent: [u64; 3],
    unsent: u64,
}

impl DhcpTelemetry {
    pub(super) fn count_received(&mut self) {
        self.received += 1;
    }

    /// Counts a sent reply. `since` is the arrival time of the request.
    pub(super) fn count_sent(&mut self, kind: ReplyKind, since: Instant) {
        self.sent[kind as usize] += 1;
        if kind == ReplyKind::Ack {
            metrics::histogram!("meshd_dhcp_ack_seconds").record(since.elapsed());
        }
    }

    pub(super) fn count_unsent(&mut self) {
        self.unsent += 1;
    }

    pub(super) fn publish(&self, counters: Counters) {
        for (kind, word) in [
            (ClientMessageType::Discover, "discover"),
            (ClientMessageType::Request, "request"),
            (ClientMessageType::Decline, "decline"),
            (ClientMessageType::Release, "release"),
            (ClientMessageType::Inform, "inform"),
        ] {
            metrics::counter!("meshd_dhcp_requests_total", "kind" => word)
                .absolute(counters.requests[kind as usize]);
        }
        for (kind, word) in
            [(ReplyKind::Offer, "offer"), (ReplyKind::Ack, "ack"), (ReplyKind::Nak, "nak")]
        {
            metrics::counter!("meshd_dhcp_answers_total", "kind" => word)
                .absolute(self.sent[kind as usize]);
        }
        for (reason, count) in DropReason::ALL.into_iter().zip(counters.dropped) {
            metrics::counter!("meshd_dhcp_dropped_total", "reason" => drop_reason(reason))
                .absolute(count);
        }
        let Counters { forged, foreign_relay, refused, .. } = counters;
        for (reason, count) in [
            ("forged", forged),
            ("foreign_relay", foreign_relay),
            ("pool_exhausted", refused),
            ("not_sent", self.unsent),
        ] {
            metrics::counter!("meshd_dhcp_dropped_total", "reason" => reason).absolute(count);
        }
        metrics::counter!("meshd_dhcp_received_total").absolute(self.received);
    }
}
