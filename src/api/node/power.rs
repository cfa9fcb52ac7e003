//! Power of nodes: request bodies, and the state that a BMC reports.

use meshd_types::{BmcDriver, BootDevice, NodeId, PowerAction, PowerState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of `power`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PowerOrder {
    pub action: PowerAction,
    /// True to power off at once, without a shutdown of the operating system.
    #[serde(default)]
    pub now: bool,
}

/// Body of `boot-device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BootDeviceOrder {
    /// `pxe`, `disk` or `bios` for the next boot only; `none` for the order of the firmware.
    pub device: BootDevice,
}

/// Body of `identify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Identify {
    /// True to switch the identification light on.
    pub on: bool,
}

/// Power of a node, as its BMC reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PowerView {
    /// Absent for a machine that has not booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<NodeId>,
    pub name: String,
    /// Absent if no BMC is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<BmcDriver>,
    /// Address of the BMC; empty if it has none.
    pub address: String,
    /// Absent if the BMC does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PowerState>,
    /// Why the BMC does not report a state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// True if the agent of the node has a link.
    pub is_linked: bool,
    /// Requests to the BMC.
    pub verbs: Vec<BmcVerb>,
}

/// A request to a BMC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BmcVerb {
    pub verb: String,
    /// Why the request is impossible; absent if the BMC may carry it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impossible: Option<String>,
}

/// A sensor, as the BMC of a node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SensorView {
    pub name: String,
    /// Reading with its unit; empty if the sensor has none at present.
    pub reading: String,
    /// State in the words of the BMC, such as `ok`.
    pub state: String,
}

/// An event of the log of a BMC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BmcEventView {
    pub id: String,
    /// Time by the clock of the BMC.
    pub at: String,
    pub sensor: String,
    pub event: String,
    /// Severity, or whether the event came or went.
    pub state: String,
}

/// The version of a firmware of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FirmwareView {
    pub name: String,
    pub version: String,
}
