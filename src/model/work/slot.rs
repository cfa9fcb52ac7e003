//! Slots: units of a node that can be assigned to one VM each, after an operator approved them. The
//! state follows from approval, holder and facts, and is never stored.
//!
//! ```text
//! candidate ─approve─▶ available ─create─▶ reserved ─▶ provisioning ─▶ active ─delete─▶ releasing ─▶ cleanup ─▶ available
//!                        │  ▲                                             │                           └▶ cleanup_blocked
//!                   disable enable                                        └▶ failed
//! ```

use super::{SlotNic, Vm, VmDesiredState};
use meshd_proto::{
    DiskFacts, DiskIdentity, Facts, SlotFacts, UnitFacts, UnitKind, UnitState, vm::ReportedVmState,
};
use meshd_types::{NodeId, ParseError, PciAddress, Timestamp, serde_as_text};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{collections::BTreeMap, fmt, str::FromStr};
use strum::VariantArray as _;

/// Maximum length of a fabric device name, in bytes.
pub const MAX_FABRIC: usize = 64;

/// Slot ID: `<node>/<first function of its unit>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId {
    pub node: NodeId,
    /// First selected function of the unit.
    pub unit: PciAddress,
}

impl FromStr for SlotId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (node, unit) = text.split_once('/')?;
            Some(SlotId { node: node.parse().ok()?, unit: unit.parse().ok()? })
        };
        let hint = "write NODE/0000:41:00.0, as `meshd slot list` shows it";
        read().ok_or_else(|| ParseError::of_text(text, "names no slot", hint))
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.unit)
    }
}

serde_as_text!(SlotId);

/// An approved slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovedSlot {
    pub id: SlotId,
    /// Functions of the unit by address, with their device IDs.
    pub functions: BTreeMap<String, String>,
    /// Disk of the slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskIdentity>,
    /// Fabric device of the slot. Slots can share a fabric device; only one of them is assigned at
    /// a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    /// Addresses for a NIC with `slot = true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<SlotNic>,
    /// Reason of an operator for disabling the slot; `None` if enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
    pub approved_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(utoipa::ToSchema, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum SlotState {
    /// Not approved.
    Candidate,
    /// Free and ready to be assigned.
    Available,
    /// Assigned to a VM that does not use it yet.
    Reserved,
    Provisioning,
    Active,
    /// The VM of the slot is being deleted.
    Releasing,
    /// Free, but its resources are not ready yet.
    Cleanup,
    /// The node cannot release the slot.
    CleanupBlocked,
    Failed,
    /// Disabled by an operator.
    Disabled,
}

impl SlotState {
    pub const ALL: [SlotState; SlotState::VARIANTS.len()] =
        *SlotState::VARIANTS.first_chunk().expect("the same length");
}

as_str!(SlotState);

/// The current state of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub id: SlotId,
    /// State, derived from approval, holder and facts.
    pub state: SlotState,
    /// Cause of the state.
    pub reason: String,
    /// NUMA node of the unit.
    pub numa: Option<u32>,
    /// Functions of the unit by address, with their device IDs.
    pub functions: BTreeMap<String, String>,
    pub approved: Option<ApprovedSlot>,
    /// Nearest disk and fabric device, as a suggestion.
    pub near: NearestDevices,
    /// Resources on another NUMA node than the unit.
    pub mismatch: String,
}

/// The disk and fabric device nearest to a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NearestDevices {
    /// An assignable disk.
    pub disk: Option<String>,
    pub fabric: Option<String>,
}

/// The choice of a disk or fabric device at approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice<T> {
    /// The device nearest to the unit.
    Nearest,
    Named(T),
}

impl<T: FromStr> FromStr for DeviceChoice<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == NEAREST {
            Ok(DeviceChoice::Nearest)
        } else {
            text.parse().map(DeviceChoice::Named)
        }
    }
}

impl<T: fmt::Display> fmt::Display for DeviceChoice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Nearest => f.write_str(NEAREST),
            DeviceChoice::Named(name) => name.fmt(f),
        }
    }
}

impl<T: fmt::Display> Serialize for DeviceChoice<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for DeviceChoice<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Word for the nearest device in orders.
const NEAREST: &str = "nearest";

