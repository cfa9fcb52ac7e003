//! Routes that give one order to several nodes.

use crate::serve::admin::{
    Plane,
    error::Refused,
    routes::{
        Answer,
        orders::{Body, body, profile},
        shown,
    },
    table::{Object, Routes},
    transport::auth::Caller,
};
use axum::{Extension, Json, extract::State};
use meshd_api::{
    Approve, AssignProfile, BootOnce, BulkDone, BulkNode, BulkRequest, ChangeLabels, ChangeVars, Drain, DrainPolicy,
    Pin,
};
use meshd_central::{BulkOrder, Shared, doctor_report};
use meshd_config::vm::MAX_GRACE_S;
use meshd_model::fleet::{Audit, AuditContext, Verb};
use meshd_store::StoreError;
use meshd_trust::Role;
use meshd_types::NodeId;
use serde::de::DeserializeOwned;

pub(crate) fn routes(routes: Routes) -> Routes {
    let all: [(&str, Verb, &'static str, Reading); 15] = [
        ("approve", Verb::Approve, "Approve several nodes", approve),
        ("reject", Verb::Reject, "Reject several nodes", |_, _| Ok(BulkOrder::Reject)),
        ("quarantine", Verb::Quarantine, "Quarantine several nodes", |_, _| Ok(BulkOrder::Quarantine)),
        ("release", Verb::Release, "Release several nodes from quarantine", |_, _| Ok(BulkOrder::Release)),
        ("drain", Verb::Drain, "Drain several nodes", drain),
        ("maintenance", Verb::Maintenance, "Put several nodes into maintenance", |_, _| Ok(BulkOrder::Maintenance)),
        ("resume", Verb::Resume, "Return several nodes to service", |_, _| Ok(BulkOrder::Resume)),
        ("remove", Verb::Remove, "Remove several nodes", |_, _| Ok(BulkOrder::Remove)),
        ("reboot", Verb::Reboot, "Reboot several nodes through their agents", |_, _| Ok(BulkOrder::Reboot)),
        ("assign-profile", Verb::AssignProfile, "Assign a profile to several nodes", assign_profile),
        ("vars", Verb::Vars, "Set and remove variables of several nodes", vars),
        ("label", Verb::Label, "Set and remove labels of several nodes", label),
        ("pin", Verb::Pin, "Pin several nodes to their running generations, or unpin them", pin),
        ("boot-once", Verb::BootOnce, "Set boot options of several nodes for the next boot only", boot_once),
        ("doctor", Verb::Doctor, "Run the readiness checks of several nodes now", |_, _| Ok(BulkOrder::Doctor)),
    ];
    all.into_iter().fold(routes, |routes, (word, verb, what, reading)| {
        let path = format!("/bulk/nodes/{word}");
        let handler = async move |State(Plane { central, .. }): State<Plane>,
                                  Extension(caller): Extension<Caller>,
                                  by: AuditContext,
                                  order: Body<BulkRequest>| {
            run(&central, &by, order, |order| reading(order, caller.role)).await
        };
        routes.post::<Object<BulkRequest>, Object<BulkDone>, _, _>(&path, verb, what, handler)
    })
}

/// Reads the order of one route, for a caller of this role.
type Reading = fn(serde_json::Value, Role) -> Result<BulkOrder, Refused>;

fn read<T: DeserializeOwned>(order: serde_json::Value) -> Result<T, Refused> {
    serde_json::from_value(order).map_err(|error| Refused::bad_request(format!("invalid `order`: {error}")))
}

fn approve(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::Approve(read::<Option<Approve>>(order)?.unwrap_or_default().moved))
}

fn drain(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    let Drain { workloads, grace_s } = read::<Option<Drain>>(order)?.unwrap_or_default();
    if grace_s.is_some_and(|seconds| seconds > MAX_GRACE_S || workloads == DrainPolicy::Wait) {
        let told = format!("`grace_s` goes with `workloads`: `stop`, and is at most {MAX_GRACE_S}");
        return Err(Refused::bad_request(told));
    }
    Ok(BulkOrder::Drain(workloads, grace_s))
}

fn assign_profile(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::AssignProfile(profile(&read::<AssignProfile>(order)?.profile)?))
}

fn vars(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    let ChangeVars { set, unset } = read(order)?;
    if let Some((name, error)) = set.iter().find_map(|(name, value)| Some((name, value.check().err()?))) {
        return Err(Refused::bad_request(format!("{name} {error}; files belong into an overlay")));
    }
    Ok(BulkOrder::Vars(set, unset))
}

fn label(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::Label(read::<ChangeLabels>(order)?.change))
}

fn pin(order: serde_json::Value, _: Role) -> Result<BulkOrder, Refused> {
    let Pin { generation, off } = read::<Option<Pin>>(order)?.unwrap_or_default();
    if generation.is_some() {
        return Err(Refused::bad_request(
            "several nodes are pinned to their running generations; leave `generation` out",
        ));
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
    by: &AuditContext,
    request: Body<BulkRequest>,
    read: impl FnOnce(serde_json::Value) -> Result<BulkOrder, Refused>,
) -> Answer<BulkDone> {
    let BulkRequest { nodes, order } = body(request)?;
    let order = read(order)?;
    let is_doctor = matches!(order, BulkOrder::Doctor);
    let came = central.nodes.bulk(&nodes, &order, by).await?;
    let (mut results, mut failed) = (Vec::with_capacity(came.len()), Vec::new());
    for (id, result) in came {
        results.push(match result.map_err(Refused::from) {
            Ok(node) => {
                let report = if is_doctor { doctor_report(&node) } else { None };
                BulkNode { id, node: shown(central, id).ok().map(|Json(node)| node), report, error: None }
            }
            Err(refused) => {
                let error = Some(refused.view(by.correlation));
                failed.push((id, refused));
                BulkNode { id, node: None, report: None, error }
            }
        });
    }
    let count = failed.len();
    store(central, by, failed).await?;
    Ok(Json(BulkDone { failed: count, results }))
}

/// Each node that refused the order has its own line in the audit log.
async fn store(central: &Shared, by: &AuditContext, failed: Vec<(NodeId, Refused)>) -> Result<(), Refused> {
    if failed.is_empty() {
        return Ok(());
    }
    let now = central.now();
    let written = central.store().commit(|tx| {
        for (id, refused) in failed {
            let mut audit = Audit::done(now, by.clone());
            (audit.outcome, audit.detail) = (refused.outcome(), refused.sentence().to_owned());
            (audit.node, audit.target) = (Some(id), Some(id.to_string()));
            tx.audit(audit);
        }
        Ok::<_, StoreError>(())
    });
    Ok(written.await?)
}
