//! Slots: what of a node can be given to a virtual machine.

use meshd_model::work::{DeviceChoice, NearestDevices, Slot, SlotId, SlotState};
use meshd_proto::vm::DiskIdentity;
use meshd_types::MacAddr;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::Ipv4Addr};
use utoipa::ToSchema;

/// Body of an approval: what belongs to the slot beside its unit.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApproveSlot {
    /// A disk of the node, by its wwid or serial number; or `nearest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub disk: Option<DeviceChoice<DiskIdentity>>,
    /// A fabric device of the node, or `nearest`. Of slots that share one, one is given at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub fabric: Option<DeviceChoice<String>>,
    /// The MAC address of the card of whoever has it, where that machine's file says `slot = true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub mac: Option<MacAddr>,
    /// Its IPv4 address in a network of the site. It needs `mac`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotView {
    /// `<node>/<first function of its unit>`.
    #[schema(value_type = String)]
    pub id: SlotId,
    #[schema(value_type = String)]
    pub state: SlotState,
    /// Why, where that needs a word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Functions of its unit by address, with their IDs.
    pub functions: BTreeMap<String, String>,
    /// NUMA node of its unit.
    pub numa: Option<u32>,
    /// The disk that belongs to it.
    #[schema(value_type = Option<String>)]
    pub disk: Option<DiskIdentity>,
    /// The fabric device that belongs to it.
    pub fabric: Option<String>,
    /// The addresses that belong to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub mac: Option<MacAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
    /// The disk that is nearest to its unit, as its node tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_disk: Option<String>,
    /// The fabric device that is nearest to its unit, as its node tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_fabric: Option<String>,
    /// What of it is on another NUMA node than its unit: of what belongs to it, or of what is nearest while nobody approved it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mismatch: String,
    /// Somebody approved it.
    pub approved: bool,
}

impl From<Slot> for SlotView {
    fn from(slot: Slot) -> Self {
        let Slot { id, state, reason, numa, functions, approved, near, mismatch } = slot;
        let is_approved = approved.is_some();
        let nic = approved.as_ref().and_then(|approved| approved.nic);
        let (disk, fabric) = approved.map_or((None, None), |approved| (approved.disk, approved.fabric));
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
