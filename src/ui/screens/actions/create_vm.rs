//! The form for a new VM: a `vm.toml` in the format of `meshd vm create`.

use super::{Answer, creation_form::CreationForm, node_choice, notes};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    form::Fields,
    html,
    request_checks::{fields, redirect},
};
use axum::{
    body::Body,
    http::{HeaderMap, Request, StatusCode},
};
use maud::html;
use meshd_api::{CreateVm, VmView, routes as api};
use meshd_config::vm::parse;
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

const FORM: CreationForm = CreationForm {
    title: "Create VM",
    list: "/vms",
    button: "Create",
    denied: "Creating VMs requires the role operator.",
};

/// Shows the empty form with a volume of this site.
pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let volumes =
        client.get(api::LIST_VOLUMES.path([])).await.map_err(|error| client.failed(&error))?;
    let text = match volumes.first() {
        Some(volume) => SAMPLE
            .replace("FORMAT", &html::word(&volume.kind))
            .replace("DIGEST", &volume.digest.to_string()),
        None => SAMPLE.replace("FORMAT", "qcow2"),
    };
    let fields = Fields(vec![("file".to_owned(), text), ("start".to_owned(), "1".to_owned())]);
    form(&client, &headers, &fields, None).await
}

async fn form(
    client: &ApiClient,
    headers: &HeaderMap,
    fields: &Fields,
    error: Option<&ApiError>,
) -> Answer {
    let nodes = node_choice(client, fields.text("node"), "any suitable node").await?;
    let inputs = html! {
        label for="file" { "Specification (vm.toml)" }
        textarea.code id="file" name="file" rows="16" spellcheck="false" required { (fields.text("file")) }
        (nodes)
        label { input type="checkbox" name="start" value="1" checked[fields.is_ticked("start")]; " Start it now" }
        (html::reason_input("reason"))
    };
    Ok(FORM.answer(client, headers, &inputs, error))
}

/// Creates the VM of the form. On an error, shows the error above the form and keeps the submitted
/// text.
pub(crate) async fn run(client: ApiClient, headers: HeaderMap, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    match create(&client, &fields).await {
        Ok(vm) => Ok(redirect(&format!("{PREFIX}/vms/{}", vm.uuid))),
        Err(error) if error.status == StatusCode::UNAUTHORIZED => Err(client.failed(&error)),
        Err(error) => form(&client, &headers, &fields, Some(&error)).await,
    }
}

async fn create(client: &ApiClient, fields: &Fields) -> Result<VmView, ApiError> {
    // Browsers send CR LF.
    let text = fields.text("file").replace("\r\n", "\n");
    let vm = parse(&text, Path::new("vm.toml"));
    let mut vm = vm.map_err(|faults| ApiError::bad_request(faults.to_string(), ""))?;
    vm.uuid.get_or_insert_with(|| uuid(fields.text("key")));
    let node = Some(fields.text("node").to_owned()).filter(|node| !node.is_empty());
    let order = CreateVm { vm, node, start: fields.is_ticked("start") };
    client.order(api::CREATE_VM.path([]), &order, &notes(fields)).await
}

/// Derives a UUID from the random key of the form: a form that is sent twice creates one VM.
fn uuid(key: &str) -> SystemUuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Digest::of(key.as_bytes()).0[..16]);
    SystemUuid::from_random(bytes)
}
