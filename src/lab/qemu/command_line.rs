//! QEMU's command line for one node. Pure.

use super::{
    firmware::Ovmf,
    vfio_trial_hardware::{self, OTHER_NICS, THIRD},
};
use crate::{
    Accel, Extra, Identity, Shape,
    machine::{Firmware, MANUFACTURER, PRODUCT},
};
use std::path::{Path, PathBuf};

/// Input of a node's command line.
pub struct Machine<'a> {
    /// Process title: rack and node.
    pub name: String,
    pub shape: Shape,
    pub extras: &'a [Extra],
    pub identity: &'a Identity,
    pub firmware: Firmware,
    pub accel: Accel,
    /// Tap on the bridge.
    pub tap: &'a str,
    pub ovmf: &'a Ovmf,
    /// The serial port has a console socket.
    pub console: bool,
    pub files: &'a Files,
}

/// Files of one node in the lab's folder.
#[derive(Clone, Debug)]
pub struct Files {
    /// Serial output of all boots.
    pub serial: PathBuf,
    /// Socket of the serial port, if the rack has consoles.
    pub console: PathBuf,
    /// QEMU's control socket.
    pub qmp: PathBuf,
    /// UEFI variables.
    pub vars: PathBuf,
    /// Content of the disk, if the node has one.
    pub disk: PathBuf,
    /// Standard output and standard error of QEMU.
    pub log: PathBuf,
}

impl Files {
    pub fn of(dir: &Path, node: &str) -> Self {
        let file = |end: &str| dir.join(format!("{node}.{end}"));
        Files {
            serial: file("serial.log"),
            console: file("console"),
            qmp: file("qmp"),
            vars: file("vars.fd"),
            disk: file("disk.raw"),
            log: file("qemu.log"),
        }
    }
}

