//! Kernel messages by UDP, from a real kernel: Debian's kernel in QEMU, with mesh-init and with
//! stage 1. QEMU's own network sends the packets of the guest from the machine's address.

use super::logs;
use crate::{
    boot::mesh_init,
    work::vms::linux,
    world::{World, eventually, node::PxeNode, program::Program, unpack},
};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

/// The drivers of the NIC.
const DRIVERS: [&str; 8] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
];
const NETCONSOLE: [&str; 2] = ["configfs", "netconsole"];
/// Longer than a packet, with the header of the extended format.
const LONG: usize = 970;

/// What Alpine's initramfs has done before mesh-init. QEMU's network has the router 10.0.2.2.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in virtio_pci virtio_net loop squashfs; do modprobe $module; done
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
ping -c 1 -W 20 10.0.2.2 || echo 'no router' >/dev/kmsg
exec /sbin/mesh-init
";

/// The init of the guest: mesh-init has mounted the modloop.
fn os_init() -> String {
    let long = "x".repeat(LONG);
    format!(
        "#!/bin/busybox sh
[ -f /lib/modules/$(uname -r)/modules.dep ] && echo 'init: modules' >/dev/kmsg
for number in 1 2 3 4 5; do
	echo \"init: line $number\" >/dev/kmsg
	echo '{long} end' >/dev/kmsg
	sleep 1
done
echo c >/proc/sysrq-trigger
"
    )
}

/// Writes a program to the root of an initramfs.
fn add_program(root: &Path, name: &str, content: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A squashfs with the modules of netconsole.
fn modloop(dir: &Path) -> Vec<u8> {
    let modules = dir.join("modloop/lib");
    fs::create_dir_all(&modules).unwrap();
    linux::unpack_modules(&dir.join("modloop"), &NETCONSOLE);
    let file = dir.join("modloop.squashfs");
    let made = Command::new("mksquashfs").arg(&modules).arg(&file).arg("-quiet").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::read(file).unwrap()
}

/// Packs this root, with the drivers and other modules.
fn pack(root: &Path, modules: [&str; 2]) -> String {
    linux::unpack_modules(root, &[&DRIVERS[..], &modules].concat());
    let initramfs = root.with_extension("initramfs");
    linux::pack_initramfs(root, &initramfs);
    initramfs.to_str().unwrap().to_owned()
}

/// Starts Debian's kernel on the machine with these arguments.
fn start_kernel(machine: &PxeNode<'_>, initramfs: &str, arguments: &str) -> Program {
    let kernel = linux::kernel();
    let line = format!("console=ttyS0 panic=-1 tsc=unstable printk.devkmsg=on {arguments}");
    let nic = format!("virtio-net-pci,netdev=net,romfile=,mac={}", machine.mac);
    let args = [
        ["-accel", "tcg"],
        ["-cpu", "max"],
        ["-machine", "q35"],
        ["-m", "256"],
        ["-display", "none"],
        ["-monitor", "none"],
        ["-serial", "stdio"],
        ["-netdev", "user,id=net"],
        ["-device", &nic],
        ["-kernel", kernel.to_str().unwrap()],
        ["-initrd", initramfs],
        ["-append", &line],
    ];
    let args = [&["-nodefaults", "-no-reboot"][..], args.as_flattened()].concat();
    let qemu = Program::start(machine.world, &machine.host(), "qemu-system-x86_64", &args);
    qemu.says("Linux version", 1);
    qemu
}

/// Waits until the log of the boot has a text, and returns the messages of the kernel.
fn until_sent(world: &World, node: &str, text: &str) -> String {
    let log = eventually(text, || {
        let log = logs(world, &[node, "--source", "netconsole"]);
        if log.contains(text) { Ok(log) } else { Err(log) }
    });
    // The kernel first sends what it has written before.
    assert!(log.starts_with("[    0.000000] Linux version 6."), "{log}");
    assert!(!log.contains("not started"), "{log}");
    log
}

#[test]
fn messages_of_a_real_kernel_up_to_its_panic_are_in_the_log_of_its_boot() {
    let mut world = mesh_init::world();
    let dir = tempfile::tempdir().unwrap();
    world.write_alpine_image(modloop(dir.path()));
    world.edit_site("[boot]", "[boot]\nnetconsole_port = 6666");
    world.start();
    let machine = PxeNode::new(&world, 1);
    let script = machine.power_on().unwrap();
    let node = world.node()["id"].as_str().unwrap().to_owned();
    let root = dir.path().join("root");
    let line = mesh_init::unpack_root(&machine, &script, &root);
    let (_, arguments) = line.split_once(" modloop=").unwrap();
    add_program(&root, "bin/busybox", &fs::read("/bin/busybox").unwrap());
    add_program(&root, "init", INIT.as_bytes());
    add_program(&root, "sbin/init", os_init().as_bytes());
    // The kernel's first program is that of the initramfs.
    let arguments: Vec<&str> =
        arguments.split(' ').filter(|word| !word.starts_with("init=")).collect();
    let arguments = format!("modloop={}", arguments.join(" "));
    let qemu = start_kernel(&machine, &pack(&root, ["loop", "squashfs"]), &arguments);
    // On the console: of the first messages, which the kernel sends at once, a busy machine loses some.
    qemu.says("mesh-init: ok ", 1);
    qemu.says("init: modules", 1);
    qemu.says("init: line", 5);
    let log = until_sent(&world, &node, "Kernel panic - not syncing: sysrq");
    assert!(log.contains("] init: line "), "{log}");
    assert!(!log.contains("no router"), "{log}");
    let long = format!("] {} end\n", "x".repeat(LONG));
    assert!(log.contains(&long), "a message in two packets is one line: {log}");
    let is_of_kernel = |line: &str| line.starts_with('[') && line.contains("] ");
    assert!(log.lines().all(is_of_kernel), "{log}");
}

/// The initramfs has no loop device: stage 1 fails after it has fetched the root.
#[test]
fn messages_of_stage1_after_the_fetch_of_the_root_are_in_the_log_of_its_boot() {
    let mut world = World::prepared("auto");
    world.write_root_image("tiny");
    let profile = "[profiles.tiny]\nimage = \"tiny\"\noverlays = [\"base\", \"agent\"]\n\
        writable = \"16M\"\n[profiles.compute]";
    world.edit_site("[profiles.compute]", profile);
    world.edit_site("profile = \"discovery\"", "profile = \"tiny\"");
    world.edit_site("[boot]", "[boot]\nnetconsole_port = 6666");
    world.start();
    let machine = PxeNode::new(&world, 1);
    let script = machine.power_on().unwrap();
    let mut words = script.0.split_whitespace();
    let port = words.find(|word| word.starts_with("meshd.netconsole=")).expect("a port");
    let overlay = machine.get(&script.overlay().unwrap()).unwrap();
    let (config, _) = unpack::stage1(&overlay.body);
    let node = world.node()["id"].as_str().unwrap().to_owned();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    add_program(&root, "meshd/stage1", &fs::read(mesh_init::stage1()).expect("make agent"));
    fs::write(root.join("meshd/stage1.json"), config.to_string()).unwrap();
    let arguments = format!("rdinit=/meshd/stage1 {port}");
    let _qemu = start_kernel(&machine, &pack(&root, NETCONSOLE), &arguments);
    until_sent(&world, &node, "stage1: FAILED: ");
}
