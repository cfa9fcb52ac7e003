//! Orders: preview, confirmation, result for each node.
//!
//! | module | content |
//! | --- | --- |
//! | `creation_form` | the frame of both forms that create an object |
//! | `create_vm` | the form for a new VM |
//! | `machine` | the facts by which a person recognises a machine |
//! | `one_node` | orders that only one node takes |
//! | `run_task` | the form that runs a task |

pub(super) mod create_vm;
mod creation_form;
mod machine;
pub(super) mod one_node;
pub(super) mod run_task;

use super::Answer;
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, OrderNotes},
    form::Fields,
    html::{self, Page, display_text},
    request_checks::fields,
};
use axum::{
    body::Body,
    http::{HeaderMap, Request},
    response::Response,
};
use maud::{Markup, html};
use meshd_api::{
    Approve, AssignProfile, BootOnce, BulkNode, BulkRequest, BulkTarget, ChangeVars, Drain,
    DrainPolicy, NodeView, Pin, PowerOrder, ProfileView,
    routes::{self as api, BulkPost},
};
use meshd_trust::Role;
use meshd_types::{ParseError, hex};
use serde_json::{Value, json};

/// Input of an action in addition to its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActionInput {
    Nothing,
    /// Checkbox: the node was moved to another port.
    Moved,
    Profile,
    Drain,
    /// What the BMC does.
    Power,
    /// `key=value` and `key-`, separated by blanks.
    Labels,
    /// `key=value` and `key-`, one per line.
    Variables,
    /// Checkbox: unpin instead.
    Pin,
    /// Profile and kernel arguments of the next boot.
    Once,
}

/// An order that applies to several nodes.
struct Action {
    route: BulkPost,
    title: &'static str,
    /// Effect of the action, shown before confirmation.
    effect: &'static str,
    input: ActionInput,
    /// True if the action can end work or lose data.
    is_dangerous: bool,
}

impl Action {
    /// As the API and the command line call it.
    fn word(&self) -> String {
        self.route.verb().to_string()
    }
}

const fn action(
    route: BulkPost,
    title: &'static str,
    input: ActionInput,
    effect: &'static str,
) -> Action {
    Action { route, title, effect, input, is_dangerous: false }
}

const fn dangerous(
    route: BulkPost,
    title: &'static str,
    input: ActionInput,
    effect: &'static str,
) -> Action {
    Action { route, title, effect, input, is_dangerous: true }
}

/// All actions, in the order of a node's lifecycle.
const ACTIONS: [Action; 16] = [
    action(
        api::APPROVE_NODES,
        "Approve",
        ActionInput::Moved,
        "Takes effect immediately: a waiting machine receives its credentials now. Alarms of a known node are acknowledged.",
    ),
    dangerous(
        api::REJECT_NODES,
        "Reject",
        ActionInput::Nothing,
        "Boots of the machine are refused.",
    ),
    action(
        api::ASSIGN_NODES_PROFILE,
        "Assign profile",
        ActionInput::Profile,
        "The node boots this profile from its next boot on.",
    ),
    dangerous(
        api::REBOOT_NODES,
        "Reboot",
        ActionInput::Nothing,
        "The node reboots now. The order is refused while VMs or tasks run on it, unless it is forced.",
    ),
    dangerous(
        api::POWER_NODES,
        "Power",
        ActionInput::Power,
        "The BMC of the node switches its power. The order is done when meshd has seen the effect.",
    ),
    dangerous(
        api::DRAIN_NODES,
        "Drain",
        ActionInput::Drain,
        "The node takes no new work, and enters maintenance when its work has ended.",
    ),
    dangerous(
        api::START_NODES_MAINTENANCE,
        "Maintenance",
        ActionInput::Nothing,
        "The node leaves service now.",
    ),
    action(api::RESUME_NODES, "Resume", ActionInput::Nothing, "The node returns to service."),
    action(api::LABEL_NODES, "Label", ActionInput::Labels, "Labels are set and removed."),
    action(
        api::CHANGE_NODES_VARIABLES,
        "Set variables",
        ActionInput::Variables,
        "Overlays read the variables when the next boot is rendered.",
    ),
    action(
        api::SET_NODES_BOOT_ONCE,
        "Boot once",
        ActionInput::Once,
        "The order changes only the next boot; the node keeps its profile.",
    ),
    action(
        api::PIN_NODES,
        "Pin",
        ActionInput::Pin,
        "The node boots its running generation, regardless of its profile, until it is unpinned.",
    ),
    action(
        api::RUN_NODES_CHECKS,
        "Run readiness checks",
        ActionInput::Nothing,
        "The agent of the node runs its checks now.",
    ),
    dangerous(
        api::QUARANTINE_NODES,
        "Quarantine",
        ActionInput::Nothing,
        "The node has no link until it is released.",
    ),
    action(api::RELEASE_NODES, "Release", ActionInput::Nothing, "The node may boot again."),
    dangerous(
        api::REMOVE_NODES,
        "Remove",
        ActionInput::Nothing,
        "The node loses its link, and its record is deleted.",
    ),
];

