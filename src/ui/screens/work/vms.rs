//! The VM list, the page of one VM, and its orders.

use super::{MAX_OUTPUT, ROWS, tail};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, OrderNotes, encoded},
    console::ConsoleTarget,
    html::{self, Page, code, display_text, plain, time},
    names::NodeNames,
    request_checks::{fields, redirect},
    screens::{Answer, actions, console::open_shell_form},
};
use axum::{
    body::Body,
    extract::Path,
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{DeleteVm, VmView, routes as api};
use meshd_trust::Role;

pub(in crate::screens) fn vm_table(vms: &[VmView], names: &NodeNames) -> Markup {
    let row = |vm: &VmView| {
        let name = html! { a href=(format!("{PREFIX}/vms/{}", vm.uuid)) { (vm.name) } };
        let obstacle = html! {
            @if let Some(failure) = &vm.failure { (html::word(&failure.kind)) ": " (display_text(&failure.detail)) " " }
            @if let Some(obstacle) = &vm.obstacle { (display_text(obstacle)) }
        };
        let addresses = vm
            .nics
            .iter()
            .filter_map(|nic| nic.address)
            .map(|it| it.to_string())
            .collect::<Vec<_>>();
        vec![
            name,
            plain(vm.state.as_str()),
            names.maybe_link(vm.node),
            plain(vm.vcpus),
            plain(vm.memory),
            plain(vm.units.join(" ")),
            plain(addresses.join(" ")),
            obstacle,
        ]
    };
    let rows: Vec<_> = vms.iter().map(row).collect();
    html::table(
        &["Name", "State", "Node", "CPUs", "Memory", "Units", "Addresses", "Problem"],
        &rows,
        "There is no VM.",
    )
}

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let vms = client.list(api::LIST_VMS.path([]).with("sort", "name").with("limit", ROWS)).await;
    let vms = vms.map_err(|error| client.failed(&error))?;
    let names = client.node_names().await.map_err(|error| client.failed(&error))?;
    let content = html! {
        h1 { "VMs" }
        @if actions::may_order(&client) {
            div.actions { a.button href=(format!("{PREFIX}/vms/new")) { "Create VM" } }
        }
        div id="rows" data-live { (vm_table(&vms.rows, &names)) }
    };
    Ok(Page { client: &client, title: "VMs".to_owned(), nav_path: "/vms", content }
        .answer(&headers))
}

pub(crate) async fn one(client: ApiClient, Path(vm): Path<String>, headers: HeaderMap) -> Answer {
    let vm = client.get(api::GET_VM.path([&vm])).await.map_err(|error| client.failed(&error))?;
    let names = client.node_names().await.map_err(|error| client.failed(&error))?;
    let log = api::GET_VM_CONSOLE_LOG.path([&vm.uuid]).with("tail", MAX_OUTPUT);
    let console = client.tail(log, MAX_OUTPUT).await;
    let to = |verb: &str| format!("{PREFIX}/vms/{}/{verb}", vm.uuid);
    let content = html! {
        h1 { (vm.name) " " (html::badge("idle", vm.state.as_str())) }
        div id="facts" data-live {
            (vm_table(std::slice::from_ref(&vm), &names))
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
                        p { "The VM is shut down, its resources are released, and its record is deleted." }
                        (html::reason_input("reason"))
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
        @if client.caller.role >= Role::Admin {
            (open_shell_form(&ConsoleTarget::Guest(vm.uuid.to_string())))
        }
    };
    Ok(Page { client: &client, title: vm.name.to_string(), nav_path: "/vms", content }
        .answer(&headers))
}

pub(crate) async fn order(
    client: ApiClient,
    Path((vm, verb)): Path<(String, String)>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let order = match verb.as_str() {
        "start" => api::START_VM.path([&vm]).with_body(&()),
        "stop" => api::STOP_VM.path([&vm]).with_body(&()),
        "restart" => api::RESTART_VM.path([&vm]).with_body(&()),
        "delete" => api::DELETE_VM.path([&vm]).with_body(&DeleteVm::default()),
        _ => return Err(client.failed(&ApiError::no_such_action())),
    };
    let notes = OrderNotes { reason: fields.text("reason").to_owned(), ..OrderNotes::default() };
    client.order_untyped(order, &notes).await.map_err(|error| client.failed(&error))?;
    let back = if verb == "delete" { String::new() } else { format!("/{}", encoded(&vm)) };
    Ok(redirect(&format!("{PREFIX}/vms{back}")))
}
