//! Unfinished operations: the request, its start time, its state, and the reason for a delay.

use super::Answer;
use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    html::{self, Page, display_text, plain, time},
    names::NodeNames,
};
use axum::http::HeaderMap;
use maud::{Markup, html};
use meshd_api::{OperationView, routes as api};
use meshd_model::operations::{ObjectKind, OperationState};

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let found = client.get(api::LIST_OPERATIONS.path([])).await.map_err(|error| client.failed(&error))?;
    let names = client.node_names().await.map_err(|error| client.failed(&error))?;
    let rows: Vec<_> = found.operations.iter().map(|operation| row(operation, &names)).collect();
    let content = html! {
        h1 { "Operations" }
        div id="rows" data-live {
            (html::table(
                &["State", "Kind", "Object", "Requested", "Since", "Progress", "Reason", "Node"],
                &rows,
                "No unfinished operations.",
            ))
            @if found.rest > 0 { p.quiet { (found.rest) " more are not shown." } }
        }
        p.quiet { "Requested: not confirmed by a node. Accepted: a node executes it. Failed: it is retried, or an operator must act." }
    };
    Ok(Page { client: &client, title: "Operations".to_owned(), nav_path: "/operations", content }.answer(&headers))
}

fn row(operation: &OperationView, names: &NodeNames) -> Vec<Markup> {
    let class = match operation.state {
        OperationState::Failed => "bad",
        OperationState::Requested => "warn",
        OperationState::Accepted => "busy",
    };
    vec![
        html::badge(class, operation.state.as_str()),
        plain(operation.object.as_str()),
        object(operation),
        plain(&operation.request),
        operation.since.map(time).unwrap_or_default(),
        plain(&operation.progress),
        html::maybe(operation.reason.as_ref()),
        names.maybe_link(operation.node),
    ]
}

fn object(operation: &OperationView) -> Markup {
    let (id, name) = (encoded(&operation.id), display_text(&operation.name));
    let page = match operation.object {
        ObjectKind::Node => format!("/nodes/{id}"),
        ObjectKind::Vm => format!("/vms/{id}"),
        ObjectKind::Task => format!("/tasks/{id}"),
        ObjectKind::Slot => "/slots".to_owned(),
        ObjectKind::Machine => return plain(name),
    };
    // The UUID of a VM would push the other columns away; the name of a VM is unique.
    let has_short_id = operation.object == ObjectKind::Node && operation.id != operation.name;
    html! { a href=(format!("{PREFIX}{page}")) { (name) } @if has_short_id { " " (html::id_in_brackets(&operation.id)) } }
}
