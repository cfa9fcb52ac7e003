//! The record of a VM: desired state, placement, and the last report of its node.
//!
//! ```text
//! create ──▶ placed on a node, which is given the whole wish at each welcome and at each change
//!              │ the node tells: starting, running, waiting, stopped, failed
//!              │ the node boots anew: what ran is gone, and the restart policy decides
//! delete ──▶ releasing ──▶ the node says that nothing of it is there ──▶ the record goes
//! ```
//! It leaves its node only by that word, or after the node was fenced.

use super::{locality::Locality, reserved_nic::fill_slot_cards};
use meshd_config::vm::VmAsk;
use meshd_proto::vm::{
    DiskIdentity, DiskUse, LeftDisk, MAX_FAILURE_LINES, MAX_FAILURE_TEXT, VmFailure, VmOrder, VmReport, VmState,
    VmWant, VolumeName,
};
use meshd_types::{BootSessionId, NodeId, PciAddress, SystemUuid, Timestamp, VmName};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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
pub struct Placement {
    /// The node that holds it.
    pub node: NodeId,
    /// Time of the placement.
    pub since: Timestamp,
    /// The boot of the node in which it is there. A diskless node keeps nothing beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<BootSessionId>,
}

/// What was ordered of one on its node so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Begun {
    /// No start.
    Nothing,
    /// One start, of this number.
    Once(u32),
    /// Several, or nobody knows.
    #[default]
    Often,
}

/// What its node last told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Where it stands.
    pub state: VmState,
    /// Why it failed, or was started again last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<VmFailure>,
    /// How often it was started again in a row.
    #[serde(default)]
    pub restarts: u32,
    /// By which order it was started last; `None` where the node does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
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
    /// Seconds that its guest has for the stop that was ordered last, where that is not [`VmAsk::grace_s`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_s: Option<u32>,
    /// The only node that it may be placed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<NodeId>,
    /// Where it is; `None` while no node has anything of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Placement>,
    /// What its node last told; `None` until it tells of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<NodeReport>,
    /// Why its node does not release it, or why it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Other nodes that told of it and shall release it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub strays: BTreeSet<NodeId>,
    /// What was ordered of it on its node.
    #[serde(default)]
    pub begun: Begun,
    /// Nodes that refused to start it since an operator ordered that last, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<NodeId, String>,
    /// The record is of a backup, and neither its node nor an operator has spoken of it since: it may run elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
    /// Of these, those that did not say that it left them: disks there that are to be wiped before they are anybody's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub owes: BTreeMap<NodeId, BTreeSet<DiskIdentity>>,
    /// Disks of its node that are its own by now, as that told.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disks: BTreeMap<VolumeName, DiskUse>,
    /// How near to each other its parts are on its node.
    #[serde(default, skip_serializing_if = "Locality::is_plain")]
    pub locality: Locality,
    /// When it was ordered.
    pub created_at: Timestamp,
}

