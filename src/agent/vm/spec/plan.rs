//! Checks a specification against the resources of the node: returns the plan, or every reason against it. Pure.

mod disks;

use crate::vm::{
    host::{installed::Uefi, resources::HostResources},
    net::nic_addresses,
};
use meshd_proto::{
    UnitFacts, UnitState,
    vm::{ByteSize, Firmware, MachineType, VmRefusal, VmRefusalReason, VmSpec, VolumeSource, layer_growth, qcow2},
};
use meshd_types::PciAddress;
use std::{collections::BTreeSet, path::PathBuf};

/// Maximum number of PCI functions behind root ports.
const MAX_FUNCTIONS: usize = 64;

/// The accelerator of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// Hardware virtualisation.
    Kvm,
    Tcg,
}

/// Resources of a VM on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Path of QEMU.
    pub qemu: PathBuf,
    pub accel: Accel,
    /// Volumes in the order of the specification.
    pub volumes: Vec<PlannedVolume>,
    /// PCI functions of all assigned units.
    pub functions: Vec<PciAddress>,
    /// IOMMU groups of these functions.
    pub groups: Vec<u32>,
    /// UEFI firmware.
    pub uefi: Option<Uefi>,
    /// Huge page size in bytes.
    pub hugepage: Option<u64>,
    /// CPUs of the chosen NUMA node.
    pub cpus: Option<Vec<u32>>,
    /// Path of `qemu-img`, if a layer is made.
    pub qemu_img: Option<PathBuf>,
    /// Path of `swtpm`.
    pub swtpm: Option<PathBuf>,
    /// Path of `ip`, if NICs are plugged into bridges.
    pub ip: Option<PathBuf>,
    /// Use vhost-net.
    pub vhost: bool,
    /// Expected growth of the layers in memory, in bytes.
    pub growth: u64,
}

/// Where the data of a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedVolume {
    /// A layer of the VM on an image.
    Layer {
        /// Path of the image.
        base: PathBuf,
        /// Size that the guest sees, if larger than the image.
        size: Option<ByteSize>,
    },
    /// A disk of the node.
    Disk {
        /// Device path in this boot.
        device: PathBuf,
    },
    /// A CD image.
    Cd {
        /// Path of the image.
        file: PathBuf,
    },
}

/// Plans a VM. `others` are the VMs that run or will run on this node.
///
/// # Errors
/// Every reason against the plan.
pub fn plan(spec: &VmSpec, host: &HostResources, others: &[&VmSpec]) -> Result<Plan, Vec<VmRefusal>> {
    use VmRefusalReason as Reason;
    let mut judge = Planner { spec, host, others, refusals: Vec::new(), sizes: Vec::new() };
    for fault in spec.faults() {
        judge.refuse(Reason::SpecInvalid, format!("{}: {}", fault.key, fault.message));
    }
    judge.unique();
    let qemu = judge.program(&host.programs.qemu, Reason::QemuMissing, "qemu-system-x86_64", true);
    let layered = spec.volumes.iter().any(|volume| match &volume.source {
        VolumeSource::Qcow2 { .. } => true,
        VolumeSource::Raw { digest, .. } => digest.is_some(),
        VolumeSource::Iso { .. } => false,
    });
    let qemu_img = judge.program(&host.programs.qemu_img, Reason::QemuMissing, "qemu-img", layered);
    let swtpm = judge.program(&host.programs.swtpm, Reason::TpmMissing, "swtpm", spec.vtpm);
    let bridged = spec.nics.iter().any(|nic| nic.bridge.is_some());
    let ip = judge.program(&host.programs.ip, Reason::BridgeMissing, "ip", bridged);
    if let Some(why) = &host.unconfined {
        judge.refuse(Reason::QemuMissing, format!("{why}; install a QEMU that is built with seccomp"));
    }
    let accel = judge.accel();
    judge.model();
    let cpus = judge.processors();
    let hugepage = judge.hugepages();
    judge.bridges();
    judge.addresses();
    let uefi = judge.uefi();
    let volumes = judge.volumes();
    let growth = judge.memory();
    let functions = judge.units();
    let given = |unit: &&UnitFacts| {
        functions.iter().any(|function| unit.members.iter().any(|it| it.address == function.as_str()))
    };
    let groups = host.units.iter().filter(given).filter_map(|unit| unit.group).collect();
    if let (true, Some(qemu)) = (judge.refusals.is_empty(), qemu) {
        return Ok(Plan {
            qemu,
            accel,
            volumes,
            functions,
            groups,
            uefi,
            hugepage,
            cpus,
            qemu_img,
            swtpm,
            ip,
            vhost: host.vhost,
            growth,
        });
    }
    Err(judge.refusals)
}

