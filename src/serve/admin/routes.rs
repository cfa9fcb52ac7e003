//! The routes of the admin plane, version 1.

use super::{
    Plane, backup, doctor,
    doctor::Finding,
    error::Refused,
    events, generations, life,
    order::{named, order},
    orders, trust,
    view::{GENERATION_HEADER, NodeDetail, NodeView, PROFILE_HEADER, ProfileView, StatusView, TimelineView},
};
use crate::fleet::{By, Phase, Verb};
use crate::id::{BootSessionId, NodeId};
use crate::serve::{
    central::{Rendered, Shared},
    metrics,
};
use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, MatchedPath, Path, Query, Request, State, rejection::QueryRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};

/// Largest request body, in bytes.
const MAX_BODY: usize = 16 * 1024;
/// How long an answer may take to begin.
const TIME_LIMIT: Duration = Duration::from_secs(30);

pub(super) type Answer<T> = Result<Json<T>, Refused>;

pub(super) fn router(plane: Plane) -> Router {
    let v1 = Router::new()
        .route("/status", get(status))
        .route("/nodes", get(nodes))
        .route("/nodes/{node}", get(node))
        .route("/nodes/{node}/approve", order(Verb::Approve, approve))
        .route("/nodes/{node}/assign-profile", order(Verb::AssignProfile, orders::assign_profile))
        .route("/nodes/{node}/vars", order(Verb::Vars, orders::vars))
        .route("/nodes/{node}/boot-once", order(Verb::BootOnce, orders::boot_once))
        .route("/nodes/{node}/pin", order(Verb::Pin, generations::pin))
        .route("/nodes/{node}/history", get(generations::history))
        .route("/nodes/{node}/diff", get(generations::diff))
        .route("/profiles/{name}/history", get(generations::revisions))
        .route("/profiles/{name}/rollback", order(Verb::Rollback, generations::rollback))
        .route("/reload", order(Verb::Reload, generations::reload))
        .route("/nodes/{node}/reboot", order(Verb::Reboot, reboot))
        .route("/nodes/{node}/release", order(Verb::Release, release))
        .route("/nodes/{node}/timeline", get(timeline))
        .route("/overlay/{node}", get(overlay))
        .route("/profiles", get(profiles))
        .route("/tokens", get(trust::tokens).merge(order(Verb::TokenCreate, trust::create_token)))
        .route("/tokens/{token}/revoke", order(Verb::TokenRevoke, trust::revoke_token))
        .route("/ca", get(trust::ca))
        .route("/ca/rotate", order(Verb::CaRotate, trust::rotate_ca))
        .route("/nodes/{node}/revoke", order(Verb::CertificateRevoke, trust::revoke_node))
        .route("/events", get(events::events))
        .route("/backup", order(Verb::Backup, backup::backup))
        .route("/doctor", get(doctor))
        .merge(life::routes());
    Router::new()
        .nest("/v1", v1)
        .route("/metrics", get(metrics))
        .fallback(async || Refused::not_found("there is no such route; is the command line as new as meshd?"))
        .method_not_allowed_fallback(async || {
            Refused::new(StatusCode::METHOD_NOT_ALLOWED, "bad_method", "not a verb of this route")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(in_time))
        .layer(middleware::from_fn_with_state(plane.clone(), named))
        .with_state(plane)
}

async fn in_time(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none".into(), |path| path.as_str().to_owned());
    let response = match tokio::time::timeout(TIME_LIMIT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("took longer than {} s; look at the log of meshd", TIME_LIMIT.as_secs());
            Refused::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message).into_response()
        }
    };
    metrics::count_request("admin", route, response.status().as_u16());
    response
}

async fn status(State(Plane { central, .. }): State<Plane>) -> Json<StatusView> {
    let mut phases = BTreeMap::new();
    central.store().read(|model| {
        for node in model.nodes() {
            *phases.entry(node.phase.to_string()).or_default() += 1;
        }
    });
    let version = format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("MESHD_COMMIT"));
    Json(StatusView { site: central.site().name.clone(), version, pid: std::process::id(), phases })
}

/// Which nodes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WhichNodes {
    /// Also those that were removed.
    removed: bool,
}

async fn nodes(
    State(Plane { central, .. }): State<Plane>,
    which: Result<Query<WhichNodes>, QueryRejection>,
) -> Answer<Vec<NodeView>> {
    let Query(which) = which.map_err(|error| Refused::bad_request(error.body_text()))?;
    let site = central.site();
    Ok(Json(central.store().read(|model| {
        let nodes = model.nodes().filter(|node| which.removed || node.phase != Phase::Removed);
        nodes.map(|node| NodeView::new(node, model.boot_of(node), &site, &central.link_state(node.id))).collect()
    })))
}

