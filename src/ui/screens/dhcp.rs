//! Segments, leases, and DHCP servers other than meshd.

use super::Answer;
use crate::{
    PREFIX,
    client::ApiClient,
    html::{self, Page, code, maybe, plain, shown, time},
};
use axum::{extract::Query, http::HeaderMap};
use maud::{Markup, html};
use meshd_api::{LeaseView, OtherServerView, SegmentView, routes as api};
use serde::Deserialize;

/// Maximum number of leases on the page.
const ROWS: usize = 500;

#[derive(Debug, Deserialize)]
pub(crate) struct LeaseQuery {
    #[serde(default)]
    q: String,
    /// If not empty, the page shows expired leases too.
    #[serde(default)]
    all: String,
}

pub(crate) async fn page(client: ApiClient, Query(query): Query<LeaseQuery>, headers: HeaderMap) -> Answer {
    let failed = |error| client.failed(&error);
    let segments = client.get(api::LIST_SEGMENTS.path([])).await.map_err(failed)?;
    let all = !query.all.is_empty();
    let state = if all { "active,expired" } else { "active" };
    let text = query.q.trim();
    let path = api::LIST_LEASES.path([]).with("limit", ROWS).with("state", state).with_nonempty("q", text);
    let leases = client.list(path).await.map_err(failed)?;
    let total = leases.total.unwrap_or(leases.rows.len());
    let content = html! {
        h1 { "DHCP" }
        h2 { "Segments" }
        div id="segments" data-live { (segment_table(&segments)) }
        h2 { "Leases" }
        form.inline method="get" action=(format!("{PREFIX}/dhcp")) {
            label.hidden for="text" { "Part of an address, a MAC address, an ID or a name" }
            input id="text" name="q" value=(shown(text)) maxlength="100" placeholder="address, MAC address, name";
            label { input type="checkbox" name="all" value="1" checked[all]; " Expired ones, too" }
            button { "Filter" }
        }
        div id="leases" data-live {
            (lease_table(&leases.rows))
            @if total > leases.rows.len() { p.quiet { (total) " in all; filter to see others." } }
        }
    };
    Ok(Page { client: &client, title: "DHCP".to_owned(), nav_path: "/dhcp", content }.answer(&headers))
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
        &["Segment", "Mode", "Address of meshd", "Range", "Leased", "Found in use", "Other servers"],
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

fn lease_table(leases: &[LeaseView]) -> Markup {
    let row = |lease: &LeaseView| {
        let holder = match (lease.node, &lease.name, lease.vm) {
            (Some(node), Some(name), _) => html::node_link(&node.to_string(), name),
            (_, _, Some(vm)) => html! { a href=(format!("{PREFIX}/vms/{vm}")) { "VM " (vm) } },
            _ => html! { span.quiet { "not a node" } },
        };
        let class = if lease.state == "active" { "good" } else { "idle" };
        vec![code(lease.address), code(lease.mac), html::badge(class, &lease.state), time(lease.expires_at), holder]
    };
    let rows: Vec<_> = leases.iter().map(row).collect();
    html::table(&["Address", "MAC address", "State", "Ends", "Held by"], &rows, "There is no such lease.")
}
