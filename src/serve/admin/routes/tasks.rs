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
    },
    transport::caller::Caller,
};
use axum::{
    Extension, Json,
    extract::{Path, State},
    http::HeaderMap,
    response::{IntoResponse as _, Response},
};
use meshd_api::{RunTask, TaskView, routes as api};
use meshd_central::{Shared, TaskRequest, TaskTarget};
use meshd_model::fleet::AuditContext;
use meshd_proto::task::TaskUser;
use meshd_trust::Role;
use meshd_types::{TaskId, failpoint};

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_TASKS, list)
        .get(&api::GET_TASK, show)
        .post(&api::RUN_TASK, run)
        .post(&api::CANCEL_TASK, cancel)
        .get(&api::GET_TASK_OUTPUT, output)
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
    let RunTask { group, node, argv, nodes, ranks_per_node, launcher, user, timeout_s } = order;
    if user == TaskUser::Root && caller.role < Role::Admin && failpoint::defends("root-task-role") {
        return Err(Refused::insufficient_role(caller.role, Role::Admin));
    }
    let ranks_per_node = ranks_per_node.unwrap_or(1);
    let target = match (group, node) {
        (Some(group), None) => TaskTarget::Group(group),
        (None, Some(node)) => TaskTarget::Node(central.nodes.resolve(&node)?),
        _ => return Err(Refused::bad_request("name either a group or a node")),
    };
    let request = TaskRequest { target, nodes, ranks_per_node, launcher, user, timeout_s, argv };
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
