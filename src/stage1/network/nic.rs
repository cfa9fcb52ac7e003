//! Finds the NIC that the machine boots from.

use crate::modules::{ModuleIndex, NicDevice};
use meshd_types::MacAddr;
use std::{fs, path::Path};

/// Type of Ethernet interfaces in sysfs (`ARPHRD_ETHER`).
const ETHERNET: &str = "1";

/// Returns the name of the interface with a MAC address, such as `eth0`.
pub fn interface_of(sysfs: &Path, mac: MacAddr) -> Option<String> {
    let interfaces = fs::read_dir(sysfs.join("class/net")).ok()?;
    interfaces.flatten().find_map(|interface| {
        let text = |file| fs::read_to_string(interface.path().join(file)).unwrap_or_default();
        let is_it = text("type").trim() == ETHERNET && text("address").trim().parse() == Ok(mac);
        is_it.then(|| interface.file_name().into_string().ok())?
    })
}

/// Returns true if an interface that is up has a link.
pub fn has_carrier(sysfs: &Path, interface: &str) -> bool {
    fs::read_to_string(sysfs.join("class/net").join(interface).join("carrier"))
        .is_ok_and(|carrier| carrier.trim() == "1")
}

/// Explains why no interface has the MAC address: names each network device without a driver, and
/// why it has none. `error` returns the error of a module.
pub fn explain_missing_nic(
    devices: &[NicDevice],
    index: &ModuleIndex,
    error: impl Fn(&str) -> Option<String>,
) -> String {
    let without: Vec<String> = devices
        .iter()
        .filter(|device| !device.has_driver)
        .map(|device| format!("{device} {}", explain_missing_driver(device, index, &error)))
        .collect();
    match (devices.len(), without.is_empty()) {
        (0, _) => "the kernel sees no PCI network device".to_owned(),
        (count, true) => format!("all {count} PCI network devices have a driver"),
        _ => without.join("; "),
    }
}

fn explain_missing_driver(
    device: &NicDevice,
    index: &ModuleIndex,
    error: &impl Fn(&str) -> Option<String>,
) -> String {
    let modules = index.with_alias(&device.modalias);
    if modules.is_empty() {
        return "has no module in the initramfs".to_owned();
    }
    let explained = modules.iter().map(|module| match error(module) {
        _ if !index.contains(module) => format!("needs module {module}, which is missing"),
        Some(cause) => format!("module {module} was not loaded: {cause}"),
        None => format!("module {module} is loaded, but does not drive it"),
    });
    explained.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(has_driver: bool) -> NicDevice {
        NicDevice {
            address: "0000:00:03.0".into(),
            id: "8086:100e".into(),
            modalias: "pci:v00008086d0000100E".into(),
            has_driver,
        }
    }

    fn explain(dependencies: &str, aliases: &str, error: Option<&str>) -> String {
        let index = ModuleIndex::parse(dependencies, aliases);
        explain_missing_nic(&[device(false)], &index, |_| error.map(str::to_owned))
    }

    #[test]
    fn nic_without_driver_is_named_with_its_cause() {
        let alias = "alias pci:v00008086d0000100E* e1000";
        let name = "PCI 0000:00:03.0 8086:100e (pci:v00008086d0000100E)";
        for (actual, cause) in [
            (explain("", "", None), "has no module in the initramfs"),
            (explain("", alias, None), "needs module e1000, which is missing"),
            (explain("e1000.ko:", alias, Some("EIO")), "module e1000 was not loaded: EIO"),
            (explain("e1000.ko:", alias, None), "module e1000 is loaded, but does not drive it"),
        ] {
            assert_eq!(actual, format!("{name} {cause}"));
        }
        let index = ModuleIndex::default();
        let none = explain_missing_nic(&[], &index, |_| None);
        assert_eq!(none, "the kernel sees no PCI network device");
        let driven = explain_missing_nic(&[device(true)], &index, |_| None);
        assert_eq!(driven, "all 1 PCI network devices have a driver");
    }

    #[test]
    fn interface_is_found_by_address_and_type() {
        let sysfs = tempfile::tempdir().expect("a folder");
        let add = |name: &str, address: &str, kind: &str| {
            let folder = sysfs.path().join("class/net").join(name);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("address"), address).expect("written");
            fs::write(folder.join("type"), kind).expect("written");
        };
        add("lo", "00:00:00:00:00:00\n", "772\n");
        add("eth1", "02:00:00:00:00:07\n", "1\n");
        let mac = |text: &str| text.parse().expect("a MAC address");
        assert_eq!(interface_of(sysfs.path(), mac("02:00:00:00:00:07")).as_deref(), Some("eth1"));
        assert_eq!(interface_of(sysfs.path(), mac("02:00:00:00:00:08")), None);
        assert_eq!(interface_of(sysfs.path(), mac("00:00:00:00:00:00")), None, "the loopback");
    }
}
