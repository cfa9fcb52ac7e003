//! Operations on meshd itself, and on the site as a whole.
//!
//! | module | content |
//! | --- | --- |
//! | `activities` | the activities of the whole site that are not finished |
//! | `api_tokens` | tokens of the admin API |
//! | `backup` | one backup of everything that the rack depends on |
//! | `idempotency` | orders with an idempotency key run once |

mod activities;
mod api_tokens;
mod backup;
mod idempotency;

pub use activities::MAX_ACTIVITIES;
pub use api_tokens::ApiTokenError;
pub use backup::Snapshot;
pub use idempotency::{KeyUse, RunningOrder};

use super::{enrolment::Enrolment, environment::Environment};
use idempotency::RunningOrders;
use std::sync::Arc;

/// Makes API tokens and backups, and runs orders with an idempotency key once.
pub struct Admin {
    env: Arc<Environment>,
    enrolment: Arc<Enrolment>,
    running_orders: RunningOrders,
}

impl Admin {
    pub(super) fn new(env: Arc<Environment>, enrolment: Arc<Enrolment>) -> Self {
        Admin { env, enrolment, running_orders: RunningOrders::default() }
    }
}
