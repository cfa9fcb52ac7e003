//! Runs of the checks: one at a time; a request is answered by a run that began after the request.

use super::Action;

#[derive(Debug, Default)]
pub(super) struct CheckRuns {
    /// One is under way.
    running: bool,
    /// The request that it answers.
    answers: Option<u64>,
    /// Another one is wanted after it.
    again: bool,
    /// The newest request that came meanwhile. Requests are numbered upwards; who waits for an earlier one takes a later answer.
    asked: Option<u64>,
}

impl CheckRuns {
    /// Somebody wants a run that begins now or later.
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

    /// A run is over: the request that it answers, and the next one if it is wanted.
    pub(super) fn done(&mut self) -> (Option<u64>, Option<Action>) {
        self.running = false;
        let answered = self.answers.take();
        let again = std::mem::take(&mut self.again);
        let asked = self.asked.take();
        (answered, if again { self.want(asked) } else { None })
    }
}