fn find(word: &str) -> Result<&'static Action, ApiError> {
    let action = ACTIONS.iter().find(|action| action.word() == word);
    action.ok_or_else(|| {
        ApiError::bad_request("choose an action", "go back and press one of the buttons")
    })
}

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
struct Chosen<'f> {
    value: &'f str,
    target: BulkTarget,
    name: &'f str,
}

fn read_selection(fields: &Fields) -> Result<Vec<Chosen<'_>>, ApiError> {
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

/// Shows the effect of an action, and requests its input.
pub(crate) async fn preview(
    client: ApiClient,
    headers: HeaderMap,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let failed = |error| client.failed(&error);
    let action = find(fields.text("action")).map_err(failed)?;
    let nodes = read_selection(&fields).map_err(failed)?;
    let profiles: Vec<ProfileView> = match action.input {
        ActionInput::Profile | ActionInput::Once => {
            client.get(api::LIST_PROFILES.path([])).await.map_err(failed)?
        }
        _ => Vec::new(),
    };
    let compared = machine::to_compare(&client, action).await.map_err(failed)?;
    let content = html! {
        h1 { (action.title) }
        p { (action.effect) }
        form.stack method="post" action=(format!("{PREFIX}/actions/run")) {
            input type="hidden" name="action" value=(action.word());
            (key_input(&client))
            ul { @for node in &nodes {
                li { (display_text(node.name)) " " (html::id_in_brackets(&node.target.id.to_string()))
                    @for machine in compared.iter().filter(|machine| machine.id == node.target.id) { (machine.facts()) }
                    input type="hidden" name="node" value=(node.value);
                }
            } }
            (input_fields(action, &profiles))
            (html::reason_input("reason"))
            // A profile may take devices from running VMs.
            @if action.is_dangerous || matches!(action.input, ActionInput::Profile | ActionInput::Once) { (force_box()) }
            div.actions {
                button class=(if action.is_dangerous { "danger" } else { "main" }) { (action.title) " " (nodes.len()) @if nodes.len() == 1 { " node" } @else { " nodes" } }
                a.button href=(format!("{PREFIX}/nodes")) { "Cancel" }
            }
        }
        p.quiet { "No node is changed if one of them changed since the list was shown." }
    };
    Ok(Page { client: &client, title: action.title.to_owned(), nav_path: "/nodes", content }
        .answer(&headers))
}

/// Renders the idempotency key of a form.
fn key_input(client: &ApiClient) -> Markup {
    html! { input type="hidden" name="key" value=(hex(&(client.environment.random)())); }
}

/// Renders the checkbox that permits the loss of running work. Without it, meshd refuses an order
/// that would end work.
pub(super) fn force_box() -> Markup {
    html! { label { input type="checkbox" name="force" value="1"; " Force: VMs and tasks of the node are lost" } }
}

