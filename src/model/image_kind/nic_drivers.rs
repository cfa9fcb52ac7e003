//! The NICs that the initramfs of an image drives. iPXE names the NIC that a machine boots from, so
//! a machine that could not fetch its root is refused before it loads a kernel.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, str::FromStr};

/// Aliases beyond this number are taken for unknown drivers: Debian's kernel has about 3,000 for
/// all NICs.
const MAX_PATTERNS: usize = 8192;
/// Vendor of virtio devices, all of which belong to `virtio_pci`.
const VIRTIO: u16 = 0x1af4;
/// In an alias, the class of network controllers.
const NETWORK_CLASS: &str = "bc02";

/// Vendor and device of a PCI function, such as `8086:100e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciId {
    pub vendor: u16,
    pub device: u16,
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

/// PCI functions with a driver; an absent part matches each value. Text: `8086:100e`, `1af4:*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct NicPattern {
    vendor: Option<u16>,
    device: Option<u16>,
}

impl NicPattern {
    /// Reads an alias of a module, such as `pci:v00008086d0000100Esv*sd*bc*sc*i*`. `None` for other
    /// buses, and for devices of all vendors that are no NICs.
    fn from_alias(alias: &str) -> Option<Self> {
        let (vendor, rest) = alias.strip_prefix("pci:v")?.split_once('d')?;
        let (device, rest) = rest.split_once("sv")?;
        let pattern = NicPattern { vendor: hex_or_any(vendor)?, device: hex_or_any(device)? };
        let is_specific = pattern.vendor.is_some() || rest.contains(NETWORK_CLASS);
        is_specific.then_some(pattern)
    }

    fn matches(self, nic: PciId) -> bool {
        self.vendor.is_none_or(|vendor| vendor == nic.vendor)
            && self.device.is_none_or(|device| device == nic.device)
    }
}

/// Reads a hexadecimal number or `*`, which is `Some(None)`.
fn hex_or_any(text: &str) -> Option<Option<u16>> {
    match text {
        "*" => Some(None),
        text => u16::try_from(u32::from_str_radix(text, 16).ok()?).ok().map(Some),
    }
}

impl FromStr for NicPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (vendor, device) = text.split_once(':')?;
            Some(NicPattern { vendor: hex_or_any(vendor)?, device: hex_or_any(device)? })
        };
        parse().ok_or_else(|| format!("`{text}` is not a PCI ID such as 8086:100e"))
    }
}

impl TryFrom<String> for NicPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<NicPattern> for String {
    fn from(NicPattern { vendor, device }: NicPattern) -> Self {
        let part =
            |id: Option<u16>| id.map_or_else(|| "*".to_owned(), |number| format!("{number:04x}"));
        format!("{}:{}", part(vendor), part(device))
    }
}

/// PCI functions that an initramfs has a driver for, NICs among them. Empty if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NicDrivers(BTreeSet<NicPattern>);

impl NicDrivers {
    /// Reads the aliases of the modules of an initramfs. `has_virtio_net`: `virtio_pci` alone drives
    /// no NIC.
    pub fn from_aliases<'a>(
        aliases: impl Iterator<Item = &'a str>,
        has_virtio_net: bool,
    ) -> NicDrivers {
        let is_driven = |pattern: &NicPattern| has_virtio_net || pattern.vendor != Some(VIRTIO);
        let mut patterns = BTreeSet::new();
        for pattern in aliases.filter_map(NicPattern::from_alias).filter(is_driven) {
            patterns.insert(pattern);
            if patterns.len() > MAX_PATTERNS {
                return NicDrivers::default();
            }
        }
        NicDrivers(patterns)
    }

    pub fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a NIC may have a driver. Aliases with subsystems count for all subsystems.
    pub fn may_drive(&self, nic: PciId) -> bool {
        self.is_unknown() || self.0.iter().any(|pattern| pattern.matches(nic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALIASES: [&str; 6] = [
        "pci:v00008086d0000100Esv*sd*bc*sc*i*",
        "pci:v00001AF4d*sv*sd*bc*sc*i*",
        "pci:v000014E4d00001657sv0000103Csd000022EBbc*sc*i*",
        "pci:v*d*sv*sd*bc01sc06i01*",
        "usb:v0BDAp8153d*dc*dsc*dp*ic*isc*ip*in*",
        "pci:v0000zzzzd0000100Esv*sd*bc*sc*i*",
    ];

    fn nic(vendor: u16, device: u16) -> PciId {
        PciId { vendor, device }
    }

    #[test]
    fn nic_is_driven_by_ids_of_aliases_alone() {
        let drivers = NicDrivers::from_aliases(ALIASES.into_iter(), true);
        for (nic, expected) in [
            (nic(0x8086, 0x100e), true),
            (nic(0x8086, 0x100f), false),
            (nic(0x1af4, 0x1041), true),
            (nic(0x14e4, 0x1657), true),
            (nic(0x10ec, 0x8139), false),
        ] {
            assert_eq!(drivers.may_drive(nic), expected, "{nic}");
        }
        let no_virtio = NicDrivers::from_aliases(ALIASES.into_iter(), false);
        assert!(!no_virtio.may_drive(nic(0x1af4, 0x1000)), "virtio_pci without virtio_net");
        let generic = ["pci:v*d*sv*sd*bc02sc00i*"];
        assert!(NicDrivers::from_aliases(generic.into_iter(), true).may_drive(nic(0x10ec, 0x8139)));
    }

    #[test]
    fn unknown_drivers_refuse_no_nic() {
        assert!(NicDrivers::default().may_drive(nic(0x10ec, 0x8139)));
        let many: Vec<String> = (0..=MAX_PATTERNS)
            .map(|device| format!("pci:v00008086d{device:08X}sv*sd*bc*sc*i*"))
            .collect();
        assert!(NicDrivers::from_aliases(many.iter().map(String::as_str), true).is_unknown());
    }

    #[test]
    fn drivers_round_trip_as_text() {
        let drivers = NicDrivers::from_aliases(ALIASES.into_iter(), true);
        let text = serde_json::to_string(&drivers).unwrap();
        assert_eq!(text, r#"["14e4:1657","1af4:*","8086:100e"]"#);
        assert_eq!(serde_json::from_str::<NicDrivers>(&text).unwrap(), drivers);
        for wrong in [r#"["8086"]"#, r#"["8086:10000"]"#, r#"["x:*"]"#] {
            assert!(serde_json::from_str::<NicDrivers>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_alias_is_read_without_panic(alias in "(pci:v)?[0-9A-F*dsv:bc]{0,40}") {
            let _ = NicDrivers::from_aliases([alias.as_str()].into_iter(), true);
        }
    }
}
