//! PCI functions of a node, and their IOMMU groups that can be assigned to VMs, with the reason
//! where one cannot.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// Maximum number of units of one node.
pub const MAX_UNITS: usize = 128;
/// Maximum number of functions of one unit. Groups of the largest known servers have about 20.
pub const MAX_MEMBERS: usize = 64;

/// One PCI function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PciFacts {
    /// `0000:01:00.0`.
    pub address: String,
    /// Vendor ID, four hexadecimal digits.
    pub vendor: String,
    /// Device ID, four hexadecimal digits.
    pub device: String,
    /// Base class and sub-class, four hexadecimal digits.
    pub class: String,
    /// Bound driver: target of the `driver` link.
    pub driver: Option<String>,
    /// IOMMU group: target of the `iommu_group` link.
    pub iommu_group: Option<u32>,
    /// NUMA node; absent if the firmware reports none.
    pub numa_node: Option<u32>,
    /// Absent without SR-IOV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sriov: Option<SriovFacts>,
}

/// Virtual functions (SR-IOV) of one PCI function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SriovFacts {
    /// `sriov_totalvfs`.
    pub total: u32,
    /// `sriov_numvfs`.
    pub enabled: u32,
}

/// A unit: an IOMMU group with at least one function that the profile selects. It is assigned as a
/// whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UnitFacts {
    /// IOMMU group; absent without IOMMU or if the function is missing.
    pub group: Option<u32>,
    pub kind: UnitKind,
    pub state: UnitState,
    /// Why it is not ready; empty otherwise.
    pub reason: String,
    /// NUMA node of its first selected function, absent if the firmware reports none.
    pub numa_node: Option<u32>,
    /// Addresses of the functions that the profile selects, sorted.
    pub selected: Vec<String>,
    /// All functions except bridges, sorted by address. At most 64.
    pub members: Vec<PciFacts>,
}

/// The kind of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum UnitKind {
    /// One device, or several that share an IOMMU group.
    #[default]
    Device,
    /// NVSwitches only. They are useful only together with all GPUs of the node and do not count as
    /// units.
    Switch,
}

/// Whether a unit can be assigned.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum UnitState {
    /// Not bound to vfio-pci, or the kernel refuses the assignment.
    #[default]
    Unbound,
    /// Bound to vfio-pci completely, and an IOMMU container accepts it.
    Ready,
    /// A VM has it.
    InUse,
    /// Reads of a function return only ones: it does not answer on the bus.
    Wedged,
    /// A known or configured function is missing.
    Missing,
    /// Another driver uses a part of the group.
    Conflict,
    /// The node itself needs a function: boot NIC, disk in use, console.
    SharedWithHost,
    /// A process has a function open.
    Busy,
}

impl UnitState {
    /// All states.
    pub const ALL: &'static [UnitState] = Self::VARIANTS;
}

serialised_name!(UnitState);

impl UnitFacts {
    /// Returns a description: `unit 14 (0000:01:00.0 0000:01:00.1)`.
    pub fn name(&self) -> String {
        let members: Vec<&str> =
            self.members.iter().map(|member| member.address.as_str()).collect();
        let group =
            self.group.map_or_else(|| "without a group".to_owned(), |group| group.to_string());
        let members = if members.is_empty() { self.selected.join(" ") } else { members.join(" ") };
        format!("unit {group} ({members})")
    }
}

/// Returns the numbers of ready units and of all units, without switches.
pub(crate) fn count_ready(units: &[UnitFacts]) -> (usize, usize) {
    let devices = || units.iter().filter(|unit| unit.kind == UnitKind::Device);
    (devices().filter(|unit| unit.state == UnitState::Ready).count(), devices().count())
}

/// Returns `N/M GPU unit(s) ready`, the last line of the doctor and of `node show`.
pub fn units_ready(units: &[UnitFacts]) -> String {
    let (ready, total) = count_ready(units);
    format!("{ready}/{total} GPU unit(s) ready")
}

/// Returns all units, NVSwitches included, if every one is ready (GP-6); otherwise the units that
/// are not.
pub fn whole_node(units: &[UnitFacts]) -> Result<&[UnitFacts], String> {
    let bad: Vec<String> = units
        .iter()
        .filter(|unit| unit.state != UnitState::Ready)
        .map(|unit| format!("{} is {}", unit.name(), unit.state.as_str()))
        .collect();
    match (units.is_empty(), bad.is_empty()) {
        (true, _) => Err("there is no unit".to_owned()),
        (false, true) => Ok(units),
        (false, false) => Err(bad.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_state_text_equals_wire_format() {
        for state in UnitState::ALL.iter().copied() {
            assert_eq!(serde_json::to_value(state).expect("a word"), state.as_str());
        }
    }

    fn unit(group: u32, kind: UnitKind, state: UnitState) -> UnitFacts {
        UnitFacts { group: Some(group), kind, state, ..UnitFacts::default() }
    }

    #[test]
    fn ready_count_excludes_switches_and_units_not_ready() {
        let units = [
            unit(40, UnitKind::Device, UnitState::Ready),
            unit(41, UnitKind::Device, UnitState::InUse),
            unit(42, UnitKind::Device, UnitState::Wedged),
            unit(50, UnitKind::Switch, UnitState::Ready),
        ];
        assert_eq!(units_ready(&units), "1/3 GPU unit(s) ready");
        assert_eq!(units_ready(&[]), "0/0 GPU unit(s) ready");
    }

    #[test]
    fn whole_node_needs_every_unit_and_switch_ready() {
        let mut units = vec![
            unit(40, UnitKind::Device, UnitState::Ready),
            unit(41, UnitKind::Device, UnitState::Ready),
            unit(50, UnitKind::Switch, UnitState::Ready),
        ];
        assert_eq!(whole_node(&units).map(<[UnitFacts]>::len), Ok(3));
        units[2].state = UnitState::Wedged;
        assert_eq!(units_ready(&units), "2/2 GPU unit(s) ready");
        assert_eq!(
            whole_node(&units),
            Err("unit 50 () is wedged".to_owned()),
            "a switch counts here"
        );
        assert!(whole_node(&[]).is_err());
    }

    #[test]
    fn largest_unit_report_fits_into_a_message() {
        let function = PciFacts {
            address: "0000:00:00.0".into(),
            vendor: "10de".into(),
            device: "2335".into(),
            class: "0302".into(),
            driver: Some("vfio-pci".into()),
            ..PciFacts::default()
        };
        let one = serde_json::to_string(&function).expect("plain").len();
        // A function is a member of one unit only: at worst each occurs twice.
        assert!(2 * one * crate::MAX_DEVICES < crate::MAX_MESSAGE, "{one}");
    }
}
