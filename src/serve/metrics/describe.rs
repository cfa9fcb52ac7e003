//! What each counter and histogram means: its HELP text. Gauges describe themselves in `gauges`.

use super::observe;

/// Every counter, with what it counts.
const COUNTERS: [(&str, &str); 13] = [
    ("meshd_events_total", "Events recorded, by kind."),
    (observe::STARTED, "Boots begun: first DHCP exchange of a power-on."),
    (observe::BOOTS, "Boots that came online, or ended before, by result and the stage that they came to."),
    (observe::STALLS, "Boots that stood still, by the stage that was missing."),
    (observe::LOOPS, "Boot loops found."),
    ("meshd_boot_refusals_total", "Scripts that refused a boot, by code; one for each time a machine asked."),
    ("meshd_overlays_total", "Overlays given out to their last byte."),
    ("meshd_overlay_refusals_total", "Overlays refused, by reason."),
    ("meshd_renders_total", "Overlays rendered or found rendered, by result."),
    ("meshd_http_requests_total", "HTTP requests answered, by plane, route and status."),
    ("meshd_tftp_bytes_total", "Bytes sent by TFTP."),
    ("meshd_tftp_transfers_total", "TFTP transfers, by result."),
    ("meshd_dhcp_packets_total", "DHCP packets, by what they were and what became of them."),
];

/// Every histogram, with what it measures.
const HISTOGRAMS: [(&str, &str); 3] = [
    (observe::STAGE_SECONDS, "Time from the first DHCP exchange of a boot to each of its stages."),
    ("meshd_store_commit_seconds", "Time from a change to its being on the disk."),
    ("meshd_render_seconds", "Time that rendering an overlay took, where it was not cached."),
];

/// Tells the recorder.
pub(super) fn describe() {
    for (name, help) in COUNTERS {
        metrics::describe_counter!(name, help);
    }
    for (name, help) in HISTOGRAMS {
        metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
    }
}
