//! The form that approves machines with their names, their profile and their labels.
//!
//! The form is checked as a whole before anything is changed. The approval comes last: a machine
//! whose settings are refused has no credentials yet.

use crate::{
    PREFIX,
    client::{ApiClient, ApiError, OrderNotes},
    form::Fields,
    html::{self, Page, display_text},
    request_checks::fields,
    screens::{
        Answer,
        actions::{
            self, Chosen,
            confirmation::OrderResult,
            count_text,
            inputs::{labels, profile_options},
            machine::Machine,
            origin::{back_link, previous_page},
        },
    },
};
use axum::{
    body::Body,
    http::{HeaderMap, Request, StatusCode},
    response::Response,
};
use maud::{Markup, html};
use meshd_api::{
    Approve, AssignProfile, BulkDone, BulkRequest, BulkTarget, NodeView, ProfileView, Rename,
    routes::{self as api, BulkPost},
};
use meshd_model::fleet::{LabelChange, MAX_LABELS};
use meshd_types::{Digest, NodeId, is_host_name, is_reserved_host_name};
use serde_json::Value;
use std::collections::BTreeSet;

const INBOX: &str = "/inbox";
/// Maximum number of machines of one form; the inbox shows as many.
const MAX_MACHINES: usize = 100;

/// The selected machines as they are now, and the names that are taken.
struct Inventory {
    nodes: Vec<NodeView>,
    profiles: Vec<ProfileView>,
}

impl Inventory {
    async fn load(client: &ApiClient) -> Result<Self, ApiError> {
        Ok(Inventory {
            nodes: client.get(api::LIST_NODES.path([])).await?,
            profiles: client.get(api::LIST_PROFILES.path([])).await?,
        })
    }

    fn node(&self, id: NodeId) -> Option<&NodeView> {
        self.nodes.iter().find(|node| node.id == id)
    }
}

/// Settings that the form contains.
struct Settings {
    /// Machines with another name than before.
    renames: Vec<(NodeId, String)>,
    /// `None` keeps the profiles.
    profile: Option<String>,
    /// `None` if no label changes.
    labels: Option<Value>,
}

/// Shows the form, or approves the machines of a submitted form.
pub(crate) async fn run(client: ApiClient, headers: HeaderMap, request: Request<Body>) -> Answer {
    let mut fields = fields(request).await?;
    let is_confirmed = fields.is_ticked("confirmed");
    if !is_confirmed && let Some(back) = previous_page(&headers) {
        fields.0.push(("back".to_owned(), back));
    }
    let nodes = actions::read_selection(&fields).map_err(|error| client.failed(&error))?;
    let shown = Form { fields: &fields, nodes: &nodes };
    if !is_confirmed {
        let inventory = Inventory::load(&client).await.map_err(|error| client.failed(&error))?;
        return Ok(shown.page(&client, &headers, &inventory, &[]));
    }
    let work = execute(client.clone(), fields.clone());
    let sent = client.sent_approvals.execute_once(digest(&client, &fields), work).await;
    let faults = match sent {
        Ok(Ok(done)) => {
            let result = OrderResult {
                title: "Approve",
                nodes: &nodes,
                done: &done,
                is_finished: done.finished,
                way_back: back_link(fields.text("back"), INBOX),
            };
            return Ok(result.page(&client, INBOX, &headers));
        }
        Ok(Err(error)) if error.status == StatusCode::UNAUTHORIZED => {
            return Err(client.failed(&error));
        }
        Ok(Err(error)) => vec![error],
        Err(faults) => faults,
    };
    let fresh = Inventory::load(&client).await.map_err(|error| client.failed(&error))?;
    Ok(shown.page(&client, &headers, &fresh, &faults))
}

/// Identifies a form: its session and everything that it contains, with its key.
fn digest(client: &ApiClient, fields: &Fields) -> Digest {
    let session = client.session.map(|session| session.to_string()).unwrap_or_default();
    let texts = fields.0.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
    Digest::of_fields(std::iter::once(session.as_bytes()).chain(texts))
}

/// Executes a submitted form. Returns its faults if nothing was changed, else the result.
async fn execute(
    client: ApiClient,
    fields: Fields,
) -> Result<Result<BulkDone, ApiError>, Vec<ApiError>> {
    let nodes = actions::read_selection(&fields).map_err(|error| vec![error])?;
    let inventory = Inventory::load(&client).await.map_err(|error| vec![error])?;
    let settings = check(&fields, &nodes, &inventory)?;
    Ok(approve(&client, &fields, &nodes, &inventory, &settings).await)
}

/// Returns the name of the input for the name of a machine.
fn name_field(id: NodeId) -> String {
    format!("name-{id}")
}

