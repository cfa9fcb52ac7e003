//! The node list. The URL contains search, filters, columns, order and page.
//!
//! | module | content |
//! | --- | --- |
//! | `columns` | the columns of the list |
//! | `list_query` | the address of the list |

mod columns;
mod list_query;

use super::{
    Answer,
    actions::{self, target},
};
use crate::{
    PREFIX,
    client::{ApiClient, ListPage},
    html::{self, Page, display_text},
};
use axum::{extract::Query, http::HeaderMap};
use columns::{COLUMNS, Column};
use list_query::ListQuery;
use maud::{Markup, html};
use meshd_api::{NodeView, ProfileView, routes as api};
use meshd_model::fleet::{ConditionKind, Phase};

/// Number of rows per page.
pub(super) const ROWS: usize = 100;
/// Choices of the filter by phase that have several phases.
const PHASE_GROUPS: [(&str, &str); 1] =
    [("discovered,approved,booting,enrolling,rebuilding", "on the way")];
/// Number of rows, all of them selected, if the address asks for that.
const MAX_SELECTED: usize = 1000;

pub(crate) async fn page(
    client: ApiClient,
    Query(query): Query<ListQuery>,
    headers: HeaderMap,
) -> Answer {
    let path = query.filter(api::LIST_NODES.path([]));
    let limit = if query.selects_all() { MAX_SELECTED } else { ROWS };
    let path = path.with("limit", limit).with("sort", query.order());
    let (nodes, profiles) = tokio::join!(
        client.list(path.with_nonempty("after", query.get("after"))),
        client.get(api::LIST_PROFILES.path([])),
    );
    let profiles = profiles.map_err(|error| client.failed(&error))?;
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

/// Renders the options of a filter with the chosen one.
fn options<'o>(chosen: &str, all: impl Iterator<Item = (&'o str, &'o str)>) -> Markup {
    html! {
        option value="" { "any" }
        @for (value, title) in all { option value=(value) selected[chosen == value] { (title) } }
    }
}

fn filters(query: &ListQuery, profiles: &[ProfileView]) -> Markup {
    let phases = Phase::ALL.map(|phase| (phase.as_str(), phase.as_str()));
    let conditions = ConditionKind::ALL.map(|kind| (kind.as_str(), kind.words()));
    let profiles = profiles.iter().map(|profile| (profile.name.as_str(), profile.name.as_str()));
    let columns = query.columns();
    html! {
        form.filters action=(format!("{PREFIX}/nodes")) {
            label { "Text" input name="q" type="search" value=(query.get("q")) placeholder="ID, name, MAC, address"; }
            label { "Nodes" input name="nodes" value=(query.get("nodes")) placeholder="gpu[001-040],n*"; }
            label { "Phase" select name="phase" { (options(query.get("phase"), PHASE_GROUPS.into_iter().chain(phases))) } }
            label { "Condition" select name="condition" { (options(query.get("condition"), conditions.into_iter())) } }
            label { "Profile" select name="profile" { (options(query.get("profile"), profiles)) } }
            label { "Labels" input name="label" value=(query.get("label")) placeholder="rack=a,feed!=2"; }
            label.tick { input type="checkbox" name="attention" value="true" checked[!query.get("attention").is_empty()]; " Needs attention" }
            details.drop {
                summary { "Columns" }
                div.choices { @for column in &COLUMNS {
                    @let is_shown = columns.iter().any(|shown| shown.key == column.key);
                    label.tick { input type="checkbox" name="col" value=(column.key) checked[is_shown]; " " (column.title) }
                } }
            }
            input type="hidden" name="sort" value=(query.get("sort"));
            button.main { "Show" }
            a href=(format!("{PREFIX}/nodes")) { "Clear" }
        }
    }
}

fn list(client: &ApiClient, query: &ListQuery, nodes: &ListPage<NodeView>) -> Markup {
    let total = nodes.total.unwrap_or(nodes.rows.len());
    let columns = query.columns();
    html! {
        form method="post" action=(format!("{PREFIX}/actions/preview")) {
            div.selection {
                @if actions::may_order(client) {
                    details.drop { summary { "Actions for selected nodes" } div.choices { (actions::bar(&[])) } }
                }
                span id="count" data-live { (total) @if total == 1 { " node" } @else { " nodes" } }
                @if actions::may_order(client) && total > nodes.rows.len() { (select_all(query, total)) }
            }
            div.scroll tabindex="0" role="group" aria-label="Nodes" {
                table {
                    thead { (head(query, &columns)) }
                    tbody id="rows" data-live { @for node in &nodes.rows { (row(node, &columns, query.selects_all())) } }
                }
            }
            @if nodes.rows.is_empty() { p.quiet { "No node matches. " a href=(format!("{PREFIX}/nodes")) { "Show all" } } }
        }
        @if let Some(next) = &nodes.next {
            p { a.button href=(format!("{PREFIX}/nodes?{}", query.with(&[("after", next)]))) { "Next page" } }
        }
    }
}

/// Renders the link to a list that selects all hits, also those of the other pages.
fn select_all(query: &ListQuery, total: usize) -> Markup {
    let selected = total.min(MAX_SELECTED);
    html! {
        a href=(format!("{PREFIX}/nodes?{}", query.with(&[("all", "1"), ("after", "")]))) {
            "Select " @if selected == total { "all" } @else { "the first" } " " (selected)
        }
    }
}

/// Renders the head of a column. A column that sorts the list is a link.
fn sort_head(query: &ListQuery, key: &str, title: &str) -> Markup {
    let order = query.order();
    let (aria, next) = match order.strip_prefix('-') {
        Some(word) if word == key => ("descending", key.to_owned()),
        None if order == key => ("ascending", format!("-{key}")),
        _ => ("none", key.to_owned()),
    };
    html! {
        th scope="col" aria-sort=(aria) {
            a href=(format!("{PREFIX}/nodes?{}", query.with(&[("sort", &next), ("after", "")]))) { (title) }
        }
    }
}

fn head(query: &ListQuery, columns: &[&Column]) -> Markup {
    html! {
        tr {
            th scope="col" { input type="checkbox" data-all="node" checked[query.selects_all()] aria-label="Select all nodes of this page"; }
            (sort_head(query, "name", "Name"))
            @for column in columns {
                @match column.sort {
                    Some(key) => (sort_head(query, key, column.title)),
                    None => th scope="col" { (column.title) }
                }
            }
        }
    }
}

fn row(node: &NodeView, columns: &[&Column], is_selected: bool) -> Markup {
    html! {
        tr {
            td { input type="checkbox" name="node" value=(target(node)) checked[is_selected] aria-label=(format!("Select {}", display_text(&node.name))); }
            td { (html::name_link(&node.id.to_string(), &node.name)) }
            @for column in columns { td class=[column.class] { ((column.cell)(node)) } }
        }
    }
}
