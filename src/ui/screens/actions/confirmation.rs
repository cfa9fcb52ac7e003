//! Preview of an order to several nodes, with what it may cost, and its result.

use super::{
    Chosen, blast_radius,
    catalog::{Action, ActionInput, find},
    count_text, force_box,
    inputs::{body, input_fields},
    key_input, machine, notes,
    origin::{back_link, previous_page},
    read_selection,
};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    form::Fields,
    html::{self, Page, display_text},
    request_checks::fields,
    screens::Answer,
};
use axum::{
    body::Body,
    http::{HeaderMap, Request, StatusCode},
    response::Response,
};
use maud::{Markup, html};
use meshd_api::{BulkDone, BulkNode, BulkRequest, ProfileView, routes as api};
use serde_json::Value;

/// Path of the page to which a result leads if the form does not name one.
const NODES: &str = "/nodes";

/// Shows the effect of an action, and requests its input.
pub(crate) async fn preview(
    client: ApiClient,
    headers: HeaderMap,
    request: Request<Body>,
) -> Answer {
    let mut fields = fields(request).await?;
    if fields.text("back").is_empty()
        && let Some(back) = previous_page(&headers)
    {
        fields.0.push(("back".to_owned(), back));
    }
    form(&client, &headers, &fields, None).await
}

/// Returns the form of an action. `error` rejected the last submission.
async fn form(
    client: &ApiClient,
    headers: &HeaderMap,
    fields: &Fields,
    error: Option<&ApiError>,
) -> Answer {
    let failed = |error| client.failed(&error);
    let action = find(fields.text("action")).map_err(failed)?;
    let nodes = read_selection(fields).map_err(failed)?;
    let profiles: Vec<ProfileView> = match action.input {
        ActionInput::Profile | ActionInput::Once => {
            client.get(api::LIST_PROFILES.path([])).await.map_err(failed)?
        }
        _ => Vec::new(),
    };
    let compared = machine::to_compare(client, action).await.map_err(failed)?;
    let radius = if action.may_cost_work() {
        Some(blast_radius::load(client, &nodes).await.map_err(failed)?)
    } else {
        None
    };
    let back = fields.text("back");
    let content = html! {
        h1 { (action.title) }
        @if let Some(error) = error { (html::refusal(error)) }
        p { (action.effect) }
        @if let Some(radius) = &radius { (radius.summary(nodes.len())) }
        form.stack method="post" action=(format!("{PREFIX}/actions/run")) {
            input type="hidden" name="action" value=(action.word());
            input type="hidden" name="back" value=(back);
            (key_input(client))
            ul.chosen { @for node in &nodes { li {
                (display_text(node.name)) " " (html::id_in_brackets(&node.target.id.to_string()))
                @for machine in compared.iter().filter(|machine| machine.id == node.target.id) { (machine.facts()) }
                @if let Some(radius) = &radius { (radius.of_node(node.target.id)) }
                input type="hidden" name="node" value=(node.value);
            } } }
            (input_fields(action, &profiles, fields))
            (html::reason_input("reason"))
            @if action.may_cost_work() { (force_box()) }
            @if wants_count(action, nodes.len()) { (count_input(nodes.len())) }
            div.actions {
                button class=(if action.is_dangerous { "danger" } else { "main" }) { (action.title) " " (count_text(nodes.len())) }
                (back_link(back, NODES))
            }
        }
        p.quiet { "No node is changed if one of them changed since the list was shown." }
    };
    let mut answer =
        Page { client, title: action.title.to_owned(), nav_path: NODES, content }.answer(headers);
    if let Some(error) = error {
        *answer.status_mut() = error.status;
    }
    Ok(answer)
}

/// True if an operator types the number of nodes before the order is given.
fn wants_count(action: &Action, nodes: usize) -> bool {
    action.is_dangerous && nodes > 1
}

fn count_input(nodes: usize) -> Markup {
    html! {
        label for="count" { "Number of nodes, to confirm: " (nodes) }
        input id="count" name="count" required inputmode="numeric" autocomplete="off" maxlength="6" pattern=(nodes);
    }
}

