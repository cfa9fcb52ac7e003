//! The specification of a VM. Each field is valid by type; [`VmSpec::faults`] checks the rest.

use super::{ByteSize, OnRelease, RawDisk, disk::SLOT};
use meshd_types::{Digest, MacAddr, PciAddress, Secret, SystemUuid, VmName, serde_as_text};
use serde::{Deserialize, Serialize};
use std::{fmt, net::Ipv4Addr, str::FromStr};

/// The bridge of a node whose network is its own: the node gives the addresses there, and other nodes have the same ones.
pub const PRIVATE_BRIDGE: &str = "mesh-nat0";

/// Everything that a node needs to know to run a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpec {
    /// What people call it; one of its kind on a site.
    pub name: VmName,
    /// What everything else calls it, and its own SMBIOS system UUID.
    pub uuid: SystemUuid,
    /// Virtual processors.
    pub vcpus: u32,
    pub memory: ByteSize,
    #[serde(default)]
    pub machine: MachineType,
    #[serde(default)]
    pub cpu: CpuModel,
    #[serde(default)]
    pub firmware: Firmware,
    /// UEFI that starts signed loaders only.
    #[serde(default)]
    pub secure_boot: bool,
    /// A TPM 2.0, emulated.
    #[serde(default)]
    pub vtpm: bool,
    /// Memory from the node's huge pages.
    #[serde(default)]
    pub hugepages: bool,
    /// Processors and memory of this NUMA node only.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// Disks, in the order in which they are tried at boot.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// A NoCloud disk for cloud-init.
    #[serde(default)]
    pub cloud_init: Option<CloudInit>,
    /// Network cards.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// One function of each unit that it gets; the units go whole.
    #[serde(default)]
    pub units: Vec<PciAddress>,
    /// What happens when it ends by itself.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// May run emulated, ten to thirty times slower, where the node has no KVM.
    #[serde(default)]
    pub allow_tcg: bool,
}

impl VmSpec {
    /// Whole disks of the node, as far as they are known.
    pub fn disks(&self) -> impl Iterator<Item = &DiskIdentity> {
        self.volumes.iter().filter_map(|volume| volume.source.disk()?.identity())
    }

    /// The volumes that are files of the central node, with their digests; twice where two volumes stand on one file.
    pub fn files(&self) -> impl Iterator<Item = (&VolumeName, Digest)> {
        self.volumes.iter().filter_map(|volume| Some((&volume.name, volume.source.digest()?)))
    }

    /// What is said of one of which nothing but this is known; it is there to be released.
    pub fn unknown(name: VmName, uuid: SystemUuid) -> Self {
        VmSpec {
            name,
            uuid,
            vcpus: 1,
            memory: ByteSize::from_mib(0),
            machine: MachineType::default(),
            cpu: CpuModel::default(),
            firmware: Firmware::default(),
            secure_boot: false,
            vtpm: false,
            hugepages: false,
            numa_node: None,
            volumes: Vec::new(),
            cloud_init: None,
            nics: Vec::new(),
            units: Vec::new(),
            restart: RestartPolicy::default(),
            allow_tcg: false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineType {
    /// PCI Express; needed by units and Secure Boot.
    #[default]
    Q35,
    /// PCI, for old systems.
    Pc,
}

/// What starts a virtual machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    #[default]
    Bios,
    /// OVMF; its variables are kept until the machine is released.
    Uefi,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its serial number, as the guest sees it.
    pub name: VolumeName,
    /// Where it comes from.
    #[serde(flatten)]
    pub source: VolumeSource,
}

/// Where a disk comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case")]
pub enum VolumeSource {
    /// An image that stays as it is; what the guest writes is kept beside it until the machine is released.
    Qcow2 {
        /// Of the whole file.
        digest: Digest,
        /// Size that the guest sees, where it is more than the image's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<ByteSize>,
    },
    /// A whole disk of the node.
    Raw {
        disk: RawDisk,
        /// The file, raw or qcow2, whose content is written onto it before the first start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
        /// It is written also onto a disk that holds something.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        overwrite: bool,
        /// Without an image: the machine gets the disk also if it holds something, which is the machine's own from then on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        adopt: bool,
        /// What becomes of its content when the machine leaves it; see [`VolumeSource::is_wiped`] for what holds where nothing is said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_release: Option<OnRelease>,
    },
    /// A CD, read only.
    Iso {
        /// Of the whole file.
        digest: Digest,
    },
}

/// Words that stand for a disk, and are none's identity.
const DISK_WORDS: [&str; 2] = [SLOT, "nearest"];

/// What cloud-init reads. It often holds keys, so it is never printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudInit {
    /// File `user-data`.
    pub user_data: Secret<String>,
    /// File `meta-data`; made of name and UUID where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<Secret<String>>,
    /// File `network-config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config: Option<Secret<String>>,
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Reserved for it.
    pub mac: MacAddr,
    /// Reserved for it. In the private network it is what the node gives; on a bridge of the site what the DHCP there gives: meshd, where it
    /// leases, else another server that has to know of it. The guest may show no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    /// The bridge of the node that it hangs on. An earlier release ran cards without one; none is run any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<InterfaceName>,
    /// Both addresses are those of a slot, which the central node fills in: the n-th such card has those of the n-th unit's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slot: bool,
    /// It reaches, and is reached by, guests whose cards on the same bridge of the same node say so too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers: bool,
}

/// What happens when a virtual machine ends and nobody asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartPolicy {
    /// After which ends it is started again.
    pub when: RestartWhen,
    /// Seconds before the first new start; doubled before each further one.
    pub delay_s: u32,
    /// Most seconds before a new start.
    pub max_delay_s: u32,
    /// How often it is started again in a row.
    pub attempts: u32,
    /// After so many seconds of running a row is over.
    pub stable_after_s: u32,
}

