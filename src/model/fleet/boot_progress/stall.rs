//! A stalled boot: the overdue stage, since when, and its likely cause.

use super::stage::Stage;
use meshd_types::Timestamp;
use serde::{Deserialize, Serialize};

/// A stalled boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Stall {
    /// Last stage that was reached.
    pub after: Stage,
    /// Overdue stage.
    pub missing: Stage,
    /// Time of the last progress.
    pub since: Timestamp,
    /// Likely cause, and where to look.
    pub cause: String,
    /// Time at which the boot continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}
