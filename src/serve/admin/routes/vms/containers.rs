//! Routes of containers: run, show, start, stop, delete, log, exec.

use crate::admin::{
    ApiState,
    bind_handlers::Binder,
    error::Refused,
    extract::{Body, QueryOf},
    query::{
        answer,
        containers::{CONTAINERS, ContainerFilter, container_key},
        parameters::Parameters,
    },
    routes::{
        Answer,
        nodes::shell::{ShellTarget, ShellUser, serve, shell_terminal},
        vms::consoles::{first_output, stream_output},
    },
    transport::caller::Caller,
};
use axum::{
    Extension, Json,
    extract::{Path, State, WebSocketUpgrade, ws::rejection::WebSocketUpgradeRejection},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use meshd_api::{ContainerView, ReplicaCount, RunContainer, routes as api};
use meshd_central::{ReplicaExecRequest, ReplicaSessionError, Shared};
use meshd_model::{
    fleet::{AuditContext, Verb},
    work::container::{Container, ReplicaPhase},
};
use meshd_proto::shell::TerminalName;
use meshd_store::ReplicaCounts;
use serde::Deserialize;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_CONTAINERS, list)
        .get(&api::GET_CONTAINER, show)
        .post(&api::RUN_CONTAINER, run)
        .post(&api::START_CONTAINER, start)
        .post(&api::STOP_CONTAINER, stop)
        .post(&api::DELETE_CONTAINER, delete)
        .get(&api::GET_CONTAINER_LOG, log)
        .session(&api::OPEN_CONTAINER_EXEC, Verb::ContainerExec, exec)
}

impl From<ReplicaSessionError> for Refused {
    fn from(error: ReplicaSessionError) -> Self {
        let (status, code) = match error {
            ReplicaSessionError::Container(error) => return error.into(),
            ReplicaSessionError::Connect(error) => return error.into(),
            ReplicaSessionError::Store(error) => return error.into(),
            ReplicaSessionError::Argv { .. } => (StatusCode::BAD_REQUEST, "bad_program"),
            ReplicaSessionError::Several { .. } => (StatusCode::CONFLICT, "several_replicas"),
            ReplicaSessionError::NoReplica(_) => (StatusCode::NOT_FOUND, "no_replica"),
            ReplicaSessionError::Unplaced(_) => (StatusCode::CONFLICT, "unplaced"),
        };
        Refused::of(status, code, &error)
    }
}

fn view(central: &Shared, container: &Container) -> ContainerView {
    let mut view = ContainerView::new(container, |node| central.links.is_linked(node));
    // By its record, nothing of it runs.
    for (index, why) in central.containers.copies_elsewhere(container) {
        let replica = &mut view.replicas[index];
        if replica.phase == ReplicaPhase::Stopped {
            (replica.phase, replica.detail) = (ReplicaPhase::Unconfirmed, why);
        }
    }
    view
}

async fn list(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let mut filter = ContainerFilter::read(&query)?;
    let containers = || {
        filter.node = query.get("node").map(|node| central.nodes.resolve(node)).transpose()?;
        Ok(all(&central).into_iter().filter(|container| filter.takes(container)).collect())
    };
    answer::list(containers, container_key, &CONTAINERS, &query, &headers)
}

/// Returns all containers on record.
pub(crate) fn all(central: &Shared) -> Vec<ContainerView> {
    // Links are read after the store is free.
    let all = central.containers.collect(Container::clone);
    all.iter().map(|container| view(central, container)).collect()
}

/// Returns the number of replicas that are to run, and of those that do. Every page shows it.
pub(crate) fn replica_count(central: &Shared) -> ReplicaCount {
    let ReplicaCounts { wanted, running } = central.containers.replica_counts();
    let linked = running.iter().filter(|(node, _)| central.links.is_linked(**node));
    ReplicaCount { running: linked.map(|(_, count)| count).sum(), total: wanted }
}

async fn show(State(central): State<Shared>, Path(name): Path<String>) -> Answer<ContainerView> {
    Ok(Json(view(&central, &central.containers.container(&name)?)))
}

async fn run(
    State(central): State<Shared>,
    context: AuditContext,
    Body(order): Body<RunContainer>,
) -> Answer<ContainerView> {
    let container = central.containers.run(order, &context).await?;
    Ok(Json(view(&central, &container)))
}

async fn start(
    State(central): State<Shared>,
    Path(name): Path<String>,
    context: AuditContext,
) -> Answer<ContainerView> {
    let container = central.containers.start(&name, &context).await?;
    Ok(Json(view(&central, &container)))
}

async fn stop(
    State(central): State<Shared>,
    Path(name): Path<String>,
    context: AuditContext,
) -> Answer<ContainerView> {
    let container = central.containers.stop(&name, &context).await?;
    Ok(Json(view(&central, &container)))
}

async fn delete(
    State(central): State<Shared>,
    Path(name): Path<String>,
    context: AuditContext,
) -> Result<Response, Refused> {
    let container = central.containers.delete(&name, &context).await?;
    Ok(Json(container.map(|container| view(&central, &container))).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerLogQuery {
    /// Continues with new output.
    follow: bool,
}

async fn log(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    QueryOf(query): QueryOf<ContainerLogQuery>,
) -> Result<Response, Refused> {
    let mut session = state.central.containers.open_log(&name, query.follow).await?;
    let first = first_output(&mut session).await?;
    Ok(stream_output(session, first, state, caller))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerExecQuery {
    rows: Option<u16>,
    columns: Option<u16>,
    terminal: Option<TerminalName>,
    /// Program and arguments, as a JSON list.
    argv: String,
}

async fn exec(
    State(state): State<ApiState>,
    user: ShellUser,
    Path(name): Path<String>,
    QueryOf(query): QueryOf<ContainerExecQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    let argv = serde_json::from_str(&query.argv)
        .map_err(|_| Refused::bad_request("argv is not a JSON list of texts"))?;
    let terminal = shell_terminal(query.rows, query.columns, query.terminal);
    let request = ReplicaExecRequest { argv, terminal };
    serve(state, user, ShellTarget::Replica(name, request), upgrade).await
}
