//! Expected machines: what an operator defines before a machine boots.
//!
//! | module | content |
//! | --- | --- |
//! | `rows` | rows of a list of machines as text, and their faults |
//! | here | the record |
//!
//! The ID of a node follows from its hardware, so it is unknown before the machine boots. The MAC
//! address of its boot NIC identifies the record.

pub mod rows;

use super::{Labels, Node};
use meshd_types::{
    BmcDriver, LabelKey, LabelValue, MacAddr, NodeId, ProfileName, Timestamp, failpoint,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Maximum number of expected machines, with those that have appeared.
pub const MAX_EXPECTED_MACHINES: usize = 16_384;

/// A machine that an operator expects. Its address is reserved from now on; everything else applies
/// when the machine appears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExpectedMachine {
    /// MAC address of the boot NIC.
    pub mac: MacAddr,
    /// Name of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Reserved address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
    /// Profile of the node; `None` means the default of the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<LabelKey, LabelValue>,
    /// Serial number that the machine must report, in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Protocol of the BMC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc_driver: Option<BmcDriver>,
    /// Address or host name of the BMC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc_address: Option<String>,
    /// MAC address of the BMC, whose lease has its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc_mac: Option<MacAddr>,
    /// The machine is approved when it appears: the last import decides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approved: bool,
    pub created_at: Timestamp,
    /// The node that the machine has become; `None` before it appears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
}

impl ExpectedMachine {
    /// Creates the record of a machine without further settings.
    pub fn new(mac: MacAddr, created_at: Timestamp) -> Self {
        ExpectedMachine {
            mac,
            name: None,
            address: None,
            profile: None,
            labels: Labels::new(),
            serial: None,
            bmc_driver: None,
            bmc_address: None,
            bmc_mac: None,
            approved: false,
            created_at,
            node: None,
        }
    }

    /// Returns whether a node with the MAC address of this record may be the machine. A record that
    /// has become a node accepts that node alone: a MAC address is easy to forge. A record without
    /// a serial number accepts any.
    pub fn accepts(&self, node: &Node) -> bool {
        let reported = node.fingerprint.serial.trim().to_lowercase();
        let is_free = self.node.is_none() || !failpoint::defends("expected-node");
        (is_free || self.has_become(node))
            && self.serial.as_ref().is_none_or(|serial| *serial == reported)
    }

    /// Returns whether the machine has become this node, also under a former ID of the node.
    pub fn has_become(&self, node: &Node) -> bool {
        self.node.is_some_and(|id| node.known_as().any(|known| known == id))
    }

    /// Returns the name, or the MAC address of a machine without one.
    pub fn title(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.mac.to_string())
    }
}
