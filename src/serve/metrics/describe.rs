//! HELP texts of counters, histograms and the gauges of servers; `gauges` contains those of all other gauges.

use super::observe;

/// HELP texts of all counters.
pub(super) const COUNTERS: [(&str, &str); 26] = [
    ("meshd_events_total", "Events recorded, by kind."),
    (observe::STARTED, "Boots begun: first DHCP exchange of a power-on."),
    (observe::BOOTS, "Boots that came online, or ended before, by result and the stage that they came to."),
    (observe::STALLS, "Boots that stalled, by the stage that was missing."),
    (observe::LOOPS, "Boot loops found."),
    ("meshd_boot_refusals_total", "Scripts that refused a boot, by code; one for each time a machine asked."),
    ("meshd_overlays_total", "Overlays given out to their last byte."),
    ("meshd_overlay_refusals_total", "Overlays refused, by reason."),
    ("meshd_renders_total", "Overlays rendered or found rendered, by result."),
    ("meshd_http_requests_total", "HTTP requests answered, by plane, route and status."),
    ("meshd_http_response_bytes_total", "Bytes of the bodies of HTTP answers, by plane; streams count none."),
    ("meshd_dhcp_received_total", "Packets received on the DHCP ports."),
    ("meshd_dhcp_requests_total", "DHCP requests understood, by kind."),
    ("meshd_dhcp_answers_total", "DHCP answers sent, by kind."),
    ("meshd_dhcp_dropped_total", "Packets on the DHCP ports that were not answered, by reason."),
    ("meshd_tftp_bytes_total", "Bytes of files sent by TFTP."),
    ("meshd_tftp_resent_blocks_total", "TFTP blocks sent again because no acknowledgement came."),
    ("meshd_tftp_transfers_total", "TFTP transfers that are over, by result."),
    ("meshd_tftp_refused_total", "TFTP packets that got no data, by cause."),
    ("meshd_connections_evicted_total", "Connections ended to make room for others, by plane."),
    ("meshd_http_evicted_total", "Boot plane connections ended to make room for others."),
    (
        "meshd_http_unread_requests_total",
        "Boot plane requests that were refused or given up before a route saw them, by cause.",
    ),
    ("meshd_ndp_dropped_total", "IPv6 router solicitations that were not answered, by reason."),
    ("meshd_http_slow_readers_total", "Boot plane connections ended because their client read too slowly."),
    (
        "meshd_lan_foreign_segments_dropped_total",
        "Segments of other machines without an alarm, because too many waited.",
    ),
    (
        "meshd_lan_lost_frames_total",
        "Frames of the boot and agent plane that the kernel did not deliver for observation.",
    ),
];

/// HELP texts of the gauges that servers update.
pub(super) const GAUGES: [(&str, &str); 5] = [
    ("meshd_tftp_transfers", "TFTP transfers under way."),
    ("meshd_connections", "Connections that count against the limit of their plane."),
    ("meshd_http_connections", "Boot plane connections that are open."),
    ("meshd_boot_loading", "Machines that fetch their files now."),
    ("meshd_boot_waiting", "Machines that wait in line for their turn to fetch their files."),
];

/// HELP texts of all histograms.
pub(super) const HISTOGRAMS: [(&str, &str); 6] = [
    ("meshd_dhcp_ack_seconds", "Time from a DHCP request to its acknowledgement, with the flush of its lease."),
    (
        observe::STAGE_SECONDS,
        "Time from the first DHCP exchange of a boot to each of its stages, without the wait for approval.",
    ),
    ("meshd_store_commit_seconds", "Time from a change to its being on the disk."),
    ("meshd_task_start_seconds", "Time from the order of a task until it runs on all its nodes."),
    ("meshd_task_seconds", "Time that a task ran, by the state in which it ended."),
    ("meshd_render_seconds", "Time that rendering an overlay took, where it was not cached."),
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
