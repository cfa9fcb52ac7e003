//! Routes of rollouts: list, show, plan, start, pause, resume, abort, undo.
//!
//! | module | content |
//! | --- | --- |
//! | `bisections` | routes of bisections |

mod bisections;

use crate::admin::{
    bind_handlers::Binder,
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
use meshd_api::{
    RolloutNodeView, RolloutPlan, RolloutView, StartRollout, UndoRollout, routes as api,
};
use meshd_central::{NodeGroup, RolloutRequest, Shared};
use meshd_model::{
    fleet::AuditContext,
    rollouts::{NodeStage, Rollout, RolloutState, RolloutTarget, StageCounts},
};
use meshd_types::RolloutId;

const ROLLOUTS: ListSpec = ListSpec {
    fields: &[
        "id",
        "target",
        "policy",
        "state",
        "reason",
        "waits",
        "eta_s",
        "nodes",
        "waves",
        "waiting",
        "active",
        "done",
        "failed",
        "skipped",
        "started_at",
        "finished_at",
        "undoes",
        "by",
    ],
    sorts: &["started_at", "id", "state"],
};

const NODES: ListSpec = ListSpec {
    fields: &["node", "name", "wave", "stage", "reason", "began_at", "finished_at"],
    sorts: &["wave", "name", "node", "stage"],
};

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_ROLLOUTS, list)
        .get(&api::GET_ROLLOUT, show)
        .get(&api::LIST_ROLLOUT_NODES, nodes)
        .post(&api::PLAN_ROLLOUT, plan)
        .post(&api::START_ROLLOUT, start)
        .post(&api::PAUSE_ROLLOUT, pause)
        .post(&api::RESUME_ROLLOUT, resume)
        .post(&api::ABORT_ROLLOUT, abort)
        .post(&api::UNDO_ROLLOUT, undo)
        .get(&api::LIST_BISECTIONS, bisections::list)
        .get(&api::GET_BISECTION, bisections::show)
        .post(&api::START_BISECTION, bisections::start)
        .post(&api::ABORT_BISECTION, bisections::abort)
}

async fn list(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let states = query.words("state", &RolloutState::ALL.map(RolloutState::as_str))?;
    let rows = || {
        let is_listed = |state: RolloutState| {
            states.as_ref().is_none_or(|states| states.contains(&state.as_str()))
        };
        let view = |head: &Rollout, counts: StageCounts| {
            let waits = central.rollouts.waits(head.id);
            is_listed(head.state).then(|| RolloutView::new(head, counts, waits))
        };
        let views = central.rollouts.collect(view).into_iter();
        Ok(views.map(|view| estimated(&central, view)).collect())
    };
    answer::list(rows, rollout_key, &ROLLOUTS, &query, &headers)
}

fn rollout_key(view: &RolloutView, sort: &str) -> OrderKey {
    let key = match sort {
        "started_at" => time_key(view.started_at),
        "state" => view.state.as_str().to_owned(),
        _ => String::new(),
    };
    (key, view.id.to_string())
}

async fn nodes(
    State(central): State<Shared>,
    Path(rollout): Path<String>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let stages = query.words("stage", &NodeStage::ALL.map(NodeStage::as_str))?;
    let id = view(&central, rollout_id(&rollout)?)?.id;
    let rows = || {
        let is_listed = |view: &RolloutNodeView| {
            stages.as_ref().is_none_or(|stages| stages.contains(&view.stage.as_str()))
        };
        Ok(central.rollouts.collect_nodes(id, |record| Some(record.into()).filter(is_listed)))
    };
    answer::list(rows, node_key, &NODES, &query, &headers)
}

fn node_key(view: &RolloutNodeView, sort: &str) -> OrderKey {
    let key = match sort {
        "wave" => format!("{:010} {}", view.wave, view.name),
        "name" => view.name.clone(),
        "stage" => view.stage.as_str().to_owned(),
        _ => String::new(),
    };
    (key, view.node.to_string())
}

