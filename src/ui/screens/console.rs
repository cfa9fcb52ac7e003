//! The console of a VM: its screen and its input.

use super::Answer;
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    console::Console,
    html::Page,
    request_checks::{fields, redirect},
};
use axum::{
    body::{Body, Bytes},
    extract::{Path, Query},
    http::{HeaderMap, Request, StatusCode},
    response::IntoResponse as _,
};
use maud::html;
use meshd_api::routes as api;
use serde::Deserialize;
use std::{sync::Arc, time::Duration};

/// Maximum time that a request for the next screen waits. Proxies time out after a minute or later.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Maximum size of one piece of input, in bytes. Pasted text is the largest input.
const MAX_INPUT: usize = 16 * 1024;
/// Header with the number of the screen.
const VERSION_HEADER: &str = "x-screen";

/// Opens the console unless this session has it open, and shows its screen.
pub(crate) async fn page(client: ApiClient, Path(vm): Path<String>, headers: HeaderMap) -> Answer {
    let failed = |error| client.failed(&error);
    let vm = client.get(api::GET_VM.path([&vm])).await.map_err(failed)?;
    let key = vm.uuid.to_string();
    let console = match client.console(&key).filter(|console| console.screen().2.is_none()) {
        Some(console) => console,
        None => client.open_console(&key).await.map_err(failed)?,
    };
    let (version, screen, _) = console.screen();
    let at = format!("{PREFIX}/vms/{key}/console");
    let content = html! {
        h1 { "Console of " a href=(format!("{PREFIX}/vms/{key}")) { (vm.name) } }
        pre.terminal id="terminal" tabindex="0" role="application" aria-label=(format!("Console of {}", vm.name))
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
    Ok(Page {
        client: &client,
        title: format!("Console of {}", vm.name),
        nav_path: "/vms",
        content,
    }
    .answer(&headers))
}

#[derive(Debug, Deserialize)]
pub(crate) struct After {
    /// Number of the screen that the page shows.
    #[serde(default)]
    after: u64,
}

/// Returns the console of this session; 410 if there is none.
fn open(client: &ApiClient, vm: &str) -> Result<Arc<Console>, ApiError> {
    client.console(vm).ok_or_else(|| {
        ApiError::new(StatusCode::GONE, "closed", "this console is closed", "load the page again")
    })
}

/// Waits for the next screen; returns 204 after [`MAX_WAIT`] without a change.
pub(crate) async fn screen(
    client: ApiClient,
    Path(vm): Path<String>,
    after: Query<After>,
) -> Answer {
    let console = open(&client, &vm).map_err(|error| client.failed(&error))?;
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

/// Sends the bytes of a request to the guest.
pub(crate) async fn input(
    client: ApiClient,
    Path(vm): Path<String>,
    request: Request<Body>,
) -> Answer {
    let console = open(&client, &vm).map_err(|error| client.failed(&error))?;
    let bytes = axum::body::to_bytes(request.into_body(), MAX_INPUT)
        .await
        .map_err(|_| client.failed(&too_long()))?;
    write(&console, bytes).map_err(|error| client.failed(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Sends the line of a form to the guest, for browsers without the script.
pub(crate) async fn line(
    client: ApiClient,
    Path(vm): Path<String>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let console = open(&client, &vm).map_err(|error| client.failed(&error))?;
    let line = fields.text("line");
    if line.len() > MAX_INPUT {
        return Err(client.failed(&too_long()));
    }
    write(&console, format!("{line}\r").into()).map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/vms/{}/console", encoded(&vm))))
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
            "the guest takes no input",
            "wait, then type again",
        )
    };
    if console.write(bytes) { Ok(()) } else { Err(busy()) }
}
