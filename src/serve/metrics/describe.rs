//! HELP texts of counters, histograms and the gauges of servers; `gauges` contains those of all
//! other gauges.

use super::observe;

/// HELP texts of all counters.
pub(super) const COUNTERS: [(&str, &str); 28] = [
    ("meshd_events_total", "Events recorded, by kind."),
    (observe::STARTED, "Boots started: first DHCP exchange after power-on."),
    (observe::BOOTS, "Boots that ended, by result and last stage."),
    (observe::STALLS, "Stalled boots, by overdue stage."),
    (observe::LOOPS, "Detected boot loops."),
    (
        observe::DELAY_SECONDS,
        "Seconds that boots lost before they were online, by kind of the delay.",
    ),
    ("meshd_boot_refusals_total", "Refusal scripts sent, by code."),
    ("meshd_overlays_total", "Overlays delivered completely."),
    ("meshd_overlay_refusals_total", "Overlays refused, by reason."),
    ("meshd_renders_total", "Overlay renderings, by result, with cache hits."),
    ("meshd_http_requests_total", "HTTP responses, by API, route and status."),
    ("meshd_http_response_bytes_total", "Body bytes of HTTP responses, by API, without streams."),
    ("meshd_dhcp_received_total", "Packets received on the DHCP ports."),
    ("meshd_dhcp_requests_total", "Valid DHCP requests, by kind."),
    ("meshd_dhcp_answers_total", "DHCP replies sent, by kind."),
    ("meshd_dhcp_dropped_total", "Packets on the DHCP ports without a reply, by reason."),
    ("meshd_tftp_bytes_total", "Bytes of files sent by TFTP."),
    ("meshd_tftp_resent_blocks_total", "Retransmitted TFTP blocks."),
    ("meshd_tftp_transfers_total", "Ended TFTP transfers, by result."),
    ("meshd_tftp_refused_total", "TFTP packets without data in reply, by cause."),
    (
        "meshd_tftp_unrecorded_total",
        "TFTP transfers that completed and are in no timeline, because too many ended at once.",
    ),
    ("meshd_connections_evicted_total", "Connections evicted for others, by API."),
    ("meshd_http_evicted_total", "Connections of the boot API evicted for others."),
    (
        "meshd_http_unread_requests_total",
        "Requests of the boot API refused or aborted before routing, by cause.",
    ),
    ("meshd_ndp_dropped_total", "IPv6 router solicitations without a reply, by reason."),
    (
        "meshd_http_slow_readers_total",
        "Connections of the boot API ended because the client read too slowly.",
    ),
    (
        "meshd_lan_foreign_segments_dropped_total",
        "Segments of other machines without an alarm, because the queue was full.",
    ),
    (
        "meshd_lan_lost_frames_total",
        "Frames of the boot and agent APIs that the kernel did not deliver for observation.",
    ),
];

/// HELP texts of the gauges that servers update.
pub(super) const GAUGES: [(&str, &str); 5] = [
    ("meshd_tftp_transfers", "Active TFTP transfers."),
    ("meshd_connections", "Connections that count against the limit of their API."),
    ("meshd_http_connections", "Open connections of the boot API."),
    ("meshd_boot_loading", "Machines that fetch their files."),
    ("meshd_boot_waiting", "Machines in the boot queue."),
];

/// HELP texts of all histograms.
pub(super) const HISTOGRAMS: [(&str, &str); 7] = [
    (
        "meshd_dhcp_ack_seconds",
        "Time from a DHCP request to its acknowledgement, including the flush of the lease.",
    ),
    (
        observe::STAGE_SECONDS,
        "Time from the first DHCP exchange of a boot to each of its stages, without the wait for approval.",
    ),
    (
        observe::FIRMWARE_SECONDS,
        "Time from an order to power on or reboot to the first packet of the boot that came online.",
    ),
    ("meshd_store_commit_seconds", "Time from a change to its flush."),
    ("meshd_task_start_seconds", "Time from the order of a task until it runs on all its nodes."),
    ("meshd_task_seconds", "Run time of tasks, by final state."),
    ("meshd_render_seconds", "Time to render an overlay that was not cached."),
];

/// Registers the HELP texts with the recorder.
pub(super) fn describe() {
    for (name, help) in COUNTERS {
        metrics::describe_counter!(name, help);
    }
    for (name, help) in GAUGES {
        metrics::describe_gauge!(name, help);
    }
    for (name, help) in HISTOGRAMS {
        metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
    }
}
