//! Operations: orders to nodes with the state of each node, and all unfinished work of the site.

use super::{Answer, actions};
use crate::{
    PREFIX,
    client::{ApiClient, OrderNotes, encoded},
    html::{self, Page, display_text, maybe, plain, time},
    names::NodeNames,
    request_checks::{fields, redirect},
};
use axum::{
    body::Body,
    extract::{Path, Query},
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{ActivityView, NodeOperationView, OperationView, routes as api};
use meshd_model::{
    activities::{ActivityState, ObjectKind},
    operations::OperationState,
};
use serde::Deserialize;

/// Rows of one page.
const ROWS: usize = 100;

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let failed = |error| client.failed(&error);
    let operations = client
        .list(api::LIST_OPERATIONS.path([]).with("sort", "-accepted_at").with("limit", ROWS))
        .await;
    let operations = operations.map_err(failed)?;
    let found = client.get(api::LIST_ACTIVITIES.path([])).await.map_err(failed)?;
    let names = client.node_names().await.map_err(failed)?;
    let orders: Vec<_> = operations.rows.iter().map(operation_row).collect();
    let rows: Vec<_> = found.activities.iter().map(|activity| row(activity, &names)).collect();
    let content = html! {
        h1 { "Operations" }
        div id="rows" data-live {
            h2 { "In progress" }
            (html::table(
                &["State", "Kind", "Object", "Requested", "Since", "Progress", "Reason", "Node"],
                &rows,
                "No unfinished operations.",
            ))
            @if found.rest > 0 { p.quiet { (found.rest) " more are not shown." } }
            h2 { "Orders to nodes" }
            (html::table(&["Order", "Verb", "State", "Nodes", "Accepted", "By"], &orders, "No order is on record."))
        }
        p.quiet { "Requested: not confirmed by a node. Accepted: a node executes it. Failed: it is retried, or an operator must act." }
    };
    Ok(Page { client: &client, title: "Operations".to_owned(), nav_path: "/operations", content }
        .answer(&headers))
}

fn badge(state: OperationState) -> Markup {
    let class = match state {
        OperationState::Running => "busy",
        OperationState::Done => "good",
        OperationState::Failed => "bad",
        OperationState::Cancelled => "idle",
    };
    html::badge(class, state.as_str())
}

fn operation_row(operation: &OperationView) -> Vec<Markup> {
    let link =
        html! { a href=(format!("{PREFIX}/operations/{}", operation.id)) { (operation.id) } };
    vec![
        link,
        plain(&operation.verb),
        badge(operation.state),
        plain(counts(operation)),
        time(operation.accepted_at),
        plain(operation.by.principal.to_string()),
    ]
}

/// Number of nodes in each state, without zeros.
fn counts(operation: &OperationView) -> String {
    let counts = [
        (operation.pending, "pending"),
        (operation.running, "running"),
        (operation.done, "done"),
        (operation.failed, "failed"),
        (operation.cancelled, "cancelled"),
    ];
    let words = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"));
    words.collect::<Vec<_>>().join(", ")
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
    let nodes =
        api::LIST_OPERATION_NODES.path([&operation]).with("sort", "name").with("limit", ROWS);
    let nodes = client.list(nodes.with_optional("after", after)).await.map_err(failed)?;
    let operation = client.get(api::GET_OPERATION.path([&operation])).await.map_err(failed)?;
    let rows: Vec<_> = nodes.rows.iter().map(node_row).collect();
    let title = format!("{} {}", operation.verb, operation.id);
    let content = html! {
        h1 { "Operation " (operation.id) " " (badge(operation.state)) }
        div id="rows" data-live {
            (html::table(
                &["Order", "Verb", "State", "Nodes", "Accepted", "By"],
                &[operation_row(&operation)],
                "",
            ))
            (html::table(&["Node", "State", "Started", "Confirmed", "Finished", "Reason"], &rows, "It has no node."))
            @if let Some(next) = &nodes.next {
                p { a href=(format!("{PREFIX}/operations/{}?after={}", operation.id, encoded(next))) { "Next page" } }
            }
        }
        @if actions::may_order(&client) && operation.pending > 0 {
            form.inline method="post" action=(format!("{PREFIX}/operations/{}/cancel", operation.id)) {
                button.danger { "Cancel " (operation.pending) " pending" }
            }
        }
        p.quiet { "Only nodes that have not started can be cancelled." }
    };
    Ok(Page { client: &client, title, nav_path: "/operations", content }.answer(&headers))
}

fn node_row(record: &NodeOperationView) -> Vec<Markup> {
    let id = record.node.to_string();
    let name = html! {
        a href=(format!("{PREFIX}/nodes/{id}")) { (display_text(&record.name)) }
        @if id != record.name { " " (html::id_in_brackets(&id)) }
    };
    let at = |at: Option<_>| at.map(time).unwrap_or_default();
    vec![
        name,
        plain(record.state.as_str()),
        at(record.started_at),
        at(record.confirmed_at),
        at(record.finished_at),
        maybe(record.reason.as_ref()),
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

fn row(activity: &ActivityView, names: &NodeNames) -> Vec<Markup> {
    let class = match activity.state {
        ActivityState::Failed => "bad",
        ActivityState::Requested => "warn",
        ActivityState::Accepted => "busy",
    };
    vec![
        html::badge(class, activity.state.as_str()),
        plain(activity.object.as_str()),
        object(activity),
        plain(&activity.request),
        activity.since.map(time).unwrap_or_default(),
        plain(&activity.progress),
        html::maybe(activity.reason.as_ref()),
        names.maybe_link(activity.node),
    ]
}

fn object(activity: &ActivityView) -> Markup {
    let (id, name) = (encoded(&activity.id), display_text(&activity.name));
    let page = match activity.object {
        ObjectKind::Node => format!("/nodes/{id}"),
        ObjectKind::Vm => format!("/vms/{id}"),
        ObjectKind::Task => format!("/tasks/{id}"),
        ObjectKind::Slot => "/slots".to_owned(),
        ObjectKind::Machine => return plain(name),
    };
    // The UUID of a VM would push the other columns away; the name of a VM is unique.
    let has_short_id = activity.object == ObjectKind::Node && activity.id != activity.name;
    html! { a href=(format!("{PREFIX}{page}")) { (name) } @if has_short_id { " " (html::id_in_brackets(&activity.id)) } }
}