/// Returns the functions of a unit by address, with their device IDs.
pub fn functions(unit: &UnitFacts) -> BTreeMap<String, String> {
    let of = |member: &meshd_proto::PciFacts| {
        (member.address.clone(), format!("{}:{}", member.vendor, member.device))
    };
    unit.members.iter().map(of).collect()
}

/// Finds the unit of a slot in the facts of a node.
pub fn unit_of<'a>(id: &SlotId, facts: &'a Facts) -> Option<&'a UnitFacts> {
    let is = |unit: &&UnitFacts| unit.selected.iter().any(|function| function == id.unit.as_str());
    facts.units.iter().find(is)
}

/// Returns one candidate for each unit of a node.
pub fn candidates(node: NodeId, facts: &Facts) -> impl Iterator<Item = SlotId> + '_ {
    let units = facts.units.iter().filter(|unit| unit.kind == UnitKind::Device);
    units.filter_map(move |unit| Some(SlotId { node, unit: unit.selected.first()?.parse().ok()? }))
}

/// Determines the state of a slot. `implied`: the site needs no approvals.
pub fn derive_slot(
    id: SlotId,
    facts: &Facts,
    approved: Option<&ApprovedSlot>,
    holder: Option<&Vm>,
    implied: bool,
) -> Slot {
    let unit = unit_of(&id, facts);
    let (state, reason) = match holder {
        Some(vm) => {
            let (state, reason) = assigned_state(vm);
            match approved.and_then(|approved| approved.disabled.as_ref()) {
                Some(why) => (state, format!("{reason}; disabled for other VMs: {why}")),
                None => (state, reason),
            }
        }
        None => match (
            free_state(unit, approved, implied),
            approved.and_then(|approved| approved.disk.as_ref()),
        ) {
            ((SlotState::Available, _), Some(disk)) => idle_disk_state(facts, disk),
            (found, _) => found,
        },
    };
    let near = unit.and_then(|unit| find_suggestion(unit, facts));
    let mismatch = match (unit, approved, near) {
        (Some(unit), Some(approved), _) => describe_mismatch(unit, approved, facts),
        (_, None, Some(near)) => near.mismatch.clone(),
        _ => String::new(),
    };
    let near = near
        .map(|near| NearestDevices { disk: near.disk.clone(), fabric: near.fabric.clone() })
        .unwrap_or_default();
    let numa = unit.and_then(|unit| unit.numa_node);
    let functions = unit.map(functions).unwrap_or_default();
    Slot { id, state, reason, numa, functions, approved: approved.cloned(), near, mismatch }
}

fn find_suggestion<'a>(unit: &UnitFacts, facts: &'a Facts) -> Option<&'a SlotFacts> {
    facts.slots.iter().find(|slot| unit.members.iter().any(|member| member.address == slot.unit))
}

/// Determines the state of the disk of a free slot.
fn idle_disk_state(facts: &Facts, disk: &DiskIdentity) -> (SlotState, String) {
    match DiskFacts::by_identity(&facts.disks, disk.as_str()) {
        None => (SlotState::Failed, format!("its node has no disk {disk}, or several")),
        Some(DiskFacts { blocked: Some(why), .. }) => {
            (SlotState::Cleanup, format!("its disk {disk}: {why}"))
        }
        Some(_) => (SlotState::Available, String::new()),
    }
}

/// Describes resources of a slot that are far from its unit (GP-7).
fn describe_mismatch(unit: &UnitFacts, approved: &ApprovedSlot, facts: &Facts) -> String {
    let disk = approved.disk.as_ref().and_then(|disk| {
        let numa = DiskFacts::by_identity(&facts.disks, disk.as_str())?.numa_node?;
        Some((format!("disk {disk}"), numa))
    });
    let fabric = approved.fabric.as_ref().and_then(|fabric| {
        let numa = facts.pci.iter().find(|function| function.address == *fabric)?.numa_node?;
        Some((format!("fabric device {fabric}"), numa))
    });
    let far = |(what, theirs): (String, u32)| {
        let ours = unit.numa_node.filter(|ours| *ours != theirs)?;
        Some(format!("{what} is on NUMA node {theirs}, the unit on {ours}"))
    };
    [disk, fabric].into_iter().flatten().filter_map(far).collect::<Vec<_>>().join("; ")
}

