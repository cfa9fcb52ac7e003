//! Parts of a VM request that only the central node evaluates, such as placement.

use meshd_proto::vm::{RawDisk, SpecFault, VmSpec};
use meshd_types::{PciAddress, VfioSelector, serde_as_text};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Seconds that a guest has to end by itself unless its file says otherwise.
pub const DEFAULT_GRACE_S: u32 = 60;
/// Most seconds that a guest has to end by itself.
pub const MAX_GRACE_S: u32 = 3600;
/// Most units of one machine; the wire's own bound.
pub(super) const MAX_UNITS: i64 = 32;

/// A virtual machine as it is ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRequest {
    /// What the node is told. Its `units` are those that it has on its node; before it has one, those that were named by address.
    pub spec: VmSpec,
    /// The units that it wants.
    #[serde(default)]
    pub units: UnitsRequest,
    /// What becomes of it when its node is lost.
    #[serde(default)]
    pub on_node_loss: OnNodeLoss,
    /// Seconds that the guest has to end by itself when it is stopped.
    #[serde(default = "default_grace")]
    pub grace_s: u32,
    /// It is not bound to the NUMA node of its units.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub numa_anywhere: bool,
}

fn default_grace() -> u32 {
    DEFAULT_GRACE_S
}

impl VmRequest {
    /// A specification and nothing else.
    pub fn new(spec: VmSpec) -> Self {
        let each = spec.units.iter().cloned().map(UnitSelector::named).collect();
        let units = UnitsRequest { whole: false, each };
        VmRequest { spec, units, on_node_loss: OnNodeLoss::default(), grace_s: DEFAULT_GRACE_S, numa_anywhere: false }
    }

    /// Everything that is wrong with it, whatever node it runs on.
    pub fn faults(&self) -> Vec<SpecFault> {
        let volumes = self.spec.volumes.iter().map(|volume| matches!(volume.source.disk(), Some(RawDisk::Slot(_))));
        let nics = self.spec.nics.iter().map(|nic| nic.slot);
        let mut faults = self.spec.faults();
        faults
            .extend(self.beyond_its_slots(volumes, |index| (format!("volume[{index}].disk"), "is the disk", "volume")));
        faults.extend(self.beyond_its_slots(nics, |index| (format!("nic[{index}].slot"), "has the addresses", "NIC")));
        faults
    }

    /// Of volumes or NICs, those that are a part of a slot where no unit is left that it could be the slot of; `of_slot` says which
    /// are, `words` gives key, what it is of the slot, and what it is called.
    fn beyond_its_slots(
        &self,
        of_slot: impl Iterator<Item = bool>,
        words: impl Fn(usize) -> (String, &'static str, &'static str),
    ) -> impl Iterator<Item = SpecFault> {
        let slots = if self.units.whole { usize::MAX } else { self.units.each.len() };
        let beyond = of_slot.enumerate().filter(|(_, is)| *is).skip(slots);
        beyond.map(move |(index, _)| {
            let (key, part, what) = words(index);
            let message = format!("{part} of a slot, and no unit is left whose slot that could be");
            SpecFault { key, message, hint: format!("ask for one unit for each such {what}: units = [\"any\"]") }
        })
    }

    /// True if it stands on what only one node has: units, or a disk of it.
    pub fn is_bound(&self) -> bool {
        let raw = self.spec.volumes.iter().any(|volume| volume.source.disk().is_some());
        self.units.whole || !self.units.each.is_empty() || raw
    }
}

/// The units that a virtual machine wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnitsRequest {
    /// All of its node, with the switches that join them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// One unit for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<UnitSelector>,
}

/// One unit that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnitSelector {
    /// Whichever is free.
    Any,
    /// One with a function that this names.
    Selected(VfioSelector),
}

impl UnitSelector {
    /// The unit that holds one function.
    pub fn named(address: PciAddress) -> Self {
        UnitSelector::Selected(VfioSelector::Address(address.as_str().to_owned()))
    }

    /// The function, where one is named.
    pub fn address(&self) -> Option<PciAddress> {
        match self {
            UnitSelector::Selected(VfioSelector::Address(address)) => address.parse().ok(),
            _ => None,
        }
    }
}

/// The text names no unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no unit; write any, 0000:01:00.0, class:0302, vendor:10de or device:10de:2335")]
pub struct ParseUnitSelectorError(String);

impl FromStr for UnitSelector {
    type Err = ParseUnitSelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "any" {
            return Ok(UnitSelector::Any);
        }
        if let Ok(address) = text.parse() {
            return Ok(UnitSelector::named(address));
        }
        let selector = text.parse().map(UnitSelector::Selected);
        selector.map_err(|_| ParseUnitSelectorError(text.chars().take(80).collect()))
    }
}

impl fmt::Display for UnitSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnitSelector::Any => f.write_str("any"),
            UnitSelector::Selected(VfioSelector::Address(address)) => f.write_str(address),
            UnitSelector::Selected(selector) => selector.fmt(f),
        }
    }
}

serde_as_text!(UnitSelector);

/// What becomes of a virtual machine when its node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNodeLoss {
    /// It waits for its node, or for an operator.
    #[default]
    Wait,
    /// It is started on another node as soon as it is certain that it does not run on the old one any more. One with units or a disk
    /// of its node is never moved.
    Restart,
}

impl OnNodeLoss {
    /// The word of a vm.toml, which is also shown.
    pub fn as_str(self) -> &'static str {
        match self {
            OnNodeLoss::Wait => "wait",
            OnNodeLoss::Restart => "restart",
        }
    }
}
