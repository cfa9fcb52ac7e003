//! Segments, leases, and DHCP servers other than meshd.

use super::Answer;
use crate::{
    PREFIX,
    client::{ApiClient, ListPage, encoded},
    html::{self, Page, code, display_text, maybe, plain, time},
};
use axum::{extract::Query, http::HeaderMap};
use maud::{Markup, html};
use meshd_api::{LeaseView, OtherServerView, SegmentView, routes as api};
use meshd_types::SystemUuid;
use serde::Deserialize;

/// Number of leases per page.
const ROWS: usize = 100;

#[derive(Debug, Deserialize)]
pub(crate) struct LeaseQuery {
    #[serde(default)]
    q: String,
    /// If not empty, the page shows expired leases too.
    #[serde(default)]
    all: String,
    /// Cursor of the previous page.
    #[serde(default)]
    after: String,
}

pub(crate) async fn page(
    client: ApiClient,
    Query(query): Query<LeaseQuery>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let segments = client.get(api::LIST_SEGMENTS.path([])).await.map_err(failed)?;
    let all = !query.all.is_empty();
    let state = if all { "active,expired" } else { "active" };
    let text = query.q.trim();
    let path = api::LIST_LEASES
        .path([])
        .with("limit", ROWS)
        .with("state", state)
        .with_nonempty("q", text)
        .with_nonempty("after", &query.after);
    let leases = client.list(path).await.map_err(failed)?;
    let vms = client
        .get_fields(api::LIST_VMS.path([]).with("fields", "uuid,name"))
        .await
        .map_err(failed)?;
    let content = html! {
        h1 { "DHCP" }
        h2 { "Segments" }
        div id="segments" data-live { (segment_table(&segments)) }
        h2 { "Leases" }
        form.inline method="get" action=(format!("{PREFIX}/dhcp")) {
            label.hidden for="text" { "Part of an address, a MAC address, an ID or a name" }
            input id="text" name="q" value=(display_text(text)) maxlength="100" placeholder="address, MAC address, name";
            label { input type="checkbox" name="all" value="1" checked[all]; " Expired leases, too" }
            button { "Filter" }
        }
        div id="leases" data-live {
            p.quiet { (count(&leases)) }
            (lease_table(&leases.rows, &vms))
        }
        (next_page(&query, leases.next.as_deref()))
    };
    Ok(Page { client: &client, title: "DHCP".to_owned(), nav_path: "/dhcp", content }
        .answer(&headers))
}

/// A VM, for the holder of a lease.
#[derive(Debug, Deserialize)]
struct NamedVm {
    uuid: SystemUuid,
    name: String,
}

fn count(leases: &ListPage<LeaseView>) -> String {
    match leases.total.unwrap_or(leases.rows.len()) {
        1 => "1 lease".to_owned(),
        total => format!("{total} leases"),
    }
}

fn next_page(query: &LeaseQuery, after: Option<&str>) -> Markup {
    let filters = [("q", query.q.trim()), ("all", query.all.as_str())]
        .into_iter()
        .filter(|(_, value)| !value.is_empty());
    let filters: String =
        filters.map(|(name, value)| format!("&{name}={}", encoded(value))).collect();
    html! {
        @if let Some(after) = after {
            p { a.button href=(format!("{PREFIX}/dhcp?after={}{filters}", encoded(after))) { "Next page" } }
        }
    }
}

fn segment_table(segments: &[SegmentView]) -> Markup {
    let row = |segment: &SegmentView| {
        let range = segment.range.map(|[first, last]| format!("{first} – {last}"));
        vec![
            plain(&segment.name),
            plain(&segment.mode),
            maybe(segment.address),
            maybe(range),
            pool(segment),
            plain(segment.declined),
            html! { @for other in &segment.other_servers { (other_server(other)) } },
        ]
    };
    let rows: Vec<_> = segments.iter().map(row).collect();
    html::table(
        &[
            "Segment",
            "Mode",
            "Address of meshd",
            "Range",
            "Leased",
            "Found in use",
            "Other servers",
        ],
        &rows,
        "The site has no segment.",
    )
}

fn pool(segment: &SegmentView) -> Markup {
    html! {
        @if segment.size > 0 {
            progress value=(segment.leased.min(segment.size)) max=(segment.size) aria-label=(format!("leased addresses of {}", segment.name)) {}
            " " (segment.leased) " of " (segment.size)
            @if segment.offered > 0 { ", " (segment.offered) " offered" }
        }
    }
}

fn other_server(other: &OtherServerView) -> Markup {
    let kind = if other.proxy { "PXE" } else { "DHCP" };
    html! { div { (html::badge("warn", kind)) " " (code(other.address)) " last heard " (time(other.last)) } }
}

fn lease_table(leases: &[LeaseView], vms: &[NamedVm]) -> Markup {
    let row = |lease: &LeaseView| {
        let holder = match (lease.node, &lease.name, lease.vm) {
            (Some(node), Some(name), _) => html::node_link(&node.to_string(), name),
            (_, _, Some(uuid)) => {
                let name = vms
                    .iter()
                    .find(|vm| vm.uuid == uuid)
                    .map_or_else(|| uuid.to_string(), |vm| display_text(&vm.name));
                html! { a href=(format!("{PREFIX}/vms/{uuid}")) { "VM " (name) } }
            }
            _ => html! { span.quiet { "not a node" } },
        };
        let class = if lease.state == "active" { "good" } else { "idle" };
        vec![
            code(lease.address),
            code(lease.mac),
            html::badge(class, &lease.state),
            time(lease.expires_at),
            holder,
        ]
    };
    let rows: Vec<_> = leases.iter().map(row).collect();
    html::table(
        &["Address", "MAC address", "State", "End", "Client"],
        &rows,
        "There is no such lease.",
    )
}