fn assigned_state(vm: &Vm) -> (SlotState, String) {
    use ReportedVmState as State;
    let last = vm.last_report.as_ref().map(|last| last.state);
    let of = format!("VM {}", vm.name());
    match (vm.desired_state, last, &vm.obstacle) {
        (VmDesiredState::Release, _, Some(why)) => {
            (SlotState::CleanupBlocked, format!("{of}: {why}"))
        }
        (VmDesiredState::Release, ..) => (SlotState::Releasing, of),
        (_, Some(State::Failed), _) => {
            let failure = vm.last_report.as_ref().and_then(|last| last.failure.as_ref());
            let why = failure.map(|failure| failure.detail.as_str());
            (SlotState::Failed, format!("{of}: {}", why.unwrap_or("it failed")))
        }
        (_, Some(State::Starting), _) => (SlotState::Provisioning, of),
        (_, Some(State::Running | State::Paused | State::Stopping | State::Waiting), _) => {
            (SlotState::Active, of)
        }
        (_, None | Some(State::Stopped), _) => (SlotState::Reserved, of),
    }
}

fn free_state(
    unit: Option<&UnitFacts>,
    approved: Option<&ApprovedSlot>,
    implied: bool,
) -> (SlotState, String) {
    if let Some(why) = approved.and_then(|approved| approved.disabled.as_ref()) {
        return (SlotState::Disabled, why.clone());
    }
    let Some(unit) = unit else {
        return (SlotState::Failed, "its node has no such unit".to_owned());
    };
    if let Some(approved) = approved
        && approved.functions != functions(unit)
    {
        let why = "its unit is not the one that was approved; look, then approve it again";
        return (SlotState::Failed, why.to_owned());
    }
    match unit.state {
        UnitState::Ready if approved.is_none() && !implied => (SlotState::Candidate, String::new()),
        UnitState::Ready => (SlotState::Available, String::new()),
        UnitState::InUse | UnitState::Busy if approved.is_some() || implied => {
            (SlotState::Cleanup, format!("its unit is {}", unit.state.as_str()))
        }
        state => (SlotState::Failed, format!("its unit is {}: {}", state.as_str(), unit.reason)),
    }
}

/// Returns the slots of one node.
pub fn slots_of_node<T>(
    slots: &BTreeMap<SlotId, T>,
    node: NodeId,
) -> impl Iterator<Item = (&SlotId, &T)> {
    let first = SlotId { node, unit: "0000:00:00.0".parse().expect("the lowest address is one") };
    slots.range(first..).take_while(move |(id, _)| id.node == node)
}

/// Returns the slots whose unit is ready and free but cannot be assigned, by first function, with
/// the reason. Reasons: the slot is not approved, disabled or changed, or its fabric device is in
/// use.
pub fn unassignable_units(
    node: NodeId,
    facts: &Facts,
    approved: &BTreeMap<SlotId, ApprovedSlot>,
    holds: impl Fn(&SlotId) -> bool,
    implied: bool,
) -> Vec<(PciAddress, String)> {
    let fabric_in_use = |own: &SlotId, device: &str| {
        let others = slots_of_node(approved, node).filter(|(id, _)| *id != own);
        others.filter(|(_, slot)| slot.fabric.as_deref() == Some(device)).any(|(id, _)| holds(id))
    };
    let bar = |id: SlotId| {
        let record = approved.get(&id);
        let slot = derive_slot(id, facts, record, None, implied);
        let taken = record
            .and_then(|record| record.fabric.as_deref())
            .filter(|device| fabric_in_use(&slot.id, device));
        match (slot.state, taken) {
            (SlotState::Available, None) => None,
            (SlotState::Available, Some(device)) => {
                Some((slot.id.unit, format!("another slot has {device}")))
            }
            (state, _) => Some((slot.id.unit, format!("its slot is {}", state.as_str()))),
        }
    };
    candidates(node, facts).filter_map(bar).collect()
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
