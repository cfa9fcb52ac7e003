//! `/v1/audit`: the audit log.

use crate::serve::admin::{Plane, error::Refused, routes::Answer, view::AuditView};
use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use meshd_model::fleet::{AuditSeq, Principal};
use meshd_store::AuditFilter;
use serde::Deserialize;

/// Lines that are answered when nobody says how many.
const DEFAULT_LIMIT: usize = 100;
/// Most lines of one answer.
const MAX_LIMIT: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    node: Option<String>,
    actor: Option<String>,
    after: Option<u64>,
    limit: Option<usize>,
}

pub(crate) async fn audit(
    State(Plane { central, .. }): State<Plane>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Answer<Vec<AuditView>> {
    let Query(wanted) = wanted.map_err(|error| Refused::bad_request(error.body_text()))?;
    // A node that was removed has its lines still, by ID.
    let by_name = |name: &str| name.parse().or_else(|_| central.nodes.resolve(name));
    let node = wanted.node.as_deref().map(by_name).transpose()?;
    let who: Option<Principal> = wanted
        .actor
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|error| Refused::bad_request(format!("{error}")))?;
    let filter = AuditFilter {
        from: AuditSeq(wanted.after.map_or(0, |after| after.saturating_add(1))),
        node,
        who,
        correlation: None,
        limit: wanted.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT),
    };
    let read = tokio::task::spawn_blocking(move || central.store().audit(&filter)).await;
    let lines = read.map_err(|_| Refused::internal("reading the audit log was interrupted"))??;
    Ok(Json(lines.into_iter().map(|(seq, audit)| AuditView { seq, audit }).collect()))
}