struct Planner<'a> {
    spec: &'a VmSpec,
    host: &'a HostResources,
    others: &'a [&'a VmSpec],
    refusals: Vec<VmRefusal>,
    /// Sizes of the layers' disks.
    sizes: Vec<u64>,
}

impl Planner<'_> {
    fn refuse(&mut self, reason: VmRefusalReason, detail: impl Into<String>) {
        self.refusals.push(VmRefusal { reason, detail: detail.into() });
    }

    fn unique(&mut self) {
        for other in self.others {
            if other.name == self.spec.name {
                self.refuse(VmRefusalReason::NameTaken, format!("{} is the name of {}", other.name, other.uuid));
            }
            for nic in &self.spec.nics {
                if other.nics.iter().any(|taken| taken.mac == nic.mac) {
                    self.refuse(VmRefusalReason::MacTaken, format!("{} is a card of {}", nic.mac, other.name));
                }
            }
        }
    }

    fn program(
        &mut self,
        found: &Option<PathBuf>,
        reason: VmRefusalReason,
        name: &str,
        is_needed: bool,
    ) -> Option<PathBuf> {
        if is_needed && found.is_none() {
            self.refuse(
                reason,
                format!("{name} is not installed; give the profile the overlay `kvm-host` or the bundle"),
            );
        }
        found.clone().filter(|_| is_needed)
    }

    fn accel(&mut self) -> Accel {
        if self.host.kvm {
            return Accel::Kvm;
        }
        if !self.spec.allow_tcg {
            let detail = "/dev/kvm does not open; `meshd node doctor` says why, or write allow_tcg = true";
            self.refuse(VmRefusalReason::KvmMissing, detail);
        }
        Accel::Tcg
    }

    fn model(&mut self) {
        let (Some(models), model) = (&self.host.models, self.spec.cpu.as_str()) else { return };
        if !models.contains(model) {
            let detail =
                format!("QEMU of this node knows no `{model}`; `qemu-system-x86_64 -cpu help` lists what it knows");
            self.refuse(VmRefusalReason::CpuUnknown, detail);
        }
    }

    fn processors(&mut self) -> Option<Vec<u32>> {
        let (asked, there) = (self.spec.vcpus, self.host.threads);
        if asked > there {
            self.refuse(VmRefusalReason::CpusExceeded, format!("{asked} processors, and the node has {there} threads"));
        }
        let wanted = self.spec.numa_node?;
        let Some(node) = self.host.numa.iter().find(|node| node.id == wanted && !node.cpus.is_empty()) else {
            self.refuse(VmRefusalReason::NumaMissing, format!("there is no NUMA node {wanted} with processors"));
            return None;
        };
        let there = node.cpus.len();
        if usize::try_from(asked).is_ok_and(|asked| asked > there) {
            let detail = format!("{asked} processors, and NUMA node {wanted} has {there} threads");
            self.refuse(VmRefusalReason::CpusExceeded, detail);
        }
        Some(node.cpus.clone())
    }

    /// Returns the expected growth of the layers. Guests touch memory and fill layers over time, so memory promised to others is not free.
    fn memory(&mut self) -> u64 {
        let host = self.host;
        let planned = || self.sizes.iter().map(|size| layer_growth(*size, 0)).fold(0, u64::saturating_add);
        let growth = match host.memory.growth.get(&self.spec.uuid) {
            _ if !host.layers_in_memory => 0,
            Some(growth) => *growth,
            None => planned(),
        };
        let (own, left) = (self.spec.node_memory(), host.memory.left(self.others.iter().copied()));
        if own.saturating_add(growth) > left {
            let mib = |bytes| ByteSize::from_bytes(bytes).mib();
            let (total, left, own) = (mib(host.memory.total), mib(left), mib(own));
            let layers =
                if growth > 0 { format!(" and {} MiB for what it writes", mib(growth)) } else { String::new() };
            let detail = format!("{own} MiB with QEMU's own{layers}, and {left} MiB of {total} MiB are left");
            self.refuse(VmRefusalReason::MemoryExceeded, detail);
        }
        growth
    }

    /// Returns the huge page size, if the VM uses huge pages.
    fn hugepages(&mut self) -> Option<u64> {
        if !self.spec.hugepages {
            return None;
        }
        let asked = self.spec.memory.bytes();
        let here = |node: Option<u32>| self.spec.numa_node.is_none() || node == self.spec.numa_node;
        let pools = || self.host.hugepages.iter().filter(|pool| here(pool.node));
        let mut sizes: Vec<u64> = pools().map(|pool| pool.page).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let free = |page: u64| {
            pools()
                .filter(|pool| pool.page == page)
                .fold(0, |sum: u64, pool| sum.saturating_add(pool.free.saturating_mul(page)))
        };
        // Prefer the largest size: it needs fewer TLB entries.
        let fit = sizes
            .iter()
            .rev()
            .find(|page| **page > 0 && asked.is_multiple_of(**page) && free(**page) >= asked)
            .copied();
        if fit.is_none() {
            let free: Vec<String> = sizes
                .iter()
                .map(|page| format!("{} of {}", ByteSize::from_bytes(free(*page)), ByteSize::from_bytes(*page)))
                .collect();
            let free = if free.is_empty() { "none".to_owned() } else { free.join(", ") };
            let detail = format!("{} of huge pages, and free are: {free}", self.spec.memory);
            self.refuse(VmRefusalReason::HugepagesExceeded, detail);
        }
        fit
    }

    fn bridges(&mut self) {
        let spec = self.spec;
        let wanted: BTreeSet<&str> =
            spec.nics.iter().filter_map(|nic| nic.bridge.as_ref()).map(|bridge| bridge.as_str()).collect();
        for bridge in wanted {
            if !self.host.bridges.contains(bridge) {
                self.refuse(VmRefusalReason::BridgeMissing, format!("the node has no bridge {bridge}"));
            }
        }
    }

    /// In the private network the node assigns addresses, each to one VM.
    fn addresses(&mut self) {
        for (index, address) in nic_addresses::named(&self.spec.nics) {
            let has = |other: &&&VmSpec| nic_addresses::named(&other.nics).any(|(_, theirs)| theirs == address);
            if let Some(other) = self.others.iter().find(has) {
                let detail = format!("nic[{index}].address: {address} is that of {}", other.name);
                self.refuse(VmRefusalReason::AddressTaken, detail);
            }
            if let Some(subnet) = self.host.private.filter(|subnet| !subnet.is_assignable(address)) {
                let (first, last) = subnet.vm_range();
                let detail = format!(
                    "nic[{index}].address: {address} is not among {first} to {last}, which {} on this node has; leave it out",
                    meshd_proto::vm::PRIVATE_BRIDGE
                );
                self.refuse(VmRefusalReason::AddressUnfit, detail);
            }
        }
    }

    fn uefi(&mut self) -> Option<Uefi> {
        if self.spec.firmware == Firmware::Bios {
            return None;
        }
        let found = self.host.uefi.iter().find(|uefi| uefi.secure == self.spec.secure_boot).cloned();
        if found.is_none() {
            let kind = if self.spec.secure_boot { "UEFI firmware for Secure Boot" } else { "UEFI firmware (OVMF)" };
            self.refuse(VmRefusalReason::FirmwareMissing, format!("no {kind} is installed"));
        }
        found
    }

    fn volumes(&mut self) -> Vec<PlannedVolume> {
        let (spec, host) = (self.spec, self.host);
        let mut planned = Vec::new();
        for volume in &spec.volumes {
            let image = |digest| host.images.get(digest);
            let missing = |digest: &meshd_types::Digest| {
                format!("volume {}: the file of digest {} is not on the node", volume.name, digest.short())
            };
            match &volume.source {
                VolumeSource::Qcow2 { digest, size } => match image(digest) {
                    None => self.refuse(VmRefusalReason::VolumeMissing, missing(digest)),
                    Some(image) => match qcow2::virtual_size(&image.header) {
                        Err(why) => {
                            self.refuse(VmRefusalReason::VolumeUnfit, format!("volume {}: {why}", volume.name));
                        }
                        Ok(own) => {
                            let size = size.filter(|size| size.bytes() > own);
                            self.sizes.push(size.map_or(own, ByteSize::bytes));
                            planned.push(PlannedVolume::Layer { base: image.path.clone(), size });
                        }
                    },
                },
                VolumeSource::Iso { digest } => match image(digest) {
                    None => self.refuse(VmRefusalReason::VolumeMissing, missing(digest)),
                    Some(image) => planned.push(PlannedVolume::Cd { file: image.path.clone() }),
                },
                VolumeSource::Raw { disk, .. } => match self.disk(disk) {
                    Ok(device) => planned.push(PlannedVolume::Disk { device }),
                    Err((reason, why)) => self.refuse(reason, format!("volume {}: {why}", volume.name)),
                },
            }
        }
        planned
    }

    fn units(&mut self) -> Vec<PciAddress> {
        let (spec, host) = (self.spec, self.host);
        let mut given: Vec<PciAddress> = Vec::new();
        for address in &spec.units {
            let Some(unit) = host.units.iter().find(|unit| holds(unit, address)) else {
                self.refuse(VmRefusalReason::UnitMissing, format!("no unit of this node holds {address}"));
                continue;
            };
            if given.contains(address) {
                let detail = format!("{address} is in a unit that another address names already: {}", unit.name());
                self.refuse(VmRefusalReason::SpecInvalid, detail);
                continue;
            }
            let taken = self.others.iter().find(|other| other.units.iter().any(|theirs| holds(unit, theirs)));
            if let Some(other) = taken {
                self.refuse(VmRefusalReason::UnitTaken, format!("{} belongs to {}", unit.name(), other.name));
            } else if unit.state != UnitState::Ready {
                let (name, state) = (unit.name(), unit.state.as_str());
                let reason = if unit.reason.is_empty() { String::new() } else { format!(": {}", unit.reason) };
                self.refuse(VmRefusalReason::UnitNotReady, format!("{name} is {state}{reason}"));
            }
            // The whole IOMMU group.
            given.extend(unit.members.iter().filter_map(|member| member.address.parse().ok()));
        }
        if given.len() > MAX_FUNCTIONS || (spec.machine == MachineType::Pc && !given.is_empty()) {
            let detail = format!("{} functions; there is room for {MAX_FUNCTIONS}, on a q35", given.len());
            self.refuse(VmRefusalReason::SpecInvalid, detail);
        }
        given
    }
}

fn holds(unit: &UnitFacts, address: &PciAddress) -> bool {
    unit.members.iter().any(|member| member.address == address.as_str())
}

#[cfg(test)]
#[path = "tests/plan.rs"]
mod tests;
