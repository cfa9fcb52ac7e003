//! Approves, disables, enables and releases slots.

use super::VmError;
use crate::vms::{Vms, nics::slot_address_conflict, placement_candidates::is_approved_by_policy};
use meshd_config::Site;
use meshd_model::{
    activities::{self, Activity},
    fleet::{AuditContext, Event, EventKind, Node},
    work::{
        ApprovedSlot, DeviceChoice, MAX_FABRIC, Slot, SlotId, SlotNic, SlotState, Vm,
        VmDesiredState, candidates, derive_slot, functions, slots_of_node, unit_of,
    },
};
use meshd_proto::{DiskFacts, DiskIdentity};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{NodeId, PciAddress, Timestamp, VmName};
use std::{collections::BTreeSet, str::FromStr};

/// Maximum number of recorded slots of a site.
const MAX_SLOTS: usize = 100_000;

/// Why an order about a slot is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    #[error("there is no slot {0}")]
    None(SlotId),
    #[error("slot {0} is a candidate")]
    Candidate(SlotId),
    #[error("slot {id} is {}: {reason}", state.as_str())]
    Unlawful { id: SlotId, state: SlotState, reason: String, hint: &'static str },
    #[error("disk `{0}` is not a disk of that node, or belongs to another slot of it")]
    Disk(DiskIdentity),
    /// The node uses the disk, or forbids its use (ST-3, ST-4).
    #[error("cannot assign disk `{disk}`: {why}")]
    DiskBlocked { disk: DiskIdentity, why: String },
    #[error("disk `{disk}` belongs to VM `{vm}`")]
    DiskInUse { disk: DiskIdentity, vm: VmName },
    #[error("slot {id} has no nearest {device}: its node reports none")]
    NoneNear { id: SlotId, device: &'static str },
    /// The checks of its node do not prove its report (DR-12).
    #[error("cannot approve slot {id}: {why}")]
    Unproven { id: SlotId, why: String },
    #[error("{0}")]
    Nic(String),
    #[error("invalid fabric device: use 1 to {MAX_FABRIC} printable characters without spaces")]
    Fabric,
    #[error("cannot approve the slot: there are {MAX_SLOTS} on record")]
    TooMany,
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(SlotError {
    SlotError::None(_) => "`meshd slot list` lists all slots";
    SlotError::Candidate(value) => "approve it first: meshd slot approve {value}";
    SlotError::Unlawful { hint, .. } => "{hint}";
    SlotError::Disk(_) => "`meshd node show` lists its disks";
    SlotError::DiskBlocked { .. } => "`meshd node show` lists the node's disks";
    SlotError::DiskInUse { .. } => "delete it first, or take another disk";
    SlotError::NoneNear { .. } => "name one, or omit it";
    SlotError::Unproven { .. } => "repair its node first";
    SlotError::Nic(_) => "use other addresses, or omit them";
    SlotError::TooMany => "remove nodes that no longer exist";
    @source SlotError::Vm(source) => source;
    @source SlotError::Store(source) => source;
});

/// The parts of a slot other than its unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotParts {
    /// A disk of the node.
    pub disk: Option<DeviceChoice<DiskIdentity>>,
    /// A fabric device of the node.
    pub fabric: Option<DeviceChoice<String>>,
    /// The addresses of the NIC of the VM that has the slot.
    pub nic: Option<SlotNic>,
}

impl Vms {
    /// All slots, by node and unit.
    pub fn slots(&self) -> Vec<Slot> {
        let site = self.env.site();
        self.env.store.read(|model| {
            let ids: BTreeSet<SlotId> = model
                .all_nodes()
                .filter(|node| node.phase.is_admitted())
                .flat_map(|node| node.facts.iter().flat_map(|facts| candidates(node.id, facts)))
                .chain(model.slots().keys().cloned())
                .collect();
            ids.into_iter().map(|id| slot(model, &site, id)).collect()
        })
    }

    /// Slots that are being assigned, released or cleaned up. Their time is that of the last report
    /// about their VM.
    pub(crate) fn changing_slots(&self) -> Vec<Activity> {
        let slots = self.slots();
        self.env.store.read(|model| {
            let of = |slot: &Slot| {
                let since = holder(model, &slot.id)
                    .and_then(|vm| vm.last_report.as_ref())
                    .map(|seen| seen.since);
                activities::slot(slot, since)
            };
            slots.iter().filter_map(of).collect()
        })
    }

    pub fn slot(&self, id: &SlotId) -> Result<Slot, SlotError> {
        let site = self.env.site();
        let found = self.env.store.read(|model| {
            let is_candidate = || {
                let node = model.node(id.node).filter(|node| node.phase.is_admitted());
                let facts = node.and_then(|node| node.facts.as_ref());
                facts.is_some_and(|facts| candidates(id.node, facts).any(|slot| slot == *id))
            };
            let is_known = model.slots().contains_key(id) || is_candidate();
            is_known.then(|| slot(model, &site, id.clone()))
        });
        found.ok_or_else(|| SlotError::None(id.clone()))
    }

    /// Approves a slot with its present parts. Approving again replaces the approved parts.
    pub async fn approve_slot(
        &self,
        id: SlotId,
        parts: SlotParts,
        audit: &AuditContext,
    ) -> Result<Slot, SlotError> {
        let is_valid = |name: &String| {
            (1..=MAX_FABRIC).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic())
        };
        if matches!(&parts.fabric, Some(DeviceChoice::Named(name)) if !is_valid(name)) {
            return Err(SlotError::Fabric);
        }
        let snapshot = self.env.snapshot();
        self.change_slot(id, audit, "approved", |tx, slot, now| {
            if holder(tx.before(), &slot.id).is_some() {
                return Err(unlawful(slot, "delete its VM first"));
            }
            if slot.functions.is_empty() {
                return Err(SlotError::None(slot.id.clone()));
            }
            if let Some(why) = tx.node(slot.id.node).and_then(Node::unproven) {
                return Err(SlotError::Unproven { id: slot.id.clone(), why });
            }
            let fabric =
                pick(slot, "fabric device", parts.fabric.clone(), slot.near.fabric.as_ref())?;
            let disk = pick(slot, "disk", parts.disk.clone(), slot.near.disk.as_ref())?;
            if let Some(disk) = &disk {
                check_disk(tx.before(), &slot.id, disk)?;
            }
            let against = |nic| slot_address_conflict(tx.before(), &snapshot, now, &slot.id, nic);
            if let Some(why) = parts.nic.and_then(against) {
                return Err(SlotError::Nic(why));
            }
            if tx.before().slots().len() >= MAX_SLOTS {
                return Err(SlotError::TooMany);
            }
            let id = slot.id.clone();
            let functions = slot.functions.clone();
            Ok(ApprovedSlot {
                id,
                functions,
                disk,
                fabric,
                nic: parts.nic,
                disabled: None,
                approved_at: now,
            })
        })
        .await
    }

    /// Disables a slot for new VMs; a VM that has it keeps it.
    pub async fn disable_slot(&self, id: SlotId, audit: &AuditContext) -> Result<Slot, SlotError> {
        let why = audit.reason.clone().unwrap_or_else(|| "an operator disabled it".to_owned());
        self.change_slot(id, audit, "disabled", |_, slot, now| {
            let approved = slot.approved.clone().unwrap_or_else(|| ApprovedSlot {
                id: slot.id.clone(),
                functions: slot.functions.clone(),
                disk: None,
                fabric: None,
                nic: None,
                disabled: None,
                approved_at: now,
            });
            Ok(ApprovedSlot { disabled: Some(why), ..approved })
        })
        .await
    }

    /// Enables a disabled slot.
    pub async fn enable_slot(&self, id: SlotId, audit: &AuditContext) -> Result<Slot, SlotError> {
        self.change_slot(id, audit, "enabled", |_, slot, _| {
            let approved =
                slot.approved.clone().ok_or_else(|| SlotError::Candidate(slot.id.clone()))?;
            Ok(ApprovedSlot { disabled: None, ..approved })
        })
        .await
    }

    /// Repeats the cleanup of a slot.
    pub async fn release_slot(&self, id: SlotId, audit: &AuditContext) -> Result<Slot, SlotError> {
        let slot = self.slot(&id)?;
        let holder =
            self.env.store.read(|model| holder(model, &id).map(|vm| (vm.uuid(), vm.desired_state)));
        match holder {
            Some((uuid, VmDesiredState::Release)) => drop(self.delete_vm(uuid, None, audit).await?),
            Some(_) => return Err(unlawful(&slot, "delete its VM: meshd vm delete")),
            None => self.links.request_checks(id.node),
        }
        self.slot(&id)
    }

    async fn change_slot(
        &self,
        id: SlotId,
        audit: &AuditContext,
        state: &str,
        change: impl FnOnce(&Tx<'_>, &Slot, Timestamp) -> Result<ApprovedSlot, SlotError>,
    ) -> Result<Slot, SlotError> {
        let site = self.env.site();
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let exists = tx.before().slots().contains_key(&id)
                || facts_of(tx.before(), id.node)
                    .is_some_and(|facts| unit_of(&id, facts).is_some());
            if !exists {
                return Err(SlotError::None(id.clone()));
            }
            let approved = change(tx, &slot(tx.before(), &site, id.clone()), now)?;
            let detail = format!("slot {id} is {state}");
            tx.event(Event::new(now, audit, EventKind::SlotChanged, detail).of_node(id.node));
            tx.put_slot(approved);
            Ok::<_, SlotError>(())
        });
        stored.await?;
        self.slot(&id)
    }
}

