//! Checks a specification against the resources of the node: returns the plan, or every reason
//! against it. Pure.

mod disks;

use crate::vm::{
    failure::refusal,
    host::{
        installed::{self, Uefi},
        resources::HostResources,
    },
    net::nic_addresses,
};
use meshd_proto::{
    NetworkName, UnitFacts, UnitState,
    vm::{
        ByteSize, Firmware, MachineType, VmRefusal, VmRefusalReason, VmSpec, VolumeSource,
        layer_growth, qcow2,
    },
};
use meshd_types::PciAddress;
use std::{collections::BTreeSet, path::PathBuf};

/// Maximum number of PCI functions behind root ports.
const MAX_FUNCTIONS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    Kvm,
    Tcg,
}

/// Resources of a VM on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub qemu: PathBuf,
    pub accel: Accel,
    /// Volumes in the order of the specification.
    pub volumes: Vec<PlannedVolume>,
    /// PCI functions of all assigned units.
    pub functions: Vec<PciAddress>,
    /// IOMMU groups of these functions.
    pub groups: Vec<u32>,
    pub uefi: Option<Uefi>,
    /// Huge page size in bytes.
    pub hugepage: Option<u64>,
    /// CPUs of the chosen NUMA node.
    pub cpus: Option<Vec<u32>>,
    /// Path of `qemu-img`, if a layer is made.
    pub qemu_img: Option<PathBuf>,
    pub swtpm: Option<PathBuf>,
    pub vhost: bool,
    /// Expected growth of the layers in memory, in bytes.
    pub growth: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedVolume {
    /// A layer of the VM above an image.
    Layer {
        base: PathBuf,
        /// Size that the guest sees, if larger than the image.
        size: Option<ByteSize>,
    },
    Disk {
        /// Device path in this boot.
        device: PathBuf,
    },
    Cd {
        file: PathBuf,
    },
}

/// Plans a VM. `others` are the VMs that run or will run on this node. An error has every reason
/// against the plan.
pub fn plan(
    spec: &VmSpec,
    host: &HostResources,
    others: &[&VmSpec],
) -> Result<Plan, Vec<VmRefusal>> {
    use VmRefusalReason as Reason;
    let mut planner = Planner { spec, host, others, refusals: Vec::new(), layer_sizes: Vec::new() };
    for fault in spec.faults() {
        planner.refuse(Reason::SpecInvalid, format!("{}: {}", fault.key, fault.message));
    }
    planner.check_unique();
    let qemu =
        planner.program(&host.programs.qemu, Reason::QemuMissing, installed::qemu_name(), true);
    let needs_qemu_img = spec.volumes.iter().any(|volume| match &volume.source {
        VolumeSource::Qcow2 { .. } => true,
        VolumeSource::Raw { digest, .. } => digest.is_some(),
        VolumeSource::Iso { .. } => false,
    });
    let qemu_img =
        planner.program(&host.programs.qemu_img, Reason::QemuMissing, "qemu-img", needs_qemu_img);
    let swtpm = planner.program(&host.programs.swtpm, Reason::TpmMissing, "swtpm", spec.vtpm);
    if let Some(reason) = &host.unconfined {
        planner.refuse(
            Reason::QemuMissing,
            format!("{reason}; install a QEMU that is built with seccomp"),
        );
    }
    let accel = planner.accel();
    planner.check_cpu_model();
    let cpus = planner.cpus();
    let hugepage = planner.hugepages();
    planner.check_bridges();
    planner.check_addresses();
    let uefi = planner.uefi();
    let volumes = planner.volumes();
    let growth = planner.memory();
    let functions = planner.units();
    let is_assigned =
        |unit: &&UnitFacts| functions.iter().any(|function| has_function(unit, function));
    let groups = host.units.iter().filter(is_assigned).filter_map(|unit| unit.group).collect();
    if let (true, Some(qemu)) = (planner.refusals.is_empty(), qemu) {
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
            vhost: host.vhost,
            growth,
        });
    }
    Err(planner.refusals)
}

struct Planner<'a> {
    spec: &'a VmSpec,
    host: &'a HostResources,
    others: &'a [&'a VmSpec],
    refusals: Vec<VmRefusal>,
    /// Virtual sizes of the layers, in bytes.
    layer_sizes: Vec<u64>,
}