/// After which ends a virtual machine is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartWhen {
    #[default]
    Never,
    /// A crash; not when the guest switched itself off.
    OnFailure,
    /// Every one but a stop that was ordered.
    Always,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        RestartPolicy { when: RestartWhen::Never, delay_s: 5, max_delay_s: 300, attempts: 5, stable_after_s: 600 }
    }
}

/// Why a text of a specification cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; {hint}")]
pub struct VmTextError {
    what: &'static str,
    hint: &'static str,
    text: String,
}

macro_rules! text {
    ($(#[$doc:meta])* $type:ident, $what:literal, $hint:literal, $rule:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            /// As it was written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = VmTextError;
            fn from_str(text: &str) -> Result<Self, VmTextError> {
                let rule: fn(&str) -> bool = $rule;
                let error = || {
                    let text = text.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect();
                    VmTextError { what: $what, hint: $hint, text }
                };
                rule(text).then(|| $type(text.to_owned())).ok_or_else(error)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        serde_as_text!($type);
    };
}

/// Letters, digits and marks, within a length; no comma or space, so that it stands in QEMU's options as it is.
fn plain(text: &str, longest: usize, marks: &[u8]) -> bool {
    let fits = (1..=longest).contains(&text.len());
    fits && text.bytes().all(|c| c.is_ascii_alphanumeric() || marks.contains(&c)) && !text.starts_with(['-', '.'])
}

text!(
    /// The serial number of a disk: virtio has room for 20 bytes.
    VolumeName,
    "volume name",
    "use 1 to 20 of A-Z, a-z, 0-9, `-` and `_`",
    |text| plain(text, 20, b"-_")
);
text!(
    /// A processor as QEMU names it, with flags switched on and off: `host`, `max`, `EPYC-Milan`, `Skylake-Server-v4`.
    CpuModel,
    "processor model",
    "write `host`, `max` or a name that `qemu-system-x86_64 -cpu help` shows",
    |text| plain(text, 64, b"-_.")
);
text!(
    /// A network interface of Linux (15 bytes).
    InterfaceName,
    "interface name",
    "use 1 to 15 of a-z, A-Z, 0-9, `-`, `_` and `.`",
    |text| plain(text, 15, b"-_.")
);
text!(
    /// What a disk calls itself: WWID or serial number, as `node show` lists them. A kernel name such as `sda` is none: the next
    /// boot may give it to another disk.
    DiskIdentity,
    "identity of a disk",
    "write the wwid or the serial number that `meshd node show` lists; kernel names such as sda change hands",
    |text| {
        let printable = text.bytes().all(|c| (0x20..0x7f).contains(&c)) && text.trim() == text;
        let word = text.split(':').next().is_some_and(|first| DISK_WORDS.contains(&first));
        (4..=256).contains(&text.len()) && printable && !text.contains('/') && !word && !is_kernel_name(text)
    }
);

/// `sda`, `vdb3`, `nvme0n1`, `dm-0`: what the kernel gives out in the order in which disks come up.
fn is_kernel_name(text: &str) -> bool {
    let rest = |prefix: &str| text.strip_prefix(prefix);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let numbered = ["dm-", "md", "loop", "sr", "mmcblk"].iter().any(|prefix| rest(prefix).is_some_and(digits));
    let lettered = ["sd", "vd", "xvd", "hd"].iter().any(|prefix| {
        rest(prefix).is_some_and(|rest| {
            let name = rest.trim_end_matches(|c: char| c.is_ascii_digit());
            (1..=2).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_lowercase())
        })
    });
    let nvme = rest("nvme").and_then(|rest| rest.split_once('n')).is_some_and(|(controller, rest)| {
        let namespace = rest.split('p').next().unwrap_or_default();
        controller.bytes().all(|c| c.is_ascii_digit() || c == b'c') && digits(namespace)
    });
    numbered || lettered || nvme
}

impl Default for CpuModel {
    /// The node's own, without loss.
    fn default() -> Self {
        CpuModel("host".to_owned())
    }
}
