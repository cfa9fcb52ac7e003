//! A virtual machine on record: what it shall be, where it is, what its node last told. Wish and observation are separate, and the state
//! that is shown follows from both.
//!
//! ```text
//! create ──▶ placed on a node, which is given the whole wish at each welcome and at each change
//!              │ the node tells: starting, running, waiting, stopped, failed
//!              │ the node boots anew: what ran is gone, and the restart policy decides
//! delete ──▶ releasing ──▶ the node says that nothing of it is there ──▶ the record goes
//! ```
//! It leaves its node only by that word, or after the node was fenced.

use crate::config::vm::{OnNodeLoss, VmAsk};
use crate::id::{BootSessionId, NodeId, PciAddress, SystemUuid, Timestamp, VmName};
use crate::wire::vm::{
    MAX_FAILURE_LINES, MAX_FAILURE_TEXT, RestartWhen, VmFailure, VmFailureKind, VmOrder, VmReport, VmState, VmWant,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What an operator wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmWish {
    /// It shall run.
    Run,
    /// It shall be off, and keep what it wrote.
    Stop,
    /// It shall be gone.
    Release,
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The node that holds it.
    pub node: NodeId,
    /// Since when.
    pub since: Timestamp,
    /// The boot of the node in which it is there. A diskless node keeps nothing beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<BootSessionId>,
}

/// What its node last told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Where it stands.
    pub state: VmState,
    /// Why it failed, or was started again last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<VmFailure>,
    /// How often it was started again in a row.
    #[serde(default)]
    pub restarts: u32,
    /// Since when it stands there.
    pub since: Timestamp,
    /// The node itself told so; false where it follows from what became of the node.
    #[serde(default)]
    pub told: bool,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// What it shall be.
    pub ask: VmAsk,
    /// What is wanted of it.
    pub wish: VmWish,
    /// Counts starts; see [`VmWant::Run`].
    pub start: u32,
    /// The only node that it may be placed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<NodeId>,
    /// Where it is; `None` while no node has anything of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// What its node last told; `None` until it tells of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
    /// Why its node does not release it, or why it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Other nodes that told of it and shall release it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub strays: BTreeSet<NodeId>,
    /// When it was ordered.
    pub created_at: Timestamp,
}

/// How it stands, wish and observation in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmLife {
    /// No node has it.
    Unplaced,
    /// It has a node that was not heard of it yet.
    Ordered,
    /// QEMU is being started.
    Starting,
    /// The guest runs.
    Running,
    /// It was asked to end.
    Stopping,
    /// It is started again after a delay.
    Waiting,
    /// It is off.
    Stopped,
    /// It is off, and nobody wanted that.
    Failed,
    /// Its node does not answer: it may run or not.
    Unreachable,
    /// Its node shall release it.
    Releasing,
    /// Its node cannot release it.
    ReleaseBlocked,
}

impl VmLife {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            VmLife::Unplaced => "unplaced",
            VmLife::Ordered => "ordered",
            VmLife::Starting => "starting",
            VmLife::Running => "running",
            VmLife::Stopping => "stopping",
            VmLife::Waiting => "waiting",
            VmLife::Stopped => "stopped",
            VmLife::Failed => "failed",
            VmLife::Unreachable => "unreachable",
            VmLife::Releasing => "releasing",
            VmLife::ReleaseBlocked => "release_blocked",
        }
    }
}

impl From<VmState> for VmLife {
    fn from(state: VmState) -> Self {
        match state {
            VmState::Starting => VmLife::Starting,
            VmState::Running => VmLife::Running,
            VmState::Stopping => VmLife::Stopping,
            VmState::Waiting => VmLife::Waiting,
            VmState::Stopped => VmLife::Stopped,
            VmState::Failed => VmLife::Failed,
        }
    }
}

/// What is new of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmTold {
    /// The guest runs.
    Started,
    /// It is off, as wanted.
    Stopped,
    /// It is off, and nobody wanted that: why.
    Failed(String),
    /// It ended and is started again: why.
    Restarted(String),
    /// Its node has it no more, and did not say that it ended: why.
    Lost(String),
}

