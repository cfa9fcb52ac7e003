//! Routes of VMs. Responses never contain cloud-init data.
//!
//! | module | routes |
//! | --- | --- |
//! | `consoles` | consoles of VMs |
//! | `containers` | containers, their logs and programs in them |
//! | `guest_shell` | shells of guests |
//! | `slots` | slots |
//! | `volumes` | volumes of VMs |

pub(crate) mod consoles;
pub(crate) mod containers;
pub(crate) mod guest_shell;
pub(crate) mod slots;
pub(crate) mod volumes;

use crate::admin::{
    bind_handlers::Binder,
    error::Refused,
    extract::Body,
    query::{
        answer,
        parameters::Parameters,
        work::{VMS, VmFilter, vm_key},
    },
    routes::Answer,
};
use axum::{
    Json,
    extract::{Path, State},
    http::HeaderMap,
    response::Response,
};
use meshd_api::{CreateVm, DeleteVm, TemplateView, VmView, routes as api};
use meshd_central::{Shared, VmVerb};
use meshd_config::vm::VmTemplate;
use meshd_model::{fleet::AuditContext, work::Vm};
use meshd_types::TemplateName;

pub(crate) fn bind(binder: Binder) -> Binder {
    let order = |verb| {
        async move |State(central): State<Shared>, Path(vm): Path<String>, context: AuditContext| {
            order(&central, &vm, verb, &context).await
        }
    };
    binder
        .get(&api::LIST_VMS, list)
        .get(&api::GET_VM, show)
        .get(&api::LIST_VM_TEMPLATES, templates)
        .post(&api::CREATE_VM, create)
        .post(&api::START_VM, order(VmVerb::Start))
        .post(&api::STOP_VM, order(VmVerb::Stop))
        .post(&api::RESTART_VM, order(VmVerb::Restart))
        .post(&api::DELETE_VM, delete)
}

async fn list(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let mut filter = VmFilter::read(&query)?;
    let vms = || {
        filter.node = query.get("node").map(|node| central.nodes.resolve(node)).transpose()?;
        Ok(all(&central).into_iter().filter(|vm| filter.takes(vm)).collect())
    };
    answer::list(vms, vm_key, &VMS, &query, &headers)
}

/// Returns all VMs, including VMs that are not on record.
pub(crate) fn all(central: &Shared) -> Vec<VmView> {
    let mut all = central.vms.collect_vms(|vm| VmView::new(vm, is_linked(central, vm)));
    all.iter_mut().for_each(|vm| add_reported(central, vm));
    all.extend(
        central.vms.orphan_vms().into_iter().map(|(node, report)| VmView::orphan(node, report)),
    );
    all
}

async fn templates(State(central): State<Shared>) -> Json<Vec<TemplateView>> {
    let site = central.site();
    let view = |(name, template): (&TemplateName, &VmTemplate)| TemplateView {
        name: name.clone(),
        template: template.clone(),
    };
    Json(site.vms.rules.templates.iter().map(view).collect())
}

fn is_linked(central: &Shared, vm: &Vm) -> bool {
    vm.node().is_some_and(|node| central.links.link_state(node).since.is_some())
}

async fn show(State(central): State<Shared>, Path(vm): Path<String>) -> Answer<VmView> {
    let uuid = central.vms.resolve_vm(&vm)?;
    if let Some(vm) = central.vms.vm(uuid) {
        return Ok(vm_view(&central, &vm));
    }
    let orphan = central.vms.orphan_vms().into_iter().find(|(_, report)| report.uuid == uuid);
    let orphan = orphan.map(|(node, report)| Json(VmView::orphan(node, report)));
    orphan.ok_or_else(|| {
        Refused::not_found(format!("there is no VM `{vm}`")).with_hint("see `meshd vm list`")
    })
}

fn vm_view(central: &Shared, vm: &Vm) -> Json<VmView> {
    let mut view = VmView::new(vm, is_linked(central, vm));
    add_reported(central, &mut view);
    Json(view)
}

/// Adds what only the node of a VM knows: its downloads, whether its guest is ready, and the
/// addresses of its NICs.
fn add_reported(central: &Shared, vm: &mut VmView) {
    vm.fetching = vm.node.and_then(|node| central.vms.fetching(node, vm.uuid));
    vm.ready = vm.node.and_then(|node| central.vms.guest_ready(node, vm.uuid));
    central.vms.fill_addresses(vm.uuid, vm.node, &mut vm.nics);
}

async fn create(
    State(central): State<Shared>,
    context: AuditContext,
    Body(CreateVm { vm, node, start }): Body<CreateVm>,
) -> Answer<VmView> {
    let node = node.map(|node| central.nodes.resolve(&node)).transpose()?;
    let vm = central.vms.create_vm(central.vms.complete_vm(vm)?, node, start, &context).await?;
    Ok(vm_view(&central, &vm))
}

async fn order(central: &Shared, vm: &str, verb: VmVerb, context: &AuditContext) -> Answer<VmView> {
    let uuid = central.vms.resolve_vm(vm)?;
    let vm = central.vms.order_vm(uuid, verb, context).await?;
    Ok(vm_view(central, &vm))
}

async fn delete(
    State(central): State<Shared>,
    Path(vm): Path<String>,
    context: AuditContext,
    Body(DeleteVm { node }): Body<DeleteVm>,
) -> Answer<VmView> {
    let node = node.map(|node| central.nodes.resolve(&node)).transpose()?;
    let uuid = central.vms.resolve_vm(&vm)?;
    let vm = central.vms.delete_vm(uuid, node, &context).await?;
    Ok(vm_view(&central, &vm))
}
