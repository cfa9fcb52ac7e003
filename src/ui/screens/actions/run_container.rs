//! The form that runs a container, like `meshd container run`.

use super::{
    Answer,
    creation_form::{CreationForm, text_input},
    notes,
};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    form::Fields,
    html::{self, display_text},
    request_checks::{fields, redirect},
};
use axum::{
    body::Body,
    http::{HeaderMap, Request, StatusCode},
};
use maud::{Markup, html};
use meshd_api::{
    ContainerView, RunContainer, VolumeView,
    container_options::{
        parse_cpu_millis, parse_mib, parse_mount, parse_port, parse_probe, parse_restart,
        parse_user, parse_variable,
    },
    routes as api,
};
use meshd_proto::container::HealthCheck;
use meshd_types::ParseError;
use std::str::FromStr;

const FORM: CreationForm = CreationForm {
    title: "Run container",
    list: "/containers",
    button: "Run",
    denied: "Running containers requires the role operator.",
};

/// A field of one line.
struct Input {
    name: &'static str,
    /// The name of its value in an error.
    noun: &'static str,
    label: &'static str,
    example: &'static str,
    /// The example is the default of the command line; the form begins with it.
    is_default: bool,
}

const fn input(
    name: &'static str,
    noun: &'static str,
    label: &'static str,
    example: &'static str,
) -> Input {
    Input { name, noun, label, example, is_default: false }
}

impl Input {
    const fn by_default(self) -> Self {
        Input { is_default: true, ..self }
    }
}

const INPUTS: [Input; 6] = [
    input("replicas", "number of replicas", "Number of replicas, each on another node", "1")
        .by_default(),
    input("memory", "memory", "Memory of each replica, with written files", "256M").by_default(),
    input("cpus", "number of CPUs", "CPUs of each replica", "1").by_default(),
    input("ports", "published port", "Published ports, as NODE-PORT:PORT", "8080:80 8443:443"),
    input("mounts", "mount", "Squashfs volumes to mount, as VOLUME:PATH", "site-data:/data"),
    input(
        "health",
        "health check",
        "Health check: tcp:PORT, http:PORT/PATH or exec:PROGRAM, or empty",
        "http:80/",
    ),
];

/// Fields that few containers need.
const MORE_INPUTS: [Input; 9] = [
    input(
        "working_dir",
        "working directory",
        "Working directory, or empty for that of the image",
        "/srv",
    ),
    input("user", "user", "User ID, or UID:GID, or empty for that of the image", "1000:1000"),
    input("scratch", "limit of written files", "Limit of written files, or empty for 64M", "64M"),
    input("restart", "restart", "Restart: always, never, on-failure or on-failure:N", "always")
        .by_default(),
    input("stop_seconds", SECONDS, "Seconds between SIGTERM and SIGKILL", "10").by_default(),
    input("health_interval", SECONDS, "Seconds between two health checks", "10").by_default(),
    input("health_timeout", SECONDS, "Seconds until a health check fails", "5").by_default(),
    input(
        "health_failures",
        "number of failed health checks",
        "Failed health checks in a row that count",
        "3",
    )
    .by_default(),
    input("health_start", SECONDS, "Seconds after the start without health checks", "0")
        .by_default(),
];
const SECONDS: &str = "number of seconds";

fn all_inputs() -> impl Iterator<Item = &'static Input> {
    INPUTS.iter().chain(&MORE_INPUTS)
}

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let defaults = all_inputs().filter(|input| input.is_default);
    let fields = defaults.map(|input| (input.name.to_owned(), input.example.to_owned()));
    form(&client, &headers, &Fields(fields.collect()), None).await
}

/// Returns the form. Variables are not sent back: their values may be secrets.
async fn form(
    client: &ApiClient,
    headers: &HeaderMap,
    fields: &Fields,
    error: Option<&ApiError>,
) -> Answer {
    let volumes =
        client.get(api::LIST_VOLUMES.path([])).await.map_err(|error| client.failed(&error))?;
    let images: Vec<_> = volumes.iter().filter(|volume| volume.container_image).collect();
    let line = |input: &Input| text_input(fields, input.name, input.label, input.example);
    let inputs = html! {
        label for="name" { "Name" }
        input id="name" name="name" value=(fields.text("name")) required maxlength="63" placeholder="web" autocomplete="off";
        (image_choice(&images, fields.text("image")))
        @for input in &INPUTS { (line(input)) }
        label for="env" { "Variables, one NAME=VALUE on each line. No page shows their values" }
        textarea.code id="env" name="env" rows="3" spellcheck="false" autocomplete="off" {}
        @if error.is_some() && !fields.text("env").is_empty() { p.quiet { "Type the variables again." } }
        label for="argv" { "Program and arguments, one on each line, without a shell, or empty for those of the image. Every role sees them" }
        textarea.code id="argv" name="argv" rows="4" spellcheck="false" { (fields.text("argv")) }
        details open[error.is_some()] {
            summary { "More" }
            div.stack {
                @for input in &MORE_INPUTS { (line(input)) }
            }
        }
        (html::reason_input("reason"))
    };
    Ok(FORM.answer(client, headers, &inputs, error))
}

