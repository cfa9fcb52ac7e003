//! How a rollout or a bisection is followed.

use std::time::Duration;

/// Interval in which it is read.
pub(super) const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which it is read again after a failure: it goes on after a restart of meshd.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(60);
