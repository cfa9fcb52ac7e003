//! Overview of the site, the findings of doctor, and the search.

use super::Answer;
use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    html::{self, Page, display_text, phase_class},
};
use axum::{extract::Query, http::HeaderMap};
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
