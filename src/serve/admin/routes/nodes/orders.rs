//! Routes of orders to nodes: each verb for one node and for several. One function reads the order
//! of both, and one service executes it.

use crate::admin::{
    bind_handlers::Binder,
    error::Refused,
    extract::{Body, JsonBody, json_objects::from_value, profile_name},
    routes::{
        Answer,
        nodes::detail::{detail, node_view},
    },
    transport::caller::Caller,
};
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use meshd_api::{
    Approve, AssignProfile, BootDeviceOrder, BootOnce, BulkDone, BulkNode, BulkRequest, BulkTarget,
    ChangeVars, Drain, DrainPolicy, Identify, Pin, PowerOrder, PowerView, Reboot, WarmRebootView,
    routes::{self as api, BulkPost, Post},
};
use meshd_central::{AcceptedOrder, NodeResults, Shared, doctor_report};
use meshd_config::vm::MAX_GRACE_S;
use meshd_model::{
    fleet::{Audit, AuditContext},
    operations::NodeOrder,
};
use meshd_types::{Hostlist, NodeId, PowerAction};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// The body of an order to one node, or the same as a part of the body of an order to several.
enum OrderBody {
    Whole(JsonBody),
    Part(Value),
}

/// Reads an order.
type Reading = fn(OrderBody) -> Result<NodeOrder, Refused>;

pub(crate) fn bind(binder: Binder) -> Binder {
    let binder = bind_verb(binder, &api::APPROVE_NODE, &api::APPROVE_NODES, approve, node_view);
    let binder = bind_verb(
        binder,
        &api::REJECT_NODE,
        &api::REJECT_NODES,
        |_| Ok(NodeOrder::Reject),
        node_view,
    );
    let quarantine: Reading = |_| Ok(NodeOrder::Quarantine);
    let binder =
        bind_verb(binder, &api::QUARANTINE_NODE, &api::QUARANTINE_NODES, quarantine, node_view);
    let binder = bind_verb(
        binder,
        &api::RELEASE_NODE,
        &api::RELEASE_NODES,
        |_| Ok(NodeOrder::Release),
        node_view,
    );
    let binder = bind_verb(binder, &api::DRAIN_NODE, &api::DRAIN_NODES, drain, node_view);
    let maintenance: Reading = |_| Ok(NodeOrder::Maintenance);
    let binder = bind_verb(
        binder,
        &api::START_NODE_MAINTENANCE,
        &api::START_NODES_MAINTENANCE,
        maintenance,
        node_view,
    );
    let binder = bind_verb(
        binder,
        &api::RESUME_NODE,
        &api::RESUME_NODES,
        |_| Ok(NodeOrder::Resume),
        node_view,
    );
    let binder = bind_verb(
        binder,
        &api::REMOVE_NODE,
        &api::REMOVE_NODES,
        |_| Ok(NodeOrder::Remove),
        node_view,
    );
    let binder = bind_verb(binder, &api::REBOOT_NODE, &api::REBOOT_NODES, reboot, node_view);
    let binder = bind_verb(
        binder,
        &api::ASSIGN_NODE_PROFILE,
        &api::ASSIGN_NODES_PROFILE,
        assign_profile,
        node_view,
    );
    let binder =
        bind_verb(binder, &api::CHANGE_NODE_VARIABLES, &api::CHANGE_NODES_VARIABLES, vars, detail);
    let binder = bind_verb(binder, &api::LABEL_NODE, &api::LABEL_NODES, label, node_view);
    let binder = bind_verb(binder, &api::PIN_NODE, &api::PIN_NODES, pin, detail);
    let binder =
        bind_verb(binder, &api::SET_NODE_BOOT_ONCE, &api::SET_NODES_BOOT_ONCE, boot_once, detail);
    let binder = bind_verb(binder, &api::POWER_NODE, &api::POWER_NODES, power, node_view);
    let boot_device: Reading =
        |order| Ok(NodeOrder::BootDevice { device: read::<BootDeviceOrder>(order)?.device });
    let binder = bind_verb(
        binder,
        &api::SET_NODE_BOOT_DEVICE,
        &api::SET_NODES_BOOT_DEVICE,
        boot_device,
        node_view,
    );
    let identify: Reading = |order| Ok(NodeOrder::Identify { on: read::<Identify>(order)?.on });
    let binder = bind_verb(binder, &api::IDENTIFY_NODE, &api::IDENTIFY_NODES, identify, node_view);
    binder.post(&api::RUN_NODES_CHECKS, run_checks).get(&api::GET_NODE_POWER, power_status)
}