impl Planner<'_> {
    fn refuse(&mut self, reason: VmRefusalReason, detail: impl Into<String>) {
        self.refusals.push(refusal(reason, detail));
    }

    fn check_unique(&mut self) {
        for other in self.others {
            if other.name == self.spec.name {
                self.refuse(
                    VmRefusalReason::NameTaken,
                    format!("the name {} belongs to {}", other.name, other.uuid),
                );
            }
            for nic in &self.spec.nics {
                if other.nics.iter().any(|taken| taken.mac == nic.mac) {
                    self.refuse(
                        VmRefusalReason::MacTaken,
                        format!("the MAC address {} belongs to a NIC of {}", nic.mac, other.name),
                    );
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
                format!("{name} is not installed; add the overlay `kvm-host` or the bundle to the profile"),
            );
        }
        found.clone().filter(|_| is_needed)
    }

    fn accel(&mut self) -> Accel {
        if self.host.kvm {
            return Accel::Kvm;
        }
        if !self.spec.allow_tcg {
            let detail = "cannot open /dev/kvm; run `meshd node doctor`, or set allow_tcg = true";
            self.refuse(VmRefusalReason::KvmMissing, detail);
        }
        Accel::Tcg
    }

    fn check_cpu_model(&mut self) {
        let (Some(models), model) = (&self.host.models, self.spec.cpu.as_str()) else { return };
        if !models.contains(model) {
            let detail = format!(
                "QEMU of this node has no CPU model `{model}`; run `{} -cpu help` for a list",
                installed::qemu_name()
            );
            self.refuse(VmRefusalReason::CpuUnknown, detail);
        }
    }

    fn cpus(&mut self) -> Option<Vec<u32>> {
        let vcpus = self.spec.vcpus;
        let threads = self.host.threads;
        if vcpus > threads {
            let detail = format!("{vcpus} CPUs requested, the node has {threads} threads");
            self.refuse(VmRefusalReason::CpusExceeded, detail);
        }
        let id = self.spec.numa_node?;
        let Some(node) = self.host.numa.iter().find(|node| node.id == id && !node.cpus.is_empty())
        else {
            self.refuse(
                VmRefusalReason::NumaMissing,
                format!("there is no NUMA node {id} with CPUs"),
            );
            return None;
        };
        let threads = node.cpus.len();
        if usize::try_from(vcpus).is_ok_and(|vcpus| vcpus > threads) {
            let detail = format!("{vcpus} CPUs requested, NUMA node {id} has {threads} threads");
            self.refuse(VmRefusalReason::CpusExceeded, detail);
        }
        Some(node.cpus.clone())
    }

    /// Returns the expected growth of the layers. Guests touch memory and fill layers over time, so
    /// reserved memory is not free.
    fn memory(&mut self) -> u64 {
        let host = self.host;
        let planned = || {
            self.layer_sizes.iter().map(|size| layer_growth(*size, 0)).fold(0, u64::saturating_add)
        };
        let growth = match host.memory.growth.get(&self.spec.uuid) {
            _ if !host.layers_in_memory => 0,
            Some(growth) => *growth,
            None => planned(),
        };
        let own = self.spec.node_memory();
        let free = host.memory.free_beside(self.others.iter().copied());
        if own.saturating_add(growth) > free {
            let mib = |bytes| ByteSize::from_bytes(bytes).mib();
            let total = mib(host.memory.total);
            let free = mib(free);
            let own = mib(own);
            let layers = if growth > 0 {
                format!(" plus {} MiB for its layers", mib(growth))
            } else {
                String::new()
            };
            let detail =
                format!("{own} MiB with QEMU{layers} needed, {free} MiB of {total} MiB are free");
            self.refuse(VmRefusalReason::MemoryExceeded, detail);
        }
        growth
    }

    /// Returns the huge page size, if the VM uses huge pages.
    fn hugepages(&mut self) -> Option<u64> {
        if !self.spec.hugepages {
            return None;
        }
        let needed = self.spec.memory.bytes();
        let is_usable =
            |node: Option<u32>| self.spec.numa_node.is_none() || node == self.spec.numa_node;
        let pools = || self.host.hugepages.iter().filter(|pool| is_usable(pool.node));
        let mut sizes: Vec<u64> = pools().map(|pool| pool.page).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let free = |page: u64| {
            let free = pools()
                .filter(|pool| pool.page == page)
                .map(|pool| pool.count.saturating_mul(page));
            free.fold(0, u64::saturating_add)
        };
        let fits = |page: &u64| *page > 0 && needed.is_multiple_of(*page) && free(*page) >= needed;
        // Prefer the largest size: it needs fewer TLB entries.
        let size = sizes.iter().copied().rev().find(fits);
        if size.is_none() {
            let free = |page: &u64| {
                format!("{} of {}", ByteSize::from_bytes(free(*page)), ByteSize::from_bytes(*page))
            };
            let free: Vec<String> = sizes.iter().map(free).collect();
            let free = if free.is_empty() { "none".to_owned() } else { free.join(", ") };
            let detail = format!("{} of huge pages requested, free: {free}", self.spec.memory);
            self.refuse(VmRefusalReason::HugepagesExceeded, detail);
        }
        size
    }

    fn check_bridges(&mut self) {
        let spec = self.spec;
        let bridges: BTreeSet<&str> = spec
            .nics
            .iter()
            .filter_map(|nic| nic.bridge.as_ref())
            .map(|bridge| bridge.as_str())
            .collect();
        for bridge in bridges {
            if !self.host.bridges.contains(bridge) {
                self.refuse(
                    VmRefusalReason::BridgeMissing,
                    format!("the node has no bridge {bridge}"),
                );
            }
        }
    }

    /// The node assigns the addresses of the private network, each to one VM.
    fn check_addresses(&mut self) {
        for (index, address) in nic_addresses::fixed(&self.spec.nics) {
            let has_address = |other: &&&VmSpec| {
                nic_addresses::fixed(&other.nics).any(|(_, used)| used == address)
            };
            if let Some(other) = self.others.iter().find(has_address) {
                let detail = format!("nic[{index}].address: {address} belongs to {}", other.name);
                self.refuse(VmRefusalReason::AddressTaken, detail);
            }
            if let Some(subnet) = self.host.private.filter(|subnet| !subnet.is_assignable(address))
            {
                let (first, last) = subnet.vm_range();
                let detail = format!(
                    "nic[{index}].address: {address} is outside of {first} to {last}, the range of {} on this node; omit it",
                    NetworkName::private()
                );
                self.refuse(VmRefusalReason::AddressUnfit, detail);
            }
        }
    }

    fn uefi(&mut self) -> Option<Uefi> {
        if self.spec.firmware == Firmware::Bios {
            return None;
        }
        let uefi = self.host.uefi.iter().find(|uefi| uefi.secure == self.spec.secure_boot).cloned();
        if uefi.is_none() {
            let kind = if self.spec.secure_boot {
                "UEFI firmware for Secure Boot"
            } else {
                "UEFI firmware"
            };
            self.refuse(VmRefusalReason::FirmwareMissing, format!("no {kind} is installed"));
        }
        uefi
    }

    fn volumes(&mut self) -> Vec<PlannedVolume> {
        let spec = self.spec;
        let host = self.host;
        let mut planned = Vec::new();
        for volume in &spec.volumes {
            let image = |digest| host.images.get(digest);
            let missing = |digest: &meshd_types::Digest| {
                format!("volume {}: the image {} is not on the node", volume.name, digest.short())
            };
            match &volume.source {
                VolumeSource::Qcow2 { digest, size } => match image(digest) {
                    None => self.refuse(VmRefusalReason::VolumeMissing, missing(digest)),
                    Some(image) => match qcow2::virtual_size(&image.header) {
                        Err(error) => {
                            self.refuse(
                                VmRefusalReason::VolumeUnfit,
                                format!("volume {}: {error}", volume.name),
                            );
                        }
                        Ok(base_size) => {
                            // A size below the size of the image would truncate the image.
                            let size = size.filter(|size| size.bytes() > base_size);
                            self.layer_sizes.push(size.map_or(base_size, ByteSize::bytes));
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
                    Err((reason, detail)) => {
                        self.refuse(reason, format!("volume {}: {detail}", volume.name))
                    }
                },
            }
        }
        planned
    }

    fn units(&mut self) -> Vec<PciAddress> {
        let spec = self.spec;
        let host = self.host;
        let mut functions: Vec<PciAddress> = Vec::new();
        for address in &spec.units {
            let Some(unit) = host.units.iter().find(|unit| has_function(unit, address)) else {
                self.refuse(
                    VmRefusalReason::UnitMissing,
                    format!("no unit of this node has {address}"),
                );
                continue;
            };
            if functions.contains(address) {
                let detail =
                    format!("{address} belongs to a unit that is already listed: {}", unit.name());
                self.refuse(VmRefusalReason::SpecInvalid, detail);
                continue;
            }
            let owner = self
                .others
                .iter()
                .find(|other| other.units.iter().any(|used| has_function(unit, used)));
            if let Some(owner) = owner {
                self.refuse(
                    VmRefusalReason::UnitTaken,
                    format!("{} belongs to {}", unit.name(), owner.name),
                );
            } else if unit.state != UnitState::Ready {
                self.refuse(VmRefusalReason::UnitNotReady, state_text(unit));
            }
            // A VM gets the whole IOMMU group.
            functions.extend(unit.members.iter().filter_map(|member| member.address.parse().ok()));
        }
        if functions.len() > MAX_FUNCTIONS
            || (spec.machine == MachineType::Pc && !functions.is_empty())
        {
            let detail = format!(
                "{} PCI functions; the limit is {MAX_FUNCTIONS} on q35 and 0 on pc",
                functions.len()
            );
            self.refuse(VmRefusalReason::SpecInvalid, detail);
        }
        functions
    }
}

/// Returns the name, state and reason of a unit as text.
pub fn state_text(unit: &UnitFacts) -> String {
    let reason = if unit.reason.is_empty() { String::new() } else { format!(": {}", unit.reason) };
    format!("{} is {}{reason}", unit.name(), unit.state.as_str())
}

/// Returns whether a unit contains a PCI function.
pub fn has_function(unit: &UnitFacts, address: &PciAddress) -> bool {
    unit.members.iter().any(|member| member.address == address.as_str())
}

#[cfg(test)]
#[path = "tests/plan.rs"]
mod tests;
