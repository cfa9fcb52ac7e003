//! Virtual machines, slots, tasks and their output.

use super::{Answer, actions, node::node_link};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, OrderNotes, encoded},
    gate::{fields, redirect},
    html::{self, Page, code, maybe, plain, shown, time},
    plain_text::visible,
};
use axum::{
    body::Body,
    extract::Path,
    http::{HeaderMap, Request, StatusCode},
};
use maud::{Markup, html};
use meshd_api::{DeleteVm, SlotView, TaskOutput, TaskView, VmView};
use meshd_types::NodeId;
use serde_json::Value;

/// Rows of a page.
const ROWS: usize = 200;
/// Bytes of the records of an output that are read, the last ones. Each record has the text of a line, and where it comes from.
const MAX_LINES: usize = 4 * MAX_OUTPUT;
/// Characters of a console or an output that a page shows, the last ones.
const MAX_OUTPUT: usize = 64 * 1024;

fn of_node(node: Option<NodeId>) -> Markup {
    node.map(|id| node_link(&id.to_string(), &id.to_string())).unwrap_or_default()
}

pub(super) fn vm_table(vms: &[VmView]) -> Markup {
    let row = |vm: &VmView| {
        let name = html! { a href=(format!("{PREFIX}/vms/{}", vm.uuid)) { (vm.name) } };
        let obstacle = html! {
            @if let Some(failure) = &vm.failure { (html::word(&failure.kind)) ": " (shown(&failure.detail)) " " }
            @if let Some(obstacle) = &vm.obstacle { (shown(obstacle)) }
        };
        let addresses = vm.nics.iter().filter_map(|nic| nic.address).map(|it| it.to_string()).collect::<Vec<_>>();
        vec![
            name,
            plain(vm.state.as_str()),
            of_node(vm.node),
            plain(vm.vcpus),
            plain(vm.memory),
            plain(vm.units.join(" ")),
            plain(addresses.join(" ")),
            obstacle,
        ]
    };
    let rows: Vec<_> = vms.iter().map(row).collect();
    html::table(
        &["Name", "State", "Node", "CPUs", "Memory", "Units", "Addresses", "Trouble"],
        &rows,
        "There is no virtual machine.",
    )
}

pub(crate) async fn vms(client: ApiClient, headers: HeaderMap) -> Answer {
    let vms = client.list::<VmView>(&format!("/v1/vms?sort=name&limit={ROWS}")).await;
    let vms = vms.map_err(|error| client.failed(&error))?;
    let content = html! {
        h1 { "Virtual machines" }
        @if actions::may_order(&client) {
            div.actions { a.button href=(format!("{PREFIX}/vms/new")) { "Create virtual machine" } }
        }
        div id="rows" data-live { (vm_table(&vms.rows)) }
    };
    Ok(Page { client: &client, title: "VMs".to_owned(), place: "/vms", content }.answer(&headers))
}

pub(crate) async fn vm(client: ApiClient, Path(vm): Path<String>, headers: HeaderMap) -> Answer {
    let vm: VmView = client.get(&format!("/v1/vms/{}", encoded(&vm))).await.map_err(|error| client.failed(&error))?;
    let console = client.tail(&format!("/v1/vms/{}/logs?tail={MAX_OUTPUT}", vm.uuid), MAX_OUTPUT).await;
    let to = |verb: &str| format!("{PREFIX}/vms/{}/{verb}", vm.uuid);
    let content = html! {
        h1 { (vm.name) " " (html::badge("idle", vm.state.as_str())) }
        div id="facts" data-live {
            (vm_table(std::slice::from_ref(&vm)))
            (html::facts(&[("UUID", code(vm.uuid)), ("Since", vm.since.map(time).unwrap_or_default()), ("Restarts in a row", plain(vm.restarts))]))
        }
        @if actions::may_order(&client) {
            div.actions {
                @for (verb, title) in [("start", "Start"), ("stop", "Shut down"), ("restart", "Restart")] {
                    form.inline method="post" action=(to(verb)) { button { (title) } }
                }
                details {
                    summary { "Delete…" }
                    form.stack method="post" action=(to("delete")) {
                        p { "It is shut down, all that it has is released, and its record is deleted." }
                        label for="reason" { "Reason, for the audit log" }
                        input id="reason" name="reason" maxlength="500";
                        button.danger { "Delete " (vm.name) }
                    }
                }
            }
        }
        h2 { "Serial console" }
        div id="console" data-live {
            @match &console {
                Ok(bytes) => pre.output tabindex="0" { (tail(&String::from_utf8_lossy(bytes))) },
                Err(error) => (html::refusal(error)),
            }
        }
        @if actions::may_order(&client) {
            p { a.button href=(format!("{PREFIX}/vms/{}/console", vm.uuid)) { "Open console" } }
        }
    };
    Ok(Page { client: &client, title: vm.name.to_string(), place: "/vms", content }.answer(&headers))
}

