//! Routes of virtual machines. Responses never contain cloud-init data.

use crate::serve::{
    admin::{
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
        table::{Many, Nothing, One, Routes},
    },
    central::{Shared, VmVerb},
};
use axum::{
    Json,
    extract::{Path, State},
    http::HeaderMap,
    response::Response,
};
use meshd_config::vm::{OnNodeLoss, VmAsk, VmTemplate};
use meshd_model::{
    fleet::{AuditContext, Verb},
    work::{Vm, VmStatus, VmWish},
};
use meshd_proto::vm::{ByteSize, Nic, VmFailure, VmFetching, VmReport, Volume};
use meshd_store::Model;
use meshd_trust::Role;
use meshd_types::{NodeId, SystemUuid, TemplateName, Timestamp, VmName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of an order for a new virtual machine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVm {
    /// What it shall be, as `meshd vm create` makes it of a vm.toml.
    #[schema(value_type = Object)]
    pub vm: VmAsk,
    /// The only node that it may be placed on: ID or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Start it at once.
    #[serde(default)]
    pub start: bool,
}

/// Body of an order that ends a virtual machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeleteVm {
    /// What this node has of it, which is not on record there: ID or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmView {
    /// What people call it.
    #[schema(value_type = String)]
    pub name: VmName,
    /// What everything else calls it.
    #[schema(value_type = String)]
    pub uuid: SystemUuid,
    #[schema(value_type = String)]
    pub state: VmStatus,
    /// What is wanted of it; absent for one that a node has and that is not on record.
    #[schema(value_type = Option<String>)]
    pub wish: Option<VmWish>,
    /// The node that has it.
    #[schema(value_type = Option<String>)]
    pub node: Option<NodeId>,
    /// Since when the node tells that state.
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
    /// True once its node has told that it is as it was ordered last, or cannot be.
    #[serde(default)]
    pub settled: bool,
    /// How often its node started it again in a row.
    pub restarts: u32,
    /// Why it failed, or was started again last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub failure: Option<VmFailure>,
    /// How far its node is with fetching its volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub fetching: Option<VmFetching>,
    /// Why it is not released, or has no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Virtual processors.
    pub vcpus: u32,
    #[schema(value_type = String)]
    pub memory: ByteSize,
    /// One function of each unit that it has.
    pub units: Vec<String>,
    /// The units that it wants.
    pub wants: Vec<String>,
    /// The NUMA node that it is bound to: as its file says, or because its units are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Its units are not all on one NUMA node, or not on the one that its file names.
    #[serde(default)]
    pub numa_mismatch: bool,
    #[schema(value_type = Vec<Object>)]
    pub volumes: Vec<Volume>,
    /// Its network cards, each with the address that it has as far as that is known.
    #[schema(value_type = Vec<Object>)]
    pub nics: Vec<Nic>,
    /// What becomes of it when its node is lost.
    #[schema(value_type = String)]
    pub on_node_loss: OnNodeLoss,
    /// How often it was ordered to start.
    pub start: u32,
    /// When it was ordered.
    #[schema(value_type = Option<String>)]
    pub created_at: Option<Timestamp>,
}

/// What a vm.toml need not say if it names this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateView {
    /// Its name in the site file.
    #[schema(value_type = String)]
    pub name: TemplateName,
    /// What it says, by the keys of a specification.
    #[schema(value_type = Object)]
    pub template: VmTemplate,
}

impl VmView {
    fn new(vm: &Vm, is_linked: bool) -> Self {
        let (spec, seen) = (&vm.ask.spec, vm.seen.as_ref());
        let whole = vm.ask.units.whole.then(|| "all".to_owned());
        VmView {
            name: vm.name().clone(),
            uuid: vm.uuid(),
            state: vm.life(is_linked),
            wish: Some(vm.wish),
            node: vm.node(),
            since: seen.map(|seen| seen.since),
            settled: vm.is_settled(),
            restarts: seen.map_or(0, |seen| seen.restarts),
            failure: seen.and_then(|seen| seen.failure.clone()),
            fetching: None,
            trouble: vm.trouble.clone(),
            vcpus: spec.vcpus,
            memory: spec.memory,
            units: if vm.place.is_some() { spec.units.iter().map(ToString::to_string).collect() } else { Vec::new() },
            wants: vm.ask.units.each.iter().map(ToString::to_string).chain(whole).collect(),
            numa_node: spec.numa_node,
            numa_mismatch: vm.locality.mismatch,
            volumes: spec.volumes.clone(),
            nics: spec.nics.clone(),
            on_node_loss: vm.ask.on_node_loss,
            start: vm.start,
            created_at: Some(vm.created_at),
        }
    }

    /// One that a node has and that is not on record there.
    fn stranger(node: NodeId, report: VmReport) -> Self {
        let vm = Vm::stranger(
            VmAsk::new(meshd_proto::vm::VmSpec::unknown(report.name, report.uuid)),
            node,
            Timestamp::EPOCH,
        );
        VmView {
            state: report.state.into(),
            wish: None,
            restarts: report.restarts,
            failure: report.failure,
            created_at: None,
            ..VmView::new(&vm, true)
        }
    }
}

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .see::<Many<VmView>, _, _>("/vms", VMS.parameters, Role::Viewer, "all virtual machines", list)
        .see::<One<VmView>, _, _>("/vms/{vm}", &[], Role::Viewer, "one virtual machine", show)
        .see::<Many<TemplateView>, _, _>("/vm-templates", &[], Role::Viewer, "what vm.tomls need not say", templates)
        .order::<One<CreateVm>, One<VmView>, _, _>(
            "/vms",
            Verb::VmCreate,
            "record a virtual machine and give it a node, or do neither",
            create,
        )
        .order::<Nothing, One<VmView>, _, _>("/vms/{vm}/start", Verb::VmStart, "start a virtual machine", start)
        .order::<Nothing, One<VmView>, _, _>("/vms/{vm}/stop", Verb::VmStop, "shut a virtual machine down", stop)
        .order::<Nothing, One<VmView>, _, _>(
            "/vms/{vm}/restart",
            Verb::VmRestart,
            "stop a virtual machine and run it again",
            restart,
        )
        .order::<One<DeleteVm>, One<VmView>, _, _>(
            "/vms/{vm}/delete",
            Verb::VmDelete,
            "release all that a virtual machine has, then forget it",
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
        central.workloads.show_addresses(vm.uuid, vm.node, &mut vm.nics);
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
    central.workloads.show_addresses(view.uuid, view.node, &mut view.nics);
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
