//! Events and lines of the audit log.

use meshd_model::fleet::{Audit, AuditContext, AuditSeq, ConditionKind, Event, EventKind, EventSeq, Phase, Stage};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One event: one line of `meshd events -o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Its place in the record.
    #[schema(value_type = u64)]
    pub seq: EventSeq,
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// One word: what happened. A raised condition goes by its own word.
    pub kind: String,
    /// Which node, where one is known.
    #[schema(value_type = Option<String>)]
    pub node: Option<NodeId>,
    /// Which boot, where one is known.
    #[schema(value_type = Option<String>)]
    pub session: Option<BootSessionId>,
    #[schema(value_type = String)]
    pub actor: meshd_model::fleet::Actor,
    /// For people.
    pub detail: String,
    /// The order that it came of: who gave it, which, why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub by: Option<AuditContext>,
    /// The stage that was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub stage: Option<Stage>,
    /// The phase before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub from: Option<Phase>,
    /// The phase now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub to: Option<Phase>,
    /// The condition that was raised or cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub condition: Option<ConditionKind>,
    /// How often it happened; 1 is left out. Repeats of a source that is over its budget are folded into one record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The first of these times; `at` is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub first_at: Option<Timestamp>,
}

impl EventView {
    /// One event with its place in the record.
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
            EventKind::Raised { condition } | EventKind::Cleared { condition } => view.condition = Some(condition),
            _ => {}
        }
        view
    }
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// Its place in the log.
    #[schema(value_type = u64)]
    pub seq: AuditSeq,
    /// Who, what, why, of what, and what came of it.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub audit: Audit,
}