async fn node(State(Plane { central, .. }): State<Plane>, Path(node): Path<String>) -> Answer<NodeDetail> {
    detail(&central, central.resolve(&node)?)
}

/// Everything of a node.
pub(super) fn detail(central: &Shared, id: NodeId) -> Answer<NodeDetail> {
    let link = central.link_state(id);
    let detail = central.store().read(|model| {
        let node = model.node(id)?;
        Some(NodeDetail::new(node, model.boot_of(node), &central.site(), &link))
    });
    detail.map(Json).ok_or_else(|| gone(id))
}

/// Which boot of a node.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WhichBoot {
    session: Option<BootSessionId>,
}

async fn timeline(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    which: Result<Query<WhichBoot>, QueryRejection>,
) -> Answer<TimelineView> {
    let Query(which) = which.map_err(|error| Refused::bad_request(error.body_text()))?;
    let id = central.resolve(&node)?;
    let timeline = central.store().read(|model| {
        let node = model.node(id)?;
        let boots = model.boots_of(node);
        let newest = boots.first().map(|boot| boot.id);
        Some(which.session.or(newest).and_then(|session| TimelineView::new(node, session, &boots)))
    });
    let never = || match which.session {
        Some(session) => Refused::not_found(format!(
            "node {id} has no boot {session} on record; `meshd node timeline {id}` lists those that are kept"
        )),
        None => Refused::not_found(format!("node {id} has no boot on record; power it on")),
    };
    timeline.ok_or_else(|| gone(id))?.map(Json).ok_or_else(never)
}

async fn release(State(Plane { central, .. }): State<Plane>, Path(node): Path<String>, by: By) -> Answer<NodeView> {
    let id = central.resolve(&node)?;
    central.release(id, &by).await?;
    shown(&central, id)
}

async fn doctor(State(Plane { central, .. }): State<Plane>) -> Json<Vec<Finding>> {
    Json(doctor::findings(&central))
}

async fn metrics(State(plane): State<Plane>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], plane.metrics.page(&plane.central)).into_response()
}

async fn approve(State(Plane { central, .. }): State<Plane>, Path(node): Path<String>, by: By) -> Answer<NodeView> {
    let id = central.resolve(&node)?;
    central.approve(id, &by).await?;
    shown(&central, id)
}

async fn reboot(State(Plane { central, .. }): State<Plane>, Path(node): Path<String>, by: By) -> Answer<NodeView> {
    let id = central.resolve(&node)?;
    central.reboot(id, &by).await?;
    shown(&central, id)
}

/// The public part of what a node would boot now.
async fn overlay(State(plane): State<Plane>, Path(node): Path<String>) -> Result<Response, Refused> {
    let Plane { central, told, .. } = plane;
    let id = central.resolve(&node)?;
    let node = central.store().read(|model| model.node(id).cloned()).ok_or_else(|| gone(id))?;
    let rendered = central.render(&node, central.endpoint(told)).await?;
    let Rendered { generation, what, overlay, .. } = rendered;
    let packed = tokio::task::spawn_blocking(move || overlay.to_targz());
    let interrupted = |_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "interrupted", "packing was interrupted");
    let bytes = packed.await.map_err(interrupted)?;
    let headers = [
        (CONTENT_TYPE.as_str(), "application/gzip".to_owned()),
        (GENERATION_HEADER, generation.to_string()),
        (PROFILE_HEADER, what.profile.to_string()),
    ];
    Ok((headers, bytes).into_response())
}

async fn profiles(State(Plane { central, .. }): State<Plane>) -> Json<Vec<ProfileView>> {
    let site = central.site();
    Json(site.profiles.values().map(|profile| ProfileView::new(profile, &site)).collect())
}

pub(super) fn shown(central: &Shared, id: NodeId) -> Answer<NodeView> {
    let view = central.store().read(|model| {
        let node = model.node(id)?;
        Some(NodeView::new(node, model.boot_of(node), &central.site(), &central.link_state(id)))
    });
    view.map(Json).ok_or_else(|| gone(id))
}

pub(super) fn gone(id: NodeId) -> Refused {
    Refused::not_found(format!("node {id} was removed meanwhile; see `meshd node list`"))
}
