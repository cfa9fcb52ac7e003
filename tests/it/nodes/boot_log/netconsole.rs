//! Kernel messages by UDP, from a real kernel: Debian's kernel in QEMU, and the function of mesh-init
//! that starts its netconsole. QEMU's own network sends the packets of the guest from the machine's
//! address.

use super::logs;
use crate::{
    boot::mesh_init,
    work::vms::linux,
    world::{CENTRAL, World, eventually, node::PxeNode, program::Program},
};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

/// The drivers of the NIC, and netconsole.
const MODULES: [&str; 10] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "configfs",
    "netconsole",
];
/// Longer than a packet, with the header of the extended format.
const LONG: usize = 970;

/// First program of the guest. QEMU's network has the router 10.0.2.2.
fn init() -> String {
    let start_netconsole = mesh_init::function("start_netconsole");
    let long = "x".repeat(LONG);
    format!(
        "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
modprobe virtio_pci
modprobe virtio_net
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
set -fu
say() {{ echo \"mesh-init: $*\" >/dev/kmsg; }}
argument() {{ sed -n \"s/.* $1=\\([^ ]*\\).*/\\1/p\" /proc/cmdline; }}
url=http://{CENTRAL}:8080/blob/x
interface=eth0
ping -c 1 -W 20 10.0.2.2 || say 'no router'
{start_netconsole}
start_netconsole
for number in 1 2 3 4 5; do
	say \"line $number\"
	echo '{long} end' >/dev/kmsg
	sleep 1
done
echo c >/proc/sysrq-trigger
"
    )
}

fn initramfs(dir: &Path) -> String {
    let root = dir.join("root");
    for folder in ["bin", "dev", "proc", "sys"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    fs::write(root.join("init"), init()).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    linux::unpack_modules(&root, &MODULES);
    let initramfs = dir.join("initramfs");
    linux::pack_initramfs(&root, &initramfs);
    initramfs.to_str().unwrap().to_owned()
}

#[test]
fn messages_of_a_real_kernel_up_to_its_panic_are_in_the_log_of_its_boot() {
    let mut world = World::prepared("auto");
    world.edit_site("[boot]", "[boot]\nnetconsole_port = 6666");
    world.start();
    let machine = PxeNode::new(&world, 1);
    machine.ipxe().unwrap();
    let node = world.node()["id"].as_str().unwrap().to_owned();
    let dir = tempfile::tempdir().unwrap();
    let initramfs = initramfs(dir.path());
    let kernel = linux::kernel();
    let line = "console=ttyS0 panic=-1 tsc=unstable printk.devkmsg=on meshd.netconsole=6666";
    let nic = "virtio-net-pci,netdev=net,romfile=";
    let args = [
        ["-accel", "tcg"],
        ["-cpu", "max"],
        ["-machine", "q35"],
        ["-m", "256"],
        ["-display", "none"],
        ["-monitor", "none"],
        ["-serial", "stdio"],
        ["-netdev", "user,id=net"],
        ["-device", nic],
        ["-kernel", kernel.to_str().unwrap()],
        ["-initrd", &initramfs],
        ["-append", line],
    ];
    let args = [&["-nodefaults", "-no-reboot"][..], args.as_flattened()].concat();
    let qemu = Program::start(&world, &machine.host(), "qemu-system-x86_64", &args);
    qemu.says("Linux version", 1);
    qemu.says("mesh-init: line", 5);
    let log = eventually("the panic is in the log", || {
        let log = logs(&world, &[&node, "--source", "netconsole"]);
        if log.contains("Kernel panic - not syncing: sysrq") { Ok(log) } else { Err(log) }
    });
    // The kernel first sends what it has written before.
    assert!(log.starts_with("[    0.000000] Linux version 6."), "{log}");
    assert!(log.contains("] mesh-init: line "), "{log}");
    assert!(!log.contains("no router") && !log.contains("not started"), "{log}");
    let long = format!("] {} end\n", "x".repeat(LONG));
    assert!(log.contains(&long), "a message in two packets is one line: {log}");
    let is_of_kernel = |line: &str| line.starts_with('[') && line.contains("] ");
    assert!(log.lines().all(is_of_kernel), "{log}");
}