/// Escapes a path for QEMU's comma-separated options.
pub fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Returns the arguments, without `-no-reboot`, because a node changes its profile by a reboot.
pub fn arguments(machine: &Machine<'_>) -> Vec<String> {
    let Machine { shape, identity, files, tap, .. } = machine;
    let mut args: Vec<String> = [
        "-machine",
        vfio_trial_hardware::machine(machine.extras),
        "-nodefaults",
        "-display",
        "none",
    ]
    .map(Into::into)
    .into();
    let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
    add("-name", machine.name.replace(',', ",,"));
    for pair in machine.accel.args().chunks_exact(2) {
        add(pair[0], pair[1].to_owned());
    }
    add("-smp", shape.cpus.to_string());
    add("-m", shape.memory_mib.to_string());
    add("-uuid", identity.uuid.to_string());
    add(
        "-smbios",
        format!("type=1,serial={},manufacturer={MANUFACTURER},product={PRODUCT}", identity.serial),
    );
    // Boot from the network only; a BIOS without an answer retries, as servers in a rack are
    // configured.
    add("-boot", "strict=on,reboot-timeout=5000".to_owned());
    let serial = escaped(&files.serial);
    add(
        "-chardev",
        match machine.console {
            false => format!("file,id=serial,append=on,path={serial}"),
            true => {
                let port = escaped(&files.console);
                format!(
                    "socket,id=serial,path={port},server=on,wait=off,logfile={serial},logappend=on"
                )
            }
        },
    );
    add("-serial", "chardev:serial".to_owned());
    add("-qmp", format!("unix:{},server=on,wait=off", escaped(&files.qmp)));
    add("-netdev", format!("tap,id=net0,ifname={tap},script=no,downscript=no"));
    if machine.extras.contains(&Extra::OldClock) {
        add("-rtc", "base=1970-01-01".to_owned());
    }
    if machine.extras.contains(&Extra::Disk) {
        add(
            "-drive",
            format!("if=none,id=disk,format=raw,discard=unmap,file={}", escaped(&files.disk)),
        );
    }
    if machine.extras.contains(&Extra::BadDisks) {
        for drive in vfio_trial_hardware::bad_drives() {
            add("-drive", drive);
        }
    }
    for device in vfio_trial_hardware::devices(machine.extras) {
        add("-device", device);
    }
    let has_four = machine.extras.contains(&Extra::FourNics);
    let model = vfio_trial_hardware::nic(machine.extras, shape.nic);
    let place = if has_four { THIRD } else { 1 };
    let mut nics = vec![format!("{model},netdev=net0,mac={},bootindex={place}", identity.mac)];
    let others = OTHER_NICS.iter().zip(identity.other_macs()).filter(|_| has_four);
    for ((suffix, place), mac) in others {
        let ifname = format!("{tap}{suffix}");
        add("-netdev", format!("tap,id=net{suffix},ifname={ifname},script=no,downscript=no"));
        let device = shape.nic.device();
        nics.push(format!("{device},netdev=net{suffix},mac={mac},bootindex={place}"));
    }
    match machine.firmware {
        Firmware::Bios => nics.into_iter().for_each(|nic| add("-device", nic)),
        Firmware::Uefi | Firmware::UefiHttp => {
            // Without a boot ROM on the NIC, the firmware's PXE client boots.
            nics.into_iter().for_each(|nic| add("-device", nic + ",romfile="));
            let code = escaped(&machine.ovmf.code);
            add("-drive", format!("if=pflash,format=raw,unit=0,readonly=on,file={code}"));
            add("-drive", format!("if=pflash,format=raw,unit=1,file={}", escaped(&files.vars)));
        }
    }
    if machine.firmware == Firmware::UefiHttp {
        // OVMF offers HTTP boot only if there is a source of randomness. Each unanswered PXE
        // attempt takes a minute.
        add("-device", "virtio-rng-pci".to_owned());
        for version in ["IPv4", "IPv6"] {
            add("-fw_cfg", format!("name=opt/org.tianocore/{version}PXESupport,string=no"));
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(firmware: Firmware, dir: &str) -> String {
        line_with(firmware, dir, &[])
    }

    fn line_with(firmware: Firmware, dir: &str, extras: &[Extra]) -> String {
        let identity = Identity::at(3);
        let ovmf = Ovmf { code: "/code.fd".into(), vars: "/vars.fd".into() };
        let files = Files::of(Path::new(dir), "node3");
        let machine = Machine {
            name: "meshlab-0 node3".to_owned(),
            shape: Shape::default(),
            extras,
            identity: &identity,
            firmware,
            accel: Accel::Tcg,
            tap: "tap3",
            ovmf: &ovmf,
            console: firmware == Firmware::UefiHttp,
            files: &files,
        };
        arguments(&machine).join(" ")
    }

    #[test]
    fn bios_node_boots_from_nic_rom() {
        let line = line(Firmware::Bios, "/lab");
        assert!(
            line.contains("virtio-net-pci,netdev=net0,mac=52:54:00:6d:68:03,bootindex=1"),
            "{line}"
        );
        assert!(!line.contains("romfile") && !line.contains("pflash"), "{line}");
    }

    #[test]
    fn uefi_node_boots_with_firmware_client_without_rom() {
        let line = line(Firmware::Uefi, "/lab");
        assert!(
            line.contains("bootindex=1,romfile= ")
                && line.contains("unit=1,file=/lab/node3.vars.fd"),
            "{line}"
        );
    }

    #[test]
    fn uefi_http_node_disables_pxe() {
        let line = line(Firmware::UefiHttp, "/lab");
        assert!(
            line.contains("romfile= ")
                && line.contains("pflash")
                && line.contains("virtio-rng-pci"),
            "{line}"
        );
        assert!(
            line.contains("IPv4PXESupport,string=no") && line.contains("IPv6PXESupport,string=no"),
            "{line}"
        );
    }

    #[test]
    fn extra_disk_precedes_its_controller_and_is_not_bootable() {
        let line = line_with(Firmware::Bios, "/lab", &[Extra::Disk]);
        let drive = "-drive if=none,id=disk,format=raw,discard=unmap,file=/lab/node3.disk.raw -device virtio-blk-pci,drive=disk,";
        assert!(line.contains(drive) && line.matches("bootindex").count() == 1, "{line}");
    }

    #[test]
    fn third_of_four_nics_is_the_boot_nic() {
        let line = line_with(Firmware::Bios, "/lab", &[Extra::FourNics]);
        for nic in [
            "netdev=net0,mac=52:54:00:6d:68:03,bootindex=3",
            "tap,id=neta,ifname=tap3a,script=no,downscript=no",
            "netdev=neta,mac=52:54:00:6d:6a:03,bootindex=1",
            "netdev=netb,mac=52:54:00:6d:6b:03,bootindex=2",
            "netdev=netc,mac=52:54:00:6d:6c:03,bootindex=4",
        ] {
            assert!(line.contains(nic), "{nic} in {line}");
        }
    }

    #[test]
    fn serial_port_is_logged_to_file_with_and_without_console() {
        let alone = line(Firmware::Bios, "/lab");
        assert!(
            alone.contains("-chardev file,id=serial,append=on,path=/lab/node3.serial.log "),
            "{alone}"
        );
        let attended = line(Firmware::UefiHttp, "/lab");
        let port = "-chardev socket,id=serial,path=/lab/node3.console,server=on,wait=off,logfile=/lab/node3.serial.log,";
        assert!(attended.contains(port), "{attended}");
    }

    #[test]
    fn command_line_keeps_node_across_reboot_and_escapes_commas() {
        let line = line(Firmware::Uefi, "/a,b");
        assert!(!line.contains("-no-reboot"));
        assert!(line.contains("path=/a,,b/node3.serial.log"), "{line}");
    }
}
