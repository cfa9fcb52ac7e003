//! The command line of QEMU, without default devices and distribution configuration. Pure.
//!
//! QEMU starts with the guest stopped (`-S`). The agent resumes the guest when control socket,
//! console and NICs are ready.

use super::plan::{Accel, Plan, PlannedVolume};
use crate::vm::{
    confine::enter::{FIRST, PassedFile},
    helper_program::strings,
    host::{installed::Uefi, resources::VHOST, seccomp_support::SANDBOX},
    net::tap_ports,
    vm_paths::VmPaths,
};
use meshd_proto::vm::{CpuModel, MachineType, Nic, VmSpec};
use meshd_types::failpoint;
use std::path::Path;

/// First PCI slot of root ports. QEMU assigns lower slots to other devices.
const FIRST_PORT_SLOT: usize = 0x10;
const FUNCTIONS_PER_PCI_SLOT: usize = 8;

/// Prefix of QEMU's block node names of volumes. The index of the volume follows.
pub const VOLUME_NODE: &str = "volume";

/// Escapes a path for QEMU's comma-separated options.
fn escape_path(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Returns the arguments of `qemu-img` that make a layer. `-u` does not open the image, which the
/// VM's user may not read.
pub fn layer(layer: &Path, base: &Path, size: u64) -> Vec<String> {
    let mut args = strings(&["create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b"]);
    args.extend([base.display().to_string(), layer.display().to_string(), size.to_string()]);
    args
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    Raw,
    Qcow2,
}

impl ImageFormat {
    fn name(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
        }
    }
}

/// Returns the arguments of `qemu-img` that write an image to an exclusively opened disk, bypassing
/// the page cache. Unless the disk reads as zero, `qemu-img` writes zeros: it may not discard,
/// because it does not have the exclusive descriptor.
pub fn convert(image: &Path, format: ImageFormat, target: &str, is_zero: bool) -> Vec<String> {
    let zeros: &[&str] = if is_zero { &["--target-is-zero"] } else { &["-S", "0"] };
    let mut args = strings(&["convert", "-p", "-n", "-f", format.name()]);
    args.extend(strings(zeros));
    args.extend([
        "--target-image-opts".to_owned(),
        image.display().to_string(),
        disk_options(target, None),
    ]);
    args
}

/// Returns the arguments of `qemu-img` that compare an image with the start of a disk.
pub fn compare(image: &Path, format: ImageFormat, target: &str, bytes: u64) -> Vec<String> {
    let image =
        format!("driver={},file.driver=file,file.filename={}", format.name(), escape_path(image));
    strings(&["compare", "-p", "--image-opts", &image, &disk_options(target, Some(bytes))])
}

fn disk_options(target: &str, bytes: Option<u64>) -> String {
    let size = bytes.map_or_else(String::new, |bytes| format!("size={bytes},"));
    format!("driver=raw,{size}cache.direct=on,file.driver=host_device,file.filename={target}")
}

/// Arguments of QEMU, and the files that QEMU receives as open descriptors.
#[derive(Debug, Default)]
pub struct CommandLine {
    pub args: Vec<String>,
    /// Files in the order of their descriptors.
    pub pass: Vec<PassedFile>,
}

pub fn qemu(spec: &VmSpec, plan: &Plan, files: &VmPaths) -> CommandLine {
    let mut line = CommandLine::default();
    if failpoint::defends("vm-sandbox") {
        line.add("-sandbox", SANDBOX);
    }
    line.add("-name", format!("guest={},debug-threads=on", spec.name));
    line.add("-uuid", spec.uuid.to_string());
    line.args.extend(["-nodefaults", "-no-user-config", "-S"].map(str::to_owned));
    line.add("-display", "none");
    line.add("-boot", "strict=on");
    line.add("-msg", "timestamp=on");
    line.add("-pidfile", files.pid().display().to_string());
    let qmp = line.pass(PassedFile::Listen(files.qmp()));
    line.add("-chardev", format!("socket,id=qmp,fd={qmp},server=on,wait=off"));
    line.add("-mon", "chardev=qmp,mode=control");
    let serial = escape_path(&files.serial());
    let log = escape_path(&files.console());
    // QEMU writes console output to a file, because agents restart. Input is a FIFO, which QEMU
    // does not read while the UART of the guest is full. With a socket, QEMU would close the
    // connection and lose input.
    line.add("-chardev", format!("pipe,id=serial0,path={serial},logfile={log},logappend=on"));
    line.add("-serial", "chardev:serial0");
    processors(spec, plan, &mut line);
    memory(spec, plan, &mut line);
    if let Some(uefi) = &plan.uefi {
        flash(uefi, files, &mut line);
    }
    for (index, function) in plan.functions.iter().enumerate() {
        let slot = FIRST_PORT_SLOT + index / FUNCTIONS_PER_PCI_SLOT;
        let port = index % FUNCTIONS_PER_PCI_SLOT;
        let first = if port == 0 { ",multifunction=on" } else { "" };
        line.add(
            "-device",
            format!(
                "pcie-root-port,id=port{index},chassis={},addr={slot:#x}.{port}{first}",
                index + 1
            ),
        );
        line.add("-device", format!("vfio-pci,host={function},bus=port{index}"));
    }
    for (index, volume) in plan.volumes.iter().enumerate() {
        disk(spec, index, volume, files, &mut line);
    }
    for (index, nic) in spec.nics.iter().enumerate() {
        nic_device(spec, index, nic, plan.vhost, &mut line);
    }
    if plan.swtpm.is_some() {
        line.add("-chardev", format!("socket,id=tpm,path={}", escape_path(&files.tpm_socket())));
        line.add("-tpmdev", "emulator,id=tpm0,chardev=tpm");
        line.add("-device", "tpm-crb,tpmdev=tpm0");
    }
    line.add("-device", "virtio-rng-pci");
    if spec.cloud_init.is_some() {
        let file = escape_path(&files.seed());
        line.add(
            "-blockdev",
            format!("driver=raw,node-name=seed,read-only=on,file.driver=file,file.filename={file}"),
        );
        // Not a CD: a Debian kernel for clouds has no driver for the SATA controller of q35. Behind
        // all other devices of PCI: guests know their NICs by slot.
        line.add("-device", "virtio-blk-pci,drive=seed");
    }
    // Reports a panic of the guest's kernel.
    line.add("-device", "pvpanic");
    line
}

