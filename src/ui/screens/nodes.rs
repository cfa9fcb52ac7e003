//! The node list. The URL contains search, filters, order and page.

use super::{
    Answer,
    actions::{self, target},
};
use crate::{
    PREFIX,
    client::{ApiClient, ListPage, encoded},
    html::{self, Page, display_text},
};
use axum::{extract::Query, http::HeaderMap};
use maud::{Markup, html};
use meshd_api::{NodeView, ProfileView, routes as api};
use meshd_model::fleet::{Phase, label_words};
use serde::Deserialize;

/// Number of rows per page.
pub(super) const ROWS: usize = 100;
/// Parameters that this page passes to the API.
const PARAMETERS: [&str; 7] = ["q", "nodes", "phase", "profile", "label", "sort", "after"];
/// Sortable columns: the API's name, and the column heading.
const SORTED: [(&str, &str); 5] = [
    ("name", "Name"),
    ("id", "ID"),
    ("phase", "Phase"),
    ("profile", "Profile"),
    ("address", "Address"),
];

/// Query of the list, as parameters and values.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct ListQuery(Vec<(String, String)>);

impl ListQuery {
    fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
    }

    /// Returns the column that sorts the list.
    fn order(&self) -> &str {
        Some(self.get("sort")).filter(|order| !order.is_empty()).unwrap_or("name")
    }

    /// Returns the query with some parameters replaced; an empty value removes a parameter.
    fn with(&self, changes: &[(&str, &str)]) -> String {
        let value = |name| {
            changes
                .iter()
                .find(|(key, _)| *key == name)
                .map_or_else(|| self.get(name), |(_, value)| value)
        };
        let pairs = PARAMETERS
            .iter()
            .map(|name| (*name, value(name)))
            .filter(|(_, value)| !value.is_empty());
        pairs
            .map(|(name, value)| format!("{name}={}", encoded(value)))
            .collect::<Vec<_>>()
            .join("&")
    }
}

pub(crate) async fn page(
    client: ApiClient,
    Query(query): Query<ListQuery>,
    headers: HeaderMap,
) -> Answer {
    let path = api::LIST_NODES.path([]).with("limit", ROWS).with("sort", query.order());
    let others = PARAMETERS.iter().filter(|name| **name != "sort");
    let nodes = client
        .list(others.fold(path, |path, name| path.with_nonempty(name, query.get(name))))
        .await;
    let profiles =
        client.get(api::LIST_PROFILES.path([])).await.map_err(|error| client.failed(&error))?;
    let content = html! {
        h1 { "Nodes" }
        (filters(&query, &profiles))
        @match &nodes {
            Ok(nodes) => (list(&client, &query, nodes)),
            Err(error) => (html::refusal(error)),
        }
    };
    match &nodes {
        Err(error) if error.status == axum::http::StatusCode::UNAUTHORIZED => {
            Err(client.failed(error))
        }
        _ => Ok(Page { client: &client, title: "Nodes".to_owned(), nav_path: "/nodes", content }
            .answer(&headers)),
    }
}

fn filters(query: &ListQuery, profiles: &[ProfileView]) -> Markup {
    html! {
        form.filters action=(format!("{PREFIX}/nodes")) {
            label { "Text" input name="q" type="search" value=(query.get("q")) placeholder="ID, name, MAC, address"; }
            label { "Nodes" input name="nodes" value=(query.get("nodes")) placeholder="gpu[001-040],n*"; }
            label { "Phase"
                select name="phase" {
                    option value="" { "any" }
                    @for phase in Phase::ALL {
                        option value=(phase) selected[query.get("phase") == phase.as_str()] { (phase) }
                    }
                }
            }
            label { "Profile"
                select name="profile" {
                    option value="" { "any" }
                    @for profile in profiles {
                        @let name = profile.name.as_str();
                        option value=(name) selected[query.get("profile") == name] { (name) }
                    }
                }
            }
            label { "Labels" input name="label" value=(query.get("label")) placeholder="rack=a,feed!=2"; }
            button.main { "Filter" }
            a href=(format!("{PREFIX}/nodes")) { "Clear" }
        }
    }
}

fn list(client: &ApiClient, query: &ListQuery, nodes: &ListPage<NodeView>) -> Markup {
    let total = nodes.total.unwrap_or(nodes.rows.len());
    html! {
        form method="post" action=(format!("{PREFIX}/actions/preview")) {
            @if actions::may_order(client) { (actions::bar(&[])) }
            p.quiet id="count" data-live { (total) @if total == 1 { " node" } @else { " nodes" } }
            div.scroll tabindex="0" role="group" aria-label="Nodes" {
                table {
                    thead { (head(query)) }
                    tbody id="rows" data-live { @for node in &nodes.rows { (row(node)) } }
                }
            }
            @if nodes.rows.is_empty() { p.quiet { "No node matches. " a href=(format!("{PREFIX}/nodes")) { "Show all" } } }
        }
        @if let Some(next) = &nodes.next {
            p { a.button href=(format!("{PREFIX}/nodes?{}", query.with(&[("after", next)]))) { "Next page" } }
        }
    }
}

fn head(query: &ListQuery) -> Markup {
    let order = query.order();
    html! {
        tr {
            th scope="col" { input type="checkbox" data-all="node" aria-label="Select all nodes of this page"; }
            @for (key, title) in SORTED {
                @let (aria, next) = match order.strip_prefix('-') {
                    Some(word) if word == key => ("descending", key.to_owned()),
                    None if order == key => ("ascending", format!("-{key}")),
                    _ => ("none", key.to_owned()),
                };
                th scope="col" aria-sort=(aria) {
                    a href=(format!("{PREFIX}/nodes?{}", query.with(&[("sort", &next), ("after", "")]))) { (title) }
                }
            }
            th scope="col" { "Conditions" }
            th scope="col" { "Labels" }
            th scope="col" { "Last seen" }
        }
    }
}

fn row(node: &NodeView) -> Markup {
    html! {
        tr {
            td { input type="checkbox" name="node" value=(target(node)) aria-label=(format!("Select {}", display_text(&node.name))); }
            td { (html::name_link(&node.id.to_string(), &node.name)) }
            td { (html::code(node.id)) }
            td { (html::phase(node.phase)) }
            td { (node.profile) @if !node.assigned { span.quiet { " (default)" } } }
            td { (html::maybe(node.address)) }
            td.list { @for condition in &node.conditions { (html::badge("warn", condition.kind.as_str())) " " } }
            td.list { (display_text(&label_words(&node.labels))) }
            td { (html::time(node.last_seen)) }
        }
    }
}
