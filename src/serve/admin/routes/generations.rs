//! Routes of generations and of reload.

use crate::admin::{
    ApiState,
    extract::{Body, QueryOf, TargetNode, profile_name},
    routes::{Answer, blocking, nodes::detail::node_view},
};
use axum::{
    Json,
    extract::{Path, State},
};
use meshd_api::{
    DiffView, GenerationView, NodeView, ReloadView, RevisionDiffView, RevisionView, Rollback,
};
use meshd_central::Shared;
use meshd_model::fleet::AuditContext;
use serde::Deserialize;

pub(crate) async fn history(TargetNode { central, id }: TargetNode) -> Answer<Vec<GenerationView>> {
    let node = central.nodes.node(id);
    let (booted, next, pinned) =
        node.map(|node| (node.booted, node.generation, node.pinned)).unwrap_or_default();
    let view = |(delivered, archived): (meshd_model::fleet::DeliveredGeneration, bool)| {
        let is = |other| other == Some(delivered.generation);
        let runs = is(booted);
        let next = is(next);
        let pinned = is(pinned);
        GenerationView { delivered, runs, next, pinned, archived }
    };
    Ok(Json(central.nodes.generations(id)?.into_iter().map(view).collect()))
}

pub(crate) async fn diff(
    State(state): State<ApiState>,
    TargetNode { central, id }: TargetNode,
) -> Answer<DiffView> {
    let (runs, next, diff) =
        central.nodes.node_diff(id, central.env.endpoint(state.boot_address())).await?;
    let Json(NodeView { pinned, rolled_back, .. }) = node_view(&central, id)?;
    Ok(Json(DiffView { runs, next, pinned, rolled_back, diff }))
}

pub(crate) async fn revisions(
    State(central): State<Shared>,
    Path(name): Path<String>,
) -> Answer<Vec<RevisionView>> {
    let revisions = central.generations.revisions(&profile_name(&name)?);
    let effective = revisions.effective();
    let newest = revisions.all.last().map(|last| last.generation);
    let view = |revised: meshd_model::fleet::RevisionSummary| {
        let pinned = revisions.pinned == Some(revised.generation);
        let boots = effective == Some(revised.generation);
        let current = newest == Some(revised.generation);
        RevisionView { revised, boots, current, pinned }
    };
    Ok(Json(revisions.all.iter().rev().cloned().map(view).collect()))
}

/// Two revisions, each identified by a prefix of its digest.
#[derive(Debug, Deserialize)]
pub(crate) struct RevisionPair {
    from: String,
    to: String,
}

pub(crate) async fn compare(
    State(central): State<Shared>,
    Path(name): Path<String>,
    QueryOf(RevisionPair { from, to }): QueryOf<RevisionPair>,
) -> Answer<RevisionDiffView> {
    let name = profile_name(&name)?;
    let diff =
        blocking("reading", move || central.generations.compare(&name, [&from, &to])).await??;
    Ok(Json(RevisionDiffView { diff }))
}

pub(crate) async fn rollback(
    State(central): State<Shared>,
    Path(name): Path<String>,
    context: AuditContext,
    Body(order): Body<Rollback>,
) -> Answer<Vec<RevisionView>> {
    let named = profile_name(&name)?;
    if order.off {
        central.generations.end_rollback(named, &context).await?;
    } else {
        central.generations.rollback(named, order.to.as_deref(), &context).await?;
    }
    revisions(State(central), Path(name)).await
}

pub(crate) async fn reload(
    State(central): State<Shared>,
    context: AuditContext,
) -> Json<ReloadView> {
    let reload = central.generations.reload(&context).await;
    let restart = reload.restart.into_iter().map(str::to_owned).collect();
    Json(ReloadView {
        faults: reload.faults,
        changed: reload.changed,
        restart,
        warnings: reload.warnings,
    })
}
