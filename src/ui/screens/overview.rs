//! Overview of the site, the findings of doctor, and the search.

use super::Answer;
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    html::{self, Page, display_text, phase_class, series_plot},
};
use axum::{
    extract::Query,
    http::{HeaderMap, StatusCode},
};
use maud::{Markup, html};
use meshd_api::{NodeView, SearchHit, routes as api};
use meshd_model::fleet::{Phase, Stage};
use serde::Deserialize;

/// Maximum number of tiles; the node list shows all nodes.
const MAX_TILES: usize = 1000;

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let failed = |error| client.failed(&error);
    let status = client.get(api::GET_STATUS.path([])).await.map_err(failed)?;
    let path = api::LIST_NODES.path([]).with("sort", "name").with("limit", MAX_TILES);
    let nodes = client.list(path).await.map_err(failed)?;
    let total = nodes.total.unwrap_or(nodes.rows.len());
    // An error of the series costs the plots, and not the page.
    let plots = day_plots(&client).await.unwrap_or_else(|_| series_plot::absent_plots());
    let content = html! {
        h1 { (display_text(&status.site)) }
        div id="findings" data-live {
            (html::findings(&status.errors))
            (html::findings(&status.warnings))
            @if status.ready && status.warnings.is_empty() { div.alert.good { "Machines can boot. No problems are known." } }
        }
        section id="phases" data-live aria-label="Nodes by phase" {
            div.counts {
                @for phase in Phase::ALL {
                    @if let Some(count) = status.phases.get(phase.as_str()) {
                        a class=(format!("count {}", phase_class(phase))) href=(format!("{PREFIX}/nodes?phase={phase}")) {
                            strong { (count) } " " (phase)
                        }
                    }
                }
                span.count { strong { (status.units.ready) "/" (status.units.total) } " units ready" }
            }
        }
        (plots)
        section id="rack" data-live aria-label="All nodes" {
            @if total == 0 { p.quiet { "No machines were seen. Power on a machine that boots from the network of this site." } }
            div.tiles { @for node in &nodes.rows { (tile(node)) } }
            @if total > nodes.rows.len() {
                p { a href=(format!("{PREFIX}/nodes")) { "All " (total) " nodes" } }
            }
        }
        p.quiet { "meshd " (status.version) }
    };
    Ok(Page { client: &client, title: "Overview".to_owned(), nav_path: "/", content }
        .answer(&headers))
}

/// Plots of the last day: name of the series, and title.
const PLOTS: [(&str, &str); 8] = [
    ("nodes_online", "Nodes online"),
    ("nodes_offline", "Nodes offline"),
    ("boots_failed", "Failed and stalled boots"),
    ("boot_p50", "Boot time, median"),
    ("boot_p95", "Boot time, 95th percentile"),
    ("leases", "Leases"),
    ("units_ready", "Units ready"),
    ("memory", "Memory of meshd"),
];
/// Seconds between two points of a plot.
const PLOT_STEP: u64 = 600;

/// Renders the last day of the site. Series without values are left out.
async fn day_plots(client: &ApiClient) -> Result<Markup, ApiError> {
    let mut plots = Vec::new();
    for (name, title) in PLOTS {
        let path = api::GET_SERIES.path([&name]).with("step", PLOT_STEP);
        match client.get(path).await {
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
                div.plots { @for plot in &plots { (plot) } }
            }
        }
    })
}

/// Renders one node; during a boot, with its progress.
fn tile(node: &NodeView) -> Markup {
    let boots = matches!(
        node.phase,
        Phase::Booting | Phase::Enrolling | Phase::Approved | Phase::Discovered
    );
    let stage = node.boot.as_ref().and_then(|boot| boot.stage).filter(|_| boots);
    html! {
        a class=(format!("tile {}", phase_class(node.phase))) href=(format!("{PREFIX}/nodes/{}", node.id)) {
            strong { (display_text(&node.name)) }
            span { (node.phase) }
            @if let Some(stage) = stage { (progress(stage)) }
            @if let Some(condition) = node.conditions.first() { span.mark { (condition.kind.as_str()) } }
        }
    }
}

/// Renders the position of a stage in the boot chain.
pub(super) fn progress(stage: Stage) -> Markup {
    let position = Stage::ALL.iter().position(|other| *other == stage).map_or(0, |index| index + 1);
    html! {
        progress.boot value=(position) max=(Stage::ALL.len()) aria-label=(format!("boot: {}", stage.as_str())) {}
        span.quiet { (stage.as_str()) }
    }
}

/// Shows the health of the central node, problems first.
pub(crate) async fn doctor(client: ApiClient, headers: HeaderMap) -> Answer {
    let mut findings =
        client.get(api::LIST_FINDINGS.path([])).await.map_err(|error| client.failed(&error))?;
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.status));
    let content = html! {
        h1 { "Doctor" }
        p { code { "meshd doctor" } " on the central node also looks at files, disk and clock." }
        div id="findings" data-live { (html::findings(&findings)) }
    };
    Ok(Page { client: &client, title: "Doctor".to_owned(), nav_path: "/doctor", content }
        .answer(&headers))
}

#[derive(Debug, Deserialize)]
pub(crate) struct SearchQuery {
    #[serde(default)]
    q: String,
}

pub(crate) async fn search(
    client: ApiClient,
    Query(query): Query<SearchQuery>,
    headers: HeaderMap,
) -> Answer {
    let path = api::SEARCH.path([]).with("q", query.q.trim());
    let found = client.get(path).await.map_err(|error| client.failed(&error))?;
    let row = |hit: &SearchHit| {
        let link = match hit.kind.as_str() {
            "node" => html::name_link(&hit.id, &hit.name),
            "vm" => {
                html! { a href=(format!("{PREFIX}/vms/{}", encoded(&hit.id))) { (display_text(&hit.name)) } }
            }
            _ => {
                html! { a href=(format!("{PREFIX}/tasks/{}", encoded(&hit.id))) { (display_text(&hit.name)) } }
            }
        };
        vec![
            html::plain(&hit.kind),
            link,
            html::code(&hit.id),
            html::plain(&hit.state),
            html::plain(&hit.field),
            html::plain(&hit.value),
        ]
    };
    let rows: Vec<_> = found.hits.iter().map(row).collect();
    let content = html! {
        h1 { "Search" }
        p { (found.total) " found for “" (display_text(&query.q)) "”" }
        (html::table(&["Kind", "Name", "ID", "State", "Found in", "Value"], &rows, "No results."))
    };
    Ok(Page { client: &client, title: "Search".to_owned(), nav_path: "", content }.answer(&headers))
}
