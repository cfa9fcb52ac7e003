//! Hardware identity of a node: UUID, serial number and MAC, derived from its position.

use super::LabError;
use meshd_types::{Basis, MacAddr, NodeId, SystemUuid};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Maximum number of nodes in one rack; a /24 has enough addresses for their leases.
pub const MAX_NODES: u8 = 64;
/// SMBIOS manufacturer of every lab node.
pub const MANUFACTURER: &str = "meshd";
/// SMBIOS product of every lab node.
pub const PRODUCT: &str = "Rack in a Box";

/// SMBIOS identity and boot NIC of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub uuid: SystemUuid,
    pub serial: String,
    /// MAC address of the boot NIC.
    pub mac: MacAddr,
}

impl Identity {
    /// Returns the identity at a position, counted from 1.
    pub fn at(position: u8) -> Self {
        Identity {
            // "meshlab" and the position, as a UUID of version 4 and variant 1.
            uuid: SystemUuid([
                0x6d, 0x65, 0x73, 0x68, 0x6c, 0x61, 0x4b, 0x62, 0x80, 0, 0, 0, 0, 0, 0, position,
            ]),
            serial: format!("LAB-{position:04}"),
            mac: MacAddr([0x52, 0x54, 0x00, 0x6d, 0x68, position]),
        }
    }

    /// Returns the MAC addresses of the other NICs of a node with four.
    pub fn other_macs(&self) -> [MacAddr; 3] {
        [2, 3, 4].map(|number| {
            let [vendor, of, card, lab, rack, position] = self.mac.0;
            MacAddr([vendor, of, card, lab, rack.wrapping_add(number), position])
        })
    }

    /// Returns the name at a position: `node1`, `node2`...
    pub fn name_at(position: u8) -> String {
        format!("node{position}")
    }

    /// Returns the node ID that meshd derives from this identity.
    pub fn node_id(&self) -> NodeId {
        Basis::Uuid(self.uuid).node_id()
    }
}

/// Firmware of a node, and how it loads its first program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Firmware {
    /// SeaBIOS and the NIC's own iPXE.
    Bios,
    /// OVMF with its own PXE client, which loads `snponly.efi` by TFTP.
    Uefi,
    /// OVMF with PXE disabled: its HTTP boot client loads `snponly.efi`.
    UefiHttp,
}

impl Firmware {
    const ALL: [Firmware; 3] = [Firmware::Bios, Firmware::Uefi, Firmware::UefiHttp];

    /// Returns whether the firmware is OVMF, with UEFI variables.
    pub fn is_uefi(self) -> bool {
        self != Firmware::Bios
    }
}

impl fmt::Display for Firmware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Firmware::Bios => "bios",
            Firmware::Uefi => "uefi",
            Firmware::UefiHttp => "uefi-http",
        })
    }
}

impl FromStr for Firmware {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || {
            format!(
                "`{text}` is no firmware of the lab; known: bios, uefi, uefi-http, or several: bios,uefi"
            )
        };
        Firmware::ALL.into_iter().find(|firmware| firmware.to_string() == text).ok_or_else(unknown)
    }
}

/// Firmware of the nodes of a rack, assigned in rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix(Vec<Firmware>);

impl Mix {
    pub fn of<const N: usize>(rotation: [Firmware; N]) -> Self {
        const { assert!(N > 0, "a node has a firmware") };
        Mix(rotation.into())
    }

    /// Returns the firmware of the node at a position, counted from 1.
    pub fn at(&self, position: u8) -> Firmware {
        self.0[(usize::from(position).saturating_sub(1)) % self.0.len()]
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `mixed` alternates the two firmware kinds that every rack should be tested with.
        let text = if text == "mixed" { "bios,uefi" } else { text };
        text.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>().map(Mix)
    }
}

/// Model of the nodes' NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nic {
    /// `virtio-net-pci`.
    #[default]
    Virtio,
    /// Intel 82540EM.
    E1000,
    /// Realtek 8139, 10ec:8139: iPXE boots from it, and the Debian images have no driver for it.
    Rtl8139,
}

