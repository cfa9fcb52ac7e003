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
};
use axum::{Json, extract::State};
use meshd_api::{
    Approve, AssignProfile, BulkDone, BulkNode, BulkRequest, ChangeLabels, ChangeVars, Drain, DrainPolicy,
};
use meshd_central::{BulkOrder, Shared};
use meshd_config::vm::MAX_GRACE_S;
use meshd_model::fleet::{Audit, AuditContext, Verb};
use meshd_store::StoreError;
use meshd_types::NodeId;
use serde::de::DeserializeOwned;

pub(crate) fn routes(routes: Routes) -> Routes {
    let all: [(&str, Verb, &'static str, Reading); 12] = [
        ("approve", Verb::Approve, "Approve several nodes", approve),
        ("reject", Verb::Reject, "Reject several nodes", |_| Ok(BulkOrder::Reject)),
        ("quarantine", Verb::Quarantine, "Quarantine several nodes", |_| Ok(BulkOrder::Quarantine)),
        ("release", Verb::Release, "Release several nodes from quarantine", |_| Ok(BulkOrder::Release)),
        ("drain", Verb::Drain, "Drain several nodes", drain),
        ("maintenance", Verb::Maintenance, "Put several nodes into maintenance", |_| Ok(BulkOrder::Maintenance)),
        ("resume", Verb::Resume, "Return several nodes to service", |_| Ok(BulkOrder::Resume)),
        ("remove", Verb::Remove, "Remove several nodes", |_| Ok(BulkOrder::Remove)),
        ("reboot", Verb::Reboot, "Reboot several nodes through their agents", |_| Ok(BulkOrder::Reboot)),
        ("assign-profile", Verb::AssignProfile, "Assign a profile to several nodes", assign_profile),
        ("vars", Verb::Vars, "Set and remove variables of several nodes", vars),
        ("label", Verb::Label, "Set and remove labels of several nodes", label),
    ];
    all.into_iter().fold(routes, |routes, (word, verb, what, reading)| {
        let path = format!("/bulk/nodes/{word}");
        let handler =
            async move |State(Plane { central, .. }): State<Plane>, by: AuditContext, order: Body<BulkRequest>| {
                run(&central, &by, order, reading).await
            };
        routes.post::<Object<BulkRequest>, Object<BulkDone>, _, _>(&path, verb, what, handler)
    })
}

/// Reads the order of one route.
type Reading = fn(serde_json::Value) -> Result<BulkOrder, Refused>;

fn read<T: DeserializeOwned>(order: serde_json::Value) -> Result<T, Refused> {
    serde_json::from_value(order).map_err(|error| Refused::bad_request(format!("invalid `order`: {error}")))
}

fn approve(order: serde_json::Value) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::Approve(read::<Option<Approve>>(order)?.unwrap_or_default().moved))
}

fn drain(order: serde_json::Value) -> Result<BulkOrder, Refused> {
    let Drain { workloads, grace_s } = read::<Option<Drain>>(order)?.unwrap_or_default();
    if grace_s.is_some_and(|seconds| seconds > MAX_GRACE_S || workloads == DrainPolicy::Wait) {
        let told = format!("`grace_s` goes with `workloads`: `stop`, and is at most {MAX_GRACE_S}");
        return Err(Refused::bad_request(told));
    }
    Ok(BulkOrder::Drain(workloads, grace_s))
}

fn assign_profile(order: serde_json::Value) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::AssignProfile(profile(&read::<AssignProfile>(order)?.profile)?))
}

fn vars(order: serde_json::Value) -> Result<BulkOrder, Refused> {
    let ChangeVars { set, unset } = read(order)?;
    if let Some((name, error)) = set.iter().find_map(|(name, value)| Some((name, value.check().err()?))) {
        return Err(Refused::bad_request(format!("{name} {error}; files belong into an overlay")));
    }
    Ok(BulkOrder::Vars(set, unset))
}

fn label(order: serde_json::Value) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::Label(read::<ChangeLabels>(order)?.change))
}

async fn run(central: &Shared, by: &AuditContext, request: Body<BulkRequest>, reading: Reading) -> Answer<BulkDone> {
    let BulkRequest { nodes, order } = body(request)?;
    let order = reading(order)?;
    let came = central.nodes.bulk(&nodes, &order, by).await?;
    let (mut results, mut failed) = (Vec::with_capacity(came.len()), Vec::new());
    for (id, result) in came {
        results.push(match result.map_err(Refused::from) {
            Ok(_) => BulkNode { id, node: shown(central, id).ok().map(|Json(node)| node), error: None },
            Err(refused) => {
                let error = Some(refused.view(by.correlation));
                failed.push((id, refused));
                BulkNode { id, node: None, error }
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
