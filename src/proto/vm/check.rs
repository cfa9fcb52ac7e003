//! Limits and consistency rules of a VM specification, checked by the central node and by the
//! agent.

use super::{Firmware, MachineType, Nic, RestartPolicy, VmSpec, VolumeSource};
use std::{collections::BTreeSet, fmt::Display, net::Ipv4Addr, ops::RangeInclusive};

/// More than 288 CPUs need a chipset that QEMU 7.2 does not have.
const VCPUS: RangeInclusive<u32> = 1..=288;
/// Maximum number of CPUs of machine type `pc`.
const MAX_VCPUS_PC: u32 = 255;
const MEMORY_MIB: RangeInclusive<u64> = 16..=64 * 1024 * 1024;
/// IDE has four ports, and the cloud-init disk uses one: three CDs.
const MAX_VOLUMES: usize = 8;
const MAX_CDS: usize = 3;
const MAX_NICS: usize = 4;
const MAX_UNITS: usize = 32;
/// Maximum length of a cloud-init text in bytes. Three of them fit into one message.
pub const MAX_SEED_TEXT: usize = 64 * 1024;
/// Size of a disk, in MiB.
const VOLUME_MIB: RangeInclusive<u64> = 1..=1024 * 1024 * 1024;
const MAX_NUMA_NODE: u32 = 1023;
/// Seconds before a restart.
const DELAY_S: RangeInclusive<u32> = 1..=3600;
/// Restarts in a row.
const ATTEMPTS: RangeInclusive<u32> = 1..=1000;
/// Seconds of running after which the restart count is reset.
const STABLE_S: RangeInclusive<u32> = 10..=7 * 24 * 3600;

/// A fault of a VM specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecFault {
    /// Key in vm.toml: `memory`, `volume[1].size`.
    pub key: String,
    pub message: String,
    pub hint: String,
}

#[derive(Default)]
struct Faults(Vec<SpecFault>);

impl Faults {
    fn add(&mut self, key: impl Into<String>, message: impl Into<String>, hint: impl Into<String>) {
        self.0.push(SpecFault { key: key.into(), message: message.into(), hint: hint.into() });
    }

    fn bound<T: PartialOrd + Display>(
        &mut self,
        key: &str,
        value: T,
        bounds: &RangeInclusive<T>,
        unit: &str,
    ) {
        if !bounds.contains(&value) {
            let hint = format!("write {} to {}{unit}", bounds.start(), bounds.end());
            self.add(key, format!("{value}{unit} is out of range"), hint);
        }
    }

    fn count(&mut self, key: &str, noun: &str, count: usize, max: usize) {
        if count > max {
            self.add(key, format!("{count} {noun}"), format!("at most {max}"));
        }
    }

    fn duplicates<T: Ord + Display>(
        &mut self,
        list: &str,
        field: &str,
        values: impl Iterator<Item = T>,
    ) {
        let mut earlier = BTreeSet::new();
        for (index, value) in values.enumerate() {
            let message = format!("`{value}` occurs twice in {list}");
            if !earlier.insert(value) {
                self.add(format!("{list}[{index}]{field}"), message, "remove one");
            }
        }
    }
}

impl VmSpec {
    /// Returns all faults that do not depend on the node.
    pub fn faults(&self) -> Vec<SpecFault> {
        let mut faults = Faults::default();
        self.machine_faults(&mut faults);
        self.volume_faults(&mut faults);
        self.nic_faults(&mut faults);
        self.seed_faults(&mut faults);
        restart_faults(&self.restart, &mut faults);
        faults.0
    }

    fn machine_faults(&self, faults: &mut Faults) {
        faults.bound("vcpus", self.vcpus, &VCPUS, "");
        faults.bound("memory", self.memory.mib(), &MEMORY_MIB, "M");
        if !self.memory.bytes().is_multiple_of(1 << 20) {
            faults.add(
                "memory",
                format!("`{}` is not a whole number of MiB", self.memory),
                "write it in M or G",
            );
        }
        if self.uuid.is_placeholder() {
            faults.add(
                "uuid",
                format!("`{}` is a placeholder", self.uuid),
                "omit it, or write a random UUID",
            );
        }
        if let Some(node) = self.numa_node {
            faults.bound("numa_node", node, &(0..=MAX_NUMA_NODE), "");
        }
        if self.secure_boot && self.firmware == Firmware::Bios {
            faults.add(
                "secure_boot",
                "a BIOS has no Secure Boot",
                "write firmware = \"uefi\", or remove secure_boot",
            );
        }
        if self.machine == MachineType::Pc {
            let hint = "write machine = \"q35\"";
            if self.vcpus > MAX_VCPUS_PC {
                faults.add("machine", format!("`pc` supports at most {MAX_VCPUS_PC} CPUs"), hint);
            }
            if self.secure_boot {
                faults.add("machine", "`pc` does not support Secure Boot", hint);
            }
            if !self.units.is_empty() {
                faults.add("machine", "`pc` has no PCI Express for units", hint);
            }
        }
        faults.count("units", "units", self.units.len(), MAX_UNITS);
        faults.duplicates("units", "", self.units.iter());
    }

