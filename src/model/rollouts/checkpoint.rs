//! Points at which a node waits for a program of the site.

use super::{
    GateVerdict, NodeStage, ProgramOutcome, ProgramPoint, RolloutNode, health::NodeContext,
};
use crate::operations::NodeOrder;

/// What a step does for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Order(NodeOrder),
    /// Run the program of this point, unless it runs.
    Run(ProgramPoint),
}

/// What a node does at a point.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Checkpoint {
    Passed,
    /// The program has to run, or runs.
    Runs,
    /// The gate wants to be asked again.
    NotYet,
    Failed(String),
}

/// Decides whether a node passes a point. A program whose result was lost runs again.
pub(super) fn checkpoint(
    point: ProgramPoint,
    record: &mut RolloutNode,
    context: &NodeContext<'_>,
) -> Checkpoint {
    let Some(program) = point.program(&context.rollout.policy) else { return Checkpoint::Passed };
    if record.passed.contains(&point) {
        return Checkpoint::Passed;
    }
    let ended = context.present.and_then(|present| present.ended.as_ref());
    let Some(ended) = ended.filter(|ended| ended.point == point) else { return Checkpoint::Runs };
    let is_gate = point == ProgramPoint::Gate;
    let reason = |why: &str| format!("{} program {program}: {why}", point.as_str());
    let (verdict, result) = match &ended.outcome {
        ProgramOutcome::Passed => (GateVerdict::Passed, Checkpoint::Passed),
        ProgramOutcome::NotYet(why) if is_gate => {
            record.set_reason(&reason(why));
            return Checkpoint::NotYet;
        }
        ProgramOutcome::Failed(why) | ProgramOutcome::NotYet(why) => {
            (GateVerdict::Failed, Checkpoint::Failed(reason(why)))
        }
        ProgramOutcome::Mixed(why) => (GateVerdict::Mixed, Checkpoint::Failed(reason(why))),
        ProgramOutcome::Unable(why) => (GateVerdict::Unable, Checkpoint::Failed(reason(why))),
    };
    if is_gate {
        record.gate = Some(verdict);
    }
    if result == Checkpoint::Passed {
        record.passed.insert(point);
    }
    result
}

/// Ends a node that is back, or was. What was done before it left is undone first.
pub(super) fn call_after_return(
    record: &mut RolloutNode,
    context: &NodeContext<'_>,
    end: impl FnOnce(&mut RolloutNode),
) -> Option<Action> {
    let was_called = record.passed.contains(&ProgramPoint::BeforeLeave);
    let result = if was_called {
        checkpoint(ProgramPoint::AfterReturn, record, context)
    } else {
        Checkpoint::Passed
    };
    match result {
        Checkpoint::Passed => end(record),
        Checkpoint::Runs | Checkpoint::NotYet => {
            return Some(Action::Run(ProgramPoint::AfterReturn));
        }
        Checkpoint::Failed(reason) => {
            record.finish(NodeStage::Failed, Some(&reason), context.time.now);
        }
    }
    None
}

/// Stops the node timeout while the gate waits for its turn: programs of other nodes run, which is
/// no fault of this node.
pub(super) fn exclude_queue_time(
    record: &mut RolloutNode,
    action: Option<&Action>,
    context: &NodeContext<'_>,
) {
    let is_queued = context.present.is_some_and(|present| present.is_program_queued)
        && action == Some(&Action::Run(ProgramPoint::Gate));
    stop_timeout(record, is_queued, context);
}

/// Stops the node timeout, or lets it go on. The record changes only when the stop begins or ends.
pub(super) fn stop_timeout(record: &mut RolloutNode, stops: bool, context: &NodeContext<'_>) {
    match record.stopped_ms {
        None if stops => record.stopped_ms = Some(context.clock_ms()),
        Some(since) if !stops => {
            record.since_ms += context.clock_ms().saturating_sub(since);
            record.stopped_ms = None;
        }
        _ => {}
    }
}
