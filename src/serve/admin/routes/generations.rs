//! Routes of generations and of reload.

use crate::serve::admin::{
    Plane,
    error::Refused,
    routes::{
        Answer, TargetNode, detail,
        node_settings::{Body, body, profile},
        node_view,
    },
};
use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::StatusCode,
};
use meshd_api::{
    DiffView, GenerationView, NodeDetail, NodeView, Pin, ReloadView, RevisionDiffView, RevisionView, Rollback,
};
use meshd_model::fleet::AuditContext;
use serde::Deserialize;

pub(crate) async fn history(TargetNode { central, id }: TargetNode) -> Answer<Vec<GenerationView>> {
    let marks = |model: &meshd_store::Model| {
        model.node(id).map(|node| (node.booted, node.generation, node.pinned)).unwrap_or_default()
    };
    let (booted, next, pinned) = central.store().read(marks);
    let view = |(delivered, kept): (meshd_model::fleet::DeliveredGeneration, bool)| {
        let is = |other| other == Some(delivered.generation);
        let (runs, next, pinned) = (is(booted), is(next), is(pinned));
        GenerationView { delivered, runs, next, pinned, kept }
    };
    Ok(Json(central.nodes.generations(id)?.into_iter().map(view).collect()))
}

pub(crate) async fn diff(
    State(Plane { boot_address, .. }): State<Plane>,
    TargetNode { central, id }: TargetNode,
) -> Answer<DiffView> {
    let (runs, next, diff) = central.nodes.node_diff(id, central.env.endpoint(boot_address)).await?;
    let Json(NodeView { pinned, rolled_back, .. }) = node_view(&central, id)?;
    Ok(Json(DiffView { runs, next, pinned, rolled_back, diff }))
}

pub(crate) async fn pin(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    context: AuditContext,
    order: Body<Pin>,
) -> Answer<NodeDetail> {
    let order = body(order)?;
    let id = central.nodes.resolve(&node)?;
    if order.off {
        central.nodes.unpin(id, &context).await?;
    } else {
        central.nodes.pin(id, order.generation.as_deref(), &context).await?;
    }
    detail(&central, id)
}

pub(crate) async fn revisions(
    State(Plane { central, .. }): State<Plane>,
    Path(name): Path<String>,
) -> Answer<Vec<RevisionView>> {
    let revisions = central.generations.revisions(&profile(&name)?);
    let effective = revisions.effective();
    let newest = revisions.all.last().map(|last| last.generation);
    let view = |revised: meshd_model::fleet::RevisionSummary| {
        let held = revisions.pinned == Some(revised.generation);
        let (boots, filed) = (effective == Some(revised.generation), newest == Some(revised.generation));
        RevisionView { revised, boots, filed, held }
    };
    Ok(Json(revisions.all.iter().rev().cloned().map(view).collect()))
}

/// Two revisions, each identified by a prefix of its digest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RevisionPair {
    from: String,
    to: String,
}

pub(crate) async fn compare(
    State(Plane { central, .. }): State<Plane>,
    Path(name): Path<String>,
    pair: Result<Query<RevisionPair>, QueryRejection>,
) -> Answer<RevisionDiffView> {
    let Query(RevisionPair { from, to }) = pair.map_err(|error| Refused::bad_request(error.body_text()))?;
    let named = profile(&name)?;
    let compared = tokio::task::spawn_blocking(move || central.generations.compare(&named, [&from, &to])).await;
    let interrupted = |_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "interrupted", "reading was interrupted");
    Ok(Json(RevisionDiffView { diff: compared.map_err(interrupted)?? }))
}

pub(crate) async fn rollback(
    State(plane): State<Plane>,
    Path(name): Path<String>,
    context: AuditContext,
    order: Body<Rollback>,
) -> Answer<Vec<RevisionView>> {
    let order = body(order)?;
    let named = profile(&name)?;
    if order.off {
        plane.central.generations.end_rollback(named, &context).await?;
    } else {
        plane.central.generations.rollback(named, order.to.as_deref(), &context).await?;
    }
    revisions(State(plane), Path(name)).await
}

pub(crate) async fn reload(State(Plane { central, .. }): State<Plane>, context: AuditContext) -> Json<ReloadView> {
    let reload = central.generations.reload(&context).await;
    let restart = reload.restart.into_iter().map(str::to_owned).collect();
    Json(ReloadView { faults: reload.faults, changed: reload.changed, restart })
}
