//! Facts that a node reports at each connection, read from sysfs and procfs.
//!
//! | module | content |
//! | --- | --- |
//! | `iommu_units` | PCI functions of a node, and their IOMMU groups that can be assigned to VMs |

pub(crate) mod iommu_units;

use crate::{HookName, Hosting, PciFacts, UnitFacts};
use meshd_types::{BootSessionId, MacAddr, SystemUuid};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Maximum number of PCI functions, of disks and of NICs of one node.
pub const MAX_DEVICES: usize = 1024;

/// The facts of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Facts {
    /// SMBIOS identity.
    pub system: SystemFacts,
    pub cpu: CpuFacts,
    pub memory: MemoryFacts,
    /// PCI functions, sorted by address.
    pub pci: Vec<PciFacts>,
    /// Block devices that are whole disks, sorted by kernel name.
    pub disks: Vec<DiskFacts>,
    /// Physical network interfaces, sorted by name.
    pub nics: Vec<NicFacts>,
    /// GPUs that a driver of the node has described; one of a VM is in `pci` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuFacts>,
    /// Units that the profile selects, at most 128.
    pub units: Vec<UnitFacts>,
    /// Slot proposals, one for each unit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<SlotFacts>,
    /// File system of VMs and volumes; `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreFacts>,
    /// `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosting: Option<Box<Hosting>>,
    /// Drain hooks, sorted, at most 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drain_hooks: Vec<HookName>,
    /// Public host keys of the SSH server, each as `TYPE BASE64`, as the node reports them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ssh_host_keys: Vec<String>,
    /// The agent connects the standard input of tasks. An older agent would run such a task with an
    /// empty input.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub task_input: bool,
    /// Program that runs containers, with its version: `crun 1.14.1`, at most 64 bytes. `None` if
    /// the node runs no containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_runtime: Option<String>,
    pub versions: Versions,
}

/// Maximum number of SSH host keys of one node.
const MAX_SSH_HOST_KEYS: usize = 8;
/// Maximum length of an SSH host key, in bytes. RSA with 16,384 bits has 2,800.
const MAX_SSH_HOST_KEY: usize = 4096;

impl Facts {
    /// Returns the host keys that are two words of their alphabets, as a file of known hosts needs
    /// them.
    pub fn valid_ssh_host_keys(&self) -> impl Iterator<Item = &str> {
        let is_valid = |text: &str| {
            let is_type = |c: char| c.is_ascii_alphanumeric() || "-@.".contains(c);
            let is_key = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
            text.len() <= MAX_SSH_HOST_KEY
                && text.split_once(' ').is_some_and(|(kind, key)| {
                    let is_filled = !kind.is_empty() && !key.is_empty();
                    is_filled && kind.chars().all(is_type) && key.chars().all(is_key)
                })
        };
        let keys = self.ssh_host_keys.iter().take(MAX_SSH_HOST_KEYS);
        keys.map(String::as_str).filter(move |text| is_valid(text))
    }
}

/// The file system of VMs and their volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StoreFacts {
    pub kind: StoreKind,
    /// Size in bytes. For tmpfs this is a limit, not reserved memory.
    pub bytes: u64,
    /// Used bytes, rounded up to 64 MiB. On tmpfs they reduce the memory for VMs.
    pub used: u64,
}

/// Granularity of [`StoreFacts::used`] in bytes, so that not every guest write causes a report.
pub const STORE_STEP: u64 = 64 << 20;

/// The medium of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum StoreKind {
    #[default]
    Disk,
    /// A tmpfs in the memory of the node.
    Memory,
}

/// SMBIOS (DSP0134) identity as Linux shows it under `/sys/class/dmi/id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SystemFacts {
    /// `product_uuid`.
    pub uuid: Option<SystemUuid>,
    /// `sys_vendor`.
    pub manufacturer: String,
    /// `product_name`.
    pub product: String,
    /// `product_serial`.
    pub serial: String,
    /// `board_serial`.
    pub board_serial: String,
    /// Seconds since the kernel started.
    pub uptime_s: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub kernel_boot_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CpuFacts {
    /// `model name`.
    pub model: String,
    /// `vendor_id`.
    pub vendor: String,
    pub sockets: u32,
    /// Cores over all sockets.
    pub cores: u32,
    /// Hardware threads.
    pub threads: u32,
    /// Virtualisation flag: `vmx`, `svm` or empty.
    pub virtualization: String,
}

/// Memory in KiB, from `/proc/meminfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemoryFacts {
    /// `MemTotal`.
    pub total_kib: u64,
    /// `MemAvailable`.
    pub available_kib: u64,
    /// Sockets for memory modules, from SMBIOS; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub sockets: u32,
    /// Memory modules (DIMMs), equal ones together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<MemoryModuleFacts>,
}

/// Equal memory modules, from SMBIOS. Words are those of the firmware; empty if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct MemoryModuleFacts {
    pub count: u32,
    /// Size of one in bytes.
    pub bytes: u64,
    /// Such as `DDR5`.
    pub kind: String,
    /// Transfers a second, in millions.
    pub speed_mts: Option<u32>,
    pub manufacturer: String,
    /// Part number.
    pub part: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A GPU, as its driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct GpuFacts {
    /// Address of the PCI function.
    pub function: String,
    /// Model; empty if the driver has none.
    pub model: String,
    /// Size of its memory in bytes, if the driver reports it.
    pub memory: Option<u64>,
}