impl Vm {
    /// One that has no node yet.
    pub fn new(ask: VmAsk, only: Option<NodeId>, now: Timestamp) -> Self {
        let (place, seen, trouble) = (None, None, None);
        let (wish, start, strays) = (VmWish::Stop, 0, BTreeSet::new());
        Vm { ask, wish, start, only, place, seen, trouble, strays, created_at: now }
    }

    /// One that a node tells of and of which nothing else is known: it is there to be released.
    pub fn stranger(ask: VmAsk, node: NodeId, now: Timestamp) -> Self {
        let mut vm = Vm::new(ask, Some(node), now);
        (vm.wish, vm.place) = (VmWish::Release, Some(Place { node, since: now, session: None }));
        vm
    }

    /// What everything calls it.
    pub fn uuid(&self) -> SystemUuid {
        self.ask.spec.uuid
    }

    /// What people call it.
    pub fn name(&self) -> &VmName {
        &self.ask.spec.name
    }

    /// The node that has it.
    pub fn node(&self) -> Option<NodeId> {
        self.place.as_ref().map(|place| place.node)
    }

    /// How it stands; `is_linked` says whether its node has a link.
    pub fn life(&self, is_linked: bool) -> VmLife {
        match (&self.place, &self.seen) {
            (None, _) => VmLife::Unplaced,
            (Some(_), _) if self.wish == VmWish::Release && self.trouble.is_some() => VmLife::ReleaseBlocked,
            (Some(_), _) if self.wish == VmWish::Release => VmLife::Releasing,
            (Some(_), Some(seen)) if !is_linked && seen.state.is_live() => VmLife::Unreachable,
            (Some(_), Some(seen)) => seen.state.into(),
            (Some(_), None) if self.wish == VmWish::Run => VmLife::Ordered,
            (Some(_), None) => VmLife::Stopped,
        }
    }

    /// The whole wish for a node: its own, or one that has something of it and should not.
    pub fn order(&self, node: NodeId) -> Option<VmOrder> {
        let want = if self.strays.contains(&node) {
            VmWant::Release
        } else if self.node() == Some(node) {
            let grace_s = self.ask.grace_s;
            match self.wish {
                VmWish::Run => VmWant::Run { spec: Box::new(self.ask.spec.clone()), start: self.start, grace_s },
                VmWish::Stop => VmWant::Stop { grace_s },
                VmWish::Release => VmWant::Release,
            }
        } else {
            return None;
        };
        Some(VmOrder { uuid: self.uuid(), want })
    }

