//! Runs of the checks: one at a time; a request is answered by a run that began after the request.

use super::Action;

#[derive(Debug, Default)]
pub(super) struct CheckRuns {
    /// A run is in progress.
    running: bool,
    /// The request that it answers.
    answers: Option<u64>,
    /// Another run follows.
    again: bool,
    /// The newest request during the run. Numbers ascend; a later answer also answers earlier requests.
    asked: Option<u64>,
}

impl CheckRuns {
    /// Requests a run that begins now or after the present one.
    pub(super) fn want(&mut self, asked: Option<u64>) -> Option<Action> {
        if self.running {
            self.again = true;
            self.asked = asked.or(self.asked);
            return None;
        }
        self.running = true;
        self.answers = asked;
        Some(Action::Check)
    }

    /// Ends a run. Returns the request that it answers, and whether the next run begins.
    pub(super) fn done(&mut self) -> (Option<u64>, Option<Action>) {
        self.running = false;
        let answered = self.answers.take();
        let again = std::mem::take(&mut self.again);
        let asked = self.asked.take();
        (answered, if again { self.want(asked) } else { None })
    }
}
