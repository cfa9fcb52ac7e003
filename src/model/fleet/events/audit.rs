//! Audit records: caller, operation, reason and outcome of every order, refused orders included.

use super::{
    audit_context::AuditContext,
    event::{Event, EventKind, is_once, once},
};
use meshd_types::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// Maximum length of a detail, in characters.
const MAX_DETAIL: usize = 1000;

/// Sequence number of an audit record.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[derive(utoipa::ToSchema)]
pub struct AuditSeq(pub u64);

/// The outcome of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    Done,
    /// The order was refused without any change; contains the error code of the answer.
    Refused(String),
    /// The order failed by a fault of meshd, its disk or the node; part of it may have been
    /// executed.
    Failed(String),
}

impl AuditOutcome {
    /// Returns `done`, or the code of the answer.
    pub fn code(&self) -> &str {
        match self {
            AuditOutcome::Done => "done",
            AuditOutcome::Refused(code) | AuditOutcome::Failed(code) => code,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Audit {
    pub at: Timestamp,
    /// Caller, operation, reason.
    #[serde(flatten)]
    pub by: AuditContext,
    /// Target as the caller named it: a node, profile or token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Target node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    pub outcome: AuditOutcome,
    /// Detail for people; never a secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Number of orders: repeated orders above the caller's rate limit are combined.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub count: u32,
    /// Time of the first combined order; `None` for a single order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_at: Option<Timestamp>,
}

impl Audit {
    /// Creates the record of an executed order.
    pub fn done(at: Timestamp, by: AuditContext) -> Self {
        let outcome = AuditOutcome::Done;
        let detail = String::new();
        Audit { at, by, target: None, node: None, outcome, detail, count: 1, first_at: None }
    }

    /// Creates the record of the order that caused an event; `None` if no order caused it.
    pub fn from_event(event: &Event) -> Option<Self> {
        let by = event.by.clone()?;
        let mut audit = Audit::done(event.at, by);
        (audit.node, audit.target) = (event.node, event.node.map(|node| node.to_string()));
        if event.kind == EventKind::ReloadRefused {
            audit.outcome = AuditOutcome::Refused("faults".to_owned());
        }
        audit.add(&event.detail);
        Some(audit)
    }

    /// Adds details.
    pub fn add(&mut self, detail: &str) {
        if detail.is_empty() {
            return;
        }
        if !self.detail.is_empty() {
            self.detail.push_str("; ");
        }
        self.detail.push_str(detail);
        if let Some((end, _)) = self.detail.char_indices().nth(MAX_DETAIL) {
            self.detail.truncate(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::events::{
        audit_context::{Principal, Verb},
        cause::Actor,
    };
    use meshd_types::CorrelationId;

    #[test]
    fn event_with_audit_context_becomes_audit_record() {
        let at = Timestamp::EPOCH;
        let seen = Event::new(at, Actor::Node, EventKind::BootStarted, "MAC");
        assert_eq!(Audit::from_event(&seen), None);
        let mut by = AuditContext::new(Principal::Operator(7), Verb::Reload, CorrelationId([1; 8]));
        by.reason = Some("new kernel".to_owned());
        let event = Event::new(at, &by, EventKind::ReloadRefused, "x".repeat(MAX_DETAIL));
        let mut audit = Audit::from_event(&event).expect("it came of an order");
        assert_eq!((&audit.by, &audit.outcome), (&by, &AuditOutcome::Refused("faults".to_owned())));
        audit.add("more than a line holds");
        assert_eq!(audit.detail.len(), MAX_DETAIL);
        let stored = serde_json::to_string(&audit).expect("plain data");
        assert!(
            stored.contains(r#""actor":"uid:7","verb":"reload","reason":"new kernel""#),
            "{stored}"
        );
        assert_eq!(serde_json::from_str::<Audit>(&stored).expect("what was written"), audit);
    }
}