/// What is new of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmTold {
    /// The guest runs.
    Started,
    /// It is off, as wanted.
    Stopped,
    /// Its guest is held, and nobody wanted that: why.
    Paused(String),
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
        let (wish, start, stop_grace_s, strays) = (VmWish::Stop, 0, None, BTreeSet::new());
        let (begun, refused, unconfirmed, created_at) = (Begun::Nothing, BTreeMap::new(), false, now);
        let (owes, disks) = (BTreeMap::new(), BTreeMap::new());
        Vm {
            ask,
            wish,
            start,
            stop_grace_s,
            only,
            place,
            seen,
            trouble,
            strays,
            owes,
            disks,
            begun,
            refused,
            unconfirmed,
            locality: Locality::default(),
            created_at,
        }
    }

    /// One that a node tells of and of which nothing else is known: it is there to be released.
    pub fn stranger(ask: VmAsk, node: NodeId, now: Timestamp) -> Self {
        let mut vm = Vm::new(ask, Some(node), now);
        (vm.wish, vm.place) = (VmWish::Release, Some(Placement { node, since: now, session: None }));
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

    /// The whole wish for a node: its own, or one that has something of it and should not.
    pub fn order(&self, node: NodeId) -> Option<VmOrder> {
        let want = if self.strays.contains(&node) {
            let owed = self.owes.get(&node).into_iter().flatten();
            let left = |disk: &DiskIdentity| LeftDisk { disk: disk.clone(), wipe: true, used: true };
            VmWant::Release { disks: owed.map(left).collect() }
        } else if self.node() == Some(node) {
            let grace_s = self.ask.grace_s;
            if self.unconfirmed && self.wish == VmWish::Run {
                return None;
            }
            match self.wish {
                VmWish::Run => VmWant::Run {
                    spec: Box::new(self.ask.spec.clone()),
                    start: self.start,
                    grace_s,
                    slots: Vec::new(),
                    disks: self.disks.clone(),
                },
                VmWish::Stop => VmWant::Stop { grace_s: self.stop_grace_s.unwrap_or(grace_s) },
                VmWish::Release => VmWant::Release { disks: self.left_disks() },
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
        let same = |seen: &NodeReport| {
            seen.told
                && (seen.state, seen.restarts) == (report.state, report.restarts)
                && seen.start == report.start
                && seen.failure == report.failure.clone().map(bounded)
        };
        let known = |(name, told): (&VolumeName, &DiskUse)| self.disks.get(name).is_some_and(|disk| disk >= told);
        self.seen.as_ref().is_some_and(same) && report.disks.iter().all(known)
    }

    /// True while it runs or is about to, as far as its node told; what a node did not tell yet counts.
    pub fn is_up(&self) -> bool {
        self.seen.as_ref().is_none_or(|seen| seen.state.is_live() || seen.state == VmState::Waiting)
    }

    /// True while it has to be taken for one that works: it does, or is ordered to.
    pub fn may_work(&self) -> bool {
        self.is_running() || self.wish == VmWish::Run && !self.unconfirmed && self.is_up()
    }

    /// True while its node tells that the guest is held: a start goes on with it.
    pub fn is_paused(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.state == VmState::Paused)
    }

    /// True while its node tells that there is, or will be, a process of it.
    pub fn is_running(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.state.is_live() || seen.state == VmState::Waiting)
    }

    /// True once its node has told that it is as wanted, by the newest order; until then that is said again.
    pub fn is_settled(&self) -> bool {
        let off = |state: VmState| matches!(state, VmState::Stopped | VmState::Failed);
        self.strays.is_empty()
            && match (self.wish, &self.seen) {
                (VmWish::Run, Some(seen)) => {
                    seen.state != VmState::Stopping && seen.start.is_none_or(|start| start == self.start)
                }
                (VmWish::Stop, seen) => seen.as_ref().is_none_or(|seen| off(seen.state)),
                (VmWish::Run, None) | (VmWish::Release, _) => false,
            }
    }

    /// It has a node from now on, with these units of it; `disks` are those of its slots, in the order of the volumes that are one.
    pub fn settle(&mut self, place: Placement, units: Vec<PciAddress>, disks: Vec<DiskIdentity>) {
        self.ask.spec.units = units;
        self.slot_disks(disks);
        self.disks.clear();
        (self.place, self.seen, self.trouble) = (Some(place), None, None);
        self.begun = if self.wish == VmWish::Run { Begun::Once(self.start) } else { Begun::Nothing };
    }

    /// It shall be off, after so many seconds at most where that is not its own patience.
    pub fn stop(&mut self, grace_s: Option<u32>) {
        (self.wish, self.stop_grace_s) = (VmWish::Stop, grace_s);
    }

    /// An operator starts it, also anew.
    pub fn run(&mut self) {
        (self.wish, self.stop_grace_s) = (VmWish::Run, None);
        self.start = self.start.saturating_add(1);
        self.begun = if self.begun == Begun::Nothing { Begun::Once(self.start) } else { Begun::Often };
        self.seen = self.seen.take().filter(|seen| seen.told);
    }

    /// What its node tells of it.
    pub fn tell(&mut self, report: VmReport, now: Timestamp) -> Option<VmTold> {
        let VmReport { state, failure, restarts, start, disks, .. } = report;
        self.tell_disks(disks);
        let failure = failure.map(bounded);
        if std::mem::take(&mut self.unconfirmed) {
            self.trouble = None;
        }
        let before = self.seen.as_ref();
        let anew = |seen: &NodeReport| seen.start.is_some() && start.is_some() && seen.start != start;
        let is_same = before.is_some_and(|seen| (seen.state, seen.restarts) == (state, restarts) && !anew(seen));
        if is_same && before.is_some_and(|seen| seen.failure == failure && seen.start == start) {
            return None;
        }
        let since = before.filter(|_| is_same).map_or(now, |seen| seen.since);
        let why = failure.as_ref().map_or_else(String::new, |failure| failure.detail.clone());
        let told = match state {
            _ if is_same => None,
            VmState::Running => Some(VmTold::Started),
            VmState::Stopped => Some(VmTold::Stopped),
            VmState::Paused => Some(VmTold::Paused(why)),
            VmState::Failed => Some(VmTold::Failed(why)),
            VmState::Waiting => Some(VmTold::Restarted(why)),
            VmState::Starting | VmState::Stopping => None,
        };
        if state == VmState::Running {
            self.refused.clear();
        }
        self.seen = Some(NodeReport { state, failure, restarts, start, since, told: true });
        told
    }

    /// Nothing of it is on its node any more, for certain, and the node does not get it back.
    pub fn unplace(&mut self, why: String) {
        (self.place, self.seen, self.trouble) = (None, None, Some(why));
        self.ask.spec.units.clear();
        self.bind(None, false);
        self.slot_disks(Vec::new());
        fill_slot_cards(&mut self.ask.spec, Vec::new());
        self.disks.clear();
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
#[path = "tests/record.rs"]
mod tests;
