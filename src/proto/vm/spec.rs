//! The specification of a VM. Each field is valid by type; [`VmSpec::faults`] checks the rest.

use super::{ByteSize, OnRelease, RawDisk, ReadyCheck};
use crate::{
    disk::DiskIdentity,
    network::{InterfaceName, NetworkName},
    text::{plain, text_type},
};
use meshd_types::{Digest, MacAddr, PciAddress, Secret, SystemUuid, VmName};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// The specification of a VM for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpec {
    /// Unique on the site.
    pub name: VmName,
    /// Also the SMBIOS system UUID of the guest.
    pub uuid: SystemUuid,
    pub vcpus: u32,
    pub memory: ByteSize,
    #[serde(default)]
    pub machine: MachineType,
    #[serde(default)]
    pub cpu: CpuModel,
    #[serde(default)]
    pub firmware: Firmware,
    /// UEFI Secure Boot.
    #[serde(default)]
    pub secure_boot: bool,
    /// Emulated TPM 2.0.
    #[serde(default)]
    pub vtpm: bool,
    /// Memory from the node's huge pages.
    #[serde(default)]
    pub hugepages: bool,
    /// Restricts CPUs and memory to this NUMA node.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// Disks in boot order.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// A NoCloud disk for cloud-init.
    #[serde(default)]
    pub cloud_init: Option<CloudInit>,
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// One PCI function of each assigned unit. Units are assigned as a whole.
    #[serde(default)]
    pub units: Vec<PciAddress>,
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Permits emulation without KVM, which is 10 to 30 times slower.
    #[serde(default)]
    pub allow_tcg: bool,
    /// When the guest is ready; not asked if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyCheck>,
}

impl VmSpec {
    /// Returns the known disks of the node that the VM uses.
    pub fn disks(&self) -> impl Iterator<Item = &DiskIdentity> {
        self.volumes.iter().filter_map(|volume| volume.source.disk()?.identity())
    }

    /// Returns the volumes that need a file of the central node, with its digest. Digests may
    /// repeat.
    pub fn files(&self) -> impl Iterator<Item = (&VolumeName, Digest)> {
        self.volumes.iter().filter_map(|volume| Some((&volume.name, volume.source.digest()?)))
    }

    /// Makes a specification for a VM of which only name and UUID are known, so that its node can
    /// release it.
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
            ready: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum MachineType {
    /// PCI Express; required for units and Secure Boot.
    #[default]
    Q35,
    /// PCI, for old systems.
    Pc,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Firmware {
    #[default]
    Bios,
    /// OVMF. Its variables are kept until the VM is released.
    Uefi,
}

/// A disk of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Volume {
    /// Serial number of the disk in the guest.
    pub name: VolumeName,
    #[serde(flatten)]
    pub source: VolumeSource,
}

/// Content and backing of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum VolumeSource {
    /// A read-only base image. Guest writes go to an overlay file that is deleted when the VM is
    /// released.
    Qcow2 {
        digest: Digest,
        /// Virtual size, if larger than that of the image.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<ByteSize>,
    },
    /// A whole disk of the node.
    Raw {
        disk: RawDisk,
        /// Raw or qcow2 file that is written onto the disk before the first start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
        /// Permits writing the image onto a disk with content.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        overwrite: bool,
        /// Without an image: permits a disk with content, which the VM then owns.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        adopt: bool,
        /// Keep or wipe the content at release. By default disks of slots are wiped, named disks are
        /// not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_release: Option<OnRelease>,
    },
    /// A read-only CD.
    Iso { digest: Digest },
}

impl VolumeSource {
    /// Returns true if the content is wiped at release. By default disks of slots are wiped,
    /// because another VM gets them next; named disks are not.
    pub fn is_wiped(&self) -> bool {
        match self {
            VolumeSource::Raw { on_release: Some(on_release), .. } => {
                *on_release == OnRelease::Wipe
            }
            VolumeSource::Raw { disk, .. } => matches!(disk, RawDisk::Slot(_)),
            VolumeSource::Qcow2 { .. } | VolumeSource::Iso { .. } => false,
        }
    }

    /// Returns the digest of the required file of the central node.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            VolumeSource::Qcow2 { digest, .. } | VolumeSource::Iso { digest } => Some(*digest),
            VolumeSource::Raw { digest, .. } => *digest,
        }
    }

    /// Returns the disk of the node, for a raw volume.
    pub fn disk(&self) -> Option<&RawDisk> {
        match self {
            VolumeSource::Raw { disk, .. } => Some(disk),
            VolumeSource::Qcow2 { .. } | VolumeSource::Iso { .. } => None,
        }
    }
}

/// Data for cloud-init. It often contains keys and is therefore never printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CloudInit {
    /// File `user-data`.
    pub user_data: Secret<String>,
    /// File `meta-data`; generated from name and UUID if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<Secret<String>>,
    /// File `network-config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config: Option<Secret<String>>,
}

/// A NIC of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Nic {
    pub mac: MacAddr,
    /// Reserved address, the only one that the guest may use. The node assigns it in the private
    /// network. On a bridge of the site the DHCP server assigns it: meshd, or another server that
    /// must have the same reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub address: Option<Ipv4Addr>,
    /// Bridge of the node. `None` occurs only in records of an earlier release; such a VM does not
    /// start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<InterfaceName>,
    /// The central node sets both addresses from a slot: the n-th such NIC gets those of the slot
    /// of the n-th unit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slot: bool,
    /// Permits traffic with other guests on the same bridge and node whose NICs permit it too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers: bool,
}

impl Nic {
    /// Returns the network of the NIC.
    pub fn network(&self) -> Option<NetworkName> {
        self.bridge.as_ref().map(NetworkName::of_bridge)
    }
}

/// Restarts after an unexpected end of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RestartPolicy {
    pub when: RestartWhen,
    /// Seconds before the first restart, doubled for each further one.
    pub delay_s: u32,
    /// Maximum seconds before a restart.
    pub max_delay_s: u32,
    /// Maximum number of restarts in a row.
    pub attempts: u32,
    /// Seconds of running after which the restart count is reset.
    pub stable_after_s: u32,
}

/// The ends after which a VM restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum RestartWhen {
    #[default]
    Never,
    /// After a crash, not after a shutdown of the guest.
    OnFailure,
    /// After every end except an ordered stop.
    Always,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        RestartPolicy {
            when: RestartWhen::Never,
            delay_s: 5,
            max_delay_s: 300,
            attempts: 5,
            stable_after_s: 600,
        }
    }
}

text_type!(
    /// Serial number of a disk: virtio limits it to 20 bytes.
    VolumeName,
    "volume name",
    "use 1 to 20 of A-Z, a-z, 0-9, `-` and `_`",
    |text| plain(text, 20, b"-_")
);
text_type!(
    /// CPU model of QEMU: `host`, `max`, `EPYC-Milan`, `Skylake-Server-v4`.
    CpuModel,
    "processor model",
    "write `host`, `max` or a name that QEMU lists with `-cpu help`",
    |text| plain(text, 64, b"-_.")
);

impl Default for CpuModel {
    /// The CPU model of the node.
    fn default() -> Self {
        CpuModel("host".to_owned())
    }
}