/// Checks the whole form. Returns each fault.
fn check(
    fields: &Fields,
    nodes: &[Chosen<'_>],
    inventory: &Inventory,
) -> Result<Settings, Vec<ApiError>> {
    let mut faults = Vec::new();
    let mut fault = |message: String, hint: &str| faults.push(ApiError::bad_request(message, hint));
    if nodes.len() > MAX_MACHINES {
        fault(format!("the form has {} machines", nodes.len()), "choose at most 100 machines");
    }
    let mut names = BTreeSet::new();
    let mut renames = Vec::new();
    for node in nodes {
        let id = node.target.id;
        let Some(now) = inventory.node(id) else {
            fault(format!("{id} is no longer there"), "open the inbox anew");
            continue;
        };
        if node.target.revision.as_ref() != Some(&now.revision) {
            let hint = "compare the machine again, then send the form";
            fault(format!("{} changed since the form was shown", display_text(&now.name)), hint);
        }
        let field = name_field(id);
        let typed = fields.text(&field);
        let is_unchanged = typed.is_empty() || typed == display_text(&now.name);
        let name = if is_unchanged { now.name.as_str() } else { typed };
        // Machines get their names one after another: the present name of another one is taken.
        let is_taken = |other: &NodeView| other.name == name && other.id != id;
        if name != now.name && (!is_host_name(name) || is_reserved(id, name)) {
            let hint = "use 1 to 63 letters a to z, digits and hyphens, and no name that means \
                        another machine, such as localhost";
            fault(format!("the name `{}` is not valid", display_text(name)), hint);
        } else if inventory.nodes.iter().any(is_taken) || !names.insert(name.to_owned()) {
            fault(format!("the name `{}` is taken", display_text(name)), "choose another name");
        } else if name != now.name {
            renames.push((id, name.to_owned()));
        }
    }
    let profile = Some(fields.text("profile")).filter(|profile| !profile.is_empty());
    if profile.is_some_and(|name| inventory.profiles.iter().all(|it| it.name.as_str() != name)) {
        fault("there is no such profile".to_owned(), "choose a profile of the list");
    }
    let labels = Some(fields.text("labels")).filter(|text| !text.is_empty()).map(labels);
    match labels.clone().map(serde_json::from_value::<LabelChange>) {
        Some(Err(error)) => {
            fault(format!("labels: {error}"), "write key=value, with blanks between");
        }
        Some(Ok(change)) => {
            for node in nodes.iter().filter_map(|node| inventory.node(node.target.id)) {
                let count = change.applied(&node.labels).len();
                if count > MAX_LABELS {
                    let name = display_text(&node.name);
                    fault(format!("{name} would have {count} labels"), "use at most 32");
                }
            }
        }
        None => {}
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Settings { renames, profile: profile.map(str::to_owned), labels })
}

/// Returns whether a name is reserved, or means another node by its ID.
fn is_reserved(id: NodeId, name: &str) -> bool {
    let other: Option<NodeId> = name.strip_prefix("node-").unwrap_or(name).parse().ok();
    is_reserved_host_name(name) || other.is_some_and(|other| other != id)
}

/// Changes the settings, then approves the machines.
async fn approve(
    client: &ApiClient,
    fields: &Fields,
    nodes: &[Chosen<'_>],
    before: &Inventory,
    settings: &Settings,
) -> Result<BulkDone, ApiError> {
    // The key of the form belongs to the approval.
    let notes = OrderNotes { key: String::new(), force: false, ..actions::notes(fields) };
    let ids: Vec<NodeId> = nodes.iter().map(|node| node.target.id).collect();
    let targets = match change_settings(client, &ids, before, settings, &notes).await {
        Ok(()) => current(client, &ids, before).await,
        Err(error) => Err(error),
    };
    let targets = targets.map_err(|mut error| {
        error.view.message.push_str("; no machine is approved, other settings may have changed");
        error
    })?;
    let order = to_json(&Approve { moved: fields.is_ticked("moved") })?;
    let request = BulkRequest::of_nodes(targets, order);
    client.order(api::APPROVE_NODES.path([]), &request, &actions::notes(fields)).await
}

async fn change_settings(
    client: &ApiClient,
    ids: &[NodeId],
    before: &Inventory,
    settings: &Settings,
    notes: &OrderNotes,
) -> Result<(), ApiError> {
    for (id, name) in &settings.renames {
        let rename = api::RENAME_NODE.path([id]).with_body(&Rename { name: name.clone() });
        client.order_untyped(rename, notes).await?;
    }
    if let Some(labels) = &settings.labels {
        let targets = current(client, ids, before).await?;
        change(client, &api::LABEL_NODES, &targets, labels, notes).await?;
    }
    if let Some(profile) = &settings.profile {
        let order = to_json(&AssignProfile { profile: profile.clone() })?;
        let targets = current(client, ids, before).await?;
        change(client, &api::ASSIGN_NODES_PROFILE, &targets, &order, notes).await?;
    }
    Ok(())
}

fn to_json(order: &impl serde::Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(order).map_err(|error| ApiError::bad_request(error.to_string(), ""))
}

/// Changes a setting of all machines.
async fn change(
    client: &ApiClient,
    route: &BulkPost,
    targets: &[BulkTarget],
    order: &Value,
    notes: &OrderNotes,
) -> Result<(), ApiError> {
    let request = BulkRequest::of_nodes(targets.to_vec(), order.clone());
    let done = client.order(route.path([]), &request, notes).await?;
    let refused = done.results.into_iter().find_map(|node| node.error);
    match refused {
        Some(view) => Err(ApiError { status: StatusCode::CONFLICT, view }),
        None if !done.finished => {
            let message = "a setting was not changed everywhere in time".to_owned();
            Err(ApiError::new(StatusCode::CONFLICT, "unfinished", message, "send the form again"))
        }
        None => Ok(()),
    }
}

/// Returns the machines with their present revisions. Fails if a machine is not the one that the
/// operator compared: its settings may differ, and nothing else.
async fn current(
    client: &ApiClient,
    ids: &[NodeId],
    before: &Inventory,
) -> Result<Vec<BulkTarget>, ApiError> {
    let nodes = client.get(api::LIST_NODES.path([])).await?;
    let mut targets = Vec::new();
    for id in ids {
        let node = nodes.iter().find(|node| node.id == *id);
        let is_same = |now: &NodeView, then: &NodeView| {
            let kinds = |node: &NodeView| -> Vec<_> {
                node.conditions.iter().map(|condition| condition.kind).collect()
            };
            let machine = |node: &NodeView| (node.serial.clone(), node.mac, node.phase);
            kinds(now) == kinds(then) && machine(now) == machine(then)
        };
        match node.filter(|node| before.node(*id).is_some_and(|then| is_same(node, then))) {
            Some(node) => {
                targets.push(BulkTarget { id: *id, revision: Some(node.revision.clone()) });
            }
            None => {
                let message = format!("{id} changed while the form was executed");
                let hint = "compare the machine again, then send the form";
                return Err(ApiError::new(StatusCode::CONFLICT, "changed", message, hint));
            }
        }
    }
    Ok(targets)
}

/// A submitted form and its machines.
struct Form<'f> {
    fields: &'f Fields,
    nodes: &'f [Chosen<'f>],
}

