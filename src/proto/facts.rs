//! Facts that a node reports at each connection, read from sysfs and procfs.

use super::{Hosting, UnitFacts};
use meshd_types::{BootSessionId, MacAddr, SystemUuid};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Most PCI functions, disks or network interfaces that are kept of one machine.
pub const MAX_DEVICES: usize = 1024;

/// Everything that a node reports at (re)connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    /// What can be given to virtual machines, as the profile wants it: at most [`super::MAX_UNITS`].
    pub units: Vec<UnitFacts>,
    /// Units with what is nearest to each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<SlotFacts>,
    /// Where virtual machines and their volumes lie; `None` where it cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreFacts>,
    /// What it runs virtual machines with; absent from an older agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosting: Option<Box<Hosting>>,
    /// Software versions.
    pub versions: Versions,
}

/// The file system of virtual machines and their volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreFacts {
    /// Whether what lies there takes the node's memory.
    pub kind: StoreKind,
    /// Its size in bytes. In memory it is a bound of that file system, and no promise that the memory is there.
    pub bytes: u64,
    /// Bytes that are in use, rounded up to [`STORE_STEP`]. In memory they are taken from machines.
    pub used: u64,
}

/// Steps in which [`StoreFacts::used`] is told, in bytes: what a guest writes is no news each time.
pub const STORE_STEP: u64 = 64 << 20;

/// Where a store lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// On a disk.
    #[default]
    Disk,
    /// In the node's memory (tmpfs).
    Memory,
}

/// SMBIOS (DSP0134) identity as Linux shows it under `/sys/class/dmi/id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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

/// Memory, in KiB as `/proc/meminfo` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryFacts {
    /// `MemTotal`.
    pub total_kib: u64,
    /// `MemAvailable`.
    pub available_kib: u64,
}

/// One PCI function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PciFacts {
    /// `0000:01:00.0`.
    pub address: String,
    /// Vendor ID, four hexadecimal digits.
    pub vendor: String,
    /// Device ID, four hexadecimal digits.
    pub device: String,
    /// Base class and sub-class, four hexadecimal digits.
    pub class: String,
    /// Bound driver, the target of the `driver` link.
    pub driver: Option<String>,
    /// IOMMU group, the target of the `iommu_group` link.
    pub iommu_group: Option<u32>,
    /// NUMA node, absent where the firmware gives none.
    pub numa_node: Option<u32>,
    /// Virtual functions, where it can have any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sriov: Option<SriovFacts>,
}

/// Virtual functions (SR-IOV) of one PCI function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SriovFacts {
    /// How many it can have: `sriov_totalvfs`.
    pub total: u32,
    /// How many are switched on: `sriov_numvfs`.
    pub enabled: u32,
}

/// One whole disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskFacts {
    /// Kernel name; advisory, it may change at each boot.
    pub name: String,
    /// `wwid` or WWN where the device has one.
    pub wwid: Option<String>,
    /// Serial number where the device has one.
    pub serial: Option<String>,
    pub model: Option<String>,
    /// Size in bytes.
    pub bytes: u64,
    /// True for spinning disks.
    pub rotational: bool,
    /// NUMA node of its controller, absent where the firmware gives none.
    pub numa_node: Option<u32>,
    /// The PCI function that it hangs on.
    pub function: Option<String>,
    /// What is written on it and on its partitions: file systems, partition tables, LVM, RAID.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<String>,
    /// Why it is never given away: the node uses it, a process has it open, the profile marks it as data, it cannot be told from
    /// another one. `None` for one that may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
}

impl DiskFacts {
    /// What it is known by: its WWN, else its serial number. Its kernel name is another one after the next boot.
    pub fn identity(&self) -> Option<&str> {
        self.names().next()
    }

    /// The only one of these that calls itself so; `None` also where several do.
    pub fn called<'a>(disks: &'a [DiskFacts], name: &str) -> Option<&'a DiskFacts> {
        let mut found = disks.iter().filter(|disk| disk.names().any(|own| own == name));
        found.next().filter(|_| found.next().is_none())
    }

    /// Everything that it calls itself.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [&self.wwid, &self.serial].into_iter().flatten().map(String::as_str)
    }
}

/// What an operator may approve as a slot: a unit, and what is nearest to it. Advice, nothing more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotFacts {
    /// The first function of the unit.
    pub unit: String,
    /// NUMA node of the unit.
    pub numa_node: Option<u32>,
    /// The nearest disk that may be given away, by [`DiskFacts::identity`]; no two units have the same.
    pub disk: Option<String>,
    /// The nearest InfiniBand or RoCE function; units that share it exclude each other.
    pub fabric: Option<String>,
    /// What of them is on another NUMA node, for people; empty where all are on one.
    pub mismatch: String,
}

/// One physical network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicFacts {
    /// Kernel name.
    pub name: String,
    /// Permanent MAC address.
    pub mac: Option<MacAddr>,
    /// Has a link.
    pub carrier: bool,
    /// Mbit/s where known.
    pub speed_mbps: Option<u32>,
    /// Driver of the underlying device.
    pub driver: Option<String>,
    pub addresses: Vec<IpAddr>,
}

/// Software, and what this boot was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Versions {
    /// Version, commit and build time of mesh-agent.
    pub agent: String,
    /// Kernel release.
    pub kernel: String,
    /// `PRETTY_NAME` of `/etc/os-release`.
    pub os: String,
    /// Boot session that the overlay names.
    pub session: Option<BootSessionId>,
    /// Generation that the overlay names.
    pub generation: String,
    /// Profile that the overlay names.
    pub profile: String,
}
