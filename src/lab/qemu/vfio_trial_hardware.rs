//! Additional hardware of a node: for VFIO trials with real IOMMU groups, and other NICs.

use crate::machine::Nic;
use serde::{Deserialize, Serialize};
use std::{fs, io, path::Path, str::FromStr};

/// Additional hardware of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extra {
    /// An Intel IOMMU with interrupt remapping. Without it no device can be assigned.
    Iommu,
    /// An Intel IOMMU without interrupt remapping: devices are bound, but the kernel refuses to
    /// assign them.
    IommuNoRemap,
    /// A GPU, 1002:5046 of class 0300, in its own IOMMU group.
    Gpu,
    /// Two e1000 (8086:100e) behind a PCI bridge, in one IOMMU group.
    Pair,
    /// The boot NIC behind a PCI bridge, together with an e1000 (8086:100e).
    SharedNic,
    /// An empty disk of [`DISK_BYTES`] with the serial number LAB-DISK. The content is kept until
    /// the rack is removed.
    Disk,
    /// Two more disks. The last sector of LAB-UNREADABLE cannot be read. LAB-HANGING serves 1 MiB
    /// of reads, then 512 bytes a second.
    BadDisks,
    /// Three more NICs with boot ROMs on the same network. The firmware tries two of them before
    /// the boot NIC, and one after it.
    FourNics,
    /// A clock that is in 1970 at power-on, as that of a board without a battery.
    OldClock,
}

/// Other NICs of [`Extra::FourNics`]: suffix of the tap, and place in the boot order.
pub const OTHER_NICS: [(char, u8); 3] = [('a', 1), ('b', 2), ('c', 4)];
/// Place of the boot NIC between them.
pub const THIRD: u8 = 3;

/// Size of a node's disk.
pub const DISK_BYTES: u64 = 64 << 20;

impl Extra {
    pub const ALL: [Extra; 9] = [
        Extra::Iommu,
        Extra::IommuNoRemap,
        Extra::Gpu,
        Extra::Pair,
        Extra::SharedNic,
        Extra::Disk,
        Extra::BadDisks,
        Extra::FourNics,
        Extra::OldClock,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Extra::Iommu => "iommu",
            Extra::IommuNoRemap => "iommu-no-remap",
            Extra::Gpu => "gpu",
            Extra::Pair => "pair",
            Extra::SharedNic => "shared-nic",
            Extra::Disk => "disk",
            Extra::BadDisks => "bad-disks",
            Extra::FourNics => "four-nics",
            Extra::OldClock => "old-clock",
        }
    }

    /// Returns arguments of QEMU's `-device`, in order. No device has a boot ROM, because the node
    /// boots from its boot NIC. Those of [`OTHER_NICS`] depend on the node.
    fn devices(self) -> &'static [&'static str] {
        match self {
            Extra::Iommu => &["intel-iommu,intremap=on"],
            Extra::IommuNoRemap => &["intel-iommu,intremap=off"],
            Extra::Gpu => &["ati-vga"],
            Extra::Pair => &[
                "pcie-pci-bridge,id=pair",
                "e1000,bus=pair,addr=1,mac=52:54:00:6d:69:01,romfile=",
                "e1000,bus=pair,addr=2,mac=52:54:00:6d:69:02,romfile=",
            ],
            Extra::SharedNic => &[
                "pcie-pci-bridge,id=shared",
                "e1000,bus=shared,addr=2,mac=52:54:00:6d:69:03,romfile=",
            ],
            Extra::Disk => &["virtio-blk-pci,drive=disk,serial=LAB-DISK"],
            Extra::BadDisks => &[
                "virtio-blk-pci,drive=unreadable,serial=LAB-UNREADABLE",
                "virtio-blk-pci,drive=hanging,serial=LAB-HANGING",
            ],
            Extra::FourNics | Extra::OldClock => &[],
        }
    }
}

impl FromStr for Extra {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Extra::ALL.into_iter().find(|extra| extra.as_str() == text).ok_or_else(|| {
            let known: Vec<&str> = Extra::ALL.map(Extra::as_str).into();
            format!("`{text}` is no extra device of the lab; known: {}", known.join(", "))
        })
    }
}

/// Returns QEMU's machine type. An IOMMU remaps interrupts only for QEMU's own interrupt
/// controller.
pub fn machine(extras: &[Extra]) -> &'static str {
    if extras.contains(&Extra::Iommu) {
        "q35,graphics=off,kernel-irqchip=split"
    } else {
        "q35,graphics=off"
    }
}

/// Returns the devices to add before the NIC. The IOMMU precedes the devices that it serves.
pub fn devices(extras: &[Extra]) -> Vec<String> {
    let mut extras = extras.to_vec();
    extras.sort();
    extras.dedup();
    extras.iter().flat_map(|extra| extra.devices()).map(|device| (*device).to_owned()).collect()
}

/// Returns arguments of QEMU's `-drive` for the disks of [`Extra::BadDisks`]. The disks contain
/// zeros and have no file.
pub fn bad_drives() -> [String; 2] {
    let zeros = format!("driver=null-co,size={DISK_BYTES},read-zeroes=on");
    let last_sector = DISK_BYTES / 512 - 1;
    let image =
        zeros.split(',').map(|option| format!("file.image.{option}")).collect::<Vec<_>>().join(",");
    let error = format!(
        "event=read_aio,file.inject-error.0.errno=5,file.inject-error.0.sector={last_sector}"
    );
    [
        format!(
            "if=none,id=unreadable,driver=raw,file.driver=blkdebug,file.inject-error.0.{error},{image}"
        ),
        // Reads during boot are fast: a kernel that waits for a partition table would not boot.
        format!(
            "if=none,id=hanging,{zeros},throttling.bps-read=512,throttling.bps-read-max={}",
            1 << 20
        ),
    ]
}

/// Creates an empty sparse disk.
pub fn create_disk(file: &Path) -> io::Result<()> {
    fs::File::create_new(file)?.set_len(DISK_BYTES)
}

/// Returns QEMU's `-device` argument of the boot NIC.
pub fn nic(extras: &[Extra], nic: Nic) -> String {
    let position = if extras.contains(&Extra::SharedNic) { ",bus=shared,addr=1" } else { "" };
    format!("{}{position}", nic.device())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_device_name_round_trips_and_unknown_name_is_refused() {
        for extra in Extra::ALL {
            assert_eq!(extra.as_str().parse(), Ok(extra));
            assert_eq!(serde_json::to_value(extra).expect("a word"), extra.as_str());
        }
        assert!("gpus".parse::<Extra>().is_err_and(|error| error.contains("shared-nic")));
    }

    #[test]
    fn iommu_precedes_other_devices_on_command_line() {
        let devices = devices(&[Extra::Gpu, Extra::Iommu, Extra::Gpu]);
        assert_eq!(devices, ["intel-iommu,intremap=on", "ati-vga"]);
        assert!(machine(&[Extra::Gpu, Extra::Iommu]).ends_with("kernel-irqchip=split"));
        assert_eq!(nic(&[Extra::SharedNic], Nic::Virtio), "virtio-net-pci,bus=shared,addr=1");
    }
}
