//! Executes each ordered action (a reboot) at most once, and repeats its outcome until the central
//! node acknowledges it. Pure.

use super::events::Effect;
use meshd_proto::{ActionId, ActionOrder, ActionOutcome, FromAgent, NodeAction};
use meshd_types::{NodeId, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// Maximum number of stored outcomes. Acknowledged ones are dropped first, oldest first.
pub const MAX_OUTCOMES: usize = 256;
/// Timeout for the acknowledgement before a reboot.
pub const REBOOT_ACK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
struct CompletedAction {
    outcome: ActionOutcome,
    acknowledged: bool,
    /// Position in the order of completion: IDs are random.
    number: u64,
}

/// The reboot of this machine.
#[derive(Clone, Copy, Debug)]
struct Reboot {
    action: ActionId,
    /// When it is due; `None` once it has started. It starts once: a failed one is reported.
    due: Option<Duration>,
    /// By kexec.
    is_warm: bool,
}

/// The ordered actions of this node.
#[derive(Debug)]
pub struct OrderedActions {
    node: NodeId,
    completed: BTreeMap<ActionId, CompletedAction>,
    next_number: u64,
    reboot: Option<Reboot>,
}

impl OrderedActions {
    pub fn new(node: NodeId) -> Self {
        OrderedActions { node, completed: BTreeMap::new(), next_number: 0, reboot: None }
    }

    /// Restores outcomes of an earlier run, the oldest first. Their acknowledgements are unknown,
    /// so they are repeated.
    pub fn restore(&mut self, outcomes: impl IntoIterator<Item = (ActionId, ActionOutcome)>) {
        for (id, outcome) in outcomes {
            self.insert(id, outcome);
        }
    }

    /// Restores a reboot that an earlier run of this boot accepted. Its outcome may have been
    /// acknowledged already.
    pub fn restore_reboot(&mut self, action: ActionId, now: Duration) {
        // Through the firmware: a warm one may be why the agent has restarted.
        let due = Some(now + REBOOT_ACK_TIMEOUT);
        self.reboot = Some(Reboot { action, due, is_warm: false });
    }

    /// Returns the accepted reboot; `None` once it has started. A warm one stays until it has
    /// failed: an agent that ends while it loads carries the reboot out after its next start.
    pub fn accepted_reboot(&self) -> Option<ActionId> {
        let is_open = |reboot: &Reboot| reboot.due.is_some() || reboot.is_warm;
        self.reboot.filter(is_open).map(|reboot| reboot.action)
    }

    /// Accepts an order and returns its outcome. A repeated order only repeats the outcome. `wall`
    /// is the central node's clock, `now` the timer.
    pub fn accept(&mut self, order: &ActionOrder, wall: Timestamp, now: Duration) -> FromAgent {
        if let Some(completed) = self.completed.get_mut(&order.id) {
            completed.acknowledged = false;
            return action_done(order.id, &completed.outcome);
        }
        let outcome = if order.node != self.node {
            refuse(format!("the action is for {}, this is {}", order.node, self.node))
        } else if wall > order.expires_at {
            refuse(format!("the action expired at {}", order.expires_at))
        } else if self.reboot.is_some() {
            refuse("the machine is shutting down".into())
        } else {
            let is_warm = match order.action {
                NodeAction::Reboot => false,
                NodeAction::WarmReboot => true,
            };
            let due = Some(now + REBOOT_ACK_TIMEOUT);
            self.reboot = Some(Reboot { action: order.id, due, is_warm });
            ActionOutcome::Done
        };
        self.complete(order.id, outcome)
    }

    /// Rejects an unknown action.
    pub fn reject_unknown(&mut self, id: ActionId) -> FromAgent {
        if let Some(completed) = self.completed.get(&id) {
            return action_done(id, &completed.outcome);
        }
        self.complete(id, refuse("unknown action; update the agent".into()))
    }

    /// Records that the central node stored an outcome.
    pub fn acknowledge(&mut self, id: ActionId, now: Duration) {
        if let Some(completed) = self.completed.get_mut(&id) {
            completed.acknowledged = true;
        }
        if let Some(Reboot { action, due: Some(due), .. }) = &mut self.reboot
            && *action == id
        {
            *due = now.min(*due);
        }
    }

    /// Returns when the machine must reboot.
    pub fn reboot_at(&self) -> Option<Duration> {
        self.reboot?.due
    }

    /// Returns the effect once when the reboot is due.
    pub fn take_due_reboot(&mut self, now: Duration) -> Option<Effect> {
        let reboot = self.reboot.as_mut()?;
        reboot.due.take_if(|due| *due <= now)?;
        Some(if reboot.is_warm { Effect::WarmReboot } else { Effect::Reboot })
    }

    /// Records a failed reboot.
    pub fn fail_reboot(&mut self, reason: String) -> Option<FromAgent> {
        let reboot = self.reboot.take()?;
        Some(self.complete(reboot.action, ActionOutcome::Failed { reason }))
    }

    /// Returns the outcomes without acknowledgement.
    pub fn unacknowledged(&self) -> Vec<FromAgent> {
        let open = self.completed.iter().filter(|(_, completed)| !completed.acknowledged);
        open.map(|(id, completed)| action_done(*id, &completed.outcome)).collect()
    }

    fn complete(&mut self, id: ActionId, outcome: ActionOutcome) -> FromAgent {
        let message = action_done(id, &outcome);
        self.insert(id, outcome);
        message
    }

    /// Adds an outcome. Removes the oldest ones beyond the bound, acknowledged ones first.
    fn insert(&mut self, id: ActionId, outcome: ActionOutcome) {
        let number = self.next_number;
        self.next_number += 1;
        self.completed.insert(id, CompletedAction { outcome, acknowledged: false, number });
        while self.completed.len() > MAX_OUTCOMES {
            let age = |(_, completed): &(&ActionId, &CompletedAction)| {
                (!completed.acknowledged, completed.number)
            };
            let Some(oldest) = self.completed.iter().min_by_key(age).map(|(id, _)| *id) else {
                break;
            };
            self.completed.remove(&oldest);
        }
    }
}

fn action_done(id: ActionId, outcome: &ActionOutcome) -> FromAgent {
    FromAgent::ActionDone { id, outcome: outcome.clone() }
}

fn refuse(reason: String) -> ActionOutcome {
    ActionOutcome::Refused { reason }
}
