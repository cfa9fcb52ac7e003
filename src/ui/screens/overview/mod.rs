//! Overview of the site: trouble first, then every node, the last day and the newest events.
//!
//! | module | content |
//! | --- | --- |
//! | `boots` | the boots in progress |
//! | `doctor` | the findings of doctor |
//! | `search` | the search over nodes, VMs, containers and tasks |
//! | `troubles` | the list of the nodes that need an operator |
//! | `wall` | one cell for each node, in groups |
//! | `wall_node` | a node on the overview, and how it looks there |

mod boots;
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
use meshd_api::{ReplicaCount, UnitCount, routes as api};
use meshd_model::fleet::{Phase, Severity};
use wall::Grouping;
use wall_node::{FIELDS, WallNode};

/// Number of events on the page.
const EVENTS: usize = 5;

pub(crate) async fn page(
    client: ApiClient,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error: ApiError| client.failed(&error);
    let events = api::LIST_EVENTS.path([]).with("sort", "-seq").with("limit", EVENTS);
    let (status, nodes, boots, events, plots) = tokio::join!(
        client.get(api::GET_STATUS.path([])),
        client.get_fields(api::LIST_NODES.path([]).with("sort", "name").with("fields", FIELDS)),
        boots::load(&client),
        client.lines(events),
        day_plots(&client),
    );
    let status = status.map_err(failed)?;
    let boots = boots.map_err(failed)?;
    let nodes: Vec<WallNode> = nodes.map_err(failed)?;
    let events = events.map_err(failed)?.rows;
    let names = NodeNames::new(nodes.iter().map(|node| (node.id, node.name.clone())));
    let grouping = Grouping::read(&query, &nodes);
    let is_troubled = nodes.iter().any(WallNode::needs_attention);
    let is_fine = status.ready && status.warnings.is_empty() && !is_troubled;
    let is_wall = nodes.len() > wall::MAX_TILES;
    let content = html! {
        h1 { (display_text(&status.site)) }
        section id="findings" data-live aria-label="Problems" {
            (html::findings(&status.errors))
            (troubles::list(&nodes, |node| grouping.words(node)))
            (html::brief_findings(&status.warnings))
            @if is_fine { div.alert.good { "Machines can boot. No problems are known." } }
        }
        section id="phases" data-live aria-label="Nodes by phase" { (counters(&nodes, status.units, status.replicas)) }
        // A part of its own: the wall is large, and each stage of a boot changes this one.
        section id="boots" data-live aria-label="Boots" { @if is_wall { (boots::list(&nodes, &boots)) } }
        section id="rack" data-live aria-label="All nodes" {
            @if nodes.is_empty() { (first_steps()) } @else { (wall::choice(&nodes, &grouping)) }
            @if is_wall { (wall::legend()) }
            (wall::wall(&nodes, &grouping, &boots))
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

/// Renders the number of nodes, of those in each phase, of units, and of replicas of containers if
/// there are any. Each leads to its list. A
/// phase that is no trouble names its nodes that need an operator all the same, such as an online
/// node with an alarm.
fn counters(nodes: &[WallNode], units: UnitCount, replicas: ReplicaCount) -> Markup {
    let in_phase = |phase| nodes.iter().filter(move |node| node.phase == phase);
    html! {
        div.counts {
            a.count href=(format!("{PREFIX}/nodes")) { strong { (nodes.len()) } @if nodes.len() == 1 { " node" } @else { " nodes" } }
            @for phase in Phase::ALL.into_iter().filter(|phase| in_phase(*phase).next().is_some()) {
                @let troubled = in_phase(phase).filter(|node| node.needs_attention()).count();
                a class=(format!("count {}", phase_class(phase))) href=(format!("{PREFIX}/nodes?phase={phase}")) {
                    strong { (in_phase(phase).count()) } " " (phase)
                    @if troubled > 0 && !Severity::of(phase, &[]).needs_attention() {
                        ", " (troubled) @if troubled == 1 { " needs attention" } @else { " need attention" }
                    }
                }
            }
            a.count href=(format!("{PREFIX}/slots")) { strong { (units.ready) "/" (units.total) } " units ready" }
            @if replicas.total > 0 {
                @let class = if replicas.running < replicas.total { "count warn" } else { "count" };
                a class=(class) href=(format!("{PREFIX}/containers")) { strong { (replicas.running) "/" (replicas.total) } @if replicas.total == 1 { " replica runs" } @else { " replicas run" } }
            }
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
