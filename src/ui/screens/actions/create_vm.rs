//! The form for a new VM: a `vm.toml` in the format of `meshd vm create`.

use super::{Answer, key_input, may_order, node_choice, notes};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    form::Fields,
    gate::{fields, redirect},
    html::{self, Page},
};
use axum::{
    body::Body,
    http::{HeaderMap, Request, StatusCode},
    response::Response,
};
use maud::{Markup, html};
use meshd_api::{CreateVm, TemplateView, VmView, routes as api};
use meshd_config::vm::parse_with;
use meshd_types::{Digest, SystemUuid};
use std::path::Path;

/// Initial content of the form.
const SAMPLE: &str = "name = \"vm-1\"
vcpus = 1
memory = \"1G\"

[[volume]]
name = \"root\"
format = \"FORMAT\"
digest = \"DIGEST\"
";

/// Submitted text, and the error of its submission.
struct Draft<'d> {
    text: &'d str,
    node: &'d str,
    start: bool,
    problem: Option<Markup>,
}

/// Shows the empty form with a volume of this site.
pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let volumes = client.get(api::LIST_VOLUMES.path([])).await.map_err(|error| client.failed(&error))?;
    let text = match volumes.first() {
        Some(volume) => {
            SAMPLE.replace("FORMAT", &html::word(&volume.kind)).replace("DIGEST", &volume.digest.to_string())
        }
        None => SAMPLE.replace("FORMAT", "qcow2"),
    };
    form(&client, &headers, &Draft { text: &text, node: "", start: true, problem: None }).await
}

async fn form(client: &ApiClient, headers: &HeaderMap, draft: &Draft<'_>) -> Answer {
    let nodes = node_choice(client, draft.node, "any that is suitable").await?;
    let content = html! {
        h1 { "Create VM" }
        @if let Some(problem) = &draft.problem { (problem) }
        @if may_order(client) {
            form.stack method="post" action=(format!("{PREFIX}/vms")) {
                (key_input(client))
                label for="file" { "Specification (vm.toml)" }
                textarea.code id="file" name="file" rows="16" spellcheck="false" required { (draft.text) }
                (nodes)
                label { input type="checkbox" name="start" value="1" checked[draft.start]; " Start it now" }
                (html::reason_input("reason"))
                div.actions {
                    button.main { "Create" }
                    a.button href=(format!("{PREFIX}/vms")) { "Cancel" }
                }
            }
        } @else {
            p { "VMs are created from the role operator on." }
        }
    };
    Ok(Page { client, title: "Create VM".to_owned(), nav_path: "/vms", content }.answer(headers))
}

/// Creates the VM of the form. On an error, shows the error above the form and keeps the submitted text.
pub(crate) async fn run(client: ApiClient, headers: HeaderMap, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    let problem = match create(&client, &fields).await {
        Ok(vm) => return Ok(redirect(&format!("{PREFIX}/vms/{}", vm.uuid))),
        Err(error) if error.status == StatusCode::UNAUTHORIZED => return Err(client.failed(&error)),
        Err(error) => error,
    };
    let draft = Draft {
        text: fields.text("file"),
        node: fields.text("node"),
        start: fields.is_ticked("start"),
        problem: Some(html::refusal(&problem)),
    };
    let mut answer: Response = form(&client, &headers, &draft).await?;
    *answer.status_mut() = problem.status;
    Ok(answer)
}

async fn create(client: &ApiClient, fields: &Fields) -> Result<VmView, ApiError> {
    let templates = client.get(api::LIST_VM_TEMPLATES.path([])).await?;
    let templates = templates.into_iter().map(|TemplateView { name, template }| (name, template)).collect();
    // Browsers send CR LF.
    let text = fields.text("file").replace("\r\n", "\n");
    let vm = parse_with(&text, Path::new("vm.toml"), uuid(fields.text("key")), Some(&templates));
    let vm = vm.map_err(|faults| ApiError::new(StatusCode::BAD_REQUEST, "bad_request", faults.to_string(), ""))?;
    let node = Some(fields.text("node").to_owned()).filter(|node| !node.is_empty());
    let order = CreateVm { vm, node, start: fields.is_ticked("start") };
    client.order(api::CREATE_VM.path([]), &order, &notes(fields)).await
}

/// Derives a UUID, version 4 (RFC 9562), from the random key of the form: a form that is sent twice creates one VM.
fn uuid(key: &str) -> SystemUuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Digest::of(key.as_bytes()).0[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    SystemUuid(bytes)
}
