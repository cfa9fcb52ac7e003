//! The console of a VM, or the shell of a node, a guest or a container: its screen and its input. A visit shows a console;
//! only a form opens a shell, because a link or a prefetch must not run a program as root.

use super::{
    Answer,
    work::containers::{log::container_of, page_of},
};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    console::{Console, ConsoleTarget},
    html::{Page, display_text},
    request_checks::{fields, redirect},
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Query},
    http::{HeaderMap, Request, StatusCode},
    response::IntoResponse as _,
    routing::{get, post},
};
use maud::{Markup, html};
use meshd_api::routes as api;
use meshd_types::{Digest, failpoint};
use serde::Deserialize;
use std::{sync::Arc, time::Duration};

/// Maximum time that a request for the next screen waits. Proxies time out after a minute or later.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Maximum size of one piece of input, in bytes. Pasted text is the largest input.
const MAX_INPUT: usize = 16 * 1024;
/// Header with the number of the screen.
const VERSION_HEADER: &str = "x-screen";
/// The program that a shell of a container runs if its user chooses none.
const SHELL: &str = "/bin/sh";

/// Adds the pages of consoles and shells, with what their script asks for.
pub(crate) fn bind(router: Router) -> Router {
    let vms = bind_target(router, &format!("{PREFIX}/vms/{{name}}/console"), ConsoleTarget::Vm);
    let nodes = bind_target(vms, &format!("{PREFIX}/nodes/{{name}}/shell"), ConsoleTarget::Node);
    let guests = bind_target(nodes, &format!("{PREFIX}/vms/{{name}}/shell"), ConsoleTarget::Guest);
    let replica = format!("{PREFIX}/containers/{{name}}/shell");
    bind_target(guests, &replica, ConsoleTarget::Replica)
}

fn bind_target(router: Router, base: &str, target: fn(String) -> ConsoleTarget) -> Router {
    let at = |part: &str| format!("{base}{part}");
    let show_page = async move |client: ApiClient, Path(name): Path<String>, headers: HeaderMap| {
        page(client, target(name), headers).await
    };
    let open_shell =
        async move |client: ApiClient, Path(name): Path<String>, request: Request<Body>| {
            open_by_form(client, target(name), request).await
        };
    let next_screen =
        async move |client: ApiClient, Path(name): Path<String>, after: Query<After>| {
            screen(client, target(name), after).await
        };
    let type_bytes =
        async move |client: ApiClient, Path(name): Path<String>, request: Request<Body>| {
            input(client, target(name), request).await
        };
    let type_line =
        async move |client: ApiClient, Path(name): Path<String>, request: Request<Body>| {
            line(client, target(name), request).await
        };
    router
        .route(&at(""), get(show_page).post(open_shell))
        .route(&at("/screen"), get(next_screen))
        .route(&at("/input"), post(type_bytes))
        .route(&at("/line"), post(type_line))
}

/// Returns the target by its ID, its name, and the path of its page.
async fn known_target(
    client: &ApiClient,
    target: ConsoleTarget,
) -> Result<(ConsoleTarget, String, String), ApiError> {
    Ok(match target {
        ConsoleTarget::Vm(vm) => known_vm(client, &vm, ConsoleTarget::Vm).await?,
        ConsoleTarget::Guest(vm) => known_vm(client, &vm, ConsoleTarget::Guest).await?,
        ConsoleTarget::Node(node) => {
            let node = client.get(api::GET_NODE.path([&node])).await?.node;
            let page = format!("{PREFIX}/nodes/{}", node.id);
            (ConsoleTarget::Node(node.id.to_string()), node.name, page)
        }
        ConsoleTarget::Replica(replica) => {
            let (id, container) = container_of(client, &replica).await?;
            let target = ConsoleTarget::Replica(id.to_string());
            (target, id.to_string(), page_of(&container))
        }
    })
}

async fn known_vm(
    client: &ApiClient,
    vm: &str,
    target: fn(String) -> ConsoleTarget,
) -> Result<(ConsoleTarget, String, String), ApiError> {
    let vm = client.get(api::GET_VM.path([&vm])).await?;
    let page = format!("{PREFIX}/vms/{}", vm.uuid);
    Ok((target(vm.uuid.to_string()), vm.name.to_string(), page))
}

/// Returns the console that this session has open and that has not ended.
fn running(client: &ApiClient, target: &ConsoleTarget) -> Option<Arc<Console>> {
    client.console(target).filter(|console| console.screen().2.is_none())
}

/// Opens a shell, unless this session has it open, and redirects to its page. Forms that arrive
/// while it opens, as after a double click, open no other.
async fn open_by_form(client: ApiClient, target: ConsoleTarget, request: Request<Body>) -> Answer {
    let failed = |error| client.failed(&error);
    let fields = fields(request).await?;
    let program = Some(fields.text("program")).filter(|program| !program.is_empty());
    let program = program.unwrap_or(SHELL);
    let (target, ..) = known_target(&client, target).await.map_err(failed)?;
    let session = client.session.map(|session| session.to_string()).unwrap_or_default();
    let form = Digest::of_fields(["shell", &session, &target.page()].map(str::as_bytes));
    let opener = client.clone();
    let to = target.clone();
    let chosen = program.to_owned();
    let work = async move {
        if running(&opener, &to).is_none() {
            opener.open_console(&to, &chosen).await?;
        }
        Ok(Vec::new())
    };
    client.running_orders.share(form, work).await.map_err(failed)?;
    let runs_another =
        |console: Arc<Console>| target.takes_program() && console.program() != program;
    if running(&client, &target).is_some_and(runs_another) {
        let hint = "end it before you open another one: type exit";
        let message = "another program runs in this replica";
        return Err(failed(ApiError::new(StatusCode::CONFLICT, "runs", message, hint)));
    }
    Ok(redirect(&target.page()))
}

