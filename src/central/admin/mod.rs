//! Operations on meshd itself.
//!
//! | module | content |
//! | --- | --- |
//! | `api_tokens` | tokens of the admin API |
//! | `backup` | one backup of everything that the rack depends on |

mod api_tokens;
mod backup;

pub use api_tokens::ApiTokenError;
pub use backup::Snapshot;

use super::{enrolment::Enrolment, environment::Environment};
use std::sync::Arc;

/// Makes API tokens and backups.
pub struct Admin {
    pub(super) env: Arc<Environment>,
    pub(super) enrolment: Arc<Enrolment>,
}
