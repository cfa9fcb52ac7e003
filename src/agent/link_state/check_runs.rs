//! Runs of the checks: one at a time. A run answers only requests that arrived before its start.

use super::Effect;

#[derive(Debug, Default)]
pub(super) struct CheckRuns {
    is_running: bool,
    /// The request that the current run answers.
    request: Option<u64>,
    /// Start another run after the current one.
    rerun: bool,
    /// The newest request during the current run. Numbers ascend; a later answer also answers
    /// earlier requests.
    next_request: Option<u64>,
}

impl CheckRuns {
    /// Requests a run that begins now or after the current one.
    pub(super) fn request(&mut self, request: Option<u64>) -> Option<Effect> {
        if self.is_running {
            self.rerun = true;
            self.next_request = request.or(self.next_request);
            return None;
        }
        self.is_running = true;
        self.request = request;
        Some(Effect::RunChecks)
    }

    /// Ends a run. Returns the request that the run answers, and whether the next run begins.
    pub(super) fn finish(&mut self) -> (Option<u64>, Option<Effect>) {
        let CheckRuns { request, rerun, next_request, .. } = std::mem::take(self);
        (request, if rerun { self.request(next_request) } else { None })
    }
}
