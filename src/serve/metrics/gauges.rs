//! Gauges, computed from the state on each request.

use super::{page::MetricsPage, workload_gauges::workload_gauges};
use meshd_central::{Central, NodeRecords, SegmentHealth};
use meshd_model::fleet::{BootStatus, ConditionKind, Phase, Stage};
use meshd_model::series::{SITE_SERIES, SeriesPoint};
use meshd_proto::Heartbeat;
use meshd_store::{MAX_SESSIONS, MAX_UNKNOWN_NODES};
use std::collections::BTreeMap;

/// Counts from one pass over the model.
#[derive(Default)]
struct Counted {
    phases: BTreeMap<Phase, usize>,
    conditions: BTreeMap<ConditionKind, usize>,
    boots: BTreeMap<(BootStatus, Stage), usize>,
    unknown: usize,
    sessions: usize,
    leases: usize,
}

/// Returns all gauges of the central node.
pub(super) fn gauges(central: &Central) -> String {
    let mut page = MetricsPage::default();
    let counted = count(central);
    nodes(&mut page, &counted);
    boots(&mut page, &counted);
    recent_boots(&mut page, &central.series.newest());
    segments(&mut page, &central.boot.segments());
    page.gauge(
        "meshd_dhcp_leases_kept",
        "Leases in the store, including expired ones.",
        counted.leases,
    );
    page.gauge("meshd_agent_links", "Linked nodes.", central.links.link_count());
    resources(&mut page, &central.links.heartbeats());
    workload_gauges(&mut page, central);
    page.gauge(
        "meshd_agents_pending",
        "Agents that wait for approval.",
        central.enrolment.pending_count(),
    );
    page.gauge(
        "meshd_capabilities",
        "Capabilities in memory: of pending and delivered overlays.",
        central.enrolment.capability_count(),
    );
    let images = [
        ("usable", central.catalog().images().count()),
        ("unusable", central.catalog().unusable().len()),
    ];
    let images = images.into_iter().map(|(state, images)| ([("state", state)], images));
    page.gauges("meshd_images", "Images of profiles, by availability.", images);
    let build = [("version", env!("CARGO_PKG_VERSION")), ("commit", central.commit)];
    page.gauges("meshd_build_info", "Version of the running program; always 1.", [(build, 1)]);
    page.text()
}

fn count(central: &Central) -> Counted {
    let leases = central.boot.lease_count();
    central.nodes.read(|fleet| {
        let mut counted = Counted {
            unknown: fleet.unknown_count(),
            sessions: fleet.boot_count(),
            leases,
            ..Counted::default()
        };
        for NodeRecords { node, .. } in fleet.nodes() {
            *counted.phases.entry(node.phase).or_default() += 1;
            for condition in &node.conditions {
                *counted.conditions.entry(condition.kind).or_default() += 1;
            }
        }
        for boot in fleet.newest_boots() {
            let stage = boot.furthest().unwrap_or(Stage::Dhcp);
            *counted.boots.entry((boot.standing(false), stage)).or_default() += 1;
        }
        counted
    })
}

fn nodes(page: &mut MetricsPage, counted: &Counted) {
    let phases = Phase::ALL.map(|phase| {
        ([("phase", phase.as_str())], counted.phases.get(&phase).copied().unwrap_or(0))
    });
    page.gauges("meshd_nodes", "Nodes, by phase.", phases);
    let conditions = ConditionKind::ALL.map(|condition| {
        (
            [("condition", condition.as_str())],
            counted.conditions.get(&condition).copied().unwrap_or(0),
        )
    });
    page.gauges("meshd_node_conditions", "Nodes with a condition, by condition.", conditions);
    page.gauge("meshd_unknown_nodes", "Nodes without approval.", counted.unknown);
    page.gauge("meshd_unknown_nodes_limit", "Maximum number in the store.", MAX_UNKNOWN_NODES);
}

