//! Limits and consistency rules of a VM specification, checked by the central node and by the agent.

use super::{Firmware, MachineType, RestartPolicy, VmSpec, VolumeSource};
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
/// Longest text of cloud-init in bytes. Three of them fit into one message.
const MAX_SEED_TEXT: usize = 64 * 1024;
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

/// Returns the maximum length of a cloud-init text in bytes.
pub const fn max_seed_text() -> usize {
    MAX_SEED_TEXT
}

#[derive(Default)]
struct Found(Vec<SpecFault>);

impl Found {
    fn add(&mut self, key: impl Into<String>, message: impl Into<String>, hint: impl Into<String>) {
        self.0.push(SpecFault { key: key.into(), message: message.into(), hint: hint.into() });
    }

    fn bound<T: PartialOrd + Display>(&mut self, key: &str, value: T, bounds: &RangeInclusive<T>, unit: &str) {
        if !bounds.contains(&value) {
            let hint = format!("write {} to {}{unit}", bounds.start(), bounds.end());
            self.add(key, format!("{value}{unit} is out of range"), hint);
        }
    }

    fn count(&mut self, key: &str, what: &str, count: usize, most: usize) {
        if count > most {
            self.add(key, format!("{count} {what}"), format!("at most {most}"));
        }
    }
}

impl VmSpec {
    /// Returns all faults that do not depend on the node.
    pub fn faults(&self) -> Vec<SpecFault> {
        let mut found = Found::default();
        self.machine_faults(&mut found);
        self.volume_faults(&mut found);
        self.nic_faults(&mut found);
        self.seed_faults(&mut found);
        restart_faults(&self.restart, &mut found);
        found.0
    }

    fn machine_faults(&self, found: &mut Found) {
        found.bound("vcpus", self.vcpus, &VCPUS, "");
        found.bound("memory", self.memory.mib(), &MEMORY_MIB, "M");
        if !self.memory.bytes().is_multiple_of(1 << 20) {
            found.add("memory", format!("`{}` is no whole number of MiB", self.memory), "write it in M or G");
        }
        if self.uuid.is_placeholder() {
            found.add(
                "uuid",
                format!("`{}` is what many machines have", self.uuid),
                "leave it out, or take a random one",
            );
        }
        if let Some(node) = self.numa_node {
            found.bound("numa_node", node, &(0..=MAX_NUMA_NODE), "");
        }
        if self.secure_boot && self.firmware == Firmware::Bios {
            found.add("secure_boot", "a BIOS has no Secure Boot", "write firmware = \"uefi\", or take it out");
        }
        if self.machine == MachineType::Pc {
            let hint = "write machine = \"q35\"";
            if self.vcpus > MAX_VCPUS_PC {
                found.add("machine", format!("it has up to {MAX_VCPUS_PC} processors"), hint);
            }
            if self.secure_boot {
                found.add("machine", "it cannot protect Secure Boot", hint);
            }
            if !self.units.is_empty() {
                found.add("machine", "it has no PCI Express for units", hint);
            }
        }
        found.count("units", "units", self.units.len(), MAX_UNITS);
        twice(found, "units", self.units.iter(), |index| format!("units[{index}]"));
    }

    fn volume_faults(&self, found: &mut Found) {
        let volumes = &self.volumes;
        let cds = volumes.iter().filter(|volume| matches!(volume.source, VolumeSource::Iso { .. })).count();
        found.count("volume", "volumes", volumes.len(), MAX_VOLUMES);
        found.count("volume", "CDs", cds, MAX_CDS);
        twice(found, "volume", volumes.iter().map(|volume| &volume.name), |index| format!("volume[{index}].name"));
        let mut disks = BTreeSet::new();
        for (index, volume) in volumes.iter().enumerate() {
            match &volume.source {
                VolumeSource::Raw { disk, .. } if disk.identity().is_some_and(|disk| !disks.insert(disk)) => {
                    found.add(format!("volume[{index}].disk"), format!("`{disk}` is given twice"), "take one out");
                }
                VolumeSource::Qcow2 { size: Some(size), .. } => {
                    found.bound(&format!("volume[{index}].size"), size.mib(), &VOLUME_MIB, "M");
                }
                _ => {}
            }
        }
    }

    fn nic_faults(&self, found: &mut Found) {
        found.count("nic", "NICs", self.nics.len(), MAX_NICS);
        twice(found, "nic", self.nics.iter().map(|nic| nic.mac), |index| format!("nic[{index}].mac"));
        let mut addresses = BTreeSet::new();
        for (index, nic) in self.nics.iter().enumerate() {
            if nic.bridge.is_none() {
                let hint = "write bridge = \"mesh-nat0\", the node's private network, or a bridge of the site";
                found.add(format!("nic[{index}].bridge"), "is missing: QEMU's user network is no longer offered", hint);
            }
            if let (Some(bridge), Some(address)) = (&nic.bridge, nic.address)
                && !addresses.insert((bridge, address))
            {
                found.add(format!("nic[{index}].address"), format!("`{address}` occurs twice in nic"), "remove one");
            }
            if nic.mac.is_multicast() || nic.mac.0 == [0; 6] {
                let hint = "write one that begins with 52:54:00, or leave it out";
                found.add(format!("nic[{index}].mac"), format!("`{}` is not a unicast MAC address", nic.mac), hint);
            }
            if let Some(address) = nic.address.filter(|address| !is_host_address(*address)) {
                let message = format!("`{address}` is not a host address");
                found.add(format!("nic[{index}].address"), message, "write one such as 10.0.2.15");
            }
        }
    }

    fn seed_faults(&self, found: &mut Found) {
        let Some(seed) = &self.cloud_init else { return };
        let texts = [
            ("user_data", Some(&seed.user_data)),
            ("meta_data", seed.meta_data.as_ref()),
            ("network_config", seed.network_config.as_ref()),
        ];
        for (name, text) in texts {
            // The content is secret: only its length is checked.
            let length = text.map_or(0, |text| text.expose().len());
            if length > MAX_SEED_TEXT {
                let hint = format!("at most {MAX_SEED_TEXT}; let it fetch the rest");
                found.add(format!("cloud_init.{name}"), format!("has {length} bytes"), hint);
            }
        }
    }
}

/// Returns true for an address that a host can have.
pub fn is_host_address(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_broadcast())
}

fn twice<T: Ord + Display>(found: &mut Found, what: &str, all: impl Iterator<Item = T>, key: impl Fn(usize) -> String) {
    let mut seen = BTreeSet::new();
    for (index, one) in all.enumerate() {
        let message = format!("`{one}` occurs twice in {what}");
        if !seen.insert(one) {
            found.add(key(index), message, "remove one");
        }
    }
}

fn restart_faults(restart: &RestartPolicy, found: &mut Found) {
    found.bound("restart.delay", restart.delay_s, &DELAY_S, "s");
    found.bound("restart.max_delay", restart.max_delay_s, &DELAY_S, "s");
    found.bound("restart.attempts", restart.attempts, &ATTEMPTS, "");
    found.bound("restart.stable_after", restart.stable_after_s, &STABLE_S, "s");
    if restart.delay_s > restart.max_delay_s {
        let message = format!("{}s is less than the first delay, {}s", restart.max_delay_s, restart.delay_s);
        found.add("restart.max_delay", message, "write at least restart.delay");
    }
}
