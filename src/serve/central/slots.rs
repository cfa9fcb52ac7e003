//! Slots by an operator's word: approved, disabled, enabled, released.

use super::{Central, OperateError, hosts::implied};
use crate::fleet::{By, Event, EventKind, Node};
use crate::id::{NodeId, PciAddress, Timestamp};
use crate::store::{Model, Tx};
use crate::wire::{DiskFacts, vm::DiskIdentity};
use crate::work::{
    Approved, MAX_FABRIC, Slot, SlotId, SlotState, Vm, VmWish, candidates, functions, judge, of_node, unit_of,
};
use std::collections::BTreeSet;

/// Most slots of a site that are on record.
const MAX_SLOTS: usize = 100_000;

/// Why an order about a slot is not followed. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// There is none.
    #[error("there is no slot {0}; `meshd slot list` shows those that there are")]
    None(SlotId),
    /// Nobody approved it.
    #[error("slot {0} is a candidate; approve it first: meshd slot approve {0}")]
    Candidate(SlotId),
    /// Its state does not allow it.
    #[error("slot {id} is {}: {reason}; {hint}", state.as_str())]
    Unlawful {
        /// Which.
        id: SlotId,
        /// What it is.
        state: SlotState,
        /// Why.
        reason: String,
        /// What to do.
        hint: &'static str,
    },
    /// The node has no such disk, or another slot has it.
    #[error(
        "disk `{0}` is not a disk of that node, or belongs to another slot of it; `meshd node show` lists its disks"
    )]
    Disk(DiskIdentity),
    /// What its node says of itself is not proven (DR-12).
    #[error("slot {id} is not approved: {why}; repair its node, then approve it")]
    Unproven {
        /// Which.
        id: SlotId,
        /// What is not proven.
        why: String,
    },
    /// The name of a fabric device is none.
    #[error("a fabric device is named by 1 to {MAX_FABRIC} printable characters without space")]
    Fabric,
    /// The site is full.
    #[error("there are {MAX_SLOTS} slots on record; remove nodes that are gone")]
    TooMany,
}

/// What belongs to a slot beside its unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotParts {
    /// A disk of the node.
    pub disk: Option<DiskIdentity>,
    /// A fabric device of the node.
    pub fabric: Option<String>,
}

impl Central {
    /// All slots, by node and unit.
    pub fn slots(&self) -> Vec<Slot> {
        let implied = implied(&self.site());
        self.store.read(|model| {
            let ids: BTreeSet<SlotId> = model
                .all_nodes()
                .filter(|node| node.phase.is_admitted())
                .flat_map(|node| node.facts.iter().flat_map(|facts| candidates(node.id, facts)))
                .chain(model.slots().keys().cloned())
                .collect();
            ids.into_iter().map(|id| slot(model, id, implied)).collect()
        })
    }

    /// One slot.
    pub fn slot(&self, id: &SlotId) -> Result<Slot, OperateError> {
        let found = self.slots().into_iter().find(|slot| slot.id == *id);
        found.ok_or_else(|| SlotError::None(id.clone()).into())
    }

