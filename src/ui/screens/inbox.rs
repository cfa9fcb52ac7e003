//! Machines that wait for approval.

use super::{
    Answer,
    actions::{self, target},
    nodes::ROWS,
};
use crate::{
    PREFIX,
    client::ApiClient,
    html::{self, Page, display_text},
};
use axum::http::HeaderMap;
use maud::{Markup, html};
use meshd_api::{NodeView, routes as api};

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let path = api::LIST_NODES
        .path([])
        .with("phase", "discovered")
        .with("sort", "discovered_at")
        .with("limit", ROWS);
    let waiting = client.list(path).await.map_err(|error| client.failed(&error))?;
    let content = html! {
        h1 { "Discovered machines" }
        p {
            "These machines requested a boot and wait for approval. They have no credentials. "
            "Compare serial number and MAC address with the sticker on the machine."
        }
        @if waiting.rows.is_empty() {
            div.alert.good { "No machines wait for approval." }
        } @else {
            form method="post" action=(format!("{PREFIX}/actions/preview")) {
                @if actions::may_order(&client) {
                    div.actions {
                        button.main name="action" value="approve" { "Approve…" }
                        button name="action" value="reject" { "Reject…" }
                        button name="action" value="assign-profile" { "Assign profile…" }
                        button name="action" value="label" { "Label…" }
                    }
                }
                div.scroll tabindex="0" role="group" aria-label="Discovered machines" {
                    table {
                        thead { tr {
                            th scope="col" { input type="checkbox" data-all="node" aria-label="Select all machines"; }
                            @for head in ["Name", "Model", "Serial number", "MAC address", "Segment", "Switch port", "Profile", "Last seen", "Conditions"] { th scope="col" { (head) } }
                        } }
                        tbody id="rows" data-live { @for node in &waiting.rows { (row(node)) } }
                    }
                }
            }
        }
        h2 { "Approve machines by rule" }
        p {
            "A rule in site.toml approves machines by serial number, MAC address or switch port; "
            "see the page “Enrol machines” of the documentation. "
        }
    };
    Ok(Page { client: &client, title: "Inbox".to_owned(), nav_path: "/inbox", content }
        .answer(&headers))
}

/// Circuit ID and remote ID, as the relay reports them.
fn switch_port(node: &NodeView) -> String {
    [&node.circuit_id, &node.remote_id]
        .into_iter()
        .flatten()
        .cloned()
        .collect::<Vec<_>>()
        .join(" · ")
}

fn row(node: &NodeView) -> Markup {
    html! {
        tr {
            td { input type="checkbox" name="node" value=(target(node)) aria-label=(format!("Select {}", display_text(&node.name))); }
            td { (html::node_link(&node.id.to_string(), &node.name)) }
            td { (html::plain(&node.model)) }
            td { (html::code(&node.serial)) }
            td { (html::code(node.mac)) }
            td { (html::maybe(node.segment.as_ref())) }
            td { (html::plain(switch_port(node))) }
            td { (node.profile) }
            td { (html::time(node.last_seen)) }
            td.list { @for condition in &node.conditions { (html::badge("warn", condition.kind.as_str())) " " } }
        }
    }
}
