//! The routes of the admin plane, version 1.

use super::{
    Plane, audit,
    auth::admitted,
    backup, catalog_view, consoles, doctor,
    doctor::{Finding, Status},
    error::Refused,
    events, generations, life,
    order::named,
    orders, slots,
    table::{Anything, Archive, Lines, Many, Nothing, One, Routes, Sealed},
    tasks, tokens, trust,
    view::*,
    vms, volumes,
};
use crate::serve::{
    central::{Shared, work_on},
    metrics,
};
use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, MatchedPath, Path, Query, Request, State, rejection::QueryRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use meshd_model::fleet::{AuditContext, Phase, Verb};
use meshd_proto::UnitState;
use meshd_trust::Role;
use meshd_types::{BootSessionId, NodeId};
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};

/// Largest request body, in bytes: a virtual machine with all that cloud-init may get.
pub(super) const MAX_BODY: usize = 512 * 1024;
/// How long an answer may take to begin.
const TIME_LIMIT: Duration = Duration::from_secs(30);

pub(super) type Answer<T> = Result<Json<T>, Refused>;

pub(super) fn router(plane: Plane) -> Router {
    let routes = tasks::routes(slots::routes(vms::routes(boots(life::routes(nodes_routes(Routes::default()))))));
    let routes = site_routes(credentials(volumes::routes(consoles::routes(routes))));
    routes
        .into_router()
        .fallback(async || Refused::not_found("there is no such route; is the command line as new as meshd?"))
        .method_not_allowed_fallback(async || {
            Refused::new(StatusCode::METHOD_NOT_ALLOWED, "bad_method", "not a verb of this route")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(in_time))
        .layer(middleware::from_fn_with_state(plane.clone(), admitted))
        .layer(middleware::from_fn_with_state(plane.clone(), named))
        .with_state(plane)
}

/// What nodes are.
fn nodes_routes(routes: Routes) -> Routes {
    routes
        .see::<Many<NodeView>, _, _>("/nodes", &["removed"], Role::Viewer, "all nodes", nodes)
        .see::<One<NodeDetail>, _, _>("/nodes/{node}", &[], Role::Viewer, "everything of a node", node)
        .see::<One<TimelineView>, _, _>(
            "/nodes/{node}/timeline",
            &["session"],
            Role::Viewer,
            "one boot stage by stage, the newest unless another is named",
            timeline,
        )
        .order::<One<Approve>, One<NodeView>, _, _>("/nodes/{node}/approve", Verb::Approve, "let a node in", approve)
        .order::<Nothing, One<NodeView>, _, _>(
            "/nodes/{node}/reboot",
            Verb::Reboot,
            "reboot a node by its link",
            reboot,
        )
        .order::<Nothing, One<NodeView>, _, _>(
            "/nodes/{node}/release",
            Verb::Release,
            "let a quarantined node boot again",
            release,
        )
}

/// What nodes boot.
fn boots(routes: Routes) -> Routes {
    routes
        .order::<One<AssignProfile>, One<NodeView>, _, _>(
            "/nodes/{node}/assign-profile",
            Verb::AssignProfile,
            "assign a profile, effective at the next boot",
            orders::assign_profile,
        )
        .order::<One<ChangeVars>, One<NodeDetail>, _, _>(
            "/nodes/{node}/vars",
            Verb::Vars,
            "set and remove variables of a node",
            orders::vars,
        )
        .order::<One<BootOnce>, One<NodeDetail>, _, _>(
            "/nodes/{node}/boot-once",
            Verb::BootOnce,
            "order something for the next boot only",
            orders::boot_once,
        )
        .order::<One<Pin>, One<NodeDetail>, _, _>(
            "/nodes/{node}/pin",
            Verb::Pin,
            "boot one generation, whatever becomes of the profile",
            generations::pin,
        )
        .see::<Many<GenerationView>, _, _>(
            "/nodes/{node}/history",
            &[],
            Role::Viewer,
            "generations that a node was given",
            generations::history,
        )
        .see::<One<DiffView>, _, _>(
            "/nodes/{node}/diff",
            &[],
            Role::Viewer,
            "what it runs against what it would boot",
            generations::diff,
        )
        .see::<Archive, _, _>(
            "/overlay/{node}",
            &["profile"],
            Role::Operator,
            "the public part of what a node would boot now, or would boot with another profile",
            catalog_view::overlay,
        )
}

/// The site, its profiles, what happened in it, and who may.
fn site_routes(routes: Routes) -> Routes {
    routes
        .see::<One<StatusView>, _, _>("/status", &[], Role::Viewer, "the central node at a glance", status)
        .see::<Many<ProfileView>, _, _>("/profiles", &[], Role::Viewer, "profiles with all that they inherit", profiles)
        .see::<Many<ImageView>, _, _>("/images", &[], Role::Viewer, "images and their versions", catalog_view::images)
        .see::<Many<OverlayView>, _, _>("/overlays", &[], Role::Viewer, "overlays of the site", catalog_view::overlays)
        .see::<Many<RevisionView>, _, _>(
            "/profiles/{name}/history",
            &[],
            Role::Viewer,
            "what a profile was",
            generations::revisions,
        )
        .order::<One<Rollback>, Many<RevisionView>, _, _>(
            "/profiles/{name}/rollback",
            Verb::Rollback,
            "nodes of a profile boot what it was, or what it is again",
            generations::rollback,
        )
        .order::<Nothing, One<ReloadView>, _, _>(
            "/reload",
            Verb::Reload,
            "read site, overlays and images anew, as one or not at all",
            generations::reload,
        )
        .see::<Lines<EventView>, _, _>(
            "/events",
            &["follow", "after", "node", "kind", "limit"],
            Role::Viewer,
            "what happened, and what happens from now on",
            events::events,
        )
        .see::<Many<AuditView>, _, _>(
            "/audit",
            &["node", "actor", "after", "limit"],
            Role::Viewer,
            "who ordered what, and what came of it",
            audit::audit,
        )
        .see::<Many<Finding>, _, _>("/doctor", &[], Role::Viewer, "problems that keep machines from booting", doctor)
        .page("/metrics", "for Prometheus", metrics)
}

/// Who and what is let in: by tokens of this plane, by tokens of machines, by certificates. And all of it, sealed.
fn credentials(routes: Routes) -> Routes {
    routes
        .see::<Many<ApiTokenView>, _, _>("/api-tokens", &[], Role::Admin, "tokens of this plane", tokens::list)
        .order::<One<CreateApiToken>, One<CreatedApiToken>, _, _>(
            "/api-tokens/create",
            Verb::ApiTokenCreate,
            "make a token; it is shown this once",
            tokens::create,
        )
        .order::<Nothing, Many<ApiTokenView>, _, _>(
            "/api-tokens/{name}/revoke",
            Verb::ApiTokenRevoke,
            "take a token away, at once",
            tokens::revoke,
        )
        .see::<Many<TokenView>, _, _>(
            "/tokens",
            &[],
            Role::Viewer,
            "tokens of machines that are not netbooted",
            trust::tokens,
        )
        .order::<One<CreateToken>, One<CreatedToken>, _, _>(
            "/tokens",
            Verb::TokenCreate,
            "make a token for a machine; it is shown this once",
            trust::create_token,
        )
        .order::<Nothing, One<TokenView>, _, _>(
            "/tokens/{token}/revoke",
            Verb::TokenRevoke,
            "take a machine's token away",
            trust::revoke_token,
        )
        .see::<Many<RootView>, _, _>("/ca", &[], Role::Viewer, "roots that are trusted", trust::ca)
        .order::<One<RotateCa>, Many<RootView>, _, _>(
            "/ca/rotate",
            Verb::CaRotate,
            "a new root; the old one is trusted for a while",
            trust::rotate_ca,
        )
        .order::<Nothing, One<NodeDetail>, _, _>(
            "/nodes/{node}/revoke",
            Verb::CertificateRevoke,
            "end a node's link and its credentials",
            trust::revoke_node,
        )
        .order::<Anything, Sealed, _, _>(
            "/backup",
            Verb::Backup,
            "everything that the rack depends on, sealed",
            backup::backup,
        )
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
    let (mut phases, mut conditions) = (BTreeMap::new(), BTreeMap::new());
    let (mut nodes, mut units) = (0, UnitCount::default());
    central.store().read(|model| {
        for node in model.nodes() {
            nodes += 1;
            *phases.entry(node.phase.to_string()).or_default() += 1;
            for condition in &node.conditions {
                *conditions.entry(condition.kind.as_str().to_owned()).or_default() += 1;
            }
            let told = node.facts.as_ref().map(|facts| facts.units.as_slice()).unwrap_or_default();
            let ready = told.iter().filter(|unit| node.phase == Phase::Online && unit.state == UnitState::Ready);
            units = UnitCount { ready: units.ready + ready.count(), total: units.total + told.len() };
        }
    });
    let version = format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("MESHD_COMMIT"));
    let mut found = doctor::findings(&central);
    if let Err(error) = central.store().ready().await {
        found.push(doctor::Finding::fail_of("store", &error));
    }
    let of = |status| found.iter().filter(|finding| finding.status == status).cloned().collect::<Vec<_>>();
    let (warnings, errors) = (of(Status::Warn), of(Status::Fail));
    let (site, pid, ready) = (central.site().name.clone(), std::process::id(), errors.is_empty());
    Json(StatusView { site, version, pid, ready, nodes, phases, units, conditions, warnings, errors })
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
        nodes
            .map(|node| {
                let view = NodeView::new(node, model.boot_of(node), &site, &central.links.link_state(node.id));
                view.rolled_back(|profile| central.generations.rolled_back(profile))
            })
            .collect()
    })))
}

