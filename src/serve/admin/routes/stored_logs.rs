//! Streams stored logs as lines: the output of a task, and `/v1/nodes/{node}/log`, the log of a
//! boot. A reader reads from the files at any pace and never blocks a writer.

use crate::admin::{
    ApiState, error::Refused, extract::QueryOf, routes::nodes::detail::node_removed,
    transport::caller::Caller,
};
use axum::{
    Extension,
    body::Body,
    extract::{Path, State},
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use meshd_api::TaskOutput;
use meshd_central::Shared;
use meshd_store::Chunk;
use meshd_types::{BootSessionId, NodeId, TaskId};
use serde::Deserialize;
use std::{convert::Infallible, io, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Silence after which an empty line detects a reader that is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Interval of checks whether a log is complete.
const LOOK: Duration = Duration::from_millis(500);

/// Requested part of a log.
#[derive(Debug, Deserialize)]
pub(crate) struct LogQuery {
    #[serde(default)]
    pub(crate) follow: bool,
    /// Offset of the first line.
    #[serde(default)]
    pub(crate) from: u64,
    session: Option<BootSessionId>,
}

pub(crate) async fn boot_log(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(node): Path<String>,
    QueryOf(LogQuery { follow, from, session }): QueryOf<LogQuery>,
) -> Result<Response, Refused> {
    let node = state.central.nodes.resolve(&node)?;
    let boots = boots(&state.central, node).ok_or_else(|| node_removed(node))?;
    let session = session
        .map_or(boots.first().copied(), |session| boots.contains(&session).then_some(session));
    let none = || {
        Refused::not_found("no such boot on record")
            .with_hint(format!("`meshd node timeline {node}` lists those that are kept"))
    };
    let session = session.ok_or_else(none)?;
    let grows = state
        .central
        .boot
        .watch_boot_log(session)
        .await
        .map_err(|error| Refused::internal(error.to_string()))?;
    Ok(LogReader::new(state, caller, StoredLog::Boot(node, session), grows).answer(from, follow))
}

/// Returns the boots of a node, the newest first; `None` if there is no such node.
fn boots(central: &Shared, node: NodeId) -> Option<Vec<BootSessionId>> {
    central
        .nodes
        .read(|fleet| Some(fleet.node(node)?.boots().into_iter().map(|boot| boot.id).collect()))
}

/// Output of a task, or log of a boot.
pub(crate) enum StoredLog {
    Task(TaskId),
    Boot(NodeId, BootSessionId),
}

impl StoredLog {
    /// Returns true if no more lines will be written.
    fn is_complete(&self, central: &Shared) -> bool {
        match self {
            StoredLog::Task(task) => {
                central.tasks.task_record(*task).is_ok_and(|task| task.state.is_final())
            }
            StoredLog::Boot(node, session) => {
                let newest = boots(central, *node).and_then(|boots| boots.first().copied());
                newest != Some(*session)
            }
        }
    }

    async fn read(&self, central: &Shared, from: u64) -> io::Result<Chunk> {
        match self {
            StoredLog::Task(task) => {
                central.tasks.task_output(*task, from).await.map_err(io::Error::other)
            }
            StoredLog::Boot(_, session) => central.boot.boot_log(*session, from).await,
        }
    }
}

/// One reader of a log.
pub(crate) struct LogReader {
    central: Shared,
    caller: Caller,
    log: StoredLog,
    grows: watch::Receiver<u64>,
    shutdown: CancellationToken,
}

impl LogReader {
    pub(crate) fn new(
        state: ApiState,
        caller: Caller,
        log: StoredLog,
        grows: watch::Receiver<u64>,
    ) -> Self {
        LogReader { central: state.central, caller, log, grows, shutdown: state.shutdown }
    }

    /// Returns the response with all lines from an offset; with `follow`, also with later lines.
    pub(crate) fn answer(self, from: u64, follow: bool) -> Response {
        let stream = Body::from_stream(futures_util::stream::unfold(
            (self, from),
            move |(mut reader, from)| async move {
                let (bytes, next) = reader.next(from, follow).await?;
                Some((Ok::<_, Infallible>(bytes), (reader, next)))
            },
        ));
        ([(CONTENT_TYPE, "application/x-ndjson")], stream).into_response()
    }

    /// Returns the next lines, and the offset after them.
    async fn next(&mut self, from: u64, follow: bool) -> Option<(Bytes, u64)> {
        let mut silent = Duration::ZERO;
        loop {
            if !self.caller.still_may(&self.central) {
                return None;
            }
            // The check precedes the read, because the last lines are stored before the log becomes
            // complete.
            let complete = self.log.is_complete(&self.central);
            self.grows.mark_unchanged();
            let chunk = self.log.read(&self.central, from).await.ok()?;
            if !chunk.lines.is_empty() {
                return Some((with_gap(chunk.dropped, chunk.lines), chunk.next));
            }
            if complete || !follow {
                return None;
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return None,
                grown = tokio::time::timeout(LOOK, self.grows.changed()) => match grown {
                    // The log was removed.
                    Ok(Err(_)) => return None,
                    Ok(Ok(())) => {}
                    Err(_) => silent += LOOK,
                },
            }
            if silent >= KEEPALIVE {
                return Some((Bytes::from_static(b"\n"), from));
            }
        }
    }
}

fn with_gap(dropped: u64, lines: Vec<u8>) -> Bytes {
    if dropped == 0 {
        return lines.into();
    }
    let mut line =
        serde_json::to_vec(&TaskOutput::Dropped { dropped }).expect("a number is plain data");
    line.push(b'\n');
    line.extend(lines);
    line.into()
}
