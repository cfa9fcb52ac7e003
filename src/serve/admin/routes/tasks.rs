//! Routes of tasks: run, show, cancel, output.

use crate::admin::{
    ApiState,
    bind_handlers::Binder,
    error::Refused,
    extract::{Body, QueryOf},
    query::{
        answer,
        parameters::Parameters,
        work::{TASKS, TaskFilter, task_key},
    },
    routes::{
        Answer,
        stored_logs::{LogQuery, LogReader, StoredLog},
        vms::consoles::carry,
    },
    transport::caller::Caller,
};
use axum::{
    Extension, Json,
    extract::{Path, State, WebSocketUpgrade, ws::rejection::WebSocketUpgradeRejection},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use meshd_api::{RunTask, TaskView, routes as api};
use meshd_central::{InputError, Shared, TaskRequest, TaskTarget};
use meshd_model::{fleet::AuditContext, work::task::InputOwner};
use meshd_proto::{task::TaskUser, vm::MAX_PIECE};
use meshd_trust::Role;
use meshd_types::{TaskId, failpoint};
use std::time::Duration;

/// Timeout for a program that does not read its input: none, because it may compute for days.
const UNREAD_LIMIT: Duration = Duration::MAX;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_TASKS, list)
        .get(&api::GET_TASK, show)
        .post(&api::RUN_TASK, run)
        .post(&api::CANCEL_TASK, cancel)
        .get(&api::GET_TASK_OUTPUT, output)
        .get(&api::OPEN_TASK_INPUT, input)
}

fn id(text: &str) -> Result<TaskId, Refused> {
    text.parse().map_err(|error| Refused::unknown(&error))
}

async fn list(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let mut filter = TaskFilter::read(&query)?;
    let tasks = || {
        filter.node = query.get("node").map(|node| central.nodes.resolve(node)).transpose()?;
        Ok(all(&central).into_iter().filter(|task| filter.takes(task)).collect())
    };
    answer::list(tasks, task_key, &TASKS, &query, &headers)
}

pub(crate) fn all(central: &Shared) -> Vec<TaskView> {
    central.tasks.collect(TaskView::new)
}

async fn show(State(central): State<Shared>, Path(task): Path<String>) -> Answer<TaskView> {
    Ok(Json(TaskView::new(&central.tasks.task_record(id(&task)?)?)))
}

async fn run(
    State(central): State<Shared>,
    Extension(caller): Extension<Caller>,
    context: AuditContext,
    Body(order): Body<RunTask>,
) -> Answer<TaskView> {
    let RunTask { group, node, argv, nodes, ranks_per_node, launcher, user, timeout_s, has_input } =
        order;
    if user == TaskUser::Root && caller.role < Role::Admin && failpoint::defends("root-task-role") {
        return Err(Refused::insufficient_role(caller.role, Role::Admin));
    }
    let ranks_per_node = ranks_per_node.unwrap_or(1);
    let target = match (group, node) {
        (Some(group), None) => TaskTarget::Group(group),
        (None, Some(node)) => TaskTarget::Node(central.nodes.resolve(&node)?),
        _ => return Err(Refused::bad_request("name either a group or a node")),
    };
    let input_owner = has_input.then(|| InputOwner::of(&caller.identity()));
    let request =
        TaskRequest { target, nodes, ranks_per_node, launcher, user, timeout_s, input_owner, argv };
    Ok(Json(TaskView::new(&central.tasks.run_task(request, &context).await?)))
}

async fn cancel(
    State(central): State<Shared>,
    Path(task): Path<String>,
    context: AuditContext,
) -> Result<Response, Refused> {
    let task = central.tasks.cancel_task(id(&task)?, &context).await?;
    Ok(Json(task.as_ref().map(TaskView::new)).into_response())
}

impl From<InputError> for Refused {
    fn from(error: InputError) -> Self {
        let (status, code) = match error {
            InputError::Task(error) => return error.into(),
            InputError::Connect(error) => return error.into(),
            InputError::Foreign { .. } => (StatusCode::FORBIDDEN, "forbidden"),
            InputError::NoInput(_) => (StatusCode::CONFLICT, "no_input"),
            InputError::Ended { .. } => (StatusCode::CONFLICT, "ended"),
        };
        Refused::of(status, code, &error)
    }
}

async fn input(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(task): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    let upgrade = upgrade.map_err(|_| Refused::bad_request("this route requires a WebSocket"))?;
    let ApiState { central, shutdown, tasks, .. } = state;
    let owner = InputOwner::of(&caller.identity());
    let session = central.tasks.open_input(id(&task)?, owner, caller.role).await?;
    let token = tasks.token();
    let upgrade = upgrade.max_message_size(MAX_PIECE).max_frame_size(MAX_PIECE);
    Ok(upgrade.on_upgrade(move |socket| async move {
        carry(socket, session, (&central, &caller), UNREAD_LIMIT, &shutdown).await;
        drop(token);
    }))
}

async fn output(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(task): Path<String>,
    QueryOf(LogQuery { follow, from, .. }): QueryOf<LogQuery>,
) -> Result<Response, Refused> {
    let task = state.central.tasks.task_record(id(&task)?)?.id;
    let grows = state.central.tasks.watch_task_output(task).await?;
    Ok(LogReader::new(state, caller, StoredLog::Task(task), grows).answer(from, follow))
}