/// One whole disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DiskFacts {
    /// Kernel name; may change at each boot.
    pub name: String,
    /// `wwid` or WWN.
    pub wwid: Option<String>,
    pub serial: Option<String>,
    pub model: Option<String>,
    /// Size in bytes.
    pub bytes: u64,
    /// True for spinning disks.
    pub rotational: bool,
    /// NUMA node of its controller; absent if the firmware reports none.
    pub numa_node: Option<u32>,
    /// PCI function of its controller.
    pub function: Option<String>,
    /// Signatures of file systems, partition tables, LVM and RAID on the disk and its partitions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<String>,
    /// Why it cannot be assigned: the node uses it, a process has it open, the profile reserves it,
    /// or another disk has the same identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
}

impl DiskFacts {
    /// Returns the WWN, else the serial number. Kernel names change between boots.
    pub fn identity(&self) -> Option<&str> {
        self.identities().next()
    }

    /// Finds the disk with a WWN or serial number; `None` also if several match.
    pub fn by_identity<'a>(disks: &'a [DiskFacts], identity: &str) -> Option<&'a DiskFacts> {
        let mut found = disks.iter().filter(|disk| disk.identities().any(|own| own == identity));
        found.next().filter(|_| found.next().is_none())
    }

    /// Returns WWN and serial number.
    pub fn identities(&self) -> impl Iterator<Item = &str> {
        [&self.wwid, &self.serial].into_iter().flatten().map(String::as_str)
    }
}

/// A slot proposal for an operator: a unit with the nearest disk and fabric device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SlotFacts {
    /// The first function of the unit.
    pub unit: String,
    /// NUMA node of the unit.
    pub numa_node: Option<u32>,
    /// WWN, else serial number, of the nearest assignable disk; unique among units.
    pub disk: Option<String>,
    /// Nearest InfiniBand or RoCE function. Units with the same one exclude each other.
    pub fabric: Option<String>,
    /// Description of devices on another NUMA node than the unit; empty if there are none.
    pub mismatch: String,
}

/// One physical network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NicFacts {
    /// Kernel name.
    pub name: String,
    /// Permanent MAC address.
    pub mac: Option<MacAddr>,
    pub carrier: bool,
    /// Mbit/s, if known.
    pub speed_mbps: Option<u32>,
    /// Driver of the underlying device.
    pub driver: Option<String>,
    /// PCI function of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpAddr>,
}

impl NicFacts {
    /// Returns the speed in words, such as `25 Gbit/s`; `None` if it is unknown or without a link.
    pub fn speed_words(&self) -> Option<String> {
        let mbps = self.speed_mbps.filter(|_| self.carrier)?;
        Some(match (mbps / 1000, mbps % 1000) {
            (0, _) => format!("{mbps} Mbit/s"),
            (gbps, 0) => format!("{gbps} Gbit/s"),
            (gbps, rest) => format!("{gbps}.{} Gbit/s", rest / 100),
        })
    }
}

/// Software versions, and the boot session, generation and profile of the overlay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Versions {
    /// Version, commit and build time of mesh-agent.
    pub agent: String,
    /// Kernel release.
    pub kernel: String,
    /// `PRETTY_NAME` of `/etc/os-release`.
    pub os: String,
    pub session: Option<BootSessionId>,
    pub generation: String,
    pub profile: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nic_speed_has_its_unit_and_needs_a_link() {
        let words = |speed_mbps, carrier| {
            NicFacts { speed_mbps, carrier, ..NicFacts::default() }.speed_words()
        };
        let shown = [100, 2_500, 400_000].map(|speed| words(Some(speed), true).expect("known"));
        assert_eq!(shown, ["100 Mbit/s", "2.5 Gbit/s", "400 Gbit/s"]);
        assert_eq!([words(None, true), words(Some(1000), false)], [None, None]);
    }

    #[test]
    fn ssh_host_key_that_would_add_a_line_or_a_host_is_omitted() {
        let long = format!("ssh-rsa {}", "A".repeat(MAX_SSH_HOST_KEY));
        let refused = [
            "",
            "ssh-rsa",
            " AAAA",
            "ssh-rsa ",
            "a,b AAAA",
            "ssh-rsa AA\nevil ssh-rsa BB",
            long.as_str(),
        ];
        let mut keys: Vec<String> = refused.map(str::to_owned).to_vec();
        keys.push("ssh-ed25519 AAAA+/=".to_owned());
        let facts = Facts { ssh_host_keys: keys, ..Facts::default() };
        assert_eq!(facts.valid_ssh_host_keys().collect::<Vec<_>>(), ["ssh-ed25519 AAAA+/="]);
        let keys = vec!["ssh-ed25519 AAAA".to_owned(); MAX_SSH_HOST_KEYS + 1];
        let many = Facts { ssh_host_keys: keys, ..Facts::default() };
        assert_eq!(many.valid_ssh_host_keys().count(), MAX_SSH_HOST_KEYS);
    }
}