/// Shows the screen. Opens the console of a VM unless this session has it open.
async fn page(client: ApiClient, target: ConsoleTarget, headers: HeaderMap) -> Answer {
    let failed = |error| client.failed(&error);
    let (target, name, about) = known_target(&client, target).await.map_err(failed)?;
    let (word, nav_path) = match target {
        ConsoleTarget::Vm(_) => ("Console", "/vms"),
        ConsoleTarget::Node(_) => ("Shell", "/nodes"),
        ConsoleTarget::Guest(_) => ("Shell", "/vms"),
        ConsoleTarget::Replica(_) => ("Shell", "/containers"),
    };
    let title = format!("{word} of {name}");
    let heading = html! {
        h1 { (word) " of " a href=(about) { (display_text(&name)) } }
        @if let Some(note) = target.note() { p { (note) } }
    };
    let at = target.page();
    let console = match running(&client, &target) {
        Some(console) => console,
        None if target.is_shell() && failpoint::defends("ui-shell-form") => {
            let ended = client.console(&target).map(|console| console.screen());
            let content = html! {
                (heading)
                @if let Some((_, screen, Some(why))) = &ended {
                    pre.terminal tabindex="0" aria-label="Last screen" { (screen) }
                    p role="status" { "The program ended: " (display_text(why)) "." }
                }
                (open_shell_form(&target))
            };
            return Ok(Page { client: &client, title, nav_path, content }.answer(&headers));
        }
        None => client.open_console(&target, SHELL).await.map_err(failed)?,
    };
    let (version, screen, _) = console.screen();
    let content = html! {
        (heading)
        pre.terminal id="terminal" tabindex="0" role="application" aria-label=(format!("{word} of {name}"))
            data-console=(at) data-screen=(version) { (screen) }
        p.quiet id="terminal-state" role="status" { "Click the screen to type into it. Shift+Tab leaves it." }
        form.actions method="post" action=(format!("{at}/line")) {
            label.hidden for="line" { "A line to type" }
            input id="line" name="line" maxlength="1000" placeholder="A line to type" autocomplete="off";
            button { "Type line" }
            a.button href=(at) { "Show screen" }
        }
        script src=(format!("{PREFIX}/assets/console.js")) defer {}
    };
    Ok(Page { client: &client, title, nav_path, content }.answer(&headers))
}

/// Renders the button that opens a shell.
pub(super) fn open_shell_form(target: &ConsoleTarget) -> Markup {
    html! {
        form.actions method="post" action=(target.page()) {
            @if target.takes_program() {
                label for="program" { "Program and arguments, without a shell" }
                input id="program" name="program" value=(SHELL) maxlength="1000";
            }
            button { "Open shell" }
        }
    }
}

#[derive(Debug, Deserialize)]
struct After {
    /// Number of the screen that the page shows.
    #[serde(default)]
    after: u64,
}

/// Returns the console of this session; 410 if there is none.
fn open(client: &ApiClient, target: &ConsoleTarget) -> Result<Arc<Console>, ApiError> {
    client.console(target).ok_or_else(|| {
        ApiError::new(StatusCode::GONE, "closed", "this console is closed", "load the page again")
    })
}

/// Waits for the next screen; returns 204 after [`MAX_WAIT`] without a change.
async fn screen(client: ApiClient, target: ConsoleTarget, after: Query<After>) -> Answer {
    let console = open(&client, &target).map_err(|error| client.failed(&error))?;
    console.changed(after.after, MAX_WAIT).await;
    let (version, screen, ended) = console.screen();
    if version == after.after {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let ended = ended.unwrap_or_default();
    let ended: String = ended.chars().filter(|c| matches!(c, ' '..='~')).collect();
    let headers = [
        ("content-type", "text/html; charset=utf-8".to_owned()),
        (VERSION_HEADER, version.to_string()),
        ("x-ended", ended),
    ];
    Ok((headers, screen.into_string()).into_response())
}

/// Sends the bytes of a request to the program.
async fn input(client: ApiClient, target: ConsoleTarget, request: Request<Body>) -> Answer {
    let console = open(&client, &target).map_err(|error| client.failed(&error))?;
    let bytes = axum::body::to_bytes(request.into_body(), MAX_INPUT)
        .await
        .map_err(|_| client.failed(&too_long()))?;
    write(&console, bytes).map_err(|error| client.failed(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Sends the line of a form to the program, for browsers without the script.
async fn line(client: ApiClient, target: ConsoleTarget, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    let console = open(&client, &target).map_err(|error| client.failed(&error))?;
    let line = fields.text("line");
    if line.len() > MAX_INPUT {
        return Err(client.failed(&too_long()));
    }
    write(&console, format!("{line}\r").into()).map_err(|error| client.failed(&error))?;
    Ok(redirect(&target.page()))
}

fn too_long() -> ApiError {
    let message = format!("more than {MAX_INPUT} bytes at once");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_long", message, "paste less")
}

fn write(console: &Console, bytes: Bytes) -> Result<(), ApiError> {
    let busy = || {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "the program takes no input",
            "wait, then type again",
        )
    };
    if console.write(bytes) { Ok(()) } else { Err(busy()) }
}
