//! Slots: units of nodes with the resources that a VM receives with them.

use meshd_model::work::{DeviceChoice, NearestDevices, Slot, SlotId, SlotState};
use meshd_proto::DiskIdentity;
use meshd_types::MacAddr;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::Ipv4Addr};
use utoipa::ToSchema;

/// Body of `slots/{node}/{unit}/approve`: the resources that the slot receives in addition to its
/// unit.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApproveSlot {
    /// Disk of the node, by WWID or serial number, or `nearest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub disk: Option<DeviceChoice<DiskIdentity>>,
    /// Fabric device of the node, or `nearest`. Slots that share a fabric device cannot be
    /// allocated at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub fabric: Option<DeviceChoice<String>>,
    /// MAC address of the VM's NIC, used if the VM specification sets `slot = true` for the NIC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// IPv4 address of the VM's NIC, in a network of the site. Requires `mac`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotView {
    /// Slot ID: `<node>/<first PCI function of the unit>`.
    pub id: SlotId,
    pub state: SlotState,
    /// Reason for the state; absent if the state needs none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// PCI functions of the unit: an object that maps PCI addresses to vendor and device IDs.
    pub functions: BTreeMap<String, String>,
    /// NUMA node of the unit.
    pub numa: Option<u32>,
    /// Disk of the slot, by WWID or serial number.
    pub disk: Option<DiskIdentity>,
    /// Fabric device of the slot.
    pub fabric: Option<String>,
    /// MAC address of the NIC that the VM receives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
    /// Disk nearest to the unit, as reported by the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_disk: Option<String>,
    /// Fabric device nearest to the unit, as reported by the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_fabric: Option<String>,
    /// Resources on another NUMA node than the unit. Before approval, this field describes the
    /// nearest resources.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mismatch: String,
    /// True if an operator approved the slot.
    pub approved: bool,
}

impl From<Slot> for SlotView {
    fn from(slot: Slot) -> Self {
        let Slot { id, state, reason, numa, functions, approved, near, mismatch } = slot;
        let is_approved = approved.is_some();
        let nic = approved.as_ref().and_then(|approved| approved.nic);
        let (disk, fabric) =
            approved.map_or((None, None), |approved| (approved.disk, approved.fabric));
        let NearestDevices { disk: near_disk, fabric: near_fabric } = near;
        SlotView {
            id,
            state,
            reason,
            functions,
            numa,
            disk,
            fabric,
            mac: nic.map(|nic| nic.mac),
            address: nic.and_then(|nic| nic.address),
            near_disk,
            near_fabric,
            mismatch,
            approved: is_approved,
        }
    }
}
