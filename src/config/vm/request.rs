//! The complete request for a VM, with parts that only the central node evaluates, such as
//! placement.

use meshd_proto::vm::{MachineType, RawDisk, SpecFault, VmSpec};
use meshd_types::{ParseError, PciAddress, VfioSelector, serde_as_text};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Default grace period of a stop in seconds.
pub const DEFAULT_GRACE_S: u32 = 60;
/// Maximum grace period in seconds.
pub const MAX_GRACE_S: u32 = 3600;
/// Maximum number of units of one VM, as in [`VmSpec::faults`].
pub(super) const MAX_UNITS: usize = 32;

/// A request for a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRequest {
    /// Specification without the parts that a placement assigns. `units` are those requested by
    /// address.
    pub spec: VmSpec,
    #[serde(default)]
    pub units: UnitsRequest,
    #[serde(default)]
    pub on_node_loss: OnNodeLoss,
    /// Grace period of a stop in seconds.
    #[serde(default = "default_grace")]
    pub grace_s: u32,
    /// Do not bind the VM to the NUMA node of its units.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub numa_anywhere: bool,
}

fn default_grace() -> u32 {
    DEFAULT_GRACE_S
}

impl VmRequest {
    /// Makes a request from a specification.
    pub fn new(spec: VmSpec) -> Self {
        let each = spec.units.iter().cloned().map(UnitSelector::by_address).collect();
        let units = UnitsRequest { whole: false, each };
        VmRequest {
            spec,
            units,
            on_node_loss: OnNodeLoss::default(),
            grace_s: DEFAULT_GRACE_S,
            numa_anywhere: false,
        }
    }

    /// Returns all faults that do not depend on the node.
    pub fn faults(&self) -> Vec<SpecFault> {
        let volumes = self
            .spec
            .volumes
            .iter()
            .map(|volume| matches!(volume.source.disk(), Some(RawDisk::Slot(_))));
        let nics = self.spec.nics.iter().map(|nic| nic.slot);
        let mut faults = self.spec.faults();
        let mut add_fault = |key: &str, message: String, hint: String| {
            faults.push(SpecFault { key: key.to_owned(), message, hint });
        };
        // Units by address are part of the specification, which checks them.
        let has_unnamed =
            self.spec.units.is_empty() && (self.units.whole || !self.units.each.is_empty());
        if has_unnamed && self.spec.machine == MachineType::Pc {
            add_fault(
                "machine",
                "`pc` has no PCI Express for units".to_owned(),
                "write machine = \"q35\"".to_owned(),
            );
        }
        let count = self.units.each.len();
        if count > MAX_UNITS && self.spec.units.len() <= MAX_UNITS {
            add_fault("units", format!("{count} units"), format!("at most {MAX_UNITS}"));
        }
        if self.grace_s > MAX_GRACE_S {
            add_fault(
                "grace",
                format!("{}s is out of range", self.grace_s),
                format!("write 0s to {MAX_GRACE_S}s"),
            );
        }
        faults.extend(self.beyond_its_slots(volumes, |index| {
            (format!("volume[{index}].disk"), "is the disk", "volume")
        }));
        faults.extend(self.beyond_its_slots(nics, |index| {
            (format!("nic[{index}].slot"), "has the addresses", "NIC")
        }));
        faults
    }

    /// Returns the faults of volumes or NICs that belong to a slot, but exceed the number of
    /// requested units. `words` returns the key, the part of the slot, and the name of the device.
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
            SpecFault {
                key,
                message,
                hint: format!("ask for one unit for each such {what}: units = [\"any\"]"),
            }
        })
    }

    /// Returns true if the VM uses units or disks of its node.
    pub fn is_bound(&self) -> bool {
        let raw = self.spec.volumes.iter().any(|volume| volume.source.disk().is_some());
        self.units.whole || !self.units.each.is_empty() || raw
    }
}

/// The requested units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct UnitsRequest {
    /// All units of the node, including NVSwitches.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// One unit for each selector.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<UnitSelector>,
}

/// A selector of one unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnitSelector {
    Any,
    /// A unit with a function that the selector matches.
    Selected(VfioSelector),
}

impl UnitsRequest {
    /// Returns the units that are selected by a PCI address.
    pub(super) fn addresses(&self) -> Vec<PciAddress> {
        self.each.iter().filter_map(UnitSelector::address).collect()
    }
}

impl UnitSelector {
    /// Selects the unit of a PCI function.
    pub fn by_address(address: PciAddress) -> Self {
        UnitSelector::Selected(VfioSelector::Address(address.as_str().to_owned()))
    }

    /// Returns the PCI address, if the selector has one.
    pub fn address(&self) -> Option<PciAddress> {
        match self {
            UnitSelector::Selected(VfioSelector::Address(address)) => address.parse().ok(),
            _ => None,
        }
    }
}

impl FromStr for UnitSelector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "any" {
            return Ok(UnitSelector::Any);
        }
        if let Ok(address) = text.parse() {
            return Ok(UnitSelector::by_address(address));
        }
        let selector = text.parse().map(UnitSelector::Selected);
        let hint = "write any, 0000:01:00.0, class:0302, vendor:10de or device:10de:2335";
        selector.map_err(|_| ParseError::of_text(text, "names no unit", hint))
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

/// The action on a VM when its node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNodeLoss {
    /// Wait for the node, or for an operator.
    #[default]
    Wait,
    /// Start the VM on another node once it certainly does not run on the old one. VMs with units
    /// or disks of their node never move.
    Restart,
}

impl OnNodeLoss {
    /// Returns the keyword in vm.toml.
    pub fn as_str(self) -> &'static str {
        match self {
            OnNodeLoss::Wait => "wait",
            OnNodeLoss::Restart => "restart",
        }
    }
}