fn image_choice(images: &[&VolumeView], chosen: &str) -> Markup {
    html! {
        label for="image" { "Image" }
        select id="image" name="image" required {
            @for image in images {
                @let digest = image.digest.to_string();
                option value=(digest) selected[chosen == digest] { (display_text(&image.name.to_string())) " (" (image.digest.short()) ")" }
            }
        }
        @if images.is_empty() {
            p.quiet { "The site has no image of a container. " (html::hint("`meshd image import NAME --container oci:DIR` adds one")) }
        }
    }
}

/// Runs the container of the form. On an error, shows the error above the form and keeps the
/// submitted fields except the variables.
pub(crate) async fn run(client: ApiClient, headers: HeaderMap, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    match order(&client, &fields).await {
        Ok(container) => {
            let name = encoded(container.name.as_str());
            Ok(redirect(&format!("{PREFIX}/containers/{name}")))
        }
        Err(error) if error.status == StatusCode::UNAUTHORIZED => Err(client.failed(&error)),
        Err(error) => form(&client, &headers, &fields, Some(&error)).await,
    }
}

async fn order(client: &ApiClient, fields: &Fields) -> Result<ContainerView, ApiError> {
    let container = container(fields).map_err(|FieldFault { field, hint }| {
        ApiError::bad_request(format!("{field} is not valid"), &hint)
    })?;
    client.order(api::RUN_CONTAINER.path([]), &container, &notes(fields)).await
}

/// A field that cannot be read, and what to write.
#[derive(Debug, PartialEq, Eq)]
struct FieldFault {
    field: &'static str,
    hint: String,
}

/// Parses one field; `None` if it is empty.
fn optional<T>(
    fields: &Fields,
    name: &'static str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, FieldFault> {
    let text = Some(fields.text(name)).filter(|text| !text.is_empty());
    each(name, text.into_iter(), parse).map(|values| values.into_iter().next())
}

/// Parses the texts of one field.
fn each<'t, T>(
    name: &'static str,
    texts: impl Iterator<Item = &'t str>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, FieldFault> {
    let fault = |hint| FieldFault { field: noun_of(name), hint };
    texts.map(|text| parse(text).map_err(fault)).collect()
}

fn noun_of(name: &'static str) -> &'static str {
    let noun = all_inputs().find(|input| input.name == name).map(|input| input.noun);
    noun.unwrap_or(if name == "env" { "variable" } else { name })
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "write a number".to_owned())
}

/// Parses the container of a form.
fn container(fields: &Fields) -> Result<RunContainer, FieldFault> {
    let name = |text: &str| text.parse().map_err(|error: ParseError| error.to_string());
    let name = optional(fields, "name", name)?;
    let missing = || FieldFault { field: "name", hint: "write a name".to_owned() };
    let user = optional(fields, "user", parse_user)?;
    // Browsers send CR LF.
    let env = fields.untrimmed("env").lines().filter(|line| !line.trim().is_empty());
    Ok(RunContainer {
        name: name.ok_or_else(missing)?,
        image: fields.text("image").to_owned(),
        replicas: optional(fields, "replicas", number)?.unwrap_or(1),
        argv: fields.text("argv").lines().map(str::to_owned).collect(),
        env: each("env", env, parse_variable)?.into_iter().collect(),
        working_dir: optional(fields, "working_dir", |text| Ok(text.to_owned()))?,
        uid: user.map(|(uid, _)| uid),
        gid: user.and_then(|(_, gid)| gid),
        cpu_millis: optional(fields, "cpus", parse_cpu_millis)?,
        memory_mib: optional(fields, "memory", parse_mib)?,
        scratch_mib: optional(fields, "scratch", parse_mib)?,
        ports: each("ports", fields.text("ports").split_whitespace(), parse_port)?,
        mounts: each("mounts", fields.text("mounts").split_whitespace(), parse_mount)?,
        restart: optional(fields, "restart", parse_restart)?.unwrap_or_default(),
        health: health(fields)?,
        stop_seconds: optional(fields, "stop_seconds", number)?,
    })
}

fn health(fields: &Fields) -> Result<Option<HealthCheck>, FieldFault> {
    let Some(probe) = optional(fields, "health", parse_probe)? else { return Ok(None) };
    Ok(Some(HealthCheck {
        probe,
        interval_seconds: optional(fields, "health_interval", number)?.unwrap_or(10),
        timeout_seconds: optional(fields, "health_timeout", number)?.unwrap_or(5),
        failures: optional(fields, "health_failures", number)?.unwrap_or(3),
        start_seconds: optional(fields, "health_start", number)?.unwrap_or(0),
    }))
}
