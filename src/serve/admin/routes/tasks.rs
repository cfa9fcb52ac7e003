//! Routes of tasks: run, show, cancel, output.

use crate::serve::{
    admin::{
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
        },
        table::{Lines, Many, Nothing, One, Routes},
        transport::auth::Caller,
    },
    central::{RunJob, Shared},
};
use axum::{
    Extension, Json,
    body::Body as Stream,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{HeaderMap, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use meshd_api::{RunTask, TaskOutput, TaskView};
use meshd_model::fleet::{AuditContext, Verb};
use meshd_proto::job::JobUser;
use meshd_trust::Role;
use meshd_types::{JobId, fail};
use serde::Deserialize;
use std::{convert::Infallible, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// An empty line after so much silence tells whether the reader is still there; and the end of a task is looked for so often.
const KEEPALIVE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .see::<Many<TaskView>, _, _>("/tasks", TASKS.parameters, Role::Viewer, "tasks, the newest last", list)
        .see::<One<TaskView>, _, _>("/tasks/{task}", &[], Role::Viewer, "one task and its nodes", show)
        .order::<One<RunTask>, One<TaskView>, _, _>("/tasks", Verb::TaskRun, "run a program on nodes of a group", run)
        .order::<Nothing, One<TaskView>, _, _>(
            "/tasks/{task}/cancel",
            Verb::TaskCancel,
            "end a task: all its processes on all its nodes",
            cancel,
        )
        .see::<Lines<TaskOutput>, _, _>(
            "/tasks/{task}/output",
            &["follow", "from"],
            Role::Operator,
            "what a task wrote, and what it writes from now on",
            output,
        )
}

fn id(text: &str) -> Result<JobId, Refused> {
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
    central.store().read(|model| model.jobs().map(TaskView::new).collect())
}

async fn show(State(Plane { central, .. }): State<Plane>, Path(task): Path<String>) -> Answer<TaskView> {
    Ok(Json(TaskView::new(&central.tasks.job_record(id(&task)?)?)))
}

async fn run(
    State(Plane { central, .. }): State<Plane>,
    Extension(caller): Extension<Caller>,
    by: AuditContext,
    order: Body<RunTask>,
) -> Answer<TaskView> {
    let RunTask { group, argv, nodes, ranks_per_node, launcher, user, timeout_s } = body(order)?;
    if user == JobUser::Root && caller.role < Role::Admin && fail::defends("root-task-role") {
        return Err(Refused::beyond(caller.role, Role::Admin));
    }
    let ranks_per_node = ranks_per_node.unwrap_or(1);
    let ask = RunJob { group, nodes, ranks_per_node, launcher, user, timeout_s, argv };
    Ok(Json(TaskView::new(&central.tasks.run_job(ask, &by).await?)))
}

async fn cancel(
    State(Plane { central, .. }): State<Plane>,
    Path(task): Path<String>,
    by: AuditContext,
) -> Result<Response, Refused> {
    let job = central.tasks.cancel_job(id(&task)?, &by).await?;
    Ok(Json(job.as_ref().map(TaskView::new)).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    from: u64,
}

async fn output(
    State(plane): State<Plane>,
    Extension(caller): Extension<Caller>,
    Path(task): Path<String>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(Wanted { follow, from }) = wanted.map_err(|error| Refused::bad_request(error.body_text()))?;
    let central = plane.central;
    let job = central.tasks.job_record(id(&task)?)?.id;
    let grows = central.tasks.job_output_grows(job).await?;
    let tail = Tail { central, caller, job, next: from, follow, grows, shutdown: plane.shutdown };
    let stream = Stream::from_stream(futures_util::stream::unfold(tail, |mut tail| async move {
        tail.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), tail))
    }));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], stream).into_response())
}

/// What is still to be written to one reader. It reads from the files, at its own pace: nobody waits for it.
struct Tail {
    central: Shared,
    caller: Caller,
    job: JobId,
    next: u64,
    follow: bool,
    grows: watch::Receiver<u64>,
    shutdown: CancellationToken,
}

impl Tail {
    async fn next(&mut self) -> Option<Bytes> {
        let mut silent = Duration::ZERO;
        loop {
            if !self.caller.still_may(&self.central) {
                return None;
            }
            // Asked before it is read: what a task wrote is kept before it is over.
            let over = self.central.tasks.job_record(self.job).is_ok_and(|job| job.state.is_final());
            self.grows.mark_unchanged();
            let chunk = self.central.tasks.job_output(self.job, self.next).await.ok()?;
            self.next = chunk.next;
            if !chunk.lines.is_empty() {
                return Some(written(chunk.dropped, chunk.lines));
            }
            if over || !self.follow {
                return None;
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return None,
                grown = tokio::time::timeout(LOOK, self.grows.changed()) => match grown {
                    // It was thrown away.
                    Ok(Err(_)) => return None,
                    Ok(Ok(())) => {}
                    Err(_) => silent += LOOK,
                },
            }
            if silent >= KEEPALIVE {
                return Some(Bytes::from_static(b"\n"));
            }
        }
    }
}

fn written(dropped: u64, lines: Vec<u8>) -> Bytes {
    if dropped == 0 {
        return lines.into();
    }
    let mut line = serde_json::to_vec(&TaskOutput::Dropped { dropped }).expect("a number is plain data");
    line.push(b'\n');
    line.extend(lines);
    line.into()
}