fn input_fields(action: &Action, profiles: &[ProfileView]) -> Markup {
    html! {
        @match action.input {
            ActionInput::Nothing => {}
            ActionInput::Moved => label { input type="checkbox" name="moved" value="1"; " The machine was moved: forget its relay port" }
            ActionInput::Profile => {
                label for="profile" { "Profile" }
                select id="profile" name="profile" { @for profile in profiles { option { (profile.name) } } }
            }
            ActionInput::Pin => label { input type="checkbox" name="off" value="1"; " Unpin: boot the profile" }
            ActionInput::Once => {
                label for="profile" { "Profile of the next boot" }
                select id="profile" name="profile" {
                    option value="" { "its own" }
                    @for profile in profiles { option { (profile.name) } }
                }
                label for="kernel_args" { "Additional kernel arguments; -NAME removes one" }
                input id="kernel_args" name="kernel_args" maxlength="500" placeholder="debug -quiet";
                label { input type="checkbox" name="clear" value="1"; " Cancel the override of the next boot" }
            }
            ActionInput::Drain => {
                label for="workloads" { "Running work" }
                select id="workloads" name="workloads" {
                    option value="wait" { "wait for its end" }
                    option value="stop" { "stop it" }
                }
            }
            ActionInput::Power => {
                label for="power" { "Power" }
                select id="power" name="power" {
                    option value="on" { "on" }
                    option value="off" { "off, after a shutdown" }
                    option value="cycle" { "cycle" }
                    option value="reset" { "reset" }
                }
            }
            ActionInput::Labels => {
                label for="labels" { "Labels to set (key=value) and to remove (key-)" }
                input id="labels" name="labels" required placeholder="rack=a feed=2 spare-";
            }
            ActionInput::Variables => {
                label for="variables" { "Variables, one a line: NAME=VALUE sets, NAME- removes. A value is true, 8, [a,b] or text; \"8\" is text" }
                textarea.code id="variables" name="variables" rows="5" maxlength="10000" spellcheck="false" required {}
            }
        }
    }
}

/// Returns the body of the order for one node.
fn body(action: &Action, fields: &Fields) -> Result<Value, ApiError> {
    let bad = |text: &str| ApiError::bad_request(text, "go back and correct it");
    let value = match action.input {
        ActionInput::Nothing => Ok(Value::Null),
        ActionInput::Moved => serde_json::to_value(Approve { moved: fields.is_ticked("moved") }),
        ActionInput::Profile => {
            serde_json::to_value(AssignProfile { profile: fields.text("profile").to_owned() })
        }
        ActionInput::Drain => {
            let workloads = if fields.text("workloads") == "stop" {
                DrainPolicy::Stop
            } else {
                DrainPolicy::Wait
            };
            serde_json::to_value(Drain { workloads, grace_s: None })
        }
        ActionInput::Power => {
            let action = fields.text("power").parse();
            let action = action.map_err(|error: ParseError| bad(&error.to_string()))?;
            serde_json::to_value(PowerOrder { action, now: false })
        }
        ActionInput::Pin => {
            serde_json::to_value(Pin { generation: None, off: fields.is_ticked("off") })
        }
        ActionInput::Once => serde_json::to_value(boot_once(fields)),
        ActionInput::Labels => Ok(labels(fields.text("labels"))),
        ActionInput::Variables => {
            serde_json::to_value(variables(fields.text("variables")).map_err(|error| bad(&error))?)
        }
    };
    value.map_err(|error| bad(&error.to_string()))
}

/// Parses the fields of a form about the next boot.
fn boot_once(fields: &Fields) -> BootOnce {
    BootOnce {
        profile: Some(fields.text("profile").to_owned()).filter(|profile| !profile.is_empty()),
        kernel_args: fields.text("kernel_args").split_whitespace().map(str::to_owned).collect(),
        clear: fields.is_ticked("clear"),
    }
}

