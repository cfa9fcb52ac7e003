//! Routes of virtual machines. Responses never contain cloud-init data.

use crate::serve::admin::{
    Plane,
    error::Refused,
    query::{
        answer::{Asked, Encoding, Listing, parameters},
        page::{ResultPage, cut},
        work::{VMS, VmFilter, vm_key},
    },
    routes::{
        Answer,
        orders::{Body, body},
    },
    table::{Array, Empty, Object, Routes},
};
use axum::{
    Json,
    extract::{Path, State},
    http::HeaderMap,
    response::Response,
};
use meshd_api::{CreateVm, DeleteVm, TemplateView, VmView};
use meshd_central::{Shared, VmVerb};
use meshd_config::vm::VmTemplate;
use meshd_model::{
    fleet::{AuditContext, Verb},
    work::Vm,
};
use meshd_store::Model;
use meshd_trust::Role;
use meshd_types::TemplateName;

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .get::<Array<VmView>, _, _>("/vms", VMS.parameters, Role::Viewer, "List VMs", list)
        .get::<Object<VmView>, _, _>("/vms/{vm}", &[], Role::Viewer, "Show a VM", show)
        .get::<Array<TemplateView>, _, _>("/vm-templates", &[], Role::Viewer, "List VM templates", templates)
        .post::<Object<CreateVm>, Object<VmView>, _, _>(
            "/vms",
            Verb::VmCreate,
            "Create a VM and assign a node; all or nothing",
            create,
        )
        .post::<Empty, Object<VmView>, _, _>("/vms/{vm}/start", Verb::VmStart, "Start a VM", start)
        .post::<Empty, Object<VmView>, _, _>("/vms/{vm}/stop", Verb::VmStop, "Shut a VM down", stop)
        .post::<Empty, Object<VmView>, _, _>("/vms/{vm}/restart", Verb::VmRestart, "Restart a VM", restart)
        .post::<Object<DeleteVm>, Object<VmView>, _, _>(
            "/vms/{vm}/delete",
            Verb::VmDelete,
            "Delete a VM and release its resources",
            delete,
        )
}

async fn list(
    State(Plane { central, .. }): State<Plane>,
    headers: HeaderMap,
    asked: Asked,
) -> Result<Response, Refused> {
    let asked = parameters(asked, VMS.parameters)?;
    let (mut filter, page, fields) = (VmFilter::read(&asked)?, asked.page(&VMS)?, asked.fields(&VMS)?);
    filter.node = asked.get("node").map(|node| central.nodes.resolve(node)).transpose()?;
    let taken = all(&central).into_iter().filter(|vm| filter.takes(vm));
    let ResultPage { rows, next, total } = cut(taken.map(|vm| (vm_key(&vm, page.sort.key), vm)).collect(), &page);
    let (next, total) = (next.map(|next| next.to_string()), Some(total));
    Listing { rows, fields, next, total, encoding: Encoding::Array }.answer(&headers)
}

/// All virtual machines, those that are not on record included.
pub(crate) fn all(central: &Shared) -> Vec<VmView> {
    let mut all: Vec<VmView> =
        central.store().read(|model| model.vms().map(|vm| VmView::new(vm, is_linked(central, vm))).collect());
    for vm in &mut all {
        central.workloads.fill_addresses(vm.uuid, vm.node, &mut vm.nics);
    }
    all.extend(central.workloads.orphan_vms().into_iter().map(|(node, report)| VmView::stranger(node, report)));
    all
}

async fn templates(State(Plane { central, .. }): State<Plane>) -> Json<Vec<TemplateView>> {
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

async fn show(State(Plane { central, .. }): State<Plane>, Path(vm): Path<String>) -> Answer<VmView> {
    let uuid = central.workloads.resolve_vm(&vm)?;
    let found = central.store().read(|model: &Model| model.vm(uuid).cloned());
    if let Some(vm) = found {
        return Ok(shown(&central, &vm));
    }
    let stranger = central.workloads.orphan_vms().into_iter().find(|(_, report)| report.uuid == uuid);
    let stranger = stranger.map(|(node, report)| Json(VmView::stranger(node, report)));
    stranger.ok_or_else(|| Refused::not_found(format!("there is no virtual machine `{vm}`; see `meshd vm list`")))
}

fn shown(central: &Shared, vm: &Vm) -> Json<VmView> {
    let fetching = vm.node().and_then(|node| central.workloads.fetching(node, vm.uuid()));
    let mut view = VmView { fetching, ..VmView::new(vm, is_linked(central, vm)) };
    central.workloads.fill_addresses(view.uuid, view.node, &mut view.nics);
    Json(view)
}

async fn create(State(Plane { central, .. }): State<Plane>, by: AuditContext, order: Body<CreateVm>) -> Answer<VmView> {
    let CreateVm { vm, node, start } = body(order)?;
    let node = node.map(|node| central.nodes.resolve(&node)).transpose()?;
    let vm = central.workloads.create_vm(vm, node, start, &by).await?;
    Ok(shown(&central, &vm))
}

async fn order(central: &Shared, vm: &str, verb: VmVerb, by: &AuditContext) -> Answer<VmView> {
    let uuid = central.workloads.resolve_vm(vm)?;
    let vm = central.workloads.order_vm(uuid, verb, by).await?;
    Ok(shown(central, &vm))
}

async fn start(State(Plane { central, .. }): State<Plane>, Path(vm): Path<String>, by: AuditContext) -> Answer<VmView> {
    order(&central, &vm, VmVerb::Start, &by).await
}

async fn stop(State(Plane { central, .. }): State<Plane>, Path(vm): Path<String>, by: AuditContext) -> Answer<VmView> {
    order(&central, &vm, VmVerb::Stop, &by).await
}

async fn restart(
    State(Plane { central, .. }): State<Plane>,
    Path(vm): Path<String>,
    by: AuditContext,
) -> Answer<VmView> {
    order(&central, &vm, VmVerb::Restart, &by).await
}

async fn delete(
    State(Plane { central, .. }): State<Plane>,
    Path(vm): Path<String>,
    by: AuditContext,
    order: Body<DeleteVm>,
) -> Answer<VmView> {
    let DeleteVm { node } = body(order)?;
    let node = node.map(|node| central.nodes.resolve(&node)).transpose()?;
    let uuid = central.workloads.resolve_vm(&vm)?;
    let vm = central.workloads.delete_vm(uuid, node, &by).await?;
    Ok(shown(&central, &vm))
}
