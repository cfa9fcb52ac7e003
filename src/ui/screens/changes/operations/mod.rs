//! Operations: all changes that run, wait, failed or are done, and the page of one order.
//!
//! | module | content |
//! | --- | --- |
//! | `work` | what is listed, by group |

mod work;

use super::progress;
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, OrderNotes, encoded},
    form::Fields,
    html::{self, Page, display_text, maybe, plain, time},
    request_checks::{fields, redirect},
    screens::{Answer, actions},
};
use axum::{
    body::Body,
    extract::{Path, Query},
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{NodeOperationView, OperationView, WaveProgress, routes as api};
use meshd_model::operations::{NodeOperationState, OperationState};
use meshd_types::Timestamp;
use serde::Deserialize;
use std::time::Duration;
use work::{Work, WorkGroup};

/// Rows of one page.
const ROWS: usize = 100;
/// Rows of the newest orders, rollouts and bisections.
const NEWEST: usize = 50;

pub(crate) async fn page(
    client: ApiClient,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let after = query.text("after");
    let operations =
        api::LIST_OPERATIONS.path([]).with("sort", "-accepted_at").with("limit", NEWEST);
    let operations = operations.with_nonempty("after", after);
    let operations = client.list(operations);
    let mut rest = 0;
    let (operations, mut all) = if after.is_empty() {
        let activities = client.get(api::LIST_ACTIVITIES.path([]));
        let answers =
            tokio::try_join!(operations, activities, client.node_names(), newest_changes(&client));
        let (operations, found, names, mut all) = answers.map_err(failed)?;
        rest = found.rest;
        all.extend(found.activities.iter().map(|activity| Work::of_activity(activity, &names)));
        (operations, all)
    } else {
        (operations.await.map_err(failed)?, Vec::new())
    };
    all.extend(operations.rows.iter().map(Work::of_operation));
    all.sort_by_key(|work| std::cmp::Reverse(work.since));
    let count = |group| all.iter().filter(|work| work.group == group).count();
    let content = html! {
        h1 { "Operations" }
        // Separate live parts: the table with the focus is not replaced.
        div.counts id="counts" data-live { @for group in WorkGroup::ALL {
            a class=(format!("count {}", if count(group) > 0 { group.class() } else { "idle" })) href=(format!("#{}", group.word())) {
                strong { (count(group)) } " " (group.title())
            }
        } }
        div id="nothing" data-live { @if all.is_empty() { (nothing()) } }
        @for group in WorkGroup::ALL {
            section id=(group.word()) data-live { h2 { (group.title()) } (work::table(&all, group)) }
        }
        div id="more" data-live {
            @if rest > 0 { p.quiet { (rest) " more are not shown." } }
            @if let Some(next) = &operations.next {
                p { a.button href=(format!("{PREFIX}/operations?after={}", encoded(next))) { "Older orders" } }
            }
        }
    };
    Ok(Page { client: &client, title: "Operations".to_owned(), nav_path: "/operations", content }
        .answer(&headers))
}

/// Renders the first step on an empty page.
fn nothing() -> Markup {
    html! {
        div.alert.idle { strong { "Nothing runs, and no order is on record." }
            p { "Choose nodes and an action in " a href=(format!("{PREFIX}/nodes")) { "Nodes" } ", or start a rollout: " code { "meshd rollout start" } "." }
        }
    }
}

/// Requests the newest rollouts and bisections.
async fn newest_changes(client: &ApiClient) -> Result<Vec<Work>, ApiError> {
    let rollouts = api::LIST_ROLLOUTS.path([]).with("sort", "-started_at").with("limit", NEWEST);
    let searches = api::LIST_BISECTIONS.path([]).with("sort", "-started_at").with("limit", NEWEST);
    let (rollouts, searches) = tokio::try_join!(client.get(rollouts), client.get(searches))?;
    let rollouts = rollouts.iter().map(Work::of_rollout);
    Ok(rollouts.chain(searches.iter().map(Work::of_bisection)).collect())
}

/// Returns the nodes of an order by progress.
fn progress_of(operation: &OperationView) -> WaveProgress {
    WaveProgress {
        waiting: operation.pending,
        active: operation.running,
        done: operation.done,
        failed: operation.failed,
        skipped: operation.cancelled,
    }
}

/// Query of the page of one operation.
#[derive(Debug, Deserialize)]
pub(crate) struct NodePage {
    #[serde(default)]
    after: Option<String>,
}

pub(crate) async fn one(
    client: ApiClient,
    Path(operation): Path<String>,
    Query(NodePage { after }): Query<NodePage>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let list = || api::LIST_OPERATION_NODES.path([&operation]);
    let nodes = list().with("sort", "name").with("limit", ROWS).with_optional("after", after);
    let troubled = list().with("state", "failed").with("limit", ROWS);
    let order = client.get(api::GET_OPERATION.path([&operation]));
    let answers = tokio::try_join!(client.list(nodes), client.list(troubled), order);
    let (nodes, troubled, operation) = answers.map_err(failed)?;
    let rows: Vec<_> = nodes.rows.iter().map(node_row).collect();
    let failures: Vec<_> = troubled.rows.iter().map(node_row).collect();
    let title = format!("{} {}", operation.verb, operation.id);
    let state = operation.state;
    let content = html! {
        h1 { (operation.verb) " " code { (operation.id) } " " span id="state" data-live { (html::badge(class_of(state), state.as_str())) } }
        section.card id="facts" data-live aria-label="Summary" { (facts(&operation, &nodes.rows)) }
        @if actions::may_order(&client) && operation.pending > 0 { (cancel_form(&operation)) }
        section id="failed" data-live {
            @if !failures.is_empty() { h2 { "Failed" } (html::table(&HEADS, &failures, "")) }
        }
        h2 { "Nodes" }
        div id="rows" data-live {
            (html::table(&HEADS, &rows, "It has no node."))
            @if let Some(next) = &nodes.next {
                p { a.button href=(format!("{PREFIX}/operations/{}?after={}", operation.id, encoded(next))) { "Next page" } }
            }
        }
    };
    Ok(Page { client: &client, title, nav_path: "/operations", content }.answer(&headers))
}

/// Columns of the nodes of an order.
const HEADS: [&str; 6] = ["Node", "State", "Started", "Confirmed", "Finished", "Reason"];

/// Returns the colour class of a state.
fn class_of(state: OperationState) -> &'static str {
    match state {
        OperationState::Running => "busy",
        OperationState::Done => "good",
        OperationState::Failed => "bad",
        OperationState::Cancelled => "idle",
    }
}

