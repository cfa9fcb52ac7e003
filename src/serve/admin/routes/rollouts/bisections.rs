//! Routes of bisections: list, show, start, abort.

use crate::admin::{
    error::Refused,
    extract::Body,
    query::{
        answer,
        page::{OrderKey, time_key},
        parameters::{ListSpec, Parameters},
    },
    routes::Answer,
};
use axum::{
    Json,
    extract::{Path, State},
    http::HeaderMap,
    response::Response,
};
use meshd_api::{BisectionView, StartBisection};
use meshd_central::{BisectionRequest, Shared};
use meshd_model::{
    bisections::{Bisection, BisectionState},
    fleet::AuditContext,
};
use meshd_types::BisectionId;

const BISECTIONS: ListSpec = ListSpec {
    fields: &[
        "id",
        "profile",
        "state",
        "reason",
        "first_bad",
        "suspects",
        "generations",
        "nodes",
        "check",
        "probes",
        "returning",
        "started_at",
        "finished_at",
        "by",
    ],
    sorts: &["started_at", "id", "state"],
};

pub(super) async fn list(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let states = query.words("state", &BisectionState::ALL.map(BisectionState::as_str))?;
    let rows = || {
        let is_listed = |bisection: &Bisection| {
            states.as_ref().is_none_or(|states| states.contains(&bisection.state.as_str()))
        };
        let view =
            |bisection: &Bisection| is_listed(bisection).then(|| BisectionView::from(bisection));
        Ok(central.rollouts.collect_bisections(view))
    };
    answer::list(rows, key, &BISECTIONS, &query, &headers)
}

fn key(view: &BisectionView, sort: &str) -> OrderKey {
    let key = match sort {
        "started_at" => time_key(view.started_at),
        "state" => view.state.as_str().to_owned(),
        _ => String::new(),
    };
    (key, view.id.to_string())
}

pub(super) async fn show(
    State(central): State<Shared>,
    Path(bisection): Path<String>,
) -> Answer<BisectionView> {
    Ok(Json((&central.rollouts.bisection(bisection_id(&bisection)?)?).into()))
}

pub(super) async fn start(
    State(central): State<Shared>,
    context: AuditContext,
    Body(body): Body<StartBisection>,
) -> Answer<BisectionView> {
    let request = BisectionRequest {
        nodes: body.hostlist,
        good: body.good,
        bad: body.bad,
        check: body.check,
        runs: body.runs,
        verify: body.verify,
        node_timeout_s: body.node_timeout_s,
        soak_s: body.soak_s,
    };
    Ok(Json((&central.rollouts.bisect(request, &context).await?).into()))
}

pub(super) async fn abort(
    State(central): State<Shared>,
    Path(bisection): Path<String>,
    context: AuditContext,
) -> Answer<BisectionView> {
    let id = bisection_id(&bisection)?;
    Ok(Json((&central.rollouts.abort_bisection(id, &context).await?).into()))
}

fn bisection_id(text: &str) -> Result<BisectionId, Refused> {
    text.parse().map_err(|error| Refused::unknown(&error))
}
