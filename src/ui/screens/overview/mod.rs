//! Overview of the site: trouble first, then every node, the last day and the newest events.
//!
//! | module | content |
//! | --- | --- |
//! | `doctor` | the findings of doctor |
//! | `search` | the search over nodes, VMs and tasks |
//! | `troubles` | the list of the nodes that need an operator |
//! | `wall` | one cell for each node, in groups |
//! | `wall_node` | a node on the overview, and how urgently it needs an operator |

pub(super) mod doctor;
pub(super) mod search;
mod troubles;
mod wall;
mod wall_node;

use super::{Answer, log};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    form::Fields,
    html::{self, Page, display_text, phase_class, series_plot},
    names::NodeNames,
};
use axum::{
    extract::Query,
    http::{HeaderMap, StatusCode},
};
use futures_util::future::join_all;
use maud::{Markup, html};
use meshd_api::{StatusView, routes as api};
use meshd_model::fleet::{Phase, Stage};
use meshd_types::NodeId;
use serde::Deserialize;
use std::collections::BTreeMap;
use wall::Grouping;
use wall_node::{FIELDS, Severity, WallNode};

/// Number of events on the page.
const EVENTS: usize = 5;
/// Maximum number of booting nodes with their progress.
const MAX_BOOTS: usize = 60;
/// Number of booting nodes in the list above a wall of cells.
const BOOT_ROWS: usize = 6;
/// Phases of nodes that show the progress of a boot.
const BOOT_PHASES: [Phase; 4] =
    [Phase::Booting, Phase::Enrolling, Phase::Approved, Phase::Discovered];

/// A node that boots, with the stage that it reached.
#[derive(Deserialize)]
struct BootingNode {
    id: NodeId,
    phase: Phase,
    boot: Option<BootStage>,
}

#[derive(Deserialize)]
struct BootStage {
    stage: Option<Stage>,
}

pub(crate) async fn page(
    client: ApiClient,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error: ApiError| client.failed(&error);
    let events = api::LIST_EVENTS.path([]).with("sort", "-seq").with("limit", EVENTS);
    let (status, nodes, stages, events, plots) = tokio::join!(
        client.get(api::GET_STATUS.path([])),
        client.get_fields(api::LIST_NODES.path([]).with("sort", "name").with("fields", FIELDS)),
        boot_stages(&client),
        client.lines(events),
        day_plots(&client),
    );
    let (status, stages) = (status.map_err(failed)?, stages.map_err(failed)?);
    let nodes: Vec<WallNode> = nodes.map_err(failed)?;
    let events = events.map_err(failed)?.rows;
    let names = NodeNames::new(nodes.iter().map(|node| (node.id, node.name.clone())));
    let grouping = Grouping::read(&query, &nodes);
    let is_troubled = |node: &WallNode| Severity::of(node).needs_attention();
    let is_fine = status.ready && status.warnings.is_empty() && !nodes.iter().any(is_troubled);
    let is_wall = nodes.len() > wall::MAX_TILES;
    let content = html! {
        h1 { (display_text(&status.site)) }
        section id="findings" data-live aria-label="Problems" {
            (html::findings(&status.errors))
            (troubles::list(&nodes, |node| grouping.words(node)))
            (html::brief_findings(&status.warnings))
            @if is_fine { div.alert.good { "Machines can boot. No problems are known." } }
        }
        section id="phases" data-live aria-label="Nodes by phase" { (counters(&status)) }
        section id="rack" data-live aria-label="All nodes" {
            @if nodes.is_empty() { (first_steps()) } @else { (wall::choice(&nodes, &grouping)) }
            @if is_wall { (boots(&nodes, &stages)) }
            (wall::wall(&nodes, &grouping, &stages))
        }
        // An error of the series costs the plots, and not the page.
        (plots.unwrap_or_else(|_| series_plot::absent_plots()))
        section aria-label="Newest events" {
            h2 { "Newest events" }
            div id="events" data-live { (log::event_table(&events, &names)) }
            p { a href=(format!("{PREFIX}/events")) { "All events" } }
        }
        p.quiet { "meshd " (status.version) }
    };
    Ok(Page { client: &client, title: "Overview".to_owned(), nav_path: "/", content }
        .answer(&headers))
}

