//! The form that runs a task, like `meshd task run` and `meshd node exec`.

use super::{
    Answer,
    creation_form::{CreationForm, text_input},
    node_choice, notes,
};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    form::Fields,
    request_checks::{fields, redirect},
};
use axum::{
    body::Body,
    http::{HeaderMap, Request, StatusCode},
};
use maud::html;
use meshd_api::{RunTask, TaskView, routes as api};
use meshd_config::reader::parse_duration;
use meshd_model::work::task::Launcher;
use meshd_proto::task::TaskUser;

const FORM: CreationForm = CreationForm {
    title: "Run task",
    list: "/tasks",
    button: "Run",
    denied: "Running tasks requires the role operator.",
};

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    form(&client, &headers, &Fields::default(), None).await
}

async fn form(
    client: &ApiClient,
    headers: &HeaderMap,
    fields: &Fields,
    error: Option<&ApiError>,
) -> Answer {
    let nodes = node_choice(client, fields.text("node"), "nodes of the group").await?;
    let inputs = html! {
        label for="argv" { "Program and arguments, one on each line, without a shell" }
        textarea.code id="argv" name="argv" rows="5" spellcheck="false" required { (fields.text("argv")) }
        (text_input(fields, "group", "Group of nodes, or empty for one node", "cfd"))
        (nodes)
        (text_input(fields, "nodes", "Number of nodes, or empty for all of the group", "4"))
        (text_input(fields, "ranks_per_node", "Ranks per node, or empty for one", "1"))
        label for="launcher" { "Launcher" }
        select id="launcher" name="launcher" {
            @for (value, text) in [("", "MPICH for several ranks"), ("mpich", "MPICH"), ("none", "none: the program reads MESHD_RANK")] {
                option value=(value) selected[fields.text("launcher") == value] { (text) }
            }
        }
        (text_input(fields, "user", "User ID from 1000 on, root (role admin), or empty for a user of this task alone", "1000"))
        (text_input(fields, "timeout", "Time limit, or empty for none", "12h"))
        label for="reason" { "Reason, for the audit log" }
        input id="reason" name="reason" maxlength="500" value=(fields.text("reason"));
    };
    Ok(FORM.answer(client, headers, &inputs, error))
}

/// Runs the task of the form. On an error, shows the error above the form and keeps the submitted
/// fields.
pub(crate) async fn run(client: ApiClient, headers: HeaderMap, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    match order(&client, &fields).await {
        Ok(task) => Ok(redirect(&format!("{PREFIX}/tasks/{}", task.id))),
        Err(error) if error.status == StatusCode::UNAUTHORIZED => Err(client.failed(&error)),
        Err(error) => form(&client, &headers, &fields, Some(&error)).await,
    }
}

async fn order(client: &ApiClient, fields: &Fields) -> Result<TaskView, ApiError> {
    let invalid = |(field, hint)| ApiError::bad_request(format!("{field} is not valid"), hint);
    let task = task(fields).map_err(invalid)?;
    client.order(api::RUN_TASK.path([]), &task, &notes(fields)).await
}

/// Parses the task of a form. An error contains the label of the invalid field and its expected
/// value.
fn task(fields: &Fields) -> Result<RunTask, (&'static str, &'static str)> {
    let text = |name| Some(fields.text(name)).filter(|text| !text.is_empty());
    // Browsers send CR LF.
    let argv: Vec<_> = fields.text("argv").lines().map(str::to_owned).collect();
    let launcher = match fields.text("launcher") {
        "" => None,
        "mpich" => Some(Launcher::Mpich),
        "none" => Some(Launcher::None),
        _ => return Err(("launcher", "choose a value of the list")),
    };
    let user = match text("user") {
        None => TaskUser::default(),
        Some("root") => TaskUser::Root,
        Some(id) => TaskUser::Uid(id.parse().map_err(|_| ("user ID", "write a number, or root"))?),
    };
    let timeout_s = text("timeout").map(|text| parse_duration(text).ok_or(text)).transpose();
    let timeout_s = timeout_s
        .map_err(|_| ("time limit", "write a number and one of s, m, h, d, such as 90s"))?;
    let nodes = text("nodes").map(str::parse).transpose();
    let ranks = text("ranks_per_node").map(str::parse).transpose();
    Ok(RunTask {
        group: text("group").map(str::to_owned),
        node: text("node").map(str::to_owned),
        argv,
        nodes: nodes.map_err(|_| ("number of nodes", "write a number"))?,
        ranks_per_node: ranks.map_err(|_| ("number of ranks", "write a number up to 65535"))?,
        launcher,
        user,
        timeout_s: timeout_s.map(|limit| limit.as_secs()),
        has_input: false,
    })
}
