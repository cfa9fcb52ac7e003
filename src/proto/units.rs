//! IOMMU groups of a node that can be assigned to VMs, with the reason where one cannot.

use super::PciFacts;
use serde::{Deserialize, Serialize};

/// Most units that are kept of one machine.
pub const MAX_UNITS: usize = 128;
/// Most functions that are kept of one unit. A group of the largest known servers holds about twenty.
pub const MAX_MEMBERS: usize = 64;

/// One unit: an IOMMU group with at least one function that the profile selects. Its functions go together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnitFacts {
    /// IOMMU group; absent where the machine has none, or where the function is not there.
    pub group: Option<u32>,
    /// What it is for.
    pub kind: UnitKind,
    /// Can it be given?
    pub state: UnitState,
    /// Why it is not ready, empty where it is.
    pub reason: String,
    /// NUMA node of its first selected function, absent where the firmware gives none.
    pub numa_node: Option<u32>,
    /// Addresses of the functions that the profile selects, sorted.
    pub selected: Vec<String>,
    /// All functions but bridges, sorted by address: what is bound and given together. At most [`MAX_MEMBERS`].
    pub members: Vec<PciFacts>,
}

/// What a unit is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitKind {
    /// A device, or several that cannot be told apart by the IOMMU.
    #[default]
    Device,
    /// NVSwitches alone: bound as every unit, of use only together with all GPUs of the machine, and counted as none.
    Switch,
}

/// Whether a unit can be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum UnitState {
    /// Not on vfio-pci, or the kernel does not let it be taken.
    #[default]
    Unbound,
    /// On vfio-pci whole, and an IOMMU container takes it.
    Ready,
    /// A virtual machine has it.
    InUse,
    /// A function answers nothing but ones: it fell off the bus.
    Wedged,
    /// A function that was there, or that the profile names, is not.
    Missing,
    /// Others than vfio-pci have a claim on a part of the group.
    Conflict,
    /// The node itself stands on a function of it: boot NIC, a disk in use, its console.
    SharedWithHost,
    /// A process holds a function of it.
    Busy,
}

impl UnitState {
    /// All states.
    pub const ALL: [UnitState; 8] = [
        UnitState::Unbound,
        UnitState::Ready,
        UnitState::InUse,
        UnitState::Wedged,
        UnitState::Missing,
        UnitState::Conflict,
        UnitState::SharedWithHost,
        UnitState::Busy,
    ];

    /// The word of the wire, which is also shown.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl UnitFacts {
    /// `unit 14 (0000:01:00.0 0000:01:00.1)`, for people.
    pub fn name(&self) -> String {
        let members: Vec<&str> = self.members.iter().map(|member| member.address.as_str()).collect();
        let group = self.group.map_or_else(|| "without a group".to_owned(), |group| group.to_string());
        let members = if members.is_empty() { self.selected.join(" ") } else { members.join(" ") };
        format!("unit {group} ({members})")
    }
}

/// `N/M GPU unit(s) ready`: the line that the doctor and `node show` end with.
pub fn units_ready(units: &[UnitFacts]) -> String {
    let counted = || units.iter().filter(|unit| unit.kind == UnitKind::Device);
    let ready = counted().filter(|unit| unit.state == UnitState::Ready).count();
    format!("{ready}/{} GPU unit(s) ready", counted().count())
}

/// All units, for who wants the whole machine: every GPU, and every NVSwitch that joins them. All or none (GP-6).
///
/// # Errors
/// What stands against it, for people.
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
    fn word_of_a_state_is_the_one_of_the_wire() {
        use UnitState::*;
        for state in [Unbound, Ready, InUse, Wedged, Missing, Conflict, SharedWithHost, Busy] {
            assert_eq!(serde_json::to_value(state).expect("a word"), state.as_str());
        }
    }

    #[test]
    fn switches_are_no_gpu_units_and_only_ready_ones_count_as_ready() {
        let unit = |kind, state| UnitFacts { kind, state, ..UnitFacts::default() };
        let units = [
            unit(UnitKind::Device, UnitState::Ready),
            unit(UnitKind::Device, UnitState::InUse),
            unit(UnitKind::Device, UnitState::Wedged),
            unit(UnitKind::Switch, UnitState::Ready),
        ];
        assert_eq!(units_ready(&units), "1/3 GPU unit(s) ready");
        assert_eq!(units_ready(&[]), "0/0 GPU unit(s) ready");
    }

    #[test]
    fn whole_node_is_every_unit_and_every_switch_or_nothing() {
        let unit = |group, kind, state| UnitFacts { group: Some(group), kind, state, ..UnitFacts::default() };
        let mut units = vec![
            unit(40, UnitKind::Device, UnitState::Ready),
            unit(41, UnitKind::Device, UnitState::Ready),
            unit(50, UnitKind::Switch, UnitState::Ready),
        ];
        assert_eq!(whole_node(&units).map(<[UnitFacts]>::len), Ok(3));
        units[2].state = UnitState::Wedged;
        assert_eq!(units_ready(&units), "2/2 GPU unit(s) ready");
        assert_eq!(whole_node(&units), Err("unit 50 () is wedged".to_owned()), "a switch counts here");
        assert!(whole_node(&[]).is_err());
    }

    #[test]
    fn largest_report_of_units_fits_into_a_message() {
        let function = PciFacts {
            address: "0000:00:00.0".into(),
            vendor: "10de".into(),
            device: "2335".into(),
            class: "0302".into(),
            driver: Some("vfio-pci".into()),
            ..PciFacts::default()
        };
        let one = serde_json::to_string(&function).expect("plain").len();
        // A function is a member of one unit only: at worst each is told twice.
        assert!(2 * one * super::super::MAX_DEVICES < super::super::MAX_MESSAGE, "{one}");
    }
}