/// Sends the order, and shows the result for each node.
pub(crate) async fn run(client: ApiClient, headers: HeaderMap, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    let failed = |error| client.failed(&error);
    let action = find(fields.text("action")).map_err(failed)?;
    let nodes = read_selection(&fields).map_err(failed)?;
    let order = match checked_order(action, &fields, nodes.len()) {
        Ok(order) => order,
        Err(error) => return form(&client, &headers, &fields, Some(&error)).await,
    };
    let targets = nodes.iter().map(|node| node.target.clone()).collect();
    let request = BulkRequest::of_nodes(targets, order);
    match client.order(action.route.path([]), &request, &notes(&fields)).await {
        Ok(done) => {
            // The effect of an order to a BMC follows later.
            let is_followed = action.input == ActionInput::Power && done.failed == 0;
            let result = OrderResult {
                title: action.title,
                nodes: &nodes,
                done: &done,
                is_finished: done.finished && !is_followed,
                way_back: back_link(fields.text("back"), NODES),
            };
            Ok(result.page(&client, NODES, &headers))
        }
        Err(error) if error.status == StatusCode::UNAUTHORIZED => Err(client.failed(&error)),
        Err(error) => {
            let content = html! {
                h1 { (action.title) }
                (html::refusal(&error))
                p { (back_link(fields.text("back"), NODES)) }
            };
            let title = action.title.to_owned();
            let page = Page { client: &client, title, nav_path: NODES, content };
            let mut answer = page.answer(&headers);
            *answer.status_mut() = error.status;
            Ok(answer)
        }
    }
}

/// Returns the request of an order whose form is complete.
fn checked_order(action: &Action, fields: &Fields, nodes: usize) -> Result<Value, ApiError> {
    if wants_count(action, nodes) && fields.text("count") != nodes.to_string() {
        let message = format!("type the number of nodes: the order applies to {nodes}");
        return Err(ApiError::bad_request(
            message,
            "compare the list of nodes, then type the number",
        ));
    }
    body(action, fields)
}

/// The result of an order to several nodes.
pub(in crate::screens) struct OrderResult<'r> {
    pub(in crate::screens) title: &'r str,
    pub(in crate::screens) nodes: &'r [Chosen<'r>],
    pub(in crate::screens) done: &'r BulkDone,
    /// False if the effect of the order follows later.
    pub(in crate::screens) is_finished: bool,
    pub(in crate::screens) way_back: Markup,
}

impl OrderResult<'_> {
    pub(in crate::screens) fn page(
        &self,
        client: &ApiClient,
        nav_path: &'static str,
        headers: &HeaderMap,
    ) -> Response {
        let done = self.done;
        let name =
            |id| self.nodes.iter().find(|node| node.target.id == id).map_or("", |node| node.name);
        let row = |result: &BulkNode| {
            let name = result.node.as_ref().map_or(name(result.id), |node| node.name.as_str());
            vec![html::node_link(&result.id.to_string(), name), outcome(result)]
        };
        let rows: Vec<_> = done.results.iter().map(row).collect();
        let content = html! {
            h1 { (self.title) }
            @match done.failed {
                _ if !self.is_finished => div.alert.good role="status" {
                    "Accepted for " (count_text(self.nodes.len())) ". It goes on in the background."
                }
                0 => div.alert.good role="status" { "Done for " (count_text(rows.len())) "." }
                failed => div.alert.bad role="alert" { "Refused for " (failed) " of " (rows.len()) " nodes." }
            }
            @if self.is_finished { (html::table(&["Node", "Result"], &rows, "")) }
            div.actions {
                (self.way_back)
                @if let Some(id) = done.operation { a.button href=(format!("{PREFIX}/operations/{id}")) { "Operation " (id) } }
            }
        };
        Page { client, title: self.title.to_owned(), nav_path, content }.answer(headers)
    }
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