fn facts(operation: &OperationView, nodes: &[NodeOperationView]) -> Markup {
    let progress = progress_of(operation);
    html::facts(&[
        ("Progress", html! { (progress::bar(progress)) (progress.words()) }),
        ("Ends", estimated_end(operation, nodes).map(time).unwrap_or_default()),
        ("Accepted", time(operation.accepted_at)),
        ("By", plain(&operation.by.principal)),
        ("Reason", maybe(operation.by.reason.as_ref())),
    ])
}

/// Returns the time at which an order ends if the other nodes take as long as the finished ones.
/// `None` before a node has finished, and for an order whose nodes are not all listed.
fn estimated_end(operation: &OperationView, nodes: &[NodeOperationView]) -> Option<Timestamp> {
    let total = u32::try_from(nodes.len()).ok().filter(|total| *total == operation.nodes)?;
    let finished: Vec<_> = nodes.iter().filter_map(|node| node.finished_at).collect();
    let newest = finished.iter().max().filter(|_| operation.state == OperationState::Running)?;
    let count = u32::try_from(finished.len()).ok().filter(|count| *count > 0)?;
    let took = newest.since(operation.accepted_at).as_secs_f64();
    let whole = took * f64::from(total) / f64::from(count);
    Some(operation.accepted_at.after(Duration::try_from_secs_f64(whole).ok()?))
}

/// Renders the form that cancels the nodes that have not started.
fn cancel_form(operation: &OperationView) -> Markup {
    html! {
        details.menu {
            summary { "Cancel…" }
            form.stack.panel method="post" action=(format!("{PREFIX}/operations/{}/cancel", operation.id)) {
                p { (operation.pending) " of " (operation.nodes) " nodes have not started: only these are cancelled." }
                button.danger { "Cancel " (operation.pending) " pending" }
            }
        }
    }
}

fn node_row(record: &NodeOperationView) -> Vec<Markup> {
    let id = record.node.to_string();
    // A failed order is explained by the boot of its node.
    let tab = if record.state == NodeOperationState::Failed { "?tab=boot" } else { "" };
    let name = html! {
        a href=(format!("{PREFIX}/nodes/{id}{tab}")) { (display_text(&record.name)) }
        @if id != record.name { " " (html::id_in_brackets(&id)) }
    };
    let class = match record.state {
        NodeOperationState::Pending | NodeOperationState::Cancelled => "idle",
        NodeOperationState::Running => "busy",
        NodeOperationState::Done => "good",
        NodeOperationState::Failed => "bad",
    };
    let at = |at: Option<_>| at.map(time).unwrap_or_default();
    vec![
        name,
        html::badge(class, record.state.as_str()),
        at(record.started_at),
        at(record.confirmed_at),
        at(record.finished_at),
        maybe(record.reason.as_ref().or(record.progress.as_ref())),
    ]
}

pub(crate) async fn cancel(
    client: ApiClient,
    Path(operation): Path<String>,
    request: Request<Body>,
) -> Answer {
    fields(request).await?;
    let order = api::CANCEL_OPERATION.path([&operation]).with_body(&());
    let done = client.order_untyped(order, &OrderNotes::default()).await;
    done.map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/operations/{}", encoded(&operation))))
}