async fn show(State(central): State<Shared>, Path(rollout): Path<String>) -> Answer<RolloutView> {
    let id = rollout_id(&rollout)?;
    Ok(Json(view(&central, id)?.with_board(central.rollouts.board(id))))
}

async fn plan(
    State(central): State<Shared>,
    context: AuditContext,
    Body(body): Body<StartRollout>,
) -> Answer<RolloutPlan> {
    let planned = central.rollouts.plan(&request(body)?, &context).await?;
    let mut counts = StageCounts::default();
    planned.nodes.iter().for_each(|record| counts.add(record.stage));
    let remaining = central.rollouts.remaining_of(&planned.head, &planned.nodes);
    let rollout = RolloutView::new(&planned.head, counts, None).with_eta(remaining);
    Ok(Json(RolloutPlan { rollout, nodes: planned.nodes.iter().map(Into::into).collect() }))
}

async fn start(
    State(central): State<Shared>,
    context: AuditContext,
    Body(body): Body<StartRollout>,
) -> Answer<RolloutView> {
    let head = central.rollouts.start(&request(body)?, &context).await?;
    view(&central, head.id).map(Json)
}

async fn pause(
    State(central): State<Shared>,
    Path(rollout): Path<String>,
    context: AuditContext,
) -> Answer<RolloutView> {
    let head = central.rollouts.pause(rollout_id(&rollout)?, &context).await?;
    view(&central, head.id).map(Json)
}

async fn resume(
    State(central): State<Shared>,
    Path(rollout): Path<String>,
    context: AuditContext,
) -> Answer<RolloutView> {
    let head = central.rollouts.resume(rollout_id(&rollout)?, &context).await?;
    view(&central, head.id).map(Json)
}

async fn abort(
    State(central): State<Shared>,
    Path(rollout): Path<String>,
    context: AuditContext,
) -> Answer<RolloutView> {
    let head = central.rollouts.abort(rollout_id(&rollout)?, &context).await?;
    view(&central, head.id).map(Json)
}

async fn undo(
    State(central): State<Shared>,
    Path(rollout): Path<String>,
    context: AuditContext,
    Body(body): Body<Option<UndoRollout>>,
) -> Answer<RolloutView> {
    let UndoRollout { all_at_once } = body.unwrap_or_default();
    let head = central.rollouts.undo(rollout_id(&rollout)?, all_at_once, &context).await?;
    view(&central, head.id).map(Json)
}

/// Reads the nodes and the change of a rollout.
fn request(body: StartRollout) -> Result<RolloutRequest, Refused> {
    if body.target == RolloutTarget::Previous {
        return Err(Refused::bad_request("a new rollout has no `previous`")
            .with_hint("undo the rollout that changed the nodes"));
    }
    let nodes = match (body.hostlist, body.label, body.group, body.profile) {
        (Some(hostlist), None, None, None) => NodeGroup::Named(hostlist),
        (None, Some(selector), None, None) => NodeGroup::Labelled(selector),
        (None, None, Some(group), None) => NodeGroup::Group(group),
        (None, None, None, Some(profile)) => NodeGroup::OfProfile(profile),
        _ => {
            return Err(Refused::bad_request("the nodes are not named in exactly one way")
                .with_hint("use one of `hostlist`, `label`, `group` and `profile`"));
        }
    };
    Ok(RolloutRequest {
        nodes,
        target: body.target,
        policy: body.policy,
        all_at_once: body.all_at_once,
    })
}

fn rollout_id(text: &str) -> Result<RolloutId, Refused> {
    text.parse().map_err(|error| Refused::unknown(&error))
}

fn view(central: &Shared, id: RolloutId) -> Result<RolloutView, Refused> {
    let (head, counts) = central.rollouts.rollout(id)?;
    Ok(estimated(central, RolloutView::new(&head, counts, central.rollouts.waits(id))))
}

fn estimated(central: &Shared, view: RolloutView) -> RolloutView {
    let remaining = Some(view.id).filter(|_| !view.state.is_final());
    let remaining = remaining.and_then(|id| central.rollouts.remaining(id));
    view.with_eta(remaining)
}