async fn node(State(Plane { central, .. }): State<Plane>, Path(node): Path<String>) -> Answer<NodeDetail> {
    detail(&central, central.nodes.resolve(&node)?)
}

/// Everything of a node.
pub(super) fn detail(central: &Shared, id: NodeId) -> Answer<NodeDetail> {
    let link = central.links.link_state(id);
    let detail = central.store().read(|model| {
        let node = model.node(id)?;
        let mut detail = NodeDetail::new(node, model.boot_of(node), &central.site(), &link).working(work_on(model, id));
        detail.node = detail.node.rolled_back(|profile| central.generations.rolled_back(profile));
        Some(detail)
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
    let id = central.nodes.resolve(&node)?;
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

async fn release(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
) -> Answer<NodeView> {
    let id = central.nodes.resolve(&node)?;
    central.nodes.release(id, &by).await?;
    shown(&central, id)
}

async fn doctor(State(Plane { central, .. }): State<Plane>) -> Json<Vec<Finding>> {
    Json(doctor::findings(&central))
}

async fn metrics(State(plane): State<Plane>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], plane.metrics.page(&plane.central)).into_response()
}

async fn approve(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
    order: Option<Json<Option<Approve>>>,
) -> Answer<NodeView> {
    let Approve { moved } = order.and_then(|Json(order)| order).unwrap_or_default();
    let id = central.nodes.resolve(&node)?;
    central.nodes.approve_at(id, moved, &by).await?;
    shown(&central, id)
}

async fn reboot(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
) -> Answer<NodeView> {
    let id = central.nodes.resolve(&node)?;
    central.nodes.reboot(id, &by).await?;
    shown(&central, id)
}

async fn profiles(State(Plane { central, .. }): State<Plane>) -> Json<Vec<ProfileView>> {
    let site = central.site();
    Json(site.profiles.values().map(|profile| ProfileView::new(profile, &site)).collect())
}

pub(super) fn shown(central: &Shared, id: NodeId) -> Answer<NodeView> {
    let view = central.store().read(|model| {
        let node = model.node(id)?;
        let view = NodeView::new(node, model.boot_of(node), &central.site(), &central.links.link_state(id));
        Some(view.rolled_back(|profile| central.generations.rolled_back(profile)).working(work_on(model, id)))
    });
    view.map(Json).ok_or_else(|| gone(id))
}

pub(super) fn gone(id: NodeId) -> Refused {
    Refused::not_found(format!("node {id} was removed meanwhile; see `meshd node list`"))
}
