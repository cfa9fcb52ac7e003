//! Routes of tasks: run, show, cancel, output.

use crate::serve::admin::{
    Plane,
    error::Refused,
    query::{
        answer::{Asked, Encoding, Listing, parameters},
        page::{ResultPage, cut},
        work::{TASKS, TaskFilter, task_key},
    },
    routes::{
        Answer,
        orders::{Body, body},
        stored_logs::{LogQuery, LogReader, StoredLog},
    },
    table::{Array, Empty, JsonLines, Object, Routes},
    transport::auth::Caller,
};
use axum::{
    Extension, Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::HeaderMap,
    response::{IntoResponse as _, Response},
};
use meshd_api::{RunTask, TaskOutput, TaskView};
use meshd_central::{Shared, TaskRequest, TaskTarget};
use meshd_model::fleet::{AuditContext, Verb};
use meshd_proto::task::TaskUser;
use meshd_trust::Role;
use meshd_types::{TaskId, fail};

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .get::<Array<TaskView>, _, _>("/tasks", TASKS.parameters, Role::Viewer, "List tasks, the newest last", list)
        .get::<Object<TaskView>, _, _>("/tasks/{task}", &[], Role::Viewer, "Show a task and its nodes", show)
        .post::<Object<RunTask>, Object<TaskView>, _, _>(
            "/tasks",
            Verb::TaskRun,
            "Run a program on nodes of a group, or on one node",
            run,
        )
        .post::<Empty, Object<TaskView>, _, _>(
            "/tasks/{task}/cancel",
            Verb::TaskCancel,
            "Cancel a task: end its processes on all its nodes",
            cancel,
        )
        .get::<JsonLines<TaskOutput>, _, _>(
            "/tasks/{task}/output",
            &["follow", "from"],
            Role::Operator,
            "Read the output of a task, or follow it",
            output,
        )
}

fn id(text: &str) -> Result<TaskId, Refused> {
    text.parse().map_err(|error| Refused::not_found(format!("{error}")))
}

async fn list(
    State(Plane { central, .. }): State<Plane>,
    headers: HeaderMap,
    asked: Asked,
) -> Result<Response, Refused> {
    let asked = parameters(asked, TASKS.parameters)?;
    let (mut filter, page, fields) = (TaskFilter::read(&asked)?, asked.page(&TASKS)?, asked.fields(&TASKS)?);
    filter.node = asked.get("node").map(|node| central.nodes.resolve(node)).transpose()?;
    let taken = all(&central).into_iter().filter(|task| filter.takes(task));
    let rows = taken.map(|task| (task_key(&task, page.sort.key), task)).collect();
    let ResultPage { rows, next, total } = cut(rows, &page);
    let (next, total) = (next.map(|next| next.to_string()), Some(total));
    Listing { rows, fields, next, total, encoding: Encoding::Array }.answer(&headers)
}

/// All tasks.
pub(crate) fn all(central: &Shared) -> Vec<TaskView> {
    central.store().read(|model| model.tasks().map(TaskView::new).collect())
}

async fn show(State(Plane { central, .. }): State<Plane>, Path(task): Path<String>) -> Answer<TaskView> {
    Ok(Json(TaskView::new(&central.tasks.task_record(id(&task)?)?)))
}

async fn run(
    State(Plane { central, .. }): State<Plane>,
    Extension(caller): Extension<Caller>,
    by: AuditContext,
    order: Body<RunTask>,
) -> Answer<TaskView> {
    let RunTask { group, node, argv, nodes, ranks_per_node, launcher, user, timeout_s } = body(order)?;
    if user == TaskUser::Root && caller.role < Role::Admin && fail::defends("root-task-role") {
        return Err(Refused::beyond(caller.role, Role::Admin));
    }
    let ranks_per_node = ranks_per_node.unwrap_or(1);
    let target = match (group, node) {
        (Some(group), None) => TaskTarget::Group(group),
        (None, Some(node)) => TaskTarget::Node(central.nodes.resolve(&node)?),
        _ => return Err(Refused::bad_request("name either a group or a node")),
    };
    let ask = TaskRequest { target, nodes, ranks_per_node, launcher, user, timeout_s, argv };
    Ok(Json(TaskView::new(&central.tasks.run_task(ask, &by).await?)))
}

async fn cancel(
    State(Plane { central, .. }): State<Plane>,
    Path(task): Path<String>,
    by: AuditContext,
) -> Result<Response, Refused> {
    let task = central.tasks.cancel_task(id(&task)?, &by).await?;
    Ok(Json(task.as_ref().map(TaskView::new)).into_response())
}

async fn output(
    State(plane): State<Plane>,
    Extension(caller): Extension<Caller>,
    Path(task): Path<String>,
    wanted: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(LogQuery { follow, from, .. }) = wanted.map_err(|error| Refused::bad_request(error.body_text()))?;
    let task = plane.central.tasks.task_record(id(&task)?)?.id;
    let grows = plane.central.tasks.watch_task_output(task).await?;
    Ok(LogReader::new(plane, caller, StoredLog::Task(task), grows).answer(from, follow))
}