pub(crate) fn remove_slots(tx: &mut Tx<'_>, node: NodeId) {
    let ids: Vec<SlotId> =
        slots_of_node(tx.before().slots(), node).map(|(id, _)| id.clone()).collect();
    ids.into_iter().for_each(|id| tx.remove_slot(id));
}

fn facts_of(model: &Model, node: NodeId) -> Option<&meshd_proto::Facts> {
    model.node(node).and_then(|node| node.facts.as_ref())
}

fn slot(model: &Model, site: &Site, id: SlotId) -> Slot {
    static UNKNOWN: std::sync::LazyLock<meshd_proto::Facts> =
        std::sync::LazyLock::new(meshd_proto::Facts::default);
    let facts = facts_of(model, id.node).unwrap_or(&UNKNOWN);
    let record = model.slots().get(&id);
    let holder = holder(model, &id);
    let implied = is_approved_by_policy(site, model.node(id.node));
    derive_slot(id, facts, record, holder, implied)
}

/// The VM that has the unit of a slot.
fn holder<'a>(model: &'a Model, id: &SlotId) -> Option<&'a Vm> {
    let unit = facts_of(model, id.node).and_then(|facts| unit_of(id, facts));
    let functions: Vec<String> = match unit {
        Some(unit) => functions(unit).into_keys().collect(),
        None => vec![PciAddress::as_str(&id.unit).to_owned()],
    };
    let owner = model.allocations(id.node)?.unit(functions.iter().map(String::as_str))?;
    model.vm(owner)
}