impl Form<'_> {
    /// Returns the page of the form. `faults` rejected the last submission; the inputs are kept.
    fn page(
        &self,
        client: &ApiClient,
        headers: &HeaderMap,
        inventory: &Inventory,
        faults: &[ApiError],
    ) -> Response {
        let fields = self.fields;
        let machines: Vec<_> =
            self.nodes.iter().filter_map(|node| inventory.node(node.target.id)).collect();
        let content = html! {
            h1 { "Approve " (count_text(machines.len())) }
            @for fault in faults { (html::refusal(fault)) }
            p { "Compare each machine with its sticker. The approval takes effect immediately: a waiting machine receives its credentials now." }
            form.stack.broad method="post" action=(format!("{PREFIX}/inbox/approve")) {
                input type="hidden" name="confirmed" value="1";
                input type="hidden" name="back" value=(fields.text("back"));
                (actions::key_input(client))
                @for node in &machines { (machine_inputs(node, fields)) }
                (common_inputs(fields, inventory))
                (html::reason_input("reason"))
                div.actions {
                    button.main { "Approve " (count_text(machines.len())) }
                    (back_link(fields.text("back"), INBOX))
                }
            }
            p.quiet { "Names, profile and labels come first: no machine is approved if one of them is refused, or if a machine changed." }
        };
        let page = Page { client, title: "Approve".to_owned(), nav_path: INBOX, content };
        let mut answer = page.answer(headers);
        if let Some(fault) = faults.first() {
            *answer.status_mut() = fault.status;
        }
        answer
    }
}

/// Renders the facts of a machine, and the input for its name.
fn machine_inputs(node: &NodeView, fields: &Fields) -> Markup {
    let field = name_field(node.id);
    let typed = Some(fields.text(&field)).filter(|name| !name.is_empty());
    html! {
        fieldset {
            legend { (display_text(&node.name)) " " (html::id_in_brackets(&node.id.to_string())) }
            input type="hidden" name="node" value=(actions::target(node));
            (Machine::of(node).facts())
            @for condition in &node.conditions {
                div.alert.warn { strong { (html::condition_with_name(condition.kind)) } p { (display_text(&condition.detail)) } }
            }
            label for=(field) { "Name" }
            input id=(field) name=(field) value=(typed.map_or_else(|| display_text(&node.name), display_text))
                maxlength="63" autocomplete="off" spellcheck="false";
        }
    }
}

fn common_inputs(fields: &Fields, inventory: &Inventory) -> Markup {
    html! {
        label for="profile" { "Profile" }
        select id="profile" name="profile" {
            option value="" { "as it is: the profile of the rule, of the import, or of the site" }
            (profile_options(&inventory.profiles, fields.text("profile")))
        }
        label for="labels" { "Labels to set (key=value) and to remove (key-)" }
        input id="labels" name="labels" value=(display_text(fields.text("labels"))) maxlength="500" placeholder="rack=a feed=2" autocomplete="off";
        label { input type="checkbox" name="moved" value="1" checked[fields.is_ticked("moved")]; " The machine was moved: forget its relay port" }
    }
}
