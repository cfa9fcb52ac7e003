//! The search over nodes, VMs, containers and tasks.

use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    html::{self, Page, display_text},
    screens::Answer,
};
use axum::{extract::Query, http::HeaderMap};
use maud::html;
use meshd_api::{SearchHit, routes as api};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(crate) struct SearchQuery {
    #[serde(default)]
    q: String,
}

pub(crate) async fn page(
    client: ApiClient,
    Query(query): Query<SearchQuery>,
    headers: HeaderMap,
) -> Answer {
    let path = api::SEARCH.path([]).with("q", query.q.trim());
    let found = client.get(path).await.map_err(|error| client.failed(&error))?;
    let row = |hit: &SearchHit| {
        let link = match hit.kind.as_str() {
            "node" => html::name_link(&hit.id, &hit.name),
            kind => {
                let list = match kind {
                    "vm" => "vms",
                    "container" => "containers",
                    _ => "tasks",
                };
                html! { a href=(format!("{PREFIX}/{list}/{}", encoded(&hit.id))) { (display_text(&hit.name)) } }
            }
        };
        vec![
            html::plain(&hit.kind),
            link,
            html::code(&hit.id),
            html::plain(&hit.state),
            html::plain(&hit.field),
            html::plain(&hit.value),
        ]
    };
    let rows: Vec<_> = found.hits.iter().map(row).collect();
    let content = html! {
        h1 { "Search" }
        p { (found.total) " found for “" (display_text(&query.q)) "”" }
        (html::table(&["Kind", "Name", "ID", "State", "Found in", "Value"], &rows, "No results."))
    };
    Ok(Page { client: &client, title: "Search".to_owned(), nav_path: "", content }.answer(&headers))
}
