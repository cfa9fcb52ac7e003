//! Routes that give one order to several nodes.

use crate::serve::admin::{
    Plane,
    binder::Binder,
    error::Refused,
    routes::{
        Answer,
        node_lifecycle::checked_drain,
        orders::{Body, body, checked_vars, profile},
        shown,
    },
};
use axum::{Json, extract::State};
use meshd_api::{
    Approve, AssignProfile, BulkDone, BulkNode, BulkRequest, ChangeLabels, ChangeVars, Drain, routes as api,
};
use meshd_central::{BulkOrder, Shared};
use meshd_model::fleet::{Audit, AuditContext};
use meshd_store::StoreError;
use meshd_types::NodeId;
use serde::de::DeserializeOwned;

pub(crate) fn bind(binder: Binder) -> Binder {
    let all: [(&api::BulkPost, Reading); 12] = [
        (&api::APPROVE_NODES, approve),
        (&api::REJECT_NODES, |_| Ok(BulkOrder::Reject)),
        (&api::QUARANTINE_NODES, |_| Ok(BulkOrder::Quarantine)),
        (&api::RELEASE_NODES, |_| Ok(BulkOrder::Release)),
        (&api::DRAIN_NODES, drain),
        (&api::START_NODES_MAINTENANCE, |_| Ok(BulkOrder::Maintenance)),
        (&api::RESUME_NODES, |_| Ok(BulkOrder::Resume)),
        (&api::REMOVE_NODES, |_| Ok(BulkOrder::Remove)),
        (&api::REBOOT_NODES, |_| Ok(BulkOrder::Reboot)),
        (&api::ASSIGN_NODES_PROFILE, assign_profile),
        (&api::CHANGE_NODES_VARIABLES, vars),
        (&api::LABEL_NODES, label),
    ];
    all.into_iter().fold(binder, |binder, (route, reading)| {
        binder.post(route, async move |State(Plane { central, .. }): State<Plane>, by: AuditContext, order: Body<_>| {
            run(&central, &by, order, reading).await
        })
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
    let Drain { workloads, grace_s } = checked_drain(read(order)?)?;
    Ok(BulkOrder::Drain(workloads, grace_s))
}

fn assign_profile(order: serde_json::Value) -> Result<BulkOrder, Refused> {
    Ok(BulkOrder::AssignProfile(profile(&read::<AssignProfile>(order)?.profile)?))
}

fn vars(order: serde_json::Value) -> Result<BulkOrder, Refused> {
    let ChangeVars { set, unset } = checked_vars(read(order)?)?;
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
