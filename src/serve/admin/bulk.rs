//! Routes that apply one order to several nodes.

use crate::serve::admin::{
    bind_handlers::Binder,
    error::Refused,
    extract::{Body, json_objects::from_value},
    routes::{
        Answer,
        node_lifecycle::checked_drain,
        node_settings::{checked_vars, profile},
        node_view,
    },
    transport::auth::Caller,
};
use axum::{Extension, Json, extract::State};
use meshd_api::{
    Approve, AssignProfile, BootOnce, BulkDone, BulkNode, BulkRequest, ChangeLabels, ChangeVars, Drain, Pin,
    routes as api,
};
use meshd_central::{BulkOrder, Shared, doctor_report};
use meshd_model::fleet::{Audit, AuditContext};
use meshd_store::StoreError;
use meshd_trust::Role;
use meshd_types::NodeId;
use serde::de::DeserializeOwned;

pub(crate) fn bind(binder: Binder) -> Binder {
    let all: [(&api::BulkPost, Reading); 15] = [
        (&api::APPROVE_NODES, approve),
        (&api::REJECT_NODES, |_, _| Ok(BulkOrder::Reject)),
        (&api::QUARANTINE_NODES, |_, _| Ok(BulkOrder::Quarantine)),
        (&api::RELEASE_NODES, |_, _| Ok(BulkOrder::Release)),
        (&api::DRAIN_NODES, drain),
        (&api::START_NODES_MAINTENANCE, |_, _| Ok(BulkOrder::Maintenance)),
        (&api::RESUME_NODES, |_, _| Ok(BulkOrder::Resume)),
        (&api::REMOVE_NODES, |_, _| Ok(BulkOrder::Remove)),
        (&api::REBOOT_NODES, |_, _| Ok(BulkOrder::Reboot)),
        (&api::ASSIGN_NODES_PROFILE, assign_profile),
        (&api::CHANGE_NODES_VARIABLES, vars),
        (&api::LABEL_NODES, label),
        (&api::PIN_NODES, pin),
        (&api::SET_NODES_BOOT_ONCE, boot_once),
        (&api::RUN_NODES_CHECKS, |_, _| Ok(BulkOrder::Doctor)),
    ];
    all.into_iter().fold(binder, |binder, (route, reading)| {
        let handler = async move |State(central): State<Shared>,
                                  Extension(caller): Extension<Caller>,
                                  context: AuditContext,
                                  Body(request): Body<BulkRequest>| {
            run(&central, &context, request, |order| reading(order, caller.role)).await
        };
        binder.post(route, handler)
    })
}

/// Parses the order of one route for a caller with this role.
type Reading = fn(serde_json::Value, Role) -> Result<BulkOrder, Refused>;

fn read<T: DeserializeOwned>(order: serde_json::Value) -> Result<T, Refused> {
    from_value(order).map_err(|error| Refused::bad_request(format!("invalid `order`: {error}")))
}

fn approve(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::Approve(read::<Option<Approve>>(order)?.unwrap_or_default().moved))
}

fn drain(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    let Drain { workloads, grace_s } = checked_drain(read(order)?)?;
    Ok(BulkOrder::Drain(workloads, grace_s))
}

fn assign_profile(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::AssignProfile(profile(&read::<AssignProfile>(order)?.profile)?))
}

fn vars(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    let ChangeVars { set, unset } = checked_vars(read(order)?)?;
    Ok(BulkOrder::Vars(set, unset))
}

fn label(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::Label(read::<ChangeLabels>(order)?.change))
}

fn pin(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    let Pin { generation, off } = read::<Option<Pin>>(order)?.unwrap_or_default();
    if generation.is_some() {
        return Err(Refused::bad_request("several nodes are pinned to their running generations")
            .with_hint("omit `generation`"));
    }
    Ok(BulkOrder::Pin(!off))
}

fn boot_once(order: serde_json::Value, role: Role) -> Result<BulkOrder, Refused> {
    let BootOnce { profile: named, kernel_args, clear } = read(order)?;
    let named = named.as_deref().map(profile).transpose()?;
    Ok(BulkOrder::BootOnce { once: (!clear).then_some((named, kernel_args)), role })
}

async fn run(
    central: &Shared,
    context: &AuditContext,
    BulkRequest { nodes, order }: BulkRequest,
    read: impl FnOnce(serde_json::Value) -> Result<BulkOrder, Refused>,
) -> Answer<BulkDone> {
    let order = read(order)?;
    let is_doctor = matches!(order, BulkOrder::Doctor);
    let came = central.nodes.bulk(&nodes, &order, context).await?;
    let (mut results, mut failed) = (Vec::with_capacity(came.len()), Vec::new());
    for (id, result) in came {
        results.push(match result.map_err(Refused::from) {
            Ok(node) => {
                let report = if is_doctor { doctor_report(&node) } else { None };
                BulkNode { id, node: node_view(central, id).ok().map(|Json(node)| node), report, error: None }
            }
            Err(refused) => {
                let error = Some(refused.view(context.correlation_id));
                failed.push((id, refused));
                BulkNode { id, node: None, report: None, error }
            }
        });
    }
    let count = failed.len();
    store(central, context, failed).await?;
    Ok(Json(BulkDone { failed: count, results }))
}

/// Writes one line to the audit log for each node that refused the order.
async fn store(central: &Shared, context: &AuditContext, failed: Vec<(NodeId, Refused)>) -> Result<(), Refused> {
    if failed.is_empty() {
        return Ok(());
    }
    let now = central.now();
    let written = central.store().commit(|tx| {
        for (id, refused) in failed {
            let mut audit = Audit::done(now, context.clone());
            (audit.outcome, audit.detail) = (refused.outcome(), refused.sentence().to_owned());
            (audit.node, audit.target) = (Some(id), Some(id.to_string()));
            tx.audit(audit);
        }
        Ok::<_, StoreError>(())
    });
    Ok(written.await?)
}
