//! The findings of doctor.

use crate::{
    client::ApiClient,
    html::{self, Page},
    screens::Answer,
};
use axum::http::HeaderMap;
use maud::html;
use meshd_api::routes as api;

/// Shows the health of the central node, problems first.
pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let mut findings =
        client.get(api::LIST_FINDINGS.path([])).await.map_err(|error| client.failed(&error))?;
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.status));
    let content = html! {
        h1 { "Doctor" }
        p { code { "meshd doctor" } " on the central node also looks at files, disk and clock." }
        div id="findings" data-live { (html::findings(&findings)) }
    };
    Ok(Page { client: &client, title: "Doctor".to_owned(), nav_path: "/doctor", content }
        .answer(&headers))
}
