//! The whole command line of a minimal VM, and the options of a VM with all devices.

use super::*;
use crate::vm::fixtures::spec;
use meshd_proto::vm::ByteSize;
use meshd_types::Digest;
use serde_json::json;

fn plan() -> Plan {
    Plan {
        qemu: "/usr/bin/qemu-system-x86_64".into(),
        accel: Accel::Kvm,
        volumes: Vec::new(),
        functions: Vec::new(),
        groups: Vec::new(),
        uefi: None,
        hugepage: None,
        cpus: None,
        qemu_img: None,
        swtpm: None,
        vhost: false,
        growth: 0,
    }
}

/// Formats each option with its value as a line.
fn lines(args: &[String]) -> String {
    args.join(" ").replace(" -", "\n-")
}

#[test]
fn minimal_vm_has_console_and_control_socket_and_starts_stopped() {
    let spec = spec(json!({ "vcpus": 2, "memory": "512M" }));
    let files = VmPaths::new(Path::new("/run/vms"), spec.uuid);
    let expected = "\
-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
-name guest=a,debug-threads=on
-uuid 11223344-5566-7788-99aa-bbccddeeff00
-nodefaults
-no-user-config
-S
-display none
-boot strict=on
-msg timestamp=on
-pidfile /run/vms/11223344-5566-7788-99aa-bbccddeeff00/qemu.pid
-chardev socket,id=qmp,fd=64,server=on,wait=off
-mon chardev=qmp,mode=control
-chardev pipe,id=serial0,path=/run/vms/11223344-5566-7788-99aa-bbccddeeff00/serial,\
logfile=/run/vms/11223344-5566-7788-99aa-bbccddeeff00/console.log,logappend=on
-serial chardev:serial0
-machine q35,graphics=off,memory-backend=ram
-accel tcg,thread=multi
-cpu max
-smp 2
-m 512M
-object memory-backend-ram,id=ram,size=512M
-device virtio-rng-pci
-device pvpanic";
    assert_eq!(lines(&qemu(&spec, &Plan { accel: Accel::Tcg, ..plan() }, &files).args), expected);
}

/// A VM with every kind of device.
fn vm_with_all_devices() -> VmSpec {
    let digest = Digest::of(b"image");
    spec(json!({
        "name": "train-7", "vcpus": 8, "memory": "64G", "firmware": "uefi", "secure_boot": true, "vtpm": true,
        "hugepages": true, "numa_node": 1, "cpu": "EPYC-Milan", "units": ["0000:01:00.0"],
        "cloud_init": { "user_data": "#cloud-config" },
        "volumes": [
            { "name": "root", "format": "qcow2", "digest": digest },
            { "name": "data", "format": "raw", "disk": "eui.2" },
            { "name": "cd", "format": "iso", "digest": digest },
        ],
        "nics": [
            { "mac": "52:54:00:00:00:01", "bridge": "br0" },
            { "mac": "52:54:00:00:00:02", "bridge": "mesh-nat0" },
        ],
    }))
}