impl Nic {
    /// Returns QEMU's device name.
    pub fn device(self) -> &'static str {
        match self {
            Nic::Virtio => "virtio-net-pci",
            Nic::E1000 => "e1000",
            Nic::Rtl8139 => "rtl8139",
        }
    }
}

impl FromStr for Nic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "virtio" => Ok(Nic::Virtio),
            "e1000" => Ok(Nic::E1000),
            "rtl8139" => Ok(Nic::Rtl8139),
            _ => Err(format!(
                "`{text}` is no network card of the lab; known: virtio, e1000, rtl8139"
            )),
        }
    }
}

/// Hardware that all nodes of a rack have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    pub cpus: u8,
    pub memory_mib: u32,
    pub nic: Nic,
}

/// Minimum memory for booting, in MiB, because the root file system is in memory.
const LEAST_MEMORY_MIB: u32 = 768;

impl Shape {
    /// Refuses hardware that cannot boot.
    pub fn check(&self, nodes: u8) -> Result<(), LabError> {
        let fault = if nodes == 0 || nodes > MAX_NODES {
            format!("--nodes {nodes}: a rack has 1 to {MAX_NODES} nodes")
        } else if self.cpus == 0 {
            "--cpus 0: a node has at least one processor".to_owned()
        } else if self.memory_mib < LEAST_MEMORY_MIB {
            format!(
                "--memory {}: a node keeps its system in memory and needs {LEAST_MEMORY_MIB} MiB",
                self.memory_mib
            )
        } else {
            return Ok(());
        };
        Err(LabError::Options(fault))
    }
}

impl Default for Shape {
    fn default() -> Self {
        Shape { cpus: 2, memory_mib: 1024, nic: Nic::Virtio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_positions_have_distinct_valid_identities() {
        let all: std::collections::BTreeSet<_> =
            (1..=MAX_NODES).map(|position| Identity::at(position).node_id()).collect();
        assert_eq!(all.len(), usize::from(MAX_NODES));
        assert!(!Identity::at(1).uuid.is_placeholder() && !Identity::at(1).mac.is_multicast());
    }

    #[test]
    fn mixed_firmware_alternates_starting_with_bios() {
        let mix: Mix = "mixed".parse().expect("known");
        assert_eq!(
            [1, 2, 3].map(|position| mix.at(position)),
            [Firmware::Bios, Firmware::Uefi, Firmware::Bios]
        );
    }

    #[test]
    fn firmware_mix_round_trips_as_text() {
        for firmware in Firmware::ALL {
            assert_eq!(firmware.to_string().parse(), Ok(Mix::of([firmware])));
            assert_eq!(
                serde_json::to_value(firmware).expect("a word"),
                firmware.to_string().as_str()
            );
        }
        assert_eq!("bios, uefi-http".parse(), Ok(Mix::of([Firmware::Bios, Firmware::UefiHttp])));
        for wrong in ["", "bios,", "coreboot"] {
            assert!(
                wrong.parse::<Mix>().is_err_and(|error| error.contains("uefi-http")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn nic_round_trips_as_text_and_unknown_nic_is_refused() {
        for (text, nic) in
            [("virtio", Nic::Virtio), ("e1000", Nic::E1000), ("rtl8139", Nic::Rtl8139)]
        {
            assert_eq!(text.parse(), Ok(nic));
            assert_eq!(serde_json::to_value(nic).expect("a word"), text);
        }
        assert!("ne2k".parse::<Nic>().is_err_and(|error| error.contains("rtl8139")));
    }

    #[test]
    fn rack_with_too_little_memory_or_no_node_is_refused() {
        let small = Shape { memory_mib: 256, ..Shape::default() };
        assert!(small.check(1).is_err_and(|error| error.to_string().contains("768 MiB")));
        assert!(Shape::default().check(0).is_err());
        assert!(Shape::default().check(2).is_ok());
    }
}
