//! Events and the audit log, newest first.

use super::Answer;
use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    form::Fields,
    html::{self, Page, code, plain, time},
    names::NodeNames,
};
use axum::{extract::Query, http::HeaderMap};
use maud::{Markup, html};
use meshd_api::{
    AuditView, EventView,
    routes::{self as api, GetPath},
};

/// Number of rows per page.
const ROWS: usize = 100;

/// Converts the query of a page to a query of the API.
fn with_filters<R>(path: GetPath<R>, query: &Fields, names: &[&str]) -> GetPath<R> {
    let path = path.with("sort", "-seq").with("limit", ROWS);
    names.iter().fold(path, |path, name| path.with_nonempty(name, query.text(name)))
}

/// Renders the actor of the order that caused the event. Without an order, renders the kind of
/// actor.
fn actor(event: &EventView) -> Markup {
    event
        .by
        .as_ref()
        .map_or_else(|| plain(html::word(&event.actor)), |order| plain(&order.principal))
}

/// Renders the kind of the event in plain words, with the stage, the phases or the condition that
/// it is about. The title is its kind in the API and in the filter.
fn describe_event(event: &EventView) -> Markup {
    let more = match (event.stage, event.from.zip(event.to), event.condition) {
        (Some(stage), ..) => format!(": {stage}"),
        (_, Some((from, to)), _) => format!(": {from} → {to}"),
        // A raised condition is the kind of its event.
        (.., Some(condition)) if event.kind == condition.as_str() => String::new(),
        (.., Some(condition)) => format!(": {}", condition.words()),
        _ => String::new(),
    };
    let raised = event.condition.filter(|condition| event.kind == condition.as_str());
    let kind = raised.map_or_else(|| kind_words(&event.kind), |it| it.words().to_owned());
    html! {
        span title=(event.kind) { (kind) (more) }
        @if let Some(count) = event.count { span.quiet { " ×" (count) } }
    }
}

/// Returns the kind of an event in plain words: `vm_release_blocked` is `VM release blocked`.
fn kind_words(kind: &str) -> String {
    let word = |word: &str| match word {
        "vm" | "dhcp" | "nic" => word.to_uppercase(),
        word => word.to_owned(),
    };
    kind.split('_').map(word).collect::<Vec<_>>().join(" ")
}

/// Renders the detail of the event. The detail of a change of phase may repeat the phases.
fn detail(event: &EventView) -> Markup {
    let phases = event.from.zip(event.to).map(|(from, to)| format!("{from} -> {to}"));
    if phases.as_ref() == Some(&event.detail) { Markup::default() } else { plain(&event.detail) }
}

pub(super) fn event_table(events: &[EventView], names: &NodeNames) -> Markup {
    let row = |event: &EventView| {
        vec![
            time(event.at),
            describe_event(event),
            names.maybe_link(event.node),
            actor(event),
            detail(event),
        ]
    };
    let rows: Vec<_> = events.iter().map(row).collect();
    html::table(&["Time", "Event", "Node", "Actor", "Detail"], &rows, "No events are recorded.")
}

pub(crate) async fn events(
    client: ApiClient,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let path = with_filters(api::LIST_EVENTS.path([]), &query, &["node", "q", "kind", "after"]);
    let page = client.lines(path).await.map_err(|error| client.failed(&error))?;
    let names = client.node_names().await.map_err(|error| client.failed(&error))?;
    let content = html! {
        h1 { "Events" }
        form.filters action=(format!("{PREFIX}/events")) {
            label { "Text" input name="q" type="search" value=(query.text("q")); }
            label { "Node" input name="node" value=(query.text("node")); }
            label { "Kind" input name="kind" value=(query.text("kind")) placeholder="phase,stage"; }
            button.main { "Filter" }
        }
        div id="rows" data-live { (event_table(&page.rows, &names)) }
        (next("/events", &query, &["node", "q", "kind"], page.next.as_deref()))
    };
    Ok(Page { client: &client, title: "Events".to_owned(), nav_path: "/events", content }
        .answer(&headers))
}

/// Renders a link to older rows.
fn next(path: &str, query: &Fields, names: &[&str], after: Option<&str>) -> Markup {
    let filters =
        names.iter().map(|name| (*name, query.text(name))).filter(|(_, value)| !value.is_empty());
    let filters: String =
        filters.map(|(name, value)| format!("&{name}={}", encoded(value))).collect();
    html! { @if let Some(after) = after { p { a.button href=(format!("{PREFIX}{path}?after={}{filters}", encoded(after))) { "Older" } } } }
}

pub(crate) async fn audit(
    client: ApiClient,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let path =
        with_filters(api::LIST_AUDIT_RECORDS.path([]), &query, &["node", "actor", "q", "after"]);
    let page = client.list(path).await.map_err(|error| client.failed(&error))?;
    let names = client.node_names().await.map_err(|error| client.failed(&error))?;
    let row = |view: &AuditView| {
        let audit = &view.audit;
        let class = if audit.outcome.code() == "done" { "good" } else { "bad" };
        let target = match (&audit.node, &audit.target) {
            (Some(id), _) => names.link(*id),
            (None, target) => html::maybe(target.as_ref()),
        };
        vec![
            time(audit.at),
            plain(&audit.by.principal),
            plain(audit.by.verb),
            target,
            html::badge(class, audit.outcome.code()),
            html::maybe(audit.by.reason.as_ref()),
            plain(&audit.detail),
            code(audit.by.correlation_id),
        ]
    };
    let rows: Vec<_> = page.rows.iter().map(row).collect();
    let content = html! {
        h1 { "Audit log" }
        form.filters action=(format!("{PREFIX}/audit")) {
            label { "Text" input name="q" type="search" value=(query.text("q")); }
            label { "Node" input name="node" value=(query.text("node")); }
            label { "Actor" input name="actor" value=(query.text("actor")) placeholder="token:ada, uid:0"; }
            button.main { "Filter" }
        }
        div id="rows" data-live {
            (html::table(&["Time", "Actor", "Order", "Target", "Outcome", "Reason", "Detail", "Correlation ID"], &rows, "No orders are recorded."))
        }
        (next("/audit", &query, &["node", "actor", "q"], page.next.as_deref()))
    };
    Ok(Page { client: &client, title: "Audit log".to_owned(), nav_path: "/audit", content }
        .answer(&headers))
}
