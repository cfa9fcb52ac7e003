//! Tasks and their output.

use super::{MAX_OUTPUT, ROWS, tail};
use crate::{
    PREFIX,
    client::{ApiClient, OrderNotes, encoded},
    html::{self, Page, display_text, maybe, plain, time},
    request_checks::{fields, redirect},
    screens::{Answer, actions},
};
use axum::{
    body::Body,
    extract::Path,
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{TaskOutput, TaskView, routes as api};

/// Maximum number of output record bytes to read, from the end. Each record contains a line's text
/// and its source.
const MAX_LINES: usize = 4 * MAX_OUTPUT;

pub(in crate::screens) fn task_table(tasks: &[TaskView]) -> Markup {
    let row = |task: &TaskView| {
        let link = html! { a href=(format!("{PREFIX}/tasks/{}", task.id)) { (task.id) } };
        vec![
            link,
            plain(task.state.as_str()),
            html! { code { (display_text(&task.argv.join(" "))) } },
            plain(&task.group),
            plain(task.nodes.len()),
            plain(&task.owner),
            time(task.created_at),
            html! { (maybe(task.cause.as_ref())) " " (display_text(&task.detail)) },
        ]
    };
    let rows: Vec<_> = tasks.iter().map(row).collect();
    html::table(
        &["ID", "State", "Program", "Group", "Nodes", "Owner", "Created", "Ended by"],
        &rows,
        "There is no task.",
    )
}

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let tasks =
        client.list(api::LIST_TASKS.path([]).with("sort", "-created_at").with("limit", ROWS)).await;
    let tasks = tasks.map_err(|error| client.failed(&error))?;
    let content = html! {
        h1 { "Tasks" }
        @if actions::may_order(&client) { p { a.button href=(format!("{PREFIX}/tasks/new")) { "Run task…" } } }
        div id="rows" data-live { (task_table(&tasks.rows)) }
    };
    Ok(Page { client: &client, title: "Tasks".to_owned(), nav_path: "/tasks", content }
        .answer(&headers))
}

pub(crate) async fn one(client: ApiClient, Path(task): Path<String>, headers: HeaderMap) -> Answer {
    let failed = |error| client.failed(&error);
    let output = api::GET_TASK_OUTPUT.path([&task]);
    let task = client.get(api::GET_TASK.path([&task])).await.map_err(failed)?;
    let output = client.tail(output, MAX_LINES).await.map_err(failed)?;
    let names = client.node_names().await.map_err(failed)?;
    let nodes: Vec<_> = task
        .nodes
        .iter()
        .map(|node| {
            vec![names.link(node.node), plain(node.address), plain(&node.state), maybe(node.code)]
        })
        .collect();
    let content = html! {
        h1 { "Task " (task.id) " " (html::badge("idle", task.state.as_str())) }
        div id="facts" data-live {
            (task_table(std::slice::from_ref(&task)))
            (html::table(&["Node", "Address", "State", "Exit code"], &nodes, "It has no node."))
        }
        @if actions::may_order(&client) && task.ended_at.is_none() {
            form.inline method="post" action=(format!("{PREFIX}/tasks/{}/cancel", task.id)) { button.danger { "Cancel task" } }
        }
        h2 { "Output" }
        div id="output" data-live { pre.output tabindex="0" { (tail(&task_output(&output))) } }
    };
    Ok(Page { client: &client, title: format!("Task {}", task.id), nav_path: "/tasks", content }
        .answer(&headers))
}

/// Returns the text of records, each on a line. Omits the first record if its beginning is cut.
fn task_output(records: &[u8]) -> String {
    let lines = records.split(|byte| *byte == b'\n');
    let parsed = lines.filter_map(|line| serde_json::from_slice::<TaskOutput>(line).ok());
    parsed
        .map(|record| match record {
            TaskOutput::Piece(piece) => {
                String::from_utf8_lossy(&piece.data.into_bytes().unwrap_or_default()).into_owned()
            }
            TaskOutput::Dropped { dropped } => format!("\n[{dropped} bytes are missing]\n"),
        })
        .collect()
}

pub(crate) async fn cancel(
    client: ApiClient,
    Path(task): Path<String>,
    request: Request<Body>,
) -> Answer {
    fields(request).await?;
    let order = api::CANCEL_TASK.path([&task]).with_body(&());
    let done = client.order_untyped(order, &OrderNotes::default()).await;
    done.map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/tasks/{}", encoded(&task))))
}