#[test]
fn vm_with_all_devices_has_all_options() {
    let spec = vm_with_all_devices();
    let functions = (0..9).map(|n| format!("0000:01:00.{}", n % 8).parse().expect("an address"));
    let plan = Plan {
        volumes: vec![
            PlannedVolume::Layer { base: "/images/x".into(), size: Some(ByteSize::from_mib(1)) },
            PlannedVolume::Disk { device: "/dev/nvme0n1".into() },
            PlannedVolume::Cd { file: "/images/a,b".into() },
        ],
        functions: functions.collect(),
        uefi: Some(Uefi { code: "/code.fd".into(), vars: "/vars.fd".into(), secure: true }),
        hugepage: Some(1 << 30),
        swtpm: Some("/usr/bin/swtpm".into()),
        vhost: true,
        ..plan()
    };
    let CommandLine { args, pass } = qemu(&spec, &plan, &VmPaths::new(Path::new("/v"), spec.uuid));
    let line = lines(&args);
    let vm = "/v/11223344-5566-7788-99aa-bbccddeeff00";
    let tap = tap_ports::tap_name(&spec, 0);
    let expected = [
        "-machine q35,graphics=off,memory-backend=ram,smm=on",
        "-accel kvm",
        "-cpu EPYC-Milan",
        "-object memory-backend-memfd,id=ram,size=65536M,hugetlb=on,hugetlbsize=1073741824,prealloc=on,host-nodes=1,policy=bind",
        "-global driver=cfi.pflash01,property=secure,value=on",
        "-drive if=pflash,format=raw,unit=0,readonly=on,file=/code.fd",
        &format!("-drive if=pflash,format=raw,unit=1,file={vm}/vars.fd"),
        "-device pcie-root-port,id=port0,chassis=1,addr=0x10.0,multifunction=on\n-device vfio-pci,host=0000:01:00.0,bus=port0",
        "-device pcie-root-port,id=port1,chassis=2,addr=0x10.1\n-device vfio-pci,host=0000:01:00.1,bus=port1",
        "-device pcie-root-port,id=port8,chassis=9,addr=0x11.0,multifunction=on",
        &format!(
            "-add-fd fd=65,set=65\n-blockdev driver=qcow2,discard=unmap,file.driver=file,file.filename={vm}/volume0.qcow2,\
             backing.driver=qcow2,backing.file.driver=file,backing.file.filename=/dev/fdset/65,node-name=volume0"
        ),
        "-device virtio-blk-pci,drive=volume0,bootindex=1,serial=root",
        "-blockdev driver=raw,cache.direct=on,file.driver=host_device,file.filename=/dev/fdset/66,node-name=volume1",
        "-device virtio-blk-pci,drive=volume1,bootindex=2,serial=data",
        "-blockdev driver=raw,read-only=on,file.driver=file,file.filename=/dev/fdset/67,node-name=volume2",
        "-device ide-cd,drive=volume2,bootindex=3",
        &format!(
            "-blockdev driver=raw,node-name=seed,read-only=on,file.driver=file,file.filename={vm}/seed.iso\n\
             -device virtio-blk-pci,drive=seed"
        ),
        &format!("-netdev tap,id=net0,ifname={tap},script=no,downscript=no,vhost=on,vhostfd=68"),
        "-device virtio-net-pci,netdev=net0,mac=52:54:00:00:00:01,romfile=",
        &format!(
            "-chardev socket,id=tpm,path={vm}/tpm/sock\n-tpmdev emulator,id=tpm0,chardev=tpm\n-device tpm-crb,tpmdev=tpm0"
        ),
    ];
    for part in expected {
        assert!(line.contains(part), "{part}\nis not in\n{line}");
    }
    assert!(!line.contains("cloud-config"), "the seed must not be in the process list");
    let [layer, cd] = ["/images/x", "/images/a,b"].map(|path| PassedFile::Read(path.into()));
    let [disk, vhost] = ["/dev/nvme0n1", VHOST].map(|path| PassedFile::Write(path.into()));
    assert_eq!(pass[1..], [layer, disk, cd, vhost.clone(), vhost]);
}

#[test]
fn tap_name_is_short_and_unique() {
    let vm = spec(json!({}));
    let other = spec(json!({ "uuid": "11223344-5566-7788-99aa-bbccddeeff01" }));
    assert!(tap_ports::tap_name(&vm, 3).len() <= 15);
    assert_ne!(tap_ports::tap_name(&vm, 0), tap_ports::tap_name(&other, 0));
    assert_ne!(tap_ports::tap_name(&vm, 0), tap_ports::tap_name(&vm, 1));
}

#[test]
fn layer_is_created_with_its_image_and_size() {
    let args = layer(Path::new("/v/volume0.new"), Path::new("/images/x"), 4096);
    assert_eq!(args.join(" "), "create -q -u -f qcow2 -F qcow2 -b /images/x /v/volume0.new 4096");
}
