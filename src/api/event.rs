//! Events and audit records.

use meshd_model::fleet::{
    Audit, AuditContext, AuditSeq, ConditionKind, Event, EventKind, EventSeq, Phase, Stage,
};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An event: one line of `meshd events -o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Sequence number of the event.
    pub seq: EventSeq,
    pub at: Timestamp,
    /// Kind of the event, as one word. For a raised condition, the kind of the condition.
    pub kind: String,
    /// Node that the event concerns, if known.
    pub node: Option<NodeId>,
    /// Boot session that the event concerns, if known.
    pub session: Option<BootSessionId>,
    pub actor: meshd_model::fleet::Actor,
    /// Description for operators.
    pub detail: String,
    /// Order that caused the event, with its actor and reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<AuditContext>,
    /// ID that connects the event with its cause: that of the order, else the boot session of the
    /// node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Reason: the text of the order; for a change of phase without an order, what the node
    /// reported or which timer expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Stage that the machine reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Phase before the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Phase>,
    /// Phase after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Phase>,
    /// Condition that was raised or cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionKind>,
    /// Number of occurrences; absent for 1. meshd merges repeated events of a source that exceeds
    /// its rate limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Time of the first occurrence; `at` is the time of the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_at: Option<Timestamp>,
}

impl EventView {
    /// Creates the view of an event with its sequence number.
    pub fn new(seq: EventSeq, event: &Event) -> Self {
        let mut view = EventView {
            seq,
            at: event.at,
            kind: event.kind.word().to_owned(),
            node: event.node,
            session: event.session,
            actor: event.actor,
            detail: event.detail.clone(),
            by: event.by.clone(),
            correlation_id: correlation_id(event),
            reason: reason(event),
            stage: None,
            from: None,
            to: None,
            condition: None,
            count: (event.count > 1).then_some(event.count),
            first_at: event.first_at,
        };
        match event.kind {
            EventKind::Stage { stage } => view.stage = Some(stage),
            EventKind::Phase { from, to } => (view.from, view.to) = (Some(from), Some(to)),
            EventKind::Raised { condition } | EventKind::Cleared { condition } => {
                view.condition = Some(condition)
            }
            _ => {}
        }
        view
    }
}

fn correlation_id(event: &Event) -> Option<String> {
    let order = event.by.as_ref().map(|by| by.correlation_id.to_string());
    order.or_else(|| Some(event.session?.to_string()))
}

fn reason(event: &Event) -> Option<String> {
    match (&event.by, &event.kind) {
        (Some(by), _) => by.reason.clone(),
        (None, EventKind::Phase { to, .. }) => Some(phase_reason(*to).to_owned()),
        (None, _) => None,
    }
}

/// Returns the reason for which a node or a timer changes the phase of a node.
fn phase_reason(to: Phase) -> &'static str {
    match to {
        Phase::Discovered => "the machine requested its boot script and waits for approval",
        Phase::Approved => "an enrolment rule or a ticket approves the machine",
        Phase::Rejected => "it was rejected",
        Phase::Booting => "the machine asked for its boot script",
        Phase::Enrolling => "the agent asks for a certificate, or its link is up",
        Phase::Degraded => "a readiness check fails",
        Phase::Online => "all readiness checks pass",
        Phase::Draining => "the node returned while it drains",
        Phase::Maintenance => "no work is left on the draining node",
        Phase::Offline => "no message came within [agent].offline_after",
        Phase::Quarantined => "its boots failed repeatedly",
        Phase::Rebuilding => "the node is being rebuilt",
        Phase::Removed => "it was removed",
    }
}

/// A record of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// Sequence number of the record.
    pub seq: AuditSeq,
    /// Actor, verb, reason, target and result of the order.
    #[serde(flatten)]
    pub audit: Audit,
}
