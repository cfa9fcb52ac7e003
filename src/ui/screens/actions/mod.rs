//! Orders: preview, confirmation, result for each node.
//!
//! | module | content |
//! | --- | --- |
//! | `blast_radius` | the VMs, containers, tasks and disks that an order may cost |
//! | `catalog` | the orders that apply to several nodes |
//! | `confirmation` | preview and result of an order to several nodes |
//! | `creation_form` | the frame of the forms that create an object, and their inputs |
//! | `create_vm` | the form for a new VM |
//! | `inputs` | inputs of the orders, and the requests that they become |
//! | `machine` | the facts by which a person recognises a machine |
//! | `menu` | the menu of a node |
//! | `one_node` | orders that only one node takes |
//! | `origin` | the page from which an order was given |
//! | `run_container` | the form that runs a container |
//! | `run_task` | the form that runs a task |

mod blast_radius;
mod catalog;
pub(super) mod confirmation;
pub(super) mod create_vm;
mod creation_form;
pub(super) mod inputs;
pub(super) mod machine;
pub(super) mod menu;
pub(super) mod one_node;
pub(super) mod origin;
pub(super) mod run_container;
pub(super) mod run_task;

use super::Answer;
use crate::{
    client::{ApiClient, ApiError, OrderNotes},
    form::Fields,
    html::display_text,
};
use axum::response::Response;
use catalog::ACTIONS;
use maud::{Markup, html};
use meshd_api::{BulkTarget, NodeView, routes as api};
use meshd_trust::Role;
use meshd_types::hex;

/// Returns true if the user's role permits orders.
pub(super) fn may_order(client: &ApiClient) -> bool {
    client.caller.role >= Role::Operator
}

/// Returns the value of a node's checkbox: ID, displayed revision, and name.
pub(super) fn target(node: &NodeView) -> String {
    format!("{}~{}~{}", node.id, node.revision, display_text(&node.name))
}

/// Maximum number of nodes in a form.
const MAX_NODES: usize = 1000;

/// Renders the choice of one node of the site. `none` describes the effect of no choice.
async fn node_choice(client: &ApiClient, chosen: &str, none: &str) -> Result<Markup, Response> {
    let nodes =
        client.list(api::LIST_NODES.path([]).with("sort", "name").with("limit", MAX_NODES)).await;
    let nodes = nodes.map_err(|error| client.failed(&error))?;
    Ok(html! {
        label for="node" { "Node" }
        select id="node" name="node" {
            option value="" { (none) }
            @for node in &nodes.rows {
                @let id = node.id.to_string();
                option value=(id) selected[chosen == id] { (display_text(&node.name)) " (" (id) ")" }
            }
        }
    })
}

/// Renders buttons for every action except those in `without`, which have separate forms on the
/// page.
pub(super) fn bar(without: &[&str]) -> Markup {
    html! {
        div.actions role="group" aria-label="Actions for selected nodes" {
            @for action in ACTIONS.iter().filter(|action| !without.contains(&action.word().as_str())) {
                button name="action" value=(action.word()) { (action.title) "…" }
            }
        }
    }
}

/// A selected node.
pub(super) struct Chosen<'f> {
    pub(super) value: &'f str,
    pub(super) target: BulkTarget,
    pub(super) name: &'f str,
}

pub(super) fn read_selection(fields: &Fields) -> Result<Vec<Chosen<'_>>, ApiError> {
    let read = |value| {
        let mut parts = str::splitn(value, 3, '~');
        let parts = (parts.next(), parts.next(), parts.next());
        let (Some(id), Some(revision), Some(name)) = parts else { return None };
        Some(Chosen {
            value,
            target: BulkTarget { id: id.parse().ok()?, revision: Some(revision.to_owned()) },
            name,
        })
    };
    let nodes: Option<Vec<_>> = fields.all("node").map(read).collect();
    let nodes = nodes.ok_or_else(|| {
        ApiError::bad_request("the form contains an invalid node", "open the list anew")
    })?;
    if nodes.is_empty() {
        return Err(ApiError::bad_request("no node is selected", "select at least one node"));
    }
    Ok(nodes)
}

/// Renders the idempotency key of a form.
pub(super) fn key_input(client: &ApiClient) -> Markup {
    html! { input type="hidden" name="key" value=(hex(&(client.environment.random)())); }
}

/// Renders the checkbox that permits the loss of running work. Without it, meshd refuses an order
/// that would end work.
pub(super) fn force_box() -> Markup {
    html! { label { input type="checkbox" name="force" value="1"; " Force: VMs, containers and tasks of the node are lost" } }
}

pub(super) fn notes(fields: &Fields) -> OrderNotes {
    let reason = fields.text("reason").to_owned();
    let key = fields.text("key").to_owned();
    OrderNotes { reason, force: fields.is_ticked("force"), key }
}

/// Returns `1 node` or `7 nodes`.
pub(super) fn count_text(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}
