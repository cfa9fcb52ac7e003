//! PCI addresses and selectors: `class:0300`, `vendor:10de`, `device:8086:100e`,
//! `address:0000:01:00.0`.

use crate::{ParseError, unhex};
use std::{fmt, str::FromStr};

/// Selects the PCI functions that a profile binds to vfio-pci.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VfioSelector {
    /// `class:0300`: base class and sub-class.
    Class(u16),
    /// `vendor:10de`.
    Vendor(u16),
    /// `device:8086:100e`.
    Device(u16, u16),
    /// `address:0000:01:00.0`, lower-case.
    Address(String),
}

/// Address of a PCI function, as in sysfs: `0000:01:00.0`, lower-case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress(String);

impl PciAddress {
    /// Returns the address as in sysfs.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PciAddress {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hint = "write domain, bus, device and function: 0000:01:00.0";
        let error = || ParseError::of_text(text, "is not a PCI address", hint);
        address(text).map(PciAddress).ok_or_else(error)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::serde_as_text!(PciAddress);

/// Parses four hexadecimal digits, as sysfs and lspci write IDs.
fn id(text: &str) -> Option<u16> {
    unhex::<2>(text).map(u16::from_be_bytes)
}

/// Parses a sysfs address: domain, bus, device (0 to 1f) and function (0 to 7).
fn address(text: &str) -> Option<String> {
    let (rest, function) = text.split_once('.')?;
    let parts: Vec<&str> = rest.split(':').collect();
    let [domain, bus, device] = parts.as_slice() else { return None };
    let [device] = unhex::<1>(device)?;
    id(domain)?;
    unhex::<1>(bus)?;
    let sound = device <= 0x1f && matches!(function.as_bytes(), [b'0'..=b'7']);
    sound.then(|| text.to_ascii_lowercase())
}

/// Address and IDs of one PCI function from sysfs. Each ID has four lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub struct PciName<'a> {
    /// `0000:01:00.0`.
    pub address: &'a str,
    /// Vendor ID.
    pub vendor: &'a str,
    /// Device ID.
    pub device: &'a str,
    /// Base class and sub-class.
    pub class: &'a str,
}

impl VfioSelector {
    /// Returns true if the selector matches the function.
    pub fn matches(&self, function: PciName<'_>) -> bool {
        let is = |text: &str, number: u16| id(text) == Some(number);
        match self {
            VfioSelector::Class(class) => is(function.class, *class),
            VfioSelector::Vendor(vendor) => is(function.vendor, *vendor),
            VfioSelector::Device(vendor, device) => {
                is(function.vendor, *vendor) && is(function.device, *device)
            }
            VfioSelector::Address(address) => function.address.eq_ignore_ascii_case(address),
        }
    }
}

impl FromStr for VfioSelector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = match text.split_once(':') {
            Some(("class", class)) => id(class).map(VfioSelector::Class),
            Some(("vendor", vendor)) => id(vendor).map(VfioSelector::Vendor),
            Some(("device", pair)) => pair
                .split_once(':')
                .and_then(|(vendor, device)| id(vendor).zip(id(device)))
                .map(|(vendor, device)| VfioSelector::Device(vendor, device)),
            Some(("address", text)) => address(text).map(VfioSelector::Address),
            _ => None,
        };
        let hint = "write class:0300, vendor:10de, device:8086:100e or address:0000:01:00.0";
        read.ok_or_else(|| ParseError::of_text(text, "selects no PCI device", hint))
    }
}

impl fmt::Display for VfioSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VfioSelector::Class(class) => write!(f, "class:{class:04x}"),
            VfioSelector::Vendor(vendor) => write!(f, "vendor:{vendor:04x}"),
            VfioSelector::Device(vendor, device) => write!(f, "device:{vendor:04x}:{device:04x}"),
            VfioSelector::Address(address) => write!(f, "address:{address}"),
        }
    }
}

crate::serde_as_text!(VfioSelector);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn malformed_vfio_selector_is_refused() {
        for text in [
            "",
            "10de",
            "class:3",
            "vendor:10dg",
            "device:8086",
            "address:01:00.0",
            "address:0000:01:20.0",
        ] {
            assert!(text.parse::<VfioSelector>().is_err(), "{text}");
        }
        for text in ["class:0300", "vendor:10de", "device:8086:100e", "address:0000:01:1f.7"] {
            assert_eq!(
                text.parse::<VfioSelector>().map(|one| one.to_string()).as_deref(),
                Ok(text)
            );
        }
    }

    #[test]
    fn pci_address_needs_domain_and_is_lower_case() {
        assert_eq!(
            "0000:0A:00.0".parse::<PciAddress>().map(|one| one.to_string()).as_deref(),
            Ok("0000:0a:00.0")
        );
        for text in
            ["", "0a:00.0", "0000:0a:00", "0000:0a:00.8", "0000:0a:20.0", "0000:0a:00.0,x-vga=on"]
        {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn vfio_selector_matches_exact_sysfs_values_only() {
        let gpu =
            PciName { address: "0000:0a:00.0", vendor: "10de", device: "2335", class: "0302" };
        for text in ["class:0302", "vendor:10DE", "device:10de:2335", "address:0000:0A:00.0"] {
            assert!(text.parse::<VfioSelector>().expect("a selector").matches(gpu), "{text}");
        }
        for text in [
            "class:0300",
            "vendor:1002",
            "device:10de:2330",
            "device:1002:2335",
            "address:0000:0a:00.1",
        ] {
            assert!(!text.parse::<VfioSelector>().expect("a selector").matches(gpu), "{text}");
        }
        let torn = PciName { address: "", vendor: "", device: "", class: "" };
        assert!(!VfioSelector::Vendor(0).matches(torn));
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "(class|vendor|device|address):\\PC{0,14}") {
            let _ = text.parse::<VfioSelector>();
        }
    }
}
