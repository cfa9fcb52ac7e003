//! Machines that wait for approval.
//!
//! | module | content |
//! | --- | --- |
//! | `approval` | the form that approves machines |

pub(crate) mod approval;

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
    let total = waiting.total.unwrap_or(waiting.rows.len());
    let may_order = actions::may_order(&client);
    let content = html! {
        h1 { "Inbox" }
        p {
            "These machines requested a boot and wait for approval. They have no credentials. "
            "Compare serial number and MAC address with the sticker on the machine."
        }
        form method="post" action=(format!("{PREFIX}/actions/preview")) {
            div id="waiting" data-live {
                @if waiting.rows.is_empty() { (nothing_waits()) }
                @else {
                    @if may_order {
                        div.actions {
                            button.main name="action" value="approve" formaction=(format!("{PREFIX}/inbox/approve")) { "Approve…" }
                            button name="action" value="reject" { "Reject…" }
                        }
                    }
                    @if total > waiting.rows.len() { p.quiet { "The first " (waiting.rows.len()) " of " (total) " machines." } }
                    (machines(&waiting.rows, may_order))
                }
            }
        }
        h2 { "Approve machines by rule" }
        p {
            "A rule in site.toml approves machines by serial number, MAC address or switch port. "
            "See the page “Enrol machines” of the documentation. In a terminal: " code { "meshd machine import" } " defines machines before they boot."
        }
    };
    Ok(Page { client: &client, title: "Inbox".to_owned(), nav_path: "/inbox", content }
        .answer(&headers))
}

/// Renders the first step of an operator with an empty inbox.
fn nothing_waits() -> Markup {
    html! {
        div.alert.good { strong { "No machines wait for approval." }
            p { "Power on a machine that boots from the network of this site. It appears here within seconds." }
            p { "It does not appear? " a href=(format!("{PREFIX}/doctor")) { "Doctor" } " names what keeps machines from booting." }
        }
    }
}

fn machines(machines: &[NodeView], may_order: bool) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Discovered machines" {
            table {
                thead { tr {
                    @if may_order { th scope="col" { input type="checkbox" data-all="node" aria-label="Select all machines"; } }
                    @for head in ["Serial number", "Model", "MAC address", "Segment", "Switch port", "Profile", "Booted", "Conditions", "Name"] { th scope="col" { (head) } }
                } }
                tbody id="rows" { @for node in machines { (row(node, may_order)) } }
            }
        }
    }
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

fn row(node: &NodeView, may_order: bool) -> Markup {
    html! {
        tr {
            @if may_order { td { input type="checkbox" name="node" value=(target(node)) aria-label=(format!("Select {}", display_text(&node.name))); } }
            td { (html::code(&node.serial)) @if node.serial.is_empty() { span.quiet { "none" } } }
            td { (html::plain(&node.model)) }
            td { (html::code(node.mac)) }
            td { (html::maybe(node.segment.as_ref())) }
            td { (html::plain(switch_port(node))) }
            td { (node.profile) @if !node.assigned { span.quiet { " (default)" } } }
            td { (html::time(node.boot.as_ref().map_or(node.last_seen, |boot| boot.opened_at))) }
            td.list { @for condition in &node.conditions { (html::condition_badge(condition.kind)) " " } }
            td { (html::node_link(&node.id.to_string(), &node.name)) }
        }
    }
}