/// Parses `rack=a spare-` into the JSON of the API. The API checks keys and values.
fn labels(text: &str) -> Value {
    let (mut set, mut unset) = (serde_json::Map::new(), Vec::new());
    for word in text.split_whitespace() {
        match (word.split_once('='), word.strip_suffix('-')) {
            (Some((key, value)), _) => drop(set.insert(key.to_owned(), json!(value))),
            (None, Some(key)) => unset.push(json!(key)),
            (None, None) => drop(set.insert(word.to_owned(), json!(""))),
        }
    }
    json!({ "set": set, "unset": unset })
}

/// Parses variables in the syntax of the command line, one per line.
fn variables(text: &str) -> Result<ChangeVars, String> {
    let mut change = ChangeVars::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let wrong = |error: &dyn std::fmt::Display| format!("`{line}`: {error}");
        match (line.split_once('='), line.strip_suffix('-')) {
            (Some((name, value)), _) => {
                let name = name.trim().parse().map_err(|error| wrong(&error))?;
                change.set.insert(name, value.trim().parse().map_err(|error| wrong(&error))?);
            }
            (None, Some(name)) => change.unset.push(name.parse().map_err(|error| wrong(&error))?),
            (None, None) => return Err(wrong(&"write NAME=VALUE or NAME-")),
        }
    }
    Ok(change)
}

pub(super) fn notes(fields: &Fields) -> OrderNotes {
    let (reason, key) = (fields.text("reason").to_owned(), fields.text("key").to_owned());
    OrderNotes { reason, force: fields.is_ticked("force"), key }
}

fn outcome(result: &BulkNode) -> Markup {
    if let Some(error) = &result.error {
        return html! { (html::badge("bad", "refused")) " " (display_text(&error.message)) " " (html::hint(&error.hint)) };
    }
    html! {
        (html::badge("good", "done")) " "
        @if let Some(node) = &result.node { (html::phase(node.phase)) " " }
        @if let Some(report) = &result.report {
            @let class = if report.failures > 0 { "bad" } else if report.warnings > 0 { "warn" } else { "good" };
            (html::badge(class, &format!("{} of {} checks fail, {} warn", report.failures, report.checks.len(), report.warnings)))
        }
    }
}

/// Sends the order, and shows the result for each node.
pub(crate) async fn run(client: ApiClient, headers: HeaderMap, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    let failed = |error| client.failed(&error);
    let action = find(fields.text("action")).map_err(failed)?;
    let nodes = read_selection(&fields).map_err(failed)?;
    let order = body(action, &fields).map_err(failed)?;
    let request =
        BulkRequest::of_nodes(nodes.iter().map(|node| node.target.clone()).collect(), order);
    let done =
        client.order(action.route.path([]), &request, &notes(&fields)).await.map_err(failed)?;
    let name = |id| nodes.iter().find(|node| node.target.id == id).map_or("", |node| node.name);
    let row = |result: &BulkNode| {
        vec![html::node_link(&result.id.to_string(), name(result.id)), outcome(result)]
    };
    let rows: Vec<_> = done.results.iter().map(row).collect();
    // Its effect follows later.
    let is_followed = action.input == ActionInput::Power && done.failed == 0;
    let content = html! {
        h1 { (action.title) }
        @match done.failed {
            _ if !done.finished || is_followed => div.alert.good role="status" {
                "Accepted for " (nodes.len()) @if nodes.len() == 1 { " node." } @else { " nodes." } " It goes on in the background."
            }
            0 => div.alert.good role="status" { "Done for " (rows.len()) @if rows.len() == 1 { " node." } @else { " nodes." } }
            failed => div.alert.bad role="alert" { "Refused for " (failed) " of " (rows.len()) " nodes." }
        }
        @if done.finished && !is_followed { (html::table(&["Node", "Result"], &rows, "")) }
        @if let Some(id) = done.operation { p { a href=(format!("{PREFIX}/operations/{id}")) { "Operation " (id) } } }
        p { a href=(format!("{PREFIX}/nodes")) { "Nodes" } }
    };
    Ok(Page { client: &client, title: action.title.to_owned(), nav_path: "/nodes", content }
        .answer(&headers))
}
