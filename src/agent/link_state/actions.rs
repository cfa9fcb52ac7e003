//! Executes each ordered action (a reboot) at most once, and repeats its outcome until it is acknowledged. Pure.

use meshd_proto::{ActionId, ActionOrder, ActionOutcome, FromAgent, NodeAction};
use meshd_types::{NodeId, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// Maximum number of outcomes that are remembered; acknowledged ones are forgotten first, oldest first.
pub const MAX_REMEMBERED: usize = 256;
/// Timeout for the acknowledgement before a reboot.
pub const REBOOT_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
struct Ended {
    outcome: ActionOutcome,
    acknowledged: bool,
}

/// The ordered actions of this node.
#[derive(Debug)]
pub struct Actions {
    node: NodeId,
    ended: BTreeMap<ActionId, Ended>,
    reboot: Option<(ActionId, Duration)>,
}

impl Actions {
    /// Starts empty.
    pub fn new(node: NodeId) -> Self {
        Actions { node, ended: BTreeMap::new(), reboot: None }
    }

    /// Restores outcomes of an earlier run. Their acknowledgements are unknown, so they are repeated.
    pub fn remember(&mut self, ended: impl IntoIterator<Item = (ActionId, ActionOutcome)>) {
        let ended = ended.into_iter().take(MAX_REMEMBERED);
        self.ended.extend(ended.map(|(id, outcome)| (id, Ended { outcome, acknowledged: false })));
    }

    /// Accepts an order and returns the message about it. `wall` is the central node's clock, `now` the timer.
    pub fn accept(&mut self, order: &ActionOrder, wall: Timestamp, now: Duration) -> FromAgent {
        if let Some(known) = self.ended.get_mut(&order.id) {
            // A repeated order: repeat only its outcome.
            known.acknowledged = false;
            return done(order.id, &known.outcome);
        }
        let outcome = if order.node != self.node {
            refused(format!("the action is for {}, this is {}", order.node, self.node))
        } else if wall > order.expires_at {
            refused(format!("the action expired at {}", order.expires_at))
        } else if self.reboot.is_some() {
            refused("the machine is going down".into())
        } else {
            match order.action {
                NodeAction::Reboot => self.reboot = Some((order.id, now + REBOOT_PATIENCE)),
            }
            ActionOutcome::Done
        };
        self.end(order.id, outcome)
    }

    /// Rejects an unknown action.
    pub fn unknown(&mut self, id: ActionId) -> FromAgent {
        if let Some(known) = self.ended.get(&id) {
            return done(id, &known.outcome);
        }
        self.end(id, refused("this agent does not know the action".into()))
    }

    /// The central node stored an outcome.
    pub fn acknowledge(&mut self, id: ActionId, now: Duration) {
        if let Some(known) = self.ended.get_mut(&id) {
            known.acknowledged = true;
        }
        if let Some((reboot, deadline)) = &mut self.reboot
            && *reboot == id
        {
            *deadline = now.min(*deadline);
        }
    }

    /// Returns when the machine must reboot.
    pub fn reboot_at(&self) -> Option<Duration> {
        self.reboot.map(|(_, deadline)| deadline)
    }

    /// Returns true once when the reboot is due.
    pub fn reboots_now(&mut self, now: Duration) -> bool {
        let due = self.reboot.is_some_and(|(_, deadline)| deadline <= now);
        if due {
            // No second try: a failed reboot reports `reboot_failed`.
            self.reboot = self.reboot.map(|(id, _)| (id, Duration::MAX));
        }
        due
    }

    /// The reboot failed.
    pub fn reboot_failed(&mut self, reason: String) -> Option<FromAgent> {
        let (id, _) = self.reboot.take()?;
        Some(self.end(id, ActionOutcome::Failed { reason }))
    }

    /// Returns the outcomes without acknowledgement.
    pub fn unacknowledged(&self) -> Vec<FromAgent> {
        let open = self.ended.iter().filter(|(_, ended)| !ended.acknowledged);
        open.map(|(id, ended)| done(*id, &ended.outcome)).collect()
    }

    fn end(&mut self, id: ActionId, outcome: ActionOutcome) -> FromAgent {
        let message = done(id, &outcome);
        self.ended.insert(id, Ended { outcome, acknowledged: false });
        while self.ended.len() > MAX_REMEMBERED {
            let acknowledged = self.ended.iter().find(|(_, ended)| ended.acknowledged).map(|(id, _)| *id);
            let Some(oldest) = acknowledged.or_else(|| self.ended.keys().next().copied()) else { break };
            self.ended.remove(&oldest);
        }
        message
    }
}

fn done(id: ActionId, outcome: &ActionOutcome) -> FromAgent {
    FromAgent::ActionDone { id, outcome: outcome.clone() }
}

fn refused(reason: String) -> ActionOutcome {
    ActionOutcome::Refused { reason }
}
