//! The cause of an event: an actor or an order.

use super::audit_context::{AuditContext, Principal};
use serde::{Deserialize, Serialize};

/// The actor that caused an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// The machine, by its own messages.
    Node,
    Operator,
    /// The central node: a timer, a policy.
    Central,
    /// An impostor on the boot network.
    Stranger,
}

/// The cause of an event: an observed actor, or an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub(super) actor: Actor,
    pub(super) by: Option<AuditContext>,
}

impl From<Actor> for Cause {
    fn from(actor: Actor) -> Self {
        Cause { actor, by: None }
    }
}

impl From<&AuditContext> for Cause {
    fn from(by: &AuditContext) -> Self {
        Cause { actor: by.principal.actor(), by: Some(by.clone()) }
    }
}

impl Principal {
    /// Returns the actor for events.
    pub fn actor(&self) -> Actor {
        match self {
            Principal::Operator(_) | Principal::Token(_) => Actor::Operator,
            Principal::Rule(_) | Principal::Meshd => Actor::Central,
            Principal::Node => Actor::Node,
        }
    }
}