/// Binds both routes of a verb. `view` is the response for one node.
fn bind_verb<B, R, V: Serialize + Send + 'static>(
    binder: Binder,
    one: &Post<B, R, 1>,
    several: &BulkPost,
    reading: Reading,
    view: fn(&Shared, NodeId) -> Answer<V>,
) -> Binder {
    let to_one = async move |State(central): State<Shared>,
                             Extension(caller): Extension<Caller>,
                             Path(node): Path<String>,
                             context: AuditContext,
                             body: JsonBody| {
        let order = reading(OrderBody::Whole(body))?;
        let id = central.nodes.resolve(&node)?;
        central.nodes.order_one(id, order, caller.role, &context).await?;
        view(&central, id)
    };
    let to_several = async move |State(central): State<Shared>,
                                 Extension(caller): Extension<Caller>,
                                 context: AuditContext,
                                 Body(request): Body<BulkRequest>| {
        let order = reading(OrderBody::Part(request.order))?;
        let nodes = targets(&central, request.nodes, request.hostlist, order.needs_bmc())?;
        let AcceptedOrder { operation, results } =
            central.nodes.order(&nodes, order, caller.role, &context).await?;
        let finished = results.is_some();
        let done = bulk_done(&central, &context, results.unwrap_or_default(), false).await;
        Ok::<_, Refused>(Json(BulkDone { operation, finished, ..done }))
    };
    binder.post(one, to_one).post(several, to_several)
}

/// Returns the target nodes of an order to several: those of a hostlist in any revision. A BMC
/// switches machines that have not booted, too.
fn targets(
    central: &Shared,
    nodes: Vec<BulkTarget>,
    hostlist: Option<Hostlist>,
    needs_bmc: bool,
) -> Result<Vec<BulkTarget>, Refused> {
    match hostlist {
        None => Ok(nodes),
        Some(_) if !nodes.is_empty() => {
            Err(Refused::bad_request("`nodes` and `hostlist` are both given")
                .with_hint("use one of the two"))
        }
        Some(hostlist) => {
            let ids = if needs_bmc {
                central.nodes.resolve_machines(&hostlist)?
            } else {
                central.nodes.resolve_hostlist(&hostlist)?
            };
            Ok(ids.into_iter().map(|id| BulkTarget { id, revision: None }).collect())
        }
    }
}

fn read<T: DeserializeOwned>(order: OrderBody) -> Result<T, Refused> {
    match order {
        OrderBody::Whole(body) => body.read(),
        OrderBody::Part(order) => from_value(order)
            .map_err(|error| Refused::bad_request(format!("invalid `order`: {error}"))),
    }
}

fn approve(order: OrderBody) -> Result<NodeOrder, Refused> {
    let Approve { moved } = read::<Option<Approve>>(order)?.unwrap_or_default();
    Ok(NodeOrder::Approve { moved })
}

/// Only a stop has a grace time.
fn drain(order: OrderBody) -> Result<NodeOrder, Refused> {
    let Drain { workloads, grace_s } = read::<Option<Drain>>(order)?.unwrap_or_default();
    if grace_s.is_some_and(|seconds| seconds > MAX_GRACE_S || workloads == DrainPolicy::Wait) {
        let message =
            format!("`grace_s` goes with `workloads`: `stop`, and is at most {MAX_GRACE_S}");
        return Err(Refused::bad_request(message));
    }
    Ok(NodeOrder::Drain { workloads, grace_s })
}

fn reboot(order: OrderBody) -> Result<NodeOrder, Refused> {
    let Reboot { warm } = read::<Option<Reboot>>(order)?.unwrap_or_default();
    Ok(if warm { NodeOrder::WarmReboot } else { NodeOrder::Reboot })
}

fn assign_profile(order: OrderBody) -> Result<NodeOrder, Refused> {
    Ok(NodeOrder::AssignProfile { profile: profile_name(&read::<AssignProfile>(order)?.profile)? })
}

