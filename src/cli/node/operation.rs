//! `meshd operation`: orders to nodes, with the state of each node.

use crate::cli::{
    Context, Failure,
    client::{AdminClient, RecordProgress, follow_record},
    output::list::{ListOutput, TimeFilter},
    output::print::{Output, ago, fields, now, table},
    wait,
};
use clap::Subcommand;
use meshd_api::{NodeOperationView, OperationView, routes as api};
use meshd_model::operations::{NodeOperationState, OperationState};
use meshd_types::OperationId;

/// Rows of one page.
const PAGE: usize = 1000;

/// An operation is an order to one or several nodes.
#[derive(Debug, Subcommand)]
pub(crate) enum OperationCommand {
    /// List operations, the newest last
    List {
        #[command(flatten)]
        output: ListOutput,
        #[command(flatten)]
        time: TimeFilter,
    },
    /// Show an operation and its nodes
    Show {
        /// Operation ID
        operation: OperationId,
        #[command(flatten)]
        output: Output,
    },
    /// Follow an operation until all its nodes are finished
    Follow {
        /// Operation ID
        operation: OperationId,
    },
    /// Cancel the nodes that have not started
    Cancel {
        /// Operation ID
        operation: OperationId,
    },
}

impl OperationCommand {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        wait(async {
            match self {
                OperationCommand::List { output, time } => {
                    let mut found = client
                        .get(api::LIST_OPERATIONS.path([]).with("sort", "accepted_at"))
                        .await?;
                    found.retain(|operation| time.includes(operation.accepted_at));
                    output.print(&found, |found| rows(found))
                }
                OperationCommand::Show { operation, output } => {
                    show(&client, operation, &output).await
                }
                OperationCommand::Follow { operation } => {
                    follow_operation(&client, operation, FollowUntil::Finished).await
                }
                OperationCommand::Cancel { operation } => {
                    let done = client.post(api::CANCEL_OPERATION.path([&operation]), &()).await?;
                    message!(
                        "operation {operation}: {} of {} nodes cancelled",
                        done.cancelled,
                        done.operation.nodes
                    );
                    Ok(())
                }
            }
        })
    }
}

fn rows(found: &[OperationView]) -> String {
    let rows = found.iter().map(|operation| {
        [
            operation.id.to_string(),
            operation.verb.clone(),
            operation.state.as_str().to_owned(),
            operation.nodes.to_string(),
            progress(operation),
            ago(operation.accepted_at, now()),
            operation.by.principal.to_string(),
        ]
    });
    table(["id", "verb", "state", "nodes", "progress", "accepted", "by"], rows)
}

/// Number of nodes in each state, without zeros.
fn progress(operation: &OperationView) -> String {
    let counts = [
        (operation.pending, "pending"),
        (operation.running, "running"),
        (operation.done, "done"),
        (operation.failed, "failed"),
        (operation.cancelled, "cancelled"),
    ];
    let words = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"));
    words.collect::<Vec<_>>().join(", ")
}

async fn show(client: &AdminClient, id: OperationId, output: &Output) -> Result<(), Failure> {
    let operation = client.get(api::GET_OPERATION.path([&id])).await?;
    let nodes = client.get(api::LIST_OPERATION_NODES.path([&id]).with("sort", "name")).await?;
    let whole = serde_json::json!({ "operation": operation, "nodes": nodes });
    output.print(&whole, |_| {
        let mut head = vec![
            ("operation", operation.id.to_string()),
            ("verb", operation.verb.clone()),
            ("state", operation.state.as_str().to_owned()),
            ("nodes", format!("{} ({})", operation.nodes, progress(&operation))),
            ("accepted", ago(operation.accepted_at, now())),
            ("by", operation.by.principal.to_string()),
        ];
        head.extend(operation.by.reason.clone().map(|reason| ("reason", reason)));
        format!("{}\n{}", fields(head), node_rows(&nodes))
    })
}

fn node_rows(nodes: &[NodeOperationView]) -> String {
    let at = |time: Option<meshd_types::Timestamp>| {
        time.map(|time| ago(time, now())).unwrap_or_default()
    };
    let rows = nodes.iter().map(|node| {
        let state = node.state.as_str().to_owned();
        let reason = node.reason.clone().or(node.progress.clone()).unwrap_or_default();
        [
            node.node.to_string(),
            node.name.clone(),
            state,
            at(node.started_at),
            at(node.finished_at),
            reason,
        ]
    });
    table(["node", "name", "state", "started", "finished", "reason"], rows)
}

/// The point up to which an operation is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowUntil {
    /// Each node has received the order: a drain may last.
    Started,
    Finished,
}

/// Prints the progress of an operation whenever it changes. Fails if a node failed.
pub(crate) async fn follow_operation(
    client: &AdminClient,
    id: OperationId,
    until: FollowUntil,
) -> Result<(), Failure> {
    let path = || api::GET_OPERATION.path([&id]);
    let operation: OperationView =
        follow_record(client, path, |operation: &OperationView| RecordProgress {
            line: format!("{} {id}: {}", operation.verb, progress(operation)),
            is_over: match until {
                FollowUntil::Started => operation.pending == 0,
                FollowUntil::Finished => operation.state != OperationState::Running,
            },
        })
        .await?;
    if operation.failed + operation.cancelled == 0 {
        return Ok(());
    }
    let path =
        api::LIST_OPERATION_NODES.path([&id]).with("state", "failed,cancelled").with("limit", PAGE);
    for NodeOperationView { node, name, state, reason, .. } in client.get(path).await? {
        let verb = if state == NodeOperationState::Failed { "failed" } else { "cancelled" };
        message!("{name} ({node}): {verb}: {}", reason.unwrap_or_default());
    }
    Err(Failure::new(
        format!("operation {id} is not done on all nodes"),
        "read the reason of each node above",
    ))
}
