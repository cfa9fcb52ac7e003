//! The link state while connected: next heartbeat, check run and renewal.

use super::{Effect, Now, Validity, check_runs::CheckRuns};
use meshd_proto::{CheckStatus, Resources};
use meshd_types::Timestamp;
use std::time::Duration;

/// A renewal over the link is requested again after this time.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(60);

type LastReport = (Vec<(String, CheckStatus)>, Option<Resources>);

#[derive(Debug)]
pub(super) struct Linked {
    pub(super) next_heartbeat: Duration,
    /// Deadline for the next message; the link is dead afterwards.
    pub(super) silent_at: Duration,
    pub(super) next_check: Option<Duration>,
    /// The check results and resources of the last report.
    pub(super) reported: Option<Box<LastReport>>,
    /// When the report is repeated without a change.
    pub(super) repeat_at: Duration,
    pub(super) renewal_due_at: Duration,
    /// The central node's clock, and the monotonic clock at that moment.
    pub(super) central: Option<(Timestamp, Duration)>,
}

impl Linked {
    pub(super) fn handle_timer(
        &mut self,
        now: Now,
        heartbeat: Duration,
        certificate: Option<Validity>,
        runs: &mut CheckRuns,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.next_heartbeat <= now.timer {
            self.next_heartbeat = now.timer + heartbeat;
            effects.push(Effect::Heartbeat);
            let due = certificate.is_some_and(|validity| now.wall >= validity.renew_at);
            if due && self.renewal_due_at <= now.timer {
                self.renewal_due_at = now.timer + RENEWAL_TIMEOUT;
                effects.push(Effect::RequestRenewal);
            }
        }
        if self.next_check.is_some_and(|at| at <= now.timer) {
            // The result schedules the next run.
            self.next_check = None;
            effects.extend(runs.request(None));
        }
        effects
    }
}

/// Returns the longest permitted silence: two heartbeats or their pongs may be lost.
pub(super) fn silence(heartbeat: Duration) -> Duration {
    heartbeat * 2 + Duration::from_secs(10)
}