/// Refuses values that are too long for a variable.
fn vars(order: OrderBody) -> Result<NodeOrder, Refused> {
    let ChangeVars { set, unset } = read(order)?;
    if let Some((name, error)) =
        set.iter().find_map(|(name, value)| Some((name, value.check().err()?)))
    {
        return Err(Refused::bad_request(format!("{name} {error}"))
            .with_hint("files belong into an overlay"));
    }
    Ok(NodeOrder::ChangeVars { set, unset })
}

fn label(order: OrderBody) -> Result<NodeOrder, Refused> {
    Ok(NodeOrder::Label { change: read(order)? })
}

fn pin(order: OrderBody) -> Result<NodeOrder, Refused> {
    let is_of_several = matches!(order, OrderBody::Part(_));
    let Pin { generation, off } = read::<Option<Pin>>(order)?.unwrap_or_default();
    if is_of_several && generation.is_some() {
        let message = "several nodes are pinned to their running generations";
        return Err(Refused::bad_request(message).with_hint("omit `generation`"));
    }
    if off && generation.is_some() {
        return Err(Refused::bad_request("`off` goes without `generation`"));
    }
    Ok(if off { NodeOrder::Unpin } else { NodeOrder::Pin { generation } })
}

fn boot_once(order: OrderBody) -> Result<NodeOrder, Refused> {
    let BootOnce { profile: named, kernel_args, clear } = read(order)?;
    if clear && (named.is_some() || !kernel_args.is_empty()) {
        return Err(Refused::bad_request("`clear` goes without `profile` and `kernel_args`"));
    }
    let profile = named.as_deref().map(profile_name).transpose()?;
    Ok(if clear { NodeOrder::ClearBootOnce } else { NodeOrder::BootOnce { profile, kernel_args } })
}

/// Only a power-off has a graceful variant.
fn power(order: OrderBody) -> Result<NodeOrder, Refused> {
    let PowerOrder { action, now } = read(order)?;
    if now && action != PowerAction::Off {
        return Err(Refused::bad_request("`now` goes with `action`: `off`"));
    }
    Ok(NodeOrder::Power { action, now })
}

async fn power_status(
    State(central): State<Shared>,
    Path(node): Path<String>,
) -> Answer<PowerView> {
    Ok(Json(central.nodes.power_status(&node).await?))
}

/// Runs the readiness checks of several nodes. It changes nothing, so it is no operation.
async fn run_checks(
    State(central): State<Shared>,
    context: AuditContext,
    Body(BulkRequest { nodes, hostlist, .. }): Body<BulkRequest>,
) -> Answer<BulkDone> {
    let nodes = targets(&central, nodes, hostlist, false)?;
    let checked = central.nodes.run_checks(&nodes, &context).await?;
    Ok(Json(bulk_done(&central, &context, checked, true).await))
}

async fn bulk_done(
    central: &Shared,
    context: &AuditContext,
    results_of_nodes: NodeResults,
    with_report: bool,
) -> BulkDone {
    let mut results = Vec::with_capacity(results_of_nodes.len());
    let mut failed = Vec::new();
    for (id, result) in results_of_nodes {
        results.push(match result.map_err(Refused::from) {
            Ok(node) => {
                let report = if with_report { doctor_report(&node) } else { None };
                let warm_reboot = report.as_ref().and(WarmRebootView::of_cold_boot(&node));
                BulkNode {
                    id,
                    node: node_view(central, id).ok().map(|Json(node)| node),
                    report,
                    warm_reboot,
                    error: None,
                }
            }
            Err(refused) => {
                let error = Some(refused.view(context.correlation_id));
                failed.push((id, refused));
                BulkNode { id, node: None, report: None, warm_reboot: None, error }
            }
        });
    }
    let count = failed.len();
    write_audit(central, context, failed).await;
    BulkDone { operation: None, finished: true, failed: count, results }
}

/// Writes one line to the audit log for each node that refused the order. A failure is logged only:
/// the order is executed, and its results are the answer.
async fn write_audit(central: &Shared, context: &AuditContext, failed: Vec<(NodeId, Refused)>) {
    let now = central.now();
    let line = |(id, refused): (NodeId, Refused)| {
        let mut audit = Audit::done(now, context.clone());
        (audit.outcome, audit.detail) = (refused.outcome(), refused.sentence().to_owned());
        (audit.node, audit.target) = (Some(id), Some(id.to_string()));
        audit
    };
    if let Err(error) = central.env.write_audit(failed.into_iter().map(line).collect()).await {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "cannot record refused orders in the audit log"
        );
    }
}
