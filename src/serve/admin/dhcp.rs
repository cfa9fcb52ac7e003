//! Routes of segments and leases.

use super::{
    Plane,
    error::Refused,
    query::{
        answer::{Asked, Encoding, Listing, parameters},
        leases::{LEASES, LeaseFilter, lease_key},
        page::{ResultPage, cut},
    },
    table::{Array, Routes},
};
use axum::{Json, extract::State, http::HeaderMap, response::Response};
use meshd_api::{LeaseView, OtherServerView, SegmentView};
use meshd_central::{OtherServer, SegmentHealth};
use meshd_config::Segment;
use meshd_model::fleet::Lease;
use meshd_store::Model;
use meshd_trust::Role;
use meshd_types::Timestamp;

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .get::<Array<SegmentView>, _, _>(
            "/segments",
            &[],
            Role::Viewer,
            "List segments with their pools and the other DHCP servers that were heard there",
            segments,
        )
        .get::<Array<LeaseView>, _, _>("/leases", LEASES.parameters, Role::Viewer, "List DHCP leases", leases)
}

async fn segments(State(Plane { central, .. }): State<Plane>) -> Json<Vec<SegmentView>> {
    let health = central.boot.segments();
    let of = |segment: &Segment| {
        let name = segment.name();
        segment_view(segment, health.iter().find(|health| health.name == name))
    };
    Json(central.site().segments.iter().map(of).collect())
}

/// A segment whose service has not reported yet has counted nothing.
fn segment_view(segment: &Segment, health: Option<&SegmentHealth>) -> SegmentView {
    let pool = health.map(|health| health.pool).unwrap_or_default();
    let other = |other: &OtherServer| OtherServerView { address: other.address, proxy: other.proxy, last: other.last };
    SegmentView {
        name: segment.name(),
        mode: segment.mode.as_str().to_owned(),
        address: segment.address,
        range: segment.subnet.as_ref().map(|subnet| [subnet.first, subnet.last]),
        size: pool.size,
        leased: pool.leased,
        offered: pool.offered,
        declined: pool.declined,
        other_servers: health.map(|health| health.other_servers.iter().map(other).collect()).unwrap_or_default(),
    }
}

async fn leases(
    State(Plane { central, .. }): State<Plane>,
    headers: HeaderMap,
    asked: Asked,
) -> Result<Response, Refused> {
    let asked = parameters(asked, LEASES.parameters)?;
    let (mut filter, page, fields) = (LeaseFilter::read(&asked)?, asked.page(&LEASES)?, asked.fields(&LEASES)?);
    filter.node = asked.get("node").map(|node| central.nodes.resolve(node)).transpose()?;
    let now = central.now();
    let all: Vec<_> = central.store().read(|model| model.leases().map(|lease| lease_view(model, lease, now)).collect());
    let taken = all.into_iter().filter(|lease| filter.takes(lease));
    let rows = taken.map(|lease| (lease_key(&lease, page.sort.key), lease)).collect();
    let ResultPage { rows, next, total } = cut(rows, &page);
    let (next, total) = (next.map(|next| next.to_string()), Some(total));
    Listing { rows, fields, next, total, encoding: Encoding::Array }.answer(&headers)
}

fn lease_view(model: &Model, lease: &Lease, now: Timestamp) -> LeaseView {
    let node = model.node_of_mac(lease.mac);
    let state = if lease.expires_at > now { "active" } else { "expired" };
    LeaseView {
        address: lease.address,
        mac: lease.mac,
        state: state.to_owned(),
        expires_at: lease.expires_at,
        node: node.map(|node| node.id),
        name: node.map(|node| node.name.clone()),
        vm: lease.vm,
    }
}
