//! The site as a whole: caller, status, findings, metrics, profiles, search, activities, time
//! series.

use crate::{
    admin::{
        ApiState, doctor,
        error::Refused,
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
    extract::{Path, State},
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};
use meshd_api::{
    ActivitiesView, CallerView, Finding, ProfileView, SearchView, SeriesPointsView, SeriesView,
    Status, StatusView, UnitCount,
};
use meshd_central::{NodeRecords, Shared};
use meshd_config::{reader::brief, suggest};
use meshd_model::{
    fleet::{Phase, Severity},
    series::{MINUTE, SITE_SERIES, SeriesRange},
};
use meshd_proto::UnitState;
use meshd_types::Timestamp;
use std::{collections::BTreeMap, time::Duration};

/// Length of the default range of a time series.
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn whoami(Extension(caller): Extension<Caller>) -> Json<CallerView> {
    Json(CallerView { name: caller.principal.to_string(), role: caller.role })
}

pub(crate) async fn status(
    State(ApiState { central, https_fingerprint, .. }): State<ApiState>,
) -> Json<StatusView> {
    let mut phases = BTreeMap::new();
    let mut conditions = BTreeMap::new();
    let mut nodes = 0;
    let mut attention = 0;
    let mut units = UnitCount::default();
    central.nodes.read(|fleet| {
        for NodeRecords { node, .. } in fleet.nodes() {
            nodes += 1;
            if Severity::of(node.phase, &node.conditions).needs_attention() {
                attention += 1;
            }
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
    let warnings = of(Status::Warn);
    let errors = of(Status::Fail);
    let site = central.site().name.clone();
    let replicas = vms::containers::replica_count(&central);
    let pid = std::process::id();
    let ready = errors.is_empty();
    Json(StatusView {
        site,
        version,
        pid,
        https_fingerprint,
        ready,
        nodes,
        phases,
        attention,
        units,
        replicas,
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

/// `GET /v1/search`: finds nodes, VMs, containers and tasks.
pub(crate) async fn search(State(central): State<Shared>, query: Parameters) -> Answer<SearchView> {
    let needle = query.needle()?.ok_or_else(|| {
        let hint = format!("write the search text, {MIN_TEXT} to {MAX_TEXT} characters");
        ParameterError::invalid("q", "it is missing", hint)
    })?;
    let mut run = SearchRun::new(needle);
    central.nodes.read(|fleet| fleet.nodes().for_each(|records| run.node(records.node)));
    vms::all(&central).iter().for_each(|vm| run.vm(vm));
    vms::containers::all(&central).iter().for_each(|container| run.container(container));
    tasks::all(&central).iter().for_each(|task| run.task(task));
    Ok(Json(run.finish()))
}

/// `GET /v1/activities`: lists unfinished activities.
pub(crate) async fn activities(State(central): State<Shared>) -> Answer<ActivitiesView> {
    let (activities, rest) = blocking("reading", move || central.activities()).await?;
    Ok(Json(ActivitiesView { activities: activities.into_iter().map(Into::into).collect(), rest }))
}

/// `GET /v1/series`: lists the time series of the site.
pub(crate) async fn list_series(State(central): State<Shared>) -> Answer<Vec<SeriesView>> {
    let newest = blocking("reading", move || central.series.newest()).await?;
    Ok(Json(SeriesView::all(&newest)))
}

/// `GET /v1/series/{name}`: the values of a time series.
pub(crate) async fn series(
    State(central): State<Shared>,
    Path(name): Path<String>,
    query: Parameters,
) -> Answer<SeriesPointsView> {
    let Some(spec) = SITE_SERIES.iter().find(|spec| spec.name == name) else {
        let known = SITE_SERIES.iter().map(|spec| spec.name.as_str());
        let refused = Refused::not_found(format!("there is no time series `{}`", brief(&name)));
        return Err(refused.with_hint(suggest(&name, known)));
    };
    let (from, to, range) = requested_range(&query, central.now())?;
    let read = move || central.series.read(&spec.name, &range).unwrap_or_default();
    let points = blocking("reading", read).await?.into_iter().map(Into::into).collect();
    let name = spec.name.clone();
    let unit = spec.unit.to_owned();
    Ok(Json(SeriesPointsView { name, unit, from, to, step_s: range.step(), points }))
}

/// Reads the range of a request. Without an end it ends with the present minute, so that a page is
/// the same for a minute.
pub(crate) fn requested_range(
    query: &Parameters,
    now: Timestamp,
) -> Result<(Timestamp, Timestamp, SeriesRange), Refused> {
    let minute = i64::try_from(MINUTE * 1000).unwrap_or(i64::MAX);
    let present = Timestamp::from_millis(now.millis() - now.millis() % minute);
    let to = query.parsed("to")?.unwrap_or(present);
    let from = query.parsed("from")?.unwrap_or_else(|| to.before(DAY));
    let range = SeriesRange::new(from, to, query.number("step")?);
    let range = range.map_err(|cause| ParameterError::Invalid { name: "from", cause })?;
    Ok((from, to, range))
}
