//! `/v1/audit`: the audit log.

use crate::serve::admin::{
    Plane,
    error::Refused,
    query::{
        answer::{Asked, Encoding, Listing, parameters},
        logs::{AUDIT, Direction, LogRequest},
    },
};
use axum::{extract::State, http::HeaderMap, response::Response};
use meshd_api::AuditView;
use meshd_model::fleet::{AuditSeq, Principal};
use meshd_store::AuditFilter;

pub(crate) async fn audit(
    State(Plane { central, .. }): State<Plane>,
    headers: HeaderMap,
    asked: Asked,
) -> Result<Response, Refused> {
    let asked = parameters(asked, AUDIT.parameters)?;
    let (log, fields, text) = (LogRequest::read(&asked, &AUDIT)?, asked.fields(&AUDIT)?, asked.needle()?);
    // A node that was removed has its lines still, by ID.
    let by_name = |name: &str| name.parse().or_else(|_| central.nodes.resolve(name));
    let node = asked.get("node").map(by_name).transpose()?;
    let who: Option<Principal> = asked.parsed("actor")?;
    let (first, before) = log.range();
    let filter = AuditFilter {
        from: AuditSeq(first),
        node,
        who,
        correlation: None,
        limit: log.records(),
        before: before.map(AuditSeq),
        oldest: log.direction == Direction::Forward,
        text: text.map(|text| text.as_str().to_owned()),
    };
    let read = tokio::task::spawn_blocking(move || central.store().audit(&filter)).await;
    let lines = read.map_err(|_| Refused::internal("reading the audit log was interrupted"))??;
    let (lines, next) = log.cut(lines.into_iter().map(|(seq, audit)| (seq.0, audit)).collect());
    let rows = lines.into_iter().map(|(seq, audit)| AuditView { seq: AuditSeq(seq), audit }).collect();
    let next = next.map(|next| next.to_string());
    Listing { rows, fields, next, total: None, encoding: Encoding::Array }.answer(&headers)
}