/// Returns the stages of nodes that boot.
async fn boot_stages(client: &ApiClient) -> Result<BTreeMap<NodeId, Stage>, ApiError> {
    let phases = BOOT_PHASES.map(Phase::as_str).join(",");
    let path = api::LIST_NODES.path([]).with("phase", phases).with("sort", "-last_seen");
    let path = path.with("limit", MAX_BOOTS).with("fields", "id,phase,boot");
    let booting: Vec<BootingNode> = client.get_fields(path).await?;
    let boots = booting.into_iter().filter(|node| BOOT_PHASES.contains(&node.phase));
    Ok(boots.filter_map(|node| Some((node.id, node.boot?.stage?))).collect())
}

/// Renders the number of nodes in each phase, and of units. Each leads to its list.
fn counters(status: &StatusView) -> Markup {
    html! {
        div.counts {
            @for phase in Phase::ALL {
                @if let Some(count) = status.phases.get(phase.as_str()) {
                    a class=(format!("count {}", phase_class(phase))) href=(format!("{PREFIX}/nodes?phase={phase}")) {
                        strong { (count) } " " (phase)
                    }
                }
            }
            a.count href=(format!("{PREFIX}/slots")) { strong { (status.units.ready) "/" (status.units.total) } " units ready" }
        }
    }
}

/// Renders what to do on a site without nodes.
fn first_steps() -> Markup {
    let page = |path: &str, title: &str| html! { a href=(format!("{PREFIX}{path}")) { (title) } };
    html! {
        p { "No machines were seen. Power on a machine that boots from the network of this site." }
        ol {
            li { (page("/doctor", "Doctor")) " says what keeps machines from booting." }
            li { (page("/dhcp", "DHCP")) " shows the networks that meshd serves, and the leases." }
            li { (page("/inbox", "Inbox")) " lists the machines that wait for approval." }
        }
    }
}

/// Renders the progress of the nodes that boot, above a wall whose cells have no room for it.
fn boots(nodes: &[WallNode], stages: &BTreeMap<NodeId, Stage>) -> Markup {
    let booting: Vec<_> = nodes.iter().filter(|node| stages.contains_key(&node.id)).collect();
    html! {
        @if !booting.is_empty() {
            div.tiles.boots {
                @for node in booting.iter().take(BOOT_ROWS) { (wall::tile(node, stages.get(&node.id).copied())) }
            }
        }
    }
}

/// Plots of the last day: name of the series, and title.
const PLOTS: [(&str, &str); 8] = [
    ("nodes_online", "Nodes online"),
    ("nodes_offline", "Nodes offline"),
    ("boots_failed", "Failing boots"),
    ("boot_p50", "Boot time, median"),
    ("boot_p95", "Boot time, p95"),
    ("leases", "Leases"),
    ("units_ready", "Units ready"),
    ("memory", "Memory of meshd"),
];
/// Seconds between two points of a plot.
const PLOT_STEP: u64 = 600;

/// Renders the last day of the site. Series without values are left out.
async fn day_plots(client: &ApiClient) -> Result<Markup, ApiError> {
    let requests =
        PLOTS.map(|(name, _)| client.get(api::GET_SERIES.path([&name]).with("step", PLOT_STEP)));
    let mut plots = Vec::new();
    for ((name, title), series) in PLOTS.into_iter().zip(join_all(requests).await) {
        match series {
            Ok(series) if series.points.is_empty() => {}
            Ok(series) => plots.push(series_plot::plot(&format!("plot-{name}"), title, &series)),
            // An older meshd, which `meshd ui` shows, has no time series.
            Err(error) if error.status == StatusCode::NOT_FOUND => break,
            Err(error) => return Err(error),
        }
    }
    Ok(html! {
        @if !plots.is_empty() {
            section aria-label="Last 24 hours" {
                h2 { "Last 24 hours" }
                div.plots.strips { @for plot in &plots { (plot) } }
            }
        }
    })
}