impl CommandLine {
    fn add(&mut self, option: &str, value: impl Into<String>) {
        self.args.extend([option.to_owned(), value.into()]);
    }

    /// Passes a file and returns the number of its descriptor.
    fn pass(&mut self, pass: PassedFile) -> i32 {
        let number = FIRST + i32::try_from(self.pass.len()).expect("a VM has few files");
        self.pass.push(pass);
        number
    }

    /// Passes a file and returns a path with which QEMU opens it.
    fn open(&mut self, pass: PassedFile) -> String {
        let number = self.pass(pass);
        self.add("-add-fd", format!("fd={number},set={number}"));
        format!("/dev/fdset/{number}")
    }
}

fn processors(spec: &VmSpec, plan: &Plan, line: &mut CommandLine) {
    let machine = match spec.machine {
        MachineType::Q35 => "q35",
        MachineType::Pc => "pc",
    };
    let secure = if spec.secure_boot { ",smm=on" } else { "" };
    // With `graphics=off` SeaBIOS uses the serial port.
    line.add("-machine", format!("{machine},graphics=off,memory-backend=ram{secure}"));
    line.add(
        "-accel",
        match plan.accel {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg,thread=multi",
        },
    );
    // Only KVM has the model `host`.
    let cpu = if plan.accel == Accel::Tcg && spec.cpu == CpuModel::default() {
        "max"
    } else {
        spec.cpu.as_str()
    };
    line.add("-cpu", cpu);
    line.add("-smp", spec.vcpus.to_string());
}

fn memory(spec: &VmSpec, plan: &Plan, line: &mut CommandLine) {
    let size = format!("{}M", spec.memory.mib());
    let bound =
        spec.numa_node.map_or_else(String::new, |node| format!(",host-nodes={node},policy=bind"));
    let backend = match plan.hugepage {
        Some(page) => {
            format!(
                "memory-backend-memfd,id=ram,size={size},hugetlb=on,hugetlbsize={page},prealloc=on{bound}"
            )
        }
        None => format!("memory-backend-ram,id=ram,size={size}{bound}"),
    };
    line.add("-m", size);
    line.add("-object", backend);
}

fn flash(uefi: &Uefi, files: &VmPaths, line: &mut CommandLine) {
    if uefi.secure {
        line.add("-global", "driver=cfi.pflash01,property=secure,value=on");
    }
    line.add(
        "-drive",
        format!("if=pflash,format=raw,unit=0,readonly=on,file={}", escape_path(&uefi.code)),
    );
    line.add("-drive", format!("if=pflash,format=raw,unit=1,file={}", escape_path(&files.vars())));
}

fn disk(
    spec: &VmSpec,
    index: usize,
    volume: &PlannedVolume,
    files: &VmPaths,
    line: &mut CommandLine,
) {
    let name = spec.volumes.get(index).map(|volume| volume.name.as_str()).unwrap_or_default();
    let node = format!("{VOLUME_NODE}{index}");
    let boot = index + 1;
    let cd = || format!("ide-cd,drive={node},bootindex={boot}");
    let block = || format!("virtio-blk-pci,drive={node},bootindex={boot},serial={name}");
    let (source, device) = match volume {
        PlannedVolume::Layer { base, .. } => {
            let file = escape_path(&files.layer(index));
            let base = line.open(PassedFile::Read(base.clone()));
            // The layer belongs to the VM; other VMs share the image.
            let layer = format!("driver=qcow2,discard=unmap,file.driver=file,file.filename={file}");
            let below = format!(
                "backing.driver=qcow2,backing.file.driver=file,backing.file.filename={base}"
            );
            (format!("{layer},{below}"), block())
        }
        PlannedVolume::Disk { device } => {
            let device = line.open(PassedFile::Write(device.clone()));
            (
                format!(
                    "driver=raw,cache.direct=on,file.driver=host_device,file.filename={device}"
                ),
                block(),
            )
        }
        PlannedVolume::Cd { file } => {
            let file = line.open(PassedFile::Read(file.clone()));
            (format!("driver=raw,read-only=on,file.driver=file,file.filename={file}"), cd())
        }
    };
    line.add("-blockdev", format!("{source},node-name={node}"));
    line.add("-device", device);
}

fn nic_device(spec: &VmSpec, index: usize, nic: &Nic, vhost: bool, line: &mut CommandLine) {
    // The agent makes and filters the TAP device, and attaches it to the bridge before the guest
    // runs.
    let mut network = format!(
        "tap,id=net{index},ifname={},script=no,downscript=no",
        tap_ports::tap_name(spec, index)
    );
    if vhost {
        let number = line.pass(PassedFile::Write(VHOST.into()));
        network.push_str(&format!(",vhost=on,vhostfd={number}"));
    }
    line.add("-netdev", network);
    // No option ROM: VMs boot from volumes.
    line.add("-device", format!("virtio-net-pci,netdev=net{index},mac={},romfile=", nic.mac));
}

#[cfg(test)]
#[path = "tests/argv.rs"]
mod tests;
