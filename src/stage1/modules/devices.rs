//! Devices of this machine in sysfs: their modaliases, and PCI network devices without a driver.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
};

/// Class of network controllers in PCI.
const NETWORK_CLASS: &str = "0x02";

/// Returns the modaliases of all devices, by bus and class: a search of all folders below
/// `/sys/devices` takes five times as long. Devices may disappear while they are read.
pub fn modaliases(sysfs: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut read = |device: PathBuf| {
        let text = fs::read_to_string(device.join("modalias")).unwrap_or_default();
        found.extend(Some(text.trim().to_owned()).filter(|text| !text.is_empty()));
    };
    for bus in entries(&sysfs.join("bus")) {
        entries(&bus.join("devices")).for_each(&mut read);
    }
    entries(&sysfs.join("class")).for_each(|class| entries(&class).for_each(&mut read));
    // Processors.
    entries(&sysfs.join("devices/system")).for_each(&mut read);
    found
}

/// Returns the paths in a folder; none if it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// A PCI network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicDevice {
    /// Address, such as `0000:00:03.0`.
    pub address: String,
    /// Vendor and device ID, such as `8086:100e`.
    pub id: String,
    pub modalias: String,
    pub has_driver: bool,
}

impl fmt::Display for NicDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCI {} {} ({})", self.address, self.id, self.modalias)
    }
}

/// Returns the PCI network devices, by address.
pub fn network_devices(sysfs: &Path) -> Vec<NicDevice> {
    let Ok(entries) = fs::read_dir(sysfs.join("bus/pci/devices")) else { return Vec::new() };
    let device = |entry: fs::DirEntry| {
        let path = entry.path();
        let text = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
        let hex = |file: &str| text(file).trim().trim_start_matches("0x").to_owned();
        text("class").starts_with(NETWORK_CLASS).then(|| NicDevice {
            address: entry.file_name().to_string_lossy().into_owned(),
            id: format!("{}:{}", hex("vendor"), hex("device")),
            modalias: text("modalias").trim().to_owned(),
            has_driver: path.join("driver").exists(),
        })
    };
    let mut devices: Vec<_> = entries.flatten().filter_map(device).collect();
    devices.sort_by(|one, other| one.address.cmp(&other.address));
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modaliases_and_network_devices_of_a_tree_are_found() {
        let sysfs = tempfile::tempdir().expect("a folder");
        let device = sysfs.path().join("devices/pci0000:00/0000:00:03.0");
        fs::create_dir_all(&device).expect("made");
        for (file, text) in [
            ("modalias", "pci:v00008086d0000100E\n"),
            ("class", "0x020000\n"),
            ("vendor", "0x8086\n"),
            ("device", "0x100e\n"),
        ] {
            fs::write(device.join(file), text).expect("written");
        }
        let bus = sysfs.path().join("bus/pci/devices");
        fs::create_dir_all(&bus).expect("made");
        std::os::unix::fs::symlink(&device, bus.join("0000:00:03.0")).expect("linked");
        // A cycle of links is not followed.
        std::os::unix::fs::symlink("..", device.join("subsystem")).expect("linked");

        for (folder, modalias) in
            [("class/dmi/id", "dmi:x"), ("devices/system/cpu", "cpu:type:y\n")]
        {
            fs::create_dir_all(sysfs.path().join(folder)).expect("made");
            fs::write(sysfs.path().join(folder).join("modalias"), modalias).expect("written");
        }

        let expected = ["cpu:type:y", "dmi:x", "pci:v00008086d0000100E"];
        assert_eq!(modaliases(sysfs.path()), expected.map(str::to_owned).into());
        let found = network_devices(sysfs.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "PCI 0000:00:03.0 8086:100e (pci:v00008086d0000100E)");
        assert!(!found[0].has_driver);
    }
}
