//! Routes of operations: list, show, cancel.

use crate::admin::{
    bind_handlers::Binder,
    error::Refused,
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
use meshd_api::{CancelledOperation, NodeOperationView, OperationView, routes as api};
use meshd_central::{CancelError, Shared};
use meshd_model::{
    fleet::AuditContext,
    operations::{NodeOperationState, Operation, OperationState, StateCounts},
};
use meshd_types::OperationId;

const OPERATIONS: ListSpec = ListSpec {
    fields: &[
        "id",
        "verb",
        "order",
        "state",
        "nodes",
        "pending",
        "running",
        "done",
        "failed",
        "cancelled",
        "accepted_at",
        "by",
    ],
    sorts: &["accepted_at", "id", "verb", "state"],
};

const NODES: ListSpec = ListSpec {
    fields: &["node", "name", "state", "reason", "started_at", "confirmed_at", "finished_at"],
    sorts: &["name", "node", "state"],
};

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_OPERATIONS, list)
        .get(&api::GET_OPERATION, show)
        .get(&api::LIST_OPERATION_NODES, nodes)
        .post(&api::CANCEL_OPERATION, cancel)
}

async fn list(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    use OperationState::{Cancelled, Done, Failed, Running};
    let states =
        query.words("state", &[Running, Done, Failed, Cancelled].map(OperationState::as_str))?;
    let rows = || {
        let is_listed = |view: &OperationView| {
            states.as_ref().is_none_or(|states| states.contains(&view.state.as_str()))
        };
        let view = |(head, counts): (&Operation, StateCounts)| {
            Some(OperationView::new(head, counts)).filter(is_listed)
        };
        Ok(central.nodes.collect_operations(view))
    };
    answer::list(rows, operation_key, &OPERATIONS, &query, &headers)
}

fn operation_key(view: &OperationView, sort: &str) -> OrderKey {
    let key = match sort {
        "accepted_at" => time_key(view.accepted_at),
        "verb" => view.verb.clone(),
        "state" => view.state.as_str().to_owned(),
        _ => String::new(),
    };
    (key, view.id.to_string())
}

async fn nodes(
    State(central): State<Shared>,
    Path(operation): Path<String>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let states = query.words("state", &NodeOperationState::ALL.map(NodeOperationState::as_str))?;
    let id = view(&central, &operation)?.id;
    let rows = || {
        let is_listed = |view: &NodeOperationView| {
            states.as_ref().is_none_or(|states| states.contains(&view.state.as_str()))
        };
        Ok(central
            .nodes
            .collect_operation_nodes(id, |record| Some(record.into()).filter(is_listed)))
    };
    answer::list(rows, node_key, &NODES, &query, &headers)
}

fn node_key(view: &NodeOperationView, sort: &str) -> OrderKey {
    let key = match sort {
        "name" => view.name.clone(),
        "state" => view.state.as_str().to_owned(),
        _ => String::new(),
    };
    (key, view.node.to_string())
}

async fn show(
    State(central): State<Shared>,
    Path(operation): Path<String>,
) -> Answer<OperationView> {
    view(&central, &operation).map(Json)
}

async fn cancel(
    State(central): State<Shared>,
    Path(operation): Path<String>,
    context: AuditContext,
) -> Answer<CancelledOperation> {
    let cancelled = central.nodes.cancel_operation(operation_id(&operation)?, &context).await?;
    Ok(Json(CancelledOperation { cancelled, operation: view(&central, &operation)? }))
}

fn operation_id(text: &str) -> Result<OperationId, Refused> {
    text.parse().map_err(|error| Refused::unknown(&error))
}

fn view(central: &Shared, operation: &str) -> Result<OperationView, Refused> {
    let id = operation_id(operation)?;
    let (head, counts) = central.nodes.operation(id).ok_or(CancelError::Unknown(id))?;
    Ok(OperationView::new(&head, counts))
}