    fn volume_faults(&self, faults: &mut Faults) {
        let volumes = &self.volumes;
        let cds = volumes
            .iter()
            .filter(|volume| matches!(volume.source, VolumeSource::Iso { .. }))
            .count();
        faults.count("volume", "volumes", volumes.len(), MAX_VOLUMES);
        faults.count("volume", "CDs", cds, MAX_CDS);
        faults.duplicates("volume", ".name", volumes.iter().map(|volume| &volume.name));
        let mut disks = BTreeSet::new();
        for (index, volume) in volumes.iter().enumerate() {
            match &volume.source {
                VolumeSource::Raw { disk, .. }
                    if disk.identity().is_some_and(|disk| !disks.insert(disk)) =>
                {
                    let message = format!("`{disk}` occurs twice in volume");
                    faults.add(format!("volume[{index}].disk"), message, "remove one");
                }
                VolumeSource::Qcow2 { size: Some(size), .. } => {
                    faults.bound(&format!("volume[{index}].size"), size.mib(), &VOLUME_MIB, "M");
                }
                _ => {}
            }
        }
    }

    fn nic_faults(&self, faults: &mut Faults) {
        let is_private = |nic: &Nic| nic.network().is_some_and(|network| network.is_private());
        if self.ready.is_some() && !self.nics.iter().any(is_private) {
            let hint = "add a NIC with bridge = \"mesh-nat0\", or remove ready";
            faults.add("ready", "the node reaches guests only in its private network", hint);
        }
        faults.count("nic", "NICs", self.nics.len(), MAX_NICS);
        faults.duplicates("nic", ".mac", self.nics.iter().map(|nic| nic.mac));
        let mut addresses = BTreeSet::new();
        for (index, nic) in self.nics.iter().enumerate() {
            if nic.bridge.is_none() {
                let hint = "write bridge = \"mesh-nat0\", the node's private network, or a bridge of the site";
                let message = "is missing: QEMU's user network is no longer offered";
                faults.add(format!("nic[{index}].bridge"), message, hint);
            }
            if let (Some(bridge), Some(address)) = (&nic.bridge, nic.address)
                && !addresses.insert((bridge, address))
            {
                faults.add(
                    format!("nic[{index}].address"),
                    format!("`{address}` occurs twice in nic"),
                    "remove one",
                );
            }
            if nic.mac.is_multicast() || nic.mac.0 == [0; 6] {
                let hint = "write one that begins with 52:54:00, or omit it";
                faults.add(
                    format!("nic[{index}].mac"),
                    format!("`{}` is not a unicast MAC address", nic.mac),
                    hint,
                );
            }
            if let Some(address) = nic.address.filter(|address| !is_host_address(*address)) {
                let message = format!("`{address}` is not a host address");
                faults.add(format!("nic[{index}].address"), message, "write one such as 10.0.2.15");
            }
        }
    }

    fn seed_faults(&self, faults: &mut Faults) {
        let Some(seed) = &self.cloud_init else { return };
        let texts = [
            ("user_data", Some(&seed.user_data)),
            ("meta_data", seed.meta_data.as_ref()),
            ("network_config", seed.network_config.as_ref()),
        ];
        for (name, text) in texts {
            // The content is secret: only its length and control characters are checked.
            let text = text.map_or("", |text| text.expose());
            let length = text.len();
            if length > MAX_SEED_TEXT {
                let hint = format!("at most {MAX_SEED_TEXT}; load the rest from a URL");
                faults.add(format!("cloud_init.{name}"), format!("has {length} bytes"), hint);
            }
            // YAML has no others. In JSON each would take six bytes, and a message has a limit.
            if text.contains(|c: char| c.is_ascii_control() && !"\t\n\r".contains(c)) {
                let hint = "remove it; YAML permits tabs and line ends only";
                faults.add(format!("cloud_init.{name}"), "has a control character", hint);
            }
        }
    }
}

/// Returns true for an address that a host can have.
pub fn is_host_address(address: Ipv4Addr) -> bool {
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_broadcast())
}

fn restart_faults(restart: &RestartPolicy, faults: &mut Faults) {
    faults.bound("restart.delay", restart.delay_s, &DELAY_S, "s");
    faults.bound("restart.max_delay", restart.max_delay_s, &DELAY_S, "s");
    faults.bound("restart.attempts", restart.attempts, &ATTEMPTS, "");
    faults.bound("restart.stable_after", restart.stable_after_s, &STABLE_S, "s");
    if restart.delay_s > restart.max_delay_s {
        let message =
            format!("{}s is less than the first delay, {}s", restart.max_delay_s, restart.delay_s);
        faults.add("restart.max_delay", message, "write at least restart.delay");
    }
}
