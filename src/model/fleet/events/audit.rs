//! Audit records: every order, by whom, why, and its outcome; also refused orders.

use super::{
    audit_context::AuditContext,
    event::{Event, EventKind, is_once, once},
};
use meshd_types::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// Most characters that one line says of what was done.
const MAX_DETAIL: usize = 1000;

/// Place of a line in the audit log; grows by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AuditSeq(pub u64);

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// It was followed.
    Done,
    /// It was not, and nothing has changed: the word of the answer says why.
    Refused(String),
    /// It was not, by a fault of this program, of its disk or of the node: something may have changed.
    Failed(String),
}

impl AuditOutcome {
    /// One word: `done`, or the code of the answer.
    pub fn code(&self) -> &str {
        match self {
            AuditOutcome::Done => "done",
            AuditOutcome::Refused(code) | AuditOutcome::Failed(code) => code,
        }
    }
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Time.
    pub at: Timestamp,
    /// Who, what, why.
    #[serde(flatten)]
    pub by: AuditContext,
    /// What it was about, as it was named: a node, a profile, a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The node that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// What came of it.
    pub outcome: AuditOutcome,
    /// For people; never a secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// How often it was ordered: repeats of an actor that is over its budget are folded into one line.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub count: u32,
    /// The first of these times; `None` if it was ordered once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_at: Option<Timestamp>,
}

impl Audit {
    /// An order that was followed.
    pub fn done(at: Timestamp, by: AuditContext) -> Self {
        let (outcome, detail) = (AuditOutcome::Done, String::new());
        Audit { at, by, target: None, node: None, outcome, detail, count: 1, first_at: None }
    }

    /// What an event says of the order that it came of; `None` if it came of none.
    pub fn of(event: &Event) -> Option<Self> {
        let by = event.by.clone()?;
        let mut audit = Audit::done(event.at, by);
        (audit.node, audit.target) = (event.node, event.node.map(|node| node.to_string()));
        if event.kind == EventKind::ReloadRefused {
            audit.outcome = AuditOutcome::Refused("faults".to_owned());
        }
        audit.add(&event.detail);
        Some(audit)
    }

    /// Says more of what was done.
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
        event::Actor,
    };
    use meshd_types::CorrelationId;

    #[test]
    fn an_event_of_an_order_is_a_line_and_any_other_is_none() {
        let at = Timestamp::EPOCH;
        let seen = Event::new(at, Actor::Node, EventKind::BootStarted, "MAC");
        assert_eq!(Audit::of(&seen), None);
        let mut by = AuditContext::new(Principal::Operator(7), Verb::Reload, CorrelationId([1; 8]));
        by.reason = Some("new kernel".to_owned());
        let event = Event::new(at, &by, EventKind::ReloadRefused, "x".repeat(MAX_DETAIL));
        let mut audit = Audit::of(&event).expect("it came of an order");
        assert_eq!((&audit.by, &audit.outcome), (&by, &AuditOutcome::Refused("faults".to_owned())));
        audit.add("more than a line holds");
        assert_eq!(audit.detail.len(), MAX_DETAIL);
        let stored = serde_json::to_string(&audit).expect("plain data");
        assert!(stored.contains(r#""actor":"uid:7","verb":"reload","reason":"new kernel""#), "{stored}");
        assert_eq!(serde_json::from_str::<Audit>(&stored).expect("what was written"), audit);
    }
}
