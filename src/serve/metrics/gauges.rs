//! Gauges: what the state is when somebody asks. Nothing here is kept.

use super::page::Page;
use crate::fleet::{ConditionKind, Phase, Stage, Standing};
use crate::serve::central::{Central, SegmentHealth};
use crate::store::{MAX_SESSIONS, MAX_UNKNOWN_NODES};
use std::collections::BTreeMap;

/// What one pass over the model counts.
#[derive(Default)]
struct Counted {
    phases: BTreeMap<Phase, usize>,
    conditions: BTreeMap<ConditionKind, usize>,
    boots: BTreeMap<(Standing, Stage), usize>,
    unknown: usize,
    sessions: usize,
    leases: usize,
}

/// All gauges of the central node.
pub(super) fn gauges(central: &Central) -> String {
    let mut page = Page::default();
    let counted = count(central);
    nodes(&mut page, &counted);
    boots(&mut page, &counted);
    segments(&mut page, &central.segments());
    page.gauge("meshd_dhcp_leases_kept", "Leases in the store, with those that have run out.", counted.leases);
    page.gauge("meshd_agent_links", "Nodes whose agent is linked.", central.link_count());
    page.gauge("meshd_agents_pending", "Agents that wait to be let in.", central.pending_count());
    page.gauge(
        "meshd_capabilities",
        "Capabilities remembered: of overlays to come and of those given.",
        central.capability_count(),
    );
    let images = [("usable", central.catalog().images().count()), ("unusable", central.catalog().unusable().len())];
    let images = images.into_iter().map(|(state, images)| ([("state", state)], images));
    page.gauges("meshd_images", "Images that profiles name, by whether they can be served.", images);
    let build = [("version", env!("CARGO_PKG_VERSION")), ("commit", env!("MESHD_COMMIT"))];
    page.gauges("meshd_build_info", "The program that runs; always 1.", [(build, 1)]);
    page.text()
}

fn count(central: &Central) -> Counted {
    central.store().read(|model| {
        let mut counted = Counted {
            unknown: model.unknown_count(),
            sessions: model.session_count(),
            leases: model.leases().count(),
            ..Counted::default()
        };
        for node in model.nodes() {
            *counted.phases.entry(node.phase).or_default() += 1;
            for condition in &node.conditions {
                *counted.conditions.entry(condition.kind).or_default() += 1;
            }
        }
        for boot in model.newest_sessions() {
            let stage = boot.furthest().unwrap_or(Stage::Dhcp);
            *counted.boots.entry((boot.standing(false), stage)).or_default() += 1;
        }
        counted
    })
}

fn nodes(page: &mut Page, counted: &Counted) {
    let phases =
        Phase::ALL.map(|phase| ([("phase", phase.as_str())], counted.phases.get(&phase).copied().unwrap_or(0)));
    page.gauges("meshd_nodes", "Nodes, by phase.", phases);
    let conditions = ConditionKind::ALL.map(|condition| {
        ([("condition", condition.as_str())], counted.conditions.get(&condition).copied().unwrap_or(0))
    });
    page.gauges("meshd_node_conditions", "Nodes that have a condition, by condition.", conditions);
    page.gauge("meshd_unknown_nodes", "Nodes that nobody let in.", counted.unknown);
    page.gauge("meshd_unknown_nodes_limit", "Most of them that are kept.", MAX_UNKNOWN_NODES);
}

fn boots(page: &mut Page, counted: &Counted) {
    let boots = counted
        .boots
        .iter()
        .map(|((standing, stage), boots)| ([("state", standing.as_str()), ("stage", stage.as_str())], *boots));
    let help = "Newest boots of all machines, by how they stand and the stage that they came to.";
    page.gauges("meshd_boots", help, boots);
    page.gauge("meshd_boot_sessions", "Boot sessions kept.", counted.sessions);
    page.gauge("meshd_boot_sessions_limit", "Most of them that are kept.", MAX_SESSIONS);
}

fn segments(page: &mut Page, segments: &[SegmentHealth]) {
    let pools = segments.iter().flat_map(|segment| {
        let (name, pool) = (segment.name.as_str(), segment.pool);
        [("leased", pool.leased), ("offered", pool.offered), ("declined", pool.declined)]
            .map(|(state, addresses)| ([("segment", name), ("state", state)], addresses))
    });
    page.gauges("meshd_dhcp_pool_addresses", "Addresses of a segment's pool that are not free, by why.", pools);
    let sizes = segments.iter().map(|segment| ([("segment", segment.name.as_str())], segment.pool.size));
    page.gauges("meshd_dhcp_pool_size_addresses", "Addresses of a segment's pool.", sizes);
    let others = segments.iter().map(|segment| ([("segment", segment.name.as_str())], segment.other_servers.len()));
    page.gauges("meshd_dhcp_other_servers", "Other DHCP and PXE servers heard on a segment.", others);
}