    /// True if its node told of it in this boot.
    pub fn is_told(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.told)
    }

    /// True if its node told exactly this before.
    pub fn has_told(&self, report: &VmReport) -> bool {
        let same = |seen: &Seen| {
            seen.told
                && (seen.state, seen.restarts) == (report.state, report.restarts)
                && seen.failure == report.failure.clone().map(bounded)
        };
        self.seen.as_ref().is_some_and(same)
    }

    /// True while it runs or is about to, as far as its node told; what a node did not tell yet counts.
    pub fn is_up(&self) -> bool {
        self.seen.as_ref().is_none_or(|seen| seen.state.is_live() || seen.state == VmState::Waiting)
    }

    /// True while its node tells that there is, or will be, a process of it.
    pub fn is_running(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.state.is_live() || seen.state == VmState::Waiting)
    }

    /// True once its node has told that it is as wanted; until then the order is said again.
    pub fn is_settled(&self) -> bool {
        let off = |state: VmState| matches!(state, VmState::Stopped | VmState::Failed);
        self.strays.is_empty()
            && match (self.wish, &self.seen) {
                (VmWish::Run, Some(seen)) => seen.state != VmState::Stopping,
                (VmWish::Stop, seen) => seen.as_ref().is_none_or(|seen| off(seen.state)),
                (VmWish::Run, None) | (VmWish::Release, _) => false,
            }
    }

    /// It has a node from now on, with these units of it.
    pub fn settle(&mut self, place: Place, units: Vec<PciAddress>) {
        self.ask.spec.units = units;
        (self.place, self.seen, self.trouble) = (Some(place), None, None);
    }

    /// An operator starts it, also anew.
    pub fn run(&mut self) {
        self.wish = VmWish::Run;
        self.start = self.start.saturating_add(1);
        self.seen = self.seen.take().filter(|seen| seen.told);
    }

    /// What its node tells of it.
    pub fn tell(&mut self, report: VmReport, now: Timestamp) -> Option<VmTold> {
        let VmReport { state, failure, restarts, .. } = report;
        let failure = failure.map(bounded);
        let before = self.seen.as_ref();
        let is_same = before.is_some_and(|seen| (seen.state, seen.restarts) == (state, restarts));
        if is_same && before.is_some_and(|seen| seen.failure == failure) {
            return None;
        }
        let since = before.filter(|_| is_same).map_or(now, |seen| seen.since);
        let why = failure.as_ref().map_or_else(String::new, |failure| failure.detail.clone());
        let told = match state {
            _ if is_same => None,
            VmState::Running => Some(VmTold::Started),
            VmState::Stopped => Some(VmTold::Stopped),
            VmState::Failed => Some(VmTold::Failed(why)),
            VmState::Waiting => Some(VmTold::Restarted(why)),
            VmState::Starting | VmState::Stopping => None,
        };
        self.seen = Some(Seen { state, failure, restarts, since, told: true });
        told
    }

    /// Its node tells of all that it has, and this is not among it.
    pub fn missing(&mut self, now: Timestamp) -> Option<VmTold> {
        self.is_told().then_some(())?;
        if self.wish == VmWish::Release {
            self.seen = None;
            return None;
        }
        Some(self.gone("its node has it no more".to_owned(), now))
    }

    /// Its node boots anew: nothing of it is there.
    pub fn rebooted(&mut self, session: BootSessionId, now: Timestamp) -> Option<VmTold> {
        let place = self.place.as_mut().filter(|place| place.session != Some(session))?;
        let was = place.session.replace(session);
        // It was never there, or the node was not netbooted before.
        if was.is_none() || !self.is_told() {
            return None;
        }
        Some(self.gone("its node booted anew".to_owned(), now))
    }

    /// It ended without a word; the restart policy decides what becomes of it on its node.
    fn gone(&mut self, why: String, now: Timestamp) -> VmTold {
        let again = match (self.wish, self.ask.spec.restart.when) {
            (VmWish::Run, RestartWhen::OnFailure | RestartWhen::Always) => true,
            (VmWish::Run, RestartWhen::Never) => self.ask.on_node_loss == OnNodeLoss::Restart,
            (VmWish::Stop | VmWish::Release, _) => false,
        };
        self.seen = None;
        if again {
            self.run();
            return VmTold::Lost(format!("{why}; it is started again"));
        }
        if self.wish == VmWish::Run {
            self.wish = VmWish::Stop;
            let failure = VmFailure { kind: VmFailureKind::EndedUnseen, detail: why.clone(), log: Vec::new() };
            let state = VmState::Failed;
            self.seen = Some(Seen { state, failure: Some(failure), restarts: 0, since: now, told: false });
        }
        VmTold::Lost(why)
    }

    /// Nothing of it is on its node any more, for certain, and the node does not get it back.
    pub fn unplace(&mut self, why: String) {
        (self.place, self.seen, self.trouble) = (None, None, Some(why));
        self.ask.spec.units.clear();
    }

    /// True if it may be placed on another node when its own is lost.
    pub fn may_move(&self) -> bool {
        self.wish == VmWish::Run
            && self.ask.on_node_loss == OnNodeLoss::Restart
            && self.only.is_none()
            && !self.ask.is_bound()
    }
}

/// What a node says of a failure is kept within its bounds, whoever wrote its agent.
fn bounded(mut failure: VmFailure) -> VmFailure {
    let cut = |text: &mut String| {
        let end = (0..=MAX_FAILURE_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    };
    cut(&mut failure.detail);
    failure.log.truncate(MAX_FAILURE_LINES);
    failure.log.iter_mut().for_each(cut);
    failure
}

#[cfg(test)]
#[path = "vm_tests.rs"]
mod tests;
