//! Hardware identity of a node: UUID, serial number and MAC, derived from its position.

use super::LabError;
use meshd_types::{Basis, MacAddr, NodeId, SystemUuid};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Most nodes in one rack: a /24 with room for leases.
pub const MAX_NODES: u8 = 64;
/// SMBIOS manufacturer of every lab node.
pub const MANUFACTURER: &str = "meshd";
/// SMBIOS product of every lab node.
pub const PRODUCT: &str = "Rack in a Box";

/// What a machine tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// SMBIOS system UUID.
    pub uuid: SystemUuid,
    /// SMBIOS system serial number.
    pub serial: String,
    /// The NIC that it boots from.
    pub mac: MacAddr,
}

impl Identity {
    /// Of the node at this place, counted from 1.
    pub fn at(place: u8) -> Self {
        Identity {
            // "meshlab", then the place: of version 4 and variant 1, as firmware would make it.
            uuid: SystemUuid([0x6d, 0x65, 0x73, 0x68, 0x6c, 0x61, 0x4b, 0x62, 0x80, 0, 0, 0, 0, 0, 0, place]),
            serial: format!("LAB-{place:04}"),
            mac: MacAddr([0x52, 0x54, 0x00, 0x6d, 0x68, place]),
        }
    }

    /// The name of the node at this place: `node1`, `node2`...
    pub fn name_at(place: u8) -> String {
        format!("node{place}")
    }

    /// The node ID that meshd will derive from it.
    pub fn node_id(&self) -> NodeId {
        Basis::Uuid(self.uuid).node_id()
    }
}

/// How a node's firmware loads its first program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Firmware {
    /// SeaBIOS and the NIC's own iPXE.
    Bios,
    /// OVMF and its own PXE client, which fetches `snponly.efi` by TFTP.
    Uefi,
    /// OVMF with PXE switched off in its set-up: its own HTTP boot client fetches `snponly.efi`.
    UefiHttp,
}

impl Firmware {
    /// True if it is OVMF, with variables of its own.
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
        match text {
            "bios" => Ok(Firmware::Bios),
            "uefi" => Ok(Firmware::Uefi),
            "uefi-http" => Ok(Firmware::UefiHttp),
            _ => {
                Err(format!("`{text}` is no firmware of the lab; known: bios, uefi, uefi-http, or several: bios,uefi"))
            }
        }
    }
}

/// Which firmware the nodes of a rack have: one for all, or several by turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix(Vec<Firmware>);

impl Mix {
    /// By turns; a list of one is for all.
    pub fn of<const N: usize>(turns: [Firmware; N]) -> Self {
        const { assert!(N > 0, "a node has a firmware") };
        Mix(turns.into())
    }

    /// Of the node at this place, counted from 1.
    pub fn at(&self, place: u8) -> Firmware {
        self.0[(usize::from(place).saturating_sub(1)) % self.0.len()]
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The word for the two that every rack should be tried with.
        let text = if text == "mixed" { "bios,uefi" } else { text };
        text.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>().map(Mix)
    }
}

/// The network card of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nic {
    /// `virtio-net-pci`.
    #[default]
    Virtio,
    /// Intel 82540EM, as old servers have it.
    E1000,
}

impl Nic {
    /// QEMU's name of the device.
    pub fn device(self) -> &'static str {
        match self {
            Nic::Virtio => "virtio-net-pci",
            Nic::E1000 => "e1000",
        }
    }
}

impl FromStr for Nic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "virtio" => Ok(Nic::Virtio),
            "e1000" => Ok(Nic::E1000),
            _ => Err(format!("`{text}` is no network card of the lab; known: virtio, e1000")),
        }
    }
}

/// What every node of a rack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Virtual processors.
    pub cpus: u8,
    pub memory_mib: u32,
    /// Network card.
    pub nic: Nic,
}

/// A node's root file system is in memory: less than this does not boot.
const LEAST_MEMORY_MIB: u32 = 768;

impl Shape {
    /// Refuses what does not boot.
    pub fn check(&self, nodes: u8) -> Result<(), LabError> {
        let fault = if nodes == 0 || nodes > MAX_NODES {
            format!("--nodes {nodes}: a rack has 1 to {MAX_NODES} nodes")
        } else if self.cpus == 0 {
            "--cpus 0: a node has at least one processor".to_owned()
        } else if self.memory_mib < LEAST_MEMORY_MIB {
            format!("--memory {}: a node keeps its system in memory and needs {LEAST_MEMORY_MIB} MiB", self.memory_mib)
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
    fn every_place_is_another_machine_that_identifies_itself() {
        let all: std::collections::BTreeSet<_> = (1..=MAX_NODES).map(|place| Identity::at(place).node_id()).collect();
        assert_eq!(all.len(), usize::from(MAX_NODES));
        assert!(!Identity::at(1).uuid.is_placeholder() && !Identity::at(1).mac.is_multicast());
    }

    #[test]
    fn mixed_rack_begins_with_bios() {
        let mix: Mix = "mixed".parse().expect("known");
        assert_eq!([1, 2, 3].map(|place| mix.at(place)), [Firmware::Bios, Firmware::Uefi, Firmware::Bios]);
    }

    #[test]
    fn firmware_kinds_alternate_and_round_trip() {
        for firmware in [Firmware::Bios, Firmware::Uefi, Firmware::UefiHttp] {
            assert_eq!(firmware.to_string().parse(), Ok(Mix::of([firmware])));
            assert_eq!(serde_json::to_value(firmware).expect("a word"), firmware.to_string().as_str());
        }
        assert_eq!("bios, uefi-http".parse(), Ok(Mix::of([Firmware::Bios, Firmware::UefiHttp])));
        for wrong in ["", "bios,", "coreboot"] {
            assert!(wrong.parse::<Mix>().is_err_and(|told| told.contains("uefi-http")), "{wrong}");
        }
    }

    #[test]
    fn rack_that_cannot_boot_is_refused_with_an_error() {
        let small = Shape { memory_mib: 256, ..Shape::default() };
        assert!(small.check(1).is_err_and(|error| error.to_string().contains("768 MiB")));
        assert!(Shape::default().check(0).is_err());
        assert!(Shape::default().check(2).is_ok());
    }
}
