//! The site as a whole: caller, status, findings, metrics, profiles, search, activities.

use crate::{
    admin::{
        ApiState, doctor,
        query::{
            parameters::{ParameterError, Parameters},
            search::SearchRun,
            text::{MAX_TEXT, MIN_TEXT},
        },
        routes::{Answer, blocking, tasks, vms},
        transport::caller::Caller,
    },
    metrics,
};
use axum::{
    Extension, Json,
    extract::State,
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};
use meshd_api::{
    ActivitiesView, CallerView, Finding, ProfileView, SearchView, Status, StatusView, UnitCount,
};
use meshd_central::{NodeRecords, Shared};
use meshd_model::fleet::Phase;
use meshd_proto::UnitState;
use std::collections::BTreeMap;

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
    let version = format!("{} ({})", env!("CARGO_PKG_VERSION"), central.commit);
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

pub(crate) async fn findings(State(central): State<Shared>) -> Json<Vec<Finding>> {
    Json(doctor::findings(&central))
}

pub(crate) async fn metrics(State(state): State<ApiState>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], state.metrics.page(&state.central)).into_response()
}

pub(crate) async fn profiles(State(central): State<Shared>) -> Json<Vec<ProfileView>> {
    let site = central.site();
    Json(site.profiles.values().map(|profile| ProfileView::new(profile, &site)).collect())
}

/// `GET /v1/search`: finds nodes, VMs and tasks.
pub(crate) async fn search(State(central): State<Shared>, query: Parameters) -> Answer<SearchView> {
    let needle = query.needle()?.ok_or_else(|| {
        let hint = format!("write the search text, {MIN_TEXT} to {MAX_TEXT} characters");
        ParameterError::invalid("q", "it is missing", hint)
    })?;
    let mut run = SearchRun::new(needle);
    central.nodes.read(|fleet| fleet.nodes().for_each(|records| run.node(records.node)));
    vms::all(&central).iter().for_each(|vm| run.vm(vm));
    tasks::all(&central).iter().for_each(|task| run.task(task));
    Ok(Json(run.finish()))
}

/// `GET /v1/activities`: lists unfinished activities.
pub(crate) async fn activities(State(central): State<Shared>) -> Answer<ActivitiesView> {
    let (activities, rest) = blocking("reading", move || central.activities()).await?;
    Ok(Json(ActivitiesView { activities: activities.into_iter().map(Into::into).collect(), rest }))
}