pub(crate) async fn order_vm(
    client: ApiClient,
    Path((vm, verb)): Path<(String, String)>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let body = match verb.as_str() {
        "start" | "stop" | "restart" => Value::Null,
        "delete" => serde_json::to_value(DeleteVm::default()).unwrap_or_default(),
        _ => {
            let error = ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is no such action", "");
            return Err(client.failed(&error));
        }
    };
    let notes = OrderNotes { reason: fields.text("reason").to_owned(), ..OrderNotes::default() };
    let path = format!("/v1/vms/{}/{verb}", encoded(&vm));
    client.order::<Value>(&path, &body, &notes).await.map_err(|error| client.failed(&error))?;
    let back = if verb == "delete" { String::new() } else { format!("/{}", encoded(&vm)) };
    Ok(redirect(&format!("{PREFIX}/vms{back}")))
}

pub(super) fn task_table(tasks: &[TaskView]) -> Markup {
    let row = |task: &TaskView| {
        let link = html! { a href=(format!("{PREFIX}/tasks/{}", task.id)) { (task.id) } };
        vec![
            link,
            plain(task.state.as_str()),
            html! { code { (shown(&task.argv.join(" "))) } },
            plain(&task.group),
            plain(task.nodes.len()),
            plain(&task.owner),
            time(task.created_at),
            html! { (maybe(task.cause.as_ref())) " " (shown(&task.detail)) },
        ]
    };
    let rows: Vec<_> = tasks.iter().map(row).collect();
    html::table(
        &["ID", "State", "Program", "Group", "Nodes", "Owner", "Created", "Ended by"],
        &rows,
        "There is no task.",
    )
}

pub(crate) async fn tasks(client: ApiClient, headers: HeaderMap) -> Answer {
    let tasks = client.list::<TaskView>(&format!("/v1/tasks?sort=-created_at&limit={ROWS}")).await;
    let tasks = tasks.map_err(|error| client.failed(&error))?;
    let content = html! { h1 { "Tasks" } div id="rows" data-live { (task_table(&tasks.rows)) } };
    Ok(Page { client: &client, title: "Tasks".to_owned(), place: "/tasks", content }.answer(&headers))
}

pub(crate) async fn task(client: ApiClient, Path(task): Path<String>, headers: HeaderMap) -> Answer {
    let failed = |error| client.failed(&error);
    let path = format!("/v1/tasks/{}", encoded(&task));
    let task: TaskView = client.get(&path).await.map_err(failed)?;
    let output = client.tail(&format!("{path}/output"), MAX_LINES).await.map_err(failed)?;
    let nodes: Vec<_> = task
        .nodes
        .iter()
        .map(|node| vec![of_node(Some(node.node)), plain(node.address), plain(&node.state), maybe(node.code)])
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
    Ok(Page { client: &client, title: format!("Task {}", task.id), place: "/tasks", content }.answer(&headers))
}

/// The end of an output as plain text.
fn tail(text: &str) -> String {
    let plain: Vec<char> = visible(text).chars().collect();
    plain[plain.len().saturating_sub(MAX_OUTPUT)..].iter().collect()
}

/// The text of records, each on a line. The first one may have lost its beginning, and is left out then.
fn task_output(records: &[u8]) -> String {
    let lines = records.split(|byte| *byte == b'\n');
    let parsed = lines.filter_map(|line| serde_json::from_slice::<TaskOutput>(line).ok());
    parsed
        .map(|record| match record {
            TaskOutput::Piece(piece) => {
                String::from_utf8_lossy(&piece.data.into_bytes().unwrap_or_default()).into_owned()
            }
            TaskOutput::Dropped { dropped } => format!("\n[{dropped} bytes are not kept]\n"),
        })
        .collect()
}

pub(crate) async fn cancel_task(client: ApiClient, Path(task): Path<String>, request: Request<Body>) -> Answer {
    fields(request).await?;
    let path = format!("/v1/tasks/{}/cancel", encoded(&task));
    let done = client.order::<Value>(&path, &Value::Null, &OrderNotes::default()).await;
    done.map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/tasks/{}", encoded(&task))))
}

pub(super) fn slot_table(slots: &[SlotView]) -> Markup {
    let row = |slot: &SlotView| {
        let functions = slot.functions.iter().map(|(address, id)| format!("{address} ({id})")).collect::<Vec<_>>();
        vec![
            code(&slot.id),
            html! { (slot.state.as_str()) @if !slot.reason.is_empty() { div.quiet { (shown(&slot.reason)) } } },
            plain(functions.join(" ")),
            maybe(slot.numa),
            maybe(slot.disk.as_ref()),
            maybe(slot.fabric.as_ref()),
            plain(&slot.mismatch),
        ]
    };
    let rows: Vec<_> = slots.iter().map(row).collect();
    html::table(
        &["Slot", "State", "Functions", "NUMA node", "Disk", "Fabric", "Mismatch"],
        &rows,
        "No node tells of a slot.",
    )
}

pub(crate) async fn slots(client: ApiClient, headers: HeaderMap) -> Answer {
    let slots: Vec<SlotView> = client.get("/v1/slots").await.map_err(|error| client.failed(&error))?;
    let content = html! { h1 { "Slots" } div id="rows" data-live { (slot_table(&slots)) } };
    Ok(Page { client: &client, title: "Slots".to_owned(), place: "/slots", content }.answer(&headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_an_output_is_shown() {
        let long = "é".repeat(MAX_OUTPUT + 10);
        assert_eq!(tail(&long).chars().count(), MAX_OUTPUT);
    }
}
