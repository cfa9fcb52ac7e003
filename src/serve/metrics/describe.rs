//! What each counter and histogram means: its HELP text. Gauges that are read off when somebody asks
//! describe themselves in `gauges`.

use super::observe;

/// Every counter, with what it counts.
const COUNTERS: &[(&str, &str)] = &[
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
    ("meshd_http_evicted_total", "Connections that lost their place to a newcomer, because they made least progress."),
    ("meshd_http_slow_readers_total", "Answers cut off because the client read too slowly."),
    ("meshd_tftp_bytes_total", "Bytes sent by TFTP."),
    ("meshd_tftp_resent_blocks_total", "Blocks sent by TFTP again, because they were not acknowledged."),
    ("meshd_tftp_transfers_total", "TFTP transfers, by result."),
    ("meshd_tftp_refused_total", "TFTP requests refused, by cause."),
    ("meshd_dhcp_packets_total", "DHCP packets, by what they were and what became of them."),
];

/// Every histogram, with what it measures.
const HISTOGRAMS: &[(&str, &str)] = &[
    (observe::STAGE_SECONDS, "Time from the first DHCP exchange of a boot to each of its stages."),
    ("meshd_store_commit_seconds", "Time from a change to its being on the disk."),
    ("meshd_render_seconds", "Time that rendering an overlay took, where it was not cached."),
];

/// Gauges that change where things happen, not when somebody asks.
const GAUGES: &[(&str, &str)] = &[
    ("meshd_boot_loading", "Machines that load their kernel, initramfs, packages or overlay."),
    ("meshd_boot_waiting", "Machines that wait in line for others to have loaded."),
    ("meshd_http_connections", "Open connections of the boot plane over HTTP."),
    ("meshd_tftp_transfers", "TFTP transfers under way."),
];

/// Tells the recorder.
pub(super) fn describe() {
    for (name, help) in COUNTERS.iter().copied() {
        metrics::describe_counter!(name, help);
    }
    for (name, help) in GAUGES.iter().copied() {
        metrics::describe_gauge!(name, help);
    }
    for (name, help) in HISTOGRAMS.iter().copied() {
        metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
    }
}
