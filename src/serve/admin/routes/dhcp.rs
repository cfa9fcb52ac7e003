//! Segments and leases.

use crate::admin::{
    bind_handlers::Binder,
    error::Refused,
    query::{
        answer,
        leases::{LEASES, LeaseFilter, lease_key},
        parameters::Parameters,
    },
};
use axum::{Json, extract::State, http::HeaderMap, response::Response};
use meshd_api::{LeaseView, OtherServerView, SegmentView, routes as api};
use meshd_central::{OtherServer, SegmentHealth, Shared};
use meshd_config::Segment;
use meshd_model::fleet::{Lease, Node};
use meshd_types::{MacAddr, Timestamp};
use std::collections::BTreeMap;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder.get(&api::LIST_SEGMENTS, segments).get(&api::LIST_LEASES, leases)
}

async fn segments(State(central): State<Shared>) -> Json<Vec<SegmentView>> {
    let health = central.boot.segments();
    let of = |segment: &Segment| {
        let name = segment.name();
        segment_view(segment, health.iter().find(|health| health.name == name))
    };
    Json(central.site().segments.iter().map(of).collect())
}

/// Returns the view of a segment. A segment without a health report has counters of zero.
fn segment_view(segment: &Segment, health: Option<&SegmentHealth>) -> SegmentView {
    let pool = health.map(|health| health.pool).unwrap_or_default();
    let other = |other: &OtherServer| OtherServerView {
        address: other.address,
        proxy: other.proxy,
        last: other.last,
    };
    SegmentView {
        name: segment.name(),
        mode: segment.mode.as_str().to_owned(),
        address: segment.address,
        range: segment.subnet.as_ref().map(|subnet| [subnet.first, subnet.last]),
        size: pool.size,
        leased: pool.leased,
        offered: pool.offered,
        declined: pool.declined,
        other_servers: health
            .map(|health| health.other_servers.iter().map(other).collect())
            .unwrap_or_default(),
    }
}

async fn leases(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let mut filter = LeaseFilter::read(&query)?;
    let now = central.now();
    let bmcs = central.boot.bmc_words();
    let leases = || {
        filter.node = query.get("node").map(|node| central.nodes.resolve(node)).transpose()?;
        Ok(central.boot.collect_leases(|lease, node| {
            Some(lease_view(lease, node, &bmcs, now)).filter(|lease| filter.takes(lease))
        }))
    };
    answer::list(leases, lease_key, &LEASES, &query, &headers)
}

fn lease_view(
    lease: &Lease,
    node: Option<&Node>,
    bmcs: &BTreeMap<MacAddr, String>,
    now: Timestamp,
) -> LeaseView {
    let state = if lease.expires_at > now { "active" } else { "expired" };
    LeaseView {
        address: lease.address,
        mac: lease.mac,
        state: state.to_owned(),
        expires_at: lease.expires_at,
        node: node.map(|node| node.id),
        name: node.map(|node| node.name.clone()),
        vm: lease.vm,
        bmc: bmcs.get(&lease.mac).cloned(),
    }
}