    /// Approves a slot as it is now, with what belongs to it; again, what it is now is what is approved.
    pub async fn approve_slot(&self, id: SlotId, parts: SlotParts, by: &By) -> Result<Slot, OperateError> {
        let plain =
            |name: &String| (1..=MAX_FABRIC).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic());
        if parts.fabric.as_ref().is_some_and(|name| !plain(name)) {
            return Err(SlotError::Fabric.into());
        }
        self.change_slot(id, by, "approved", |tx, slot, now| {
            if holder(tx.before(), &slot.id).is_some() {
                return Err(unlawful(slot, "delete its virtual machine first"));
            }
            if slot.functions.is_empty() {
                return Err(SlotError::None(slot.id.clone()));
            }
            if let Some(why) = tx.node(slot.id.node).and_then(Node::unproven) {
                return Err(SlotError::Unproven { id: slot.id.clone(), why });
            }
            if let Some(disk) = &parts.disk {
                check_disk(tx.before(), &slot.id, disk)?;
            }
            if tx.before().slots().len() >= MAX_SLOTS {
                return Err(SlotError::TooMany);
            }
            let (id, functions) = (slot.id.clone(), slot.functions.clone());
            let SlotParts { disk, fabric } = parts.clone();
            Ok(Approved { id, functions, disk, fabric, disabled: None, approved_at: now })
        })
        .await
    }

    /// Keeps a slot from being given; who has it keeps it.
    pub async fn disable_slot(&self, id: SlotId, by: &By) -> Result<Slot, OperateError> {
        let why = by.reason.clone().unwrap_or_else(|| "an operator disabled it".to_owned());
        self.change_slot(id, by, "disabled", |_, slot, now| {
            let known = slot.approved.clone().unwrap_or_else(|| Approved {
                id: slot.id.clone(),
                functions: slot.functions.clone(),
                disk: None,
                fabric: None,
                disabled: None,
                approved_at: now,
            });
            Ok(Approved { disabled: Some(why), ..known })
        })
        .await
    }

    /// Lets a disabled slot be given again.
    pub async fn enable_slot(&self, id: SlotId, by: &By) -> Result<Slot, OperateError> {
        self.change_slot(id, by, "enabled", |_, slot, _| {
            let known = slot.approved.clone().ok_or_else(|| SlotError::Candidate(slot.id.clone()))?;
            Ok(Approved { disabled: None, ..known })
        })
        .await
    }

    /// Asks the node of a slot that cannot be cleaned up to try again.
    pub async fn release_slot(&self, id: SlotId, by: &By) -> Result<Slot, OperateError> {
        let slot = self.slot(&id)?;
        let holder = self.store.read(|model| holder(model, &id).map(|vm| (vm.uuid(), vm.wish)));
        match holder {
            Some((uuid, VmWish::Release)) => drop(self.delete_vm(uuid, None, by).await?),
            Some(_) => return Err(unlawful(&slot, "delete its virtual machine: meshd vm delete").into()),
            // The node tells of its units when its link comes up.
            None => self.close_link(id.node, "an operator wants to know what its units are now"),
        }
        self.slot(&id)
    }

    async fn change_slot(
        &self,
        id: SlotId,
        by: &By,
        word: &str,
        change: impl FnOnce(&Tx<'_>, &Slot, Timestamp) -> Result<Approved, SlotError>,
    ) -> Result<Slot, OperateError> {
        let (implied, now) = (implied(&self.site()), self.now());
        self.store
            .commit(|tx| {
                let known = tx.before().slots().contains_key(&id)
                    || facts_of(tx.before(), id.node).is_some_and(|facts| unit_of(&id, facts).is_some());
                if !known {
                    return Err(SlotError::None(id.clone()).into());
                }
                let approved = change(tx, &slot(tx.before(), id.clone(), implied), now)?;
                let detail = format!("slot {id} is {word}");
                tx.event(Event::new(now, by, EventKind::SlotChanged, detail).of_node(id.node));
                tx.put_slot(approved);
                Ok::<_, OperateError>(())
            })
            .await?;
        self.slot(&id)
    }
}

/// A removed node has no slots any more.
pub(super) fn forget_slots(tx: &mut Tx<'_>, node: NodeId) {
    let own: Vec<SlotId> = of_node(tx.before().slots(), node).map(|(id, _)| id.clone()).collect();
    own.into_iter().for_each(|id| tx.remove_slot(id));
}

fn facts_of(model: &Model, node: NodeId) -> Option<&crate::wire::Facts> {
    model.node(node).and_then(|node| node.facts.as_ref())
}

fn slot(model: &Model, id: SlotId, implied: bool) -> Slot {
    static UNKNOWN: std::sync::LazyLock<crate::wire::Facts> = std::sync::LazyLock::new(crate::wire::Facts::default);
    let facts = facts_of(model, id.node).unwrap_or(&UNKNOWN);
    let (record, holder) = (model.slots().get(&id), holder(model, &id));
    judge(id, facts, record, holder, implied)
}

/// The virtual machine that has the unit of a slot.
fn holder<'a>(model: &'a Model, id: &SlotId) -> Option<&'a Vm> {
    let unit = facts_of(model, id.node).and_then(|facts| unit_of(id, facts));
    let functions: Vec<String> = match unit {
        Some(unit) => functions(unit).into_keys().collect(),
        None => vec![PciAddress::as_str(&id.unit).to_owned()],
    };
    let owner = model.held(id.node)?.unit(functions.iter().map(String::as_str))?;
    model.vm(owner)
}

fn check_disk(model: &Model, id: &SlotId, disk: &DiskIdentity) -> Result<(), SlotError> {
    let facts = facts_of(model, id.node);
    let found = facts.and_then(|facts| DiskFacts::called(&facts.disks, disk.as_str()));
    // Another slot may know the same disk by its other name.
    let is_it = |other: &DiskIdentity| found.is_some_and(|disk| disk.names().any(|name| name == other.as_str()));
    let mut others = of_node(model.slots(), id.node).filter(|(other, _)| *other != id);
    let taken = others.any(|(_, other)| other.disk.as_ref().is_some_and(is_it));
    if found.is_some() && !taken { Ok(()) } else { Err(SlotError::Disk(disk.clone())) }
}

fn unlawful(slot: &Slot, hint: &'static str) -> SlotError {
    SlotError::Unlawful { id: slot.id.clone(), state: slot.state, reason: slot.reason.clone(), hint }
}