/// Returns the named device, or the nearest.
fn pick<T: FromStr>(
    slot: &Slot,
    device: &'static str,
    picked: Option<DeviceChoice<T>>,
    nearest: Option<&String>,
) -> Result<Option<T>, SlotError> {
    match picked {
        None => Ok(None),
        Some(DeviceChoice::Named(name)) => Ok(Some(name)),
        Some(DeviceChoice::Nearest) => {
            let nearest = nearest.and_then(|nearest| nearest.parse().ok());
            nearest.map(Some).ok_or_else(|| SlotError::NoneNear { id: slot.id.clone(), device })
        }
    }
}

fn check_disk(model: &Model, id: &SlotId, disk: &DiskIdentity) -> Result<(), SlotError> {
    let facts = facts_of(model, id.node);
    let Some(disk_facts) =
        facts.and_then(|facts| DiskFacts::by_identity(&facts.disks, disk.as_str()))
    else {
        return Err(SlotError::Disk(disk.clone()));
    };
    // Another slot may have the same disk under another name.
    let is_same_disk =
        |other: &DiskIdentity| disk_facts.identities().any(|name| name == other.as_str());
    let mut others = slots_of_node(model.slots(), id.node).filter(|(other, _)| *other != id);
    if others.any(|(_, other)| other.disk.as_ref().is_some_and(is_same_disk)) {
        return Err(SlotError::Disk(disk.clone()));
    }
    if let Some(vm) = model
        .allocations(id.node)
        .and_then(|allocations| allocations.disk(disk_facts.identities()))
        .and_then(|uuid| model.vm(uuid))
    {
        return Err(SlotError::DiskInUse { disk: disk.clone(), vm: vm.name().clone() });
    }
    match disk_facts.blocked.clone() {
        Some(why) => Err(SlotError::DiskBlocked { disk: disk.clone(), why }),
        None => Ok(()),
    }
}

fn unlawful(slot: &Slot, hint: &'static str) -> SlotError {
    SlotError::Unlawful {
        id: slot.id.clone(),
        state: slot.state,
        reason: slot.reason.clone(),
        hint,
    }
}