/// Adds sums and minima over all linked nodes. Series per node would make the page grow with the
/// number of nodes.
fn resources(page: &mut MetricsPage, heartbeats: &[Heartbeat]) {
    let memory = heartbeats.iter().map(|beat| beat.memory_available_kib.saturating_mul(1 << 10));
    let storage = heartbeats.iter().map(|beat| beat.storage_free_bytes);
    let sum = |values: &mut dyn Iterator<Item = u64>| values.fold(0, u64::saturating_add);
    let help = "Available memory of all linked nodes at their last heartbeats.";
    page.gauge("meshd_nodes_memory_available_bytes", help, sum(&mut memory.clone()));
    let help = "Available memory of the linked node with the least; 0 without nodes.";
    page.gauge("meshd_nodes_memory_available_min_bytes", help, memory.min().unwrap_or(0));
    let help = "Free bytes on the root file systems of all linked nodes at their last heartbeats.";
    page.gauge("meshd_nodes_storage_free_bytes", help, sum(&mut storage.clone()));
    let help =
        "Free bytes on the root file system of the linked node with the least; 0 without nodes.";
    page.gauge("meshd_nodes_storage_free_min_bytes", help, storage.min().unwrap_or(0));
    let workloads = sum(&mut heartbeats.iter().map(|beat| beat.workloads.into()));
    page.gauge(
        "meshd_nodes_workloads",
        "Workloads of linked nodes at their last heartbeats.",
        workloads,
    );
}

fn boots(page: &mut MetricsPage, counted: &Counted) {
    let boots = counted.boots.iter().map(|((standing, stage), boots)| {
        ([("state", standing.as_str()), ("stage", stage.as_str())], *boots)
    });
    let help = "Newest boots of all machines, by status and last stage.";
    page.gauges("meshd_boots", help, boots);
    page.gauge("meshd_boot_sessions", "Boot sessions in the store.", counted.sessions);
    page.gauge("meshd_boot_sessions_limit", "Maximum number in the store.", MAX_SESSIONS);
}

/// Adds the newest samples of time series that no other gauge has.
fn recent_boots(page: &mut MetricsPage, newest: &[Option<SeriesPoint>]) {
    let value = |name: &str| {
        let series = SITE_SERIES.iter().position(|spec| spec.name == name)?;
        newest.get(series).copied().flatten().map(|point| point.value)
    };
    let quantiles = [("0.5", value("boot_p50")), ("0.95", value("boot_p95"))];
    let quantiles = quantiles
        .into_iter()
        .filter_map(|(quantile, value)| Some(([("quantile", quantile)], value?)));
    page.gauges(
        "meshd_recent_boot_seconds",
        "Time of the boots that came online within an hour, without the wait for approval.",
        quantiles,
    );
    let help = "Boots that came online within an hour, as of the last minute.";
    page.gauge("meshd_recent_boots", help, value("boots_online").unwrap_or(0.0));
}

fn segments(page: &mut MetricsPage, segments: &[SegmentHealth]) {
    let pools = segments.iter().flat_map(|segment| {
        let name = segment.name.as_str();
        let pool = segment.pool;
        [("leased", pool.leased), ("offered", pool.offered), ("declined", pool.declined)]
            .map(|(state, addresses)| ([("segment", name), ("state", state)], addresses))
    });
    page.gauges(
        "meshd_dhcp_pool_addresses",
        "Addresses of a segment's pool that are not free, by reason.",
        pools,
    );
    let sizes =
        segments.iter().map(|segment| ([("segment", segment.name.as_str())], segment.pool.size));
    page.gauges("meshd_dhcp_pool_size_addresses", "Addresses of a segment's pool.", sizes);
    let others = segments
        .iter()
        .map(|segment| ([("segment", segment.name.as_str())], segment.other_servers.len()));
    page.gauges("meshd_dhcp_other_servers", "Other DHCP and PXE servers on a segment.", others);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_resources_are_summed_and_minimum_is_reported() {
        let beat = |memory_available_kib, storage_free_bytes| Heartbeat {
            memory_available_kib,
            storage_free_bytes,
            workloads: 2,
            ..Heartbeat::default()
        };
        let mut page = MetricsPage::default();
        resources(&mut page, &[beat(4, 10), beat(2, 30)]);
        let text = page.text();
        for line in [
            "meshd_nodes_memory_available_bytes 6144",
            "meshd_nodes_memory_available_min_bytes 2048",
            "meshd_nodes_storage_free_bytes 40",
            "meshd_nodes_storage_free_min_bytes 10",
            "meshd_nodes_workloads 4",
        ] {
            assert!(text.lines().any(|is| is == line), "{line} in\n{text}");
        }
    }
}
