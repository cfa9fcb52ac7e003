//! The routes of the admin API, version 1.
//!
//! | module | routes |
//! | --- | --- |
//! | `backup` | streaming of a backup |
//! | `catalog` | profiles, images, overlays |
//! | `consoles` | consoles of VMs |
//! | `events` | the event log and the audit log |
//! | `generations` | history, diff, rollback, reload |
//! | `node_lifecycle` | orders that only one node takes |
//! | `operations` | operations: orders to nodes, as records |
//! | `slots` | slots |
//! | `stored_logs` | streaming of task output and boot logs |
//! | `tasks` | tasks and their output |
//! | `tokens` | API tokens |
//! | `trust` | certificate authority, tokens of nodes |
//! | `vms` | VMs |
//! | `volumes` | volumes of VMs |

pub(crate) mod backup;
pub(crate) mod catalog;
pub(crate) mod consoles;
pub(crate) mod events;
pub(crate) mod generations;
pub(crate) mod node_lifecycle;
pub(crate) mod operations;
pub(crate) mod slots;
pub(crate) mod stored_logs;
pub(crate) mod tasks;
pub(crate) mod tokens;
pub(crate) mod trust;
pub(crate) mod vms;
pub(crate) mod volumes;

use crate::serve::{
    admin::{
        ApiState, doctor,
        error::Refused,
        extract::{QueryOf, TargetNode},
        transport::caller::Caller,
    },
    metrics,
};
use axum::{
    Extension, Json,
    extract::{Path, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use meshd_api::*;
use meshd_central::{NodeRecords, Shared};
use meshd_model::fleet::Phase;
use meshd_proto::UnitState;
use meshd_types::{BootSessionId, NodeId};
use serde::Deserialize;
use std::collections::BTreeMap;

pub(crate) type Answer<T> = Result<Json<T>, Refused>;

/// Runs blocking work, such as reading files, outside the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    action: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refused> {
    let interrupted = |_| {
        Refused::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "interrupted",
            format!("{action} was interrupted"),
        )
    };
    tokio::task::spawn_blocking(work).await.map_err(interrupted)
}

pub(crate) async fn whoami(Extension(caller): Extension<Caller>) -> Json<CallerView> {
    Json(CallerView { name: caller.principal.to_string(), role: caller.role })
}

pub(crate) async fn status(
    State(ApiState { central, https_fingerprint, .. }): State<ApiState>,
) -> Json<StatusView> {
    let (mut phases, mut conditions) = (BTreeMap::new(), BTreeMap::new());
    let (mut nodes, mut units) = (0, UnitCount::default());
    central.nodes.read(|fleet| {
        for NodeRecords { node, .. } in fleet.nodes() {
            nodes += 1;
            *phases.entry(node.phase.to_string()).or_default() += 1;
            for condition in &node.conditions {
                *conditions.entry(condition.kind.as_str().to_owned()).or_default() += 1;
            }
            let units_of_node =
                node.facts.as_ref().map(|facts| facts.units.as_slice()).unwrap_or_default();
            let ready = units_of_node
                .iter()
                .filter(|unit| node.phase == Phase::Online && unit.state == UnitState::Ready);
            units = UnitCount {
                ready: units.ready + ready.count(),
                total: units.total + units_of_node.len(),
            };
        }
    });
    let version = format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("MESHD_COMMIT"));
    let mut found = doctor::findings(&central);
    if let Err(error) = central.env.storage_ready().await {
        found.push(Finding::fail_of("store", &error));
    }
    let of = |status| {
        found.iter().filter(|finding| finding.status == status).cloned().collect::<Vec<_>>()
    };
    let (warnings, errors) = (of(Status::Warn), of(Status::Fail));
    let (site, pid, ready) = (central.site().name.clone(), std::process::id(), errors.is_empty());
    Json(StatusView {
        site,
        version,
        pid,
        https_fingerprint,
        ready,
        nodes,
        phases,
        units,
        conditions,
        warnings,
        errors,
    })
}

pub(crate) async fn node(TargetNode { central, id }: TargetNode) -> Answer<NodeDetail> {
    detail(&central, id)
}

/// Returns all details of a node.
pub(crate) fn detail(central: &Shared, id: NodeId) -> Answer<NodeDetail> {
    let link = central.links.link_state(id);
    let detail = central.nodes.read(|fleet| {
        let records = fleet.node(id)?;
        let detail = NodeDetail::new(records.node, records.boot(), &central.site(), &link);
        let mut detail = detail.working(records.active_work());
        detail = detail.deferred(records.boots().first().copied(), central.now());
        detail.node = detail.node.rolled_back(|profile| central.generations.rolled_back(profile));
        Some(detail)
    });
    detail.map(Json).ok_or_else(|| node_removed(id))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimelineQuery {
    session: Option<BootSessionId>,
}

pub(crate) async fn timeline(
    State(central): State<Shared>,
    Path(node): Path<String>,
    QueryOf(TimelineQuery { session }): QueryOf<TimelineQuery>,
) -> Answer<TimelineView> {
    let (id, now) = (central.nodes.resolve(&node)?, central.now());
    let timeline = central.nodes.read(|fleet| {
        let records = fleet.node(id)?;
        let boots = records.boots();
        let newest = boots.first().map(|boot| boot.id);
        let timeline = session
            .or(newest)
            .and_then(|session| TimelineView::new(records.node, session, &boots, now));
        Some(timeline.map(|timeline| timeline.with_tasks(fleet.tasks())))
    });
    let missing = || match session {
        Some(session) => Refused::not_found(format!("node {id} has no boot {session} on record"))
            .with_hint(format!("`meshd node timeline {id}` lists those that are kept")),
        None => {
            Refused::not_found(format!("node {id} has no boot on record")).with_hint("power it on")
        }
    };
    timeline.ok_or_else(|| node_removed(id))?.map(Json).ok_or_else(missing)
}

pub(crate) async fn doctor(State(central): State<Shared>) -> Json<Vec<Finding>> {
    Json(doctor::findings(&central))
}

pub(crate) async fn metrics(State(state): State<ApiState>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], state.metrics.page(&state.central)).into_response()
}

pub(crate) async fn profiles(State(central): State<Shared>) -> Json<Vec<ProfileView>> {
    let site = central.site();
    Json(site.profiles.values().map(|profile| ProfileView::new(profile, &site)).collect())
}

pub(crate) fn node_view(central: &Shared, id: NodeId) -> Answer<NodeView> {
    let view = central.nodes.read(|fleet| {
        let records = fleet.node(id)?;
        let view = NodeView::new(
            records.node,
            records.boot(),
            &central.site(),
            &central.links.link_state(id),
        );
        Some(
            view.rolled_back(|profile| central.generations.rolled_back(profile))
                .working(records.active_work()),
        )
    });
    view.map(Json).ok_or_else(|| node_removed(id))
}

pub(crate) fn node_removed(id: NodeId) -> Refused {
    Refused::not_found(format!("node {id} was removed")).with_hint("see `meshd node list`")
}
