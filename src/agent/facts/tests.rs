//! Facts of fake trees.

use super::*;
use crate::fake::FakeMachine;
use proptest::prelude::*;
use std::{net::IpAddr, path::Path};

fn machine() -> FakeMachine {
    FakeMachine::new("", &[])
}

fn collected(fake: &FakeMachine) -> Facts {
    collect(&fake.tree, Path::new("/nowhere"), None, None, &Facts::default())
}

fn dmi(fake: &FakeMachine) {
    for (name, text) in [
        ("product_uuid", "01020304-0506-0708-090A-0B0C0D0E0F10\n"),
        ("sys_vendor", "ACME\n"),
        ("product_name", "Node 1\n"),
        ("product_serial", "S1\n"),
        ("board_serial", "B1\n"),
    ] {
        fake.file(&format!("sys/class/dmi/id/{name}"), text);
    }
}

#[test]
fn identity_processors_and_memory_are_read() {
    let fake = machine();
    dmi(&fake);
    fake.file("proc/uptime", "4711.23 9000.1\n");
    fake.file("proc/sys/kernel/random/boot_id", "abc\n");
    fake.file("etc/os-release", "ID=alpine\nPRETTY_NAME=\"Alpine Linux v3.23\"\n");
    fake.file("proc/meminfo", "MemTotal:  1000000 kB\nMemFree: 5 kB\nMemAvailable:   900000 kB\n");
    let cpu = |n: u32, core: u32| {
        format!(
            "processor\t: {n}\nvendor_id\t: AuthenticAMD\nmodel name\t: EPYC\nphysical id\t: 0\ncore id\t\t: {core}\nflags\t\t: fpu svm sse\n\n"
        )
    };
    fake.file("proc/cpuinfo", &[cpu(0, 0), cpu(1, 0), cpu(2, 1), cpu(3, 1)].concat());
    let facts = collected(&fake);
    assert_eq!(
        facts.system.uuid.map(|uuid| uuid.to_string()).as_deref(),
        Some("01020304-0506-0708-090a-0b0c0d0e0f10")
    );
    assert_eq!((facts.system.serial.as_str(), facts.system.uptime_s), ("S1", 4711));
    assert_eq!((facts.cpu.sockets, facts.cpu.cores, facts.cpu.threads), (1, 2, 4));
    assert_eq!((facts.cpu.virtualization.as_str(), facts.cpu.model.as_str()), ("svm", "EPYC"));
    assert_eq!((facts.memory.total_kib, facts.memory.available_kib), (1_000_000, 900_000));
    assert_eq!(facts.versions.os, "Alpine Linux v3.23");
    assert!(facts.versions.agent.contains('('));
}

#[test]
fn pci_functions_follow_their_links() {
    let fake = machine();
    let device = "sys/devices/pci0000:00/0000:01:00.0";
    for (name, text) in [
        ("vendor", "0x10de\n"),
        ("device", "0x2330\n"),
        ("class", "0x030200\n"),
        ("numa_node", "-1\n"),
    ] {
        fake.file(&format!("{device}/{name}"), text);
    }
    fake.link(&format!("{device}/driver"), "../../../bus/pci/drivers/vfio-pci");
    fake.link(&format!("{device}/iommu_group"), "../../../kernel/iommu_groups/17");
    fake.link("sys/bus/pci/devices/0000:01:00.0", "../../../devices/pci0000:00/0000:01:00.0");
    let pci = collected(&fake).pci;
    assert_eq!(pci.len(), 1);
    assert_eq!(
        (pci[0].vendor.as_str(), pci[0].device.as_str(), pci[0].class.as_str()),
        ("10de", "2330", "0302")
    );
    assert_eq!(pci[0].driver.as_deref(), Some("vfio-pci"));
    assert_eq!((pci[0].iommu_group, pci[0].numa_node), (Some(17), None));
}

#[test]
fn disk_list_has_whole_disks_only() {
    let fake = machine();
    for name in [
        "loop0",
        "ram0",
        "zram0",
        "dm-0",
        "md0",
        "sr0",
        "nvme0c1n1",
        "nvme0n1",
        "sda",
        "vda",
        "mmcblk0",
    ] {
        fake.file(&format!("sys/block/{name}/size"), "2048\n");
    }
    fake.file("sys/block/nvme0n1/wwid", "eui.0025\n");
    fake.file("sys/block/nvme0n1/device/serial", "  N1  \n");
    fake.file("sys/block/sda/queue/rotational", "1\n");
    let disks = collected(&fake).disks;
    let names: Vec<&str> = disks.iter().map(|disk| disk.name.as_str()).collect();
    assert_eq!(names, ["mmcblk0", "nvme0n1", "sda", "vda"]);
    assert_eq!(
        (disks[1].wwid.as_deref(), disks[1].serial.as_deref()),
        (Some("eui.0025"), Some("N1"))
    );
    assert_eq!(
        (disks[2].bytes, disks[2].rotational, disks[1].rotational),
        (1_048_576, true, false)
    );
}

fn nics(fake: &FakeMachine) {
    for (name, mac) in
        [("eth0", "52:54:00:00:00:02"), ("eth1", "52:54:00:00:00:01"), ("br0", "52:54:00:00:00:00")]
    {
        fake.file(&format!("sys/class/net/{name}/address"), mac);
    }
    for name in ["eth0", "eth1"] {
        fake.link(&format!("sys/class/net/{name}/device"), "../../../0000:00:03.0");
    }
}

#[test]
fn physical_interfaces_are_listed_with_their_addresses() {
    let fake = machine();
    nics(&fake);
    fake.file("sys/class/net/eth0/carrier", "1\n");
    fake.file("sys/class/net/eth0/speed", "-1\n");
    fake.file("sys/class/net/eth1/bonding_slave/perm_hwaddr", "52:54:00:00:00:09");
    fake.routes(&[
        ("eth1", [0; 4], [0; 4], [0; 4]),
        ("eth1", [10, 0, 0, 0], [255, 0, 0, 0], [0; 4]),
        ("eth0", [10, 77, 0, 0], [255, 255, 255, 0], [0; 4]),
    ]);
    let own = "  |-- 10.77.0.5\n   /32 host LOCAL\n  |-- 10.77.0.255\n   /32 link BROADCAST\n  |-- 127.0.0.1\n   /32 host LOCAL\n";
    fake.file("proc/net/fib_trie", &own.repeat(2));
    fake.file("proc/net/if_inet6", "fe80000000000000505400fffe000002 02 40 20 80     eth0\n");
    let nics = collected(&fake).nics;
    assert_eq!(nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), ["eth0", "eth1"]);
    let expected: Vec<IpAddr> =
        ["10.77.0.5", "fe80::5054:ff:fe00:2"].iter().map(|a| a.parse().expect("ip")).collect();
    assert_eq!(nics[0].addresses, expected);
    assert_eq!((nics[0].carrier, nics[0].speed_mbps), (true, None));
    assert_eq!(nics[0].function, None, "its device does not exist");
    assert_eq!(nics[1].mac.map(|mac| mac.to_string()).as_deref(), Some("52:54:00:00:00:09"));
}

#[test]
fn node_id_is_derived_from_mac_and_uuid() {
    let fake = machine();
    nics(&fake);
    let weak = hardware(&fake.tree).basis(&Default::default()).expect("a MAC");
    assert_eq!(weak.to_string(), "mac:52:54:00:00:00:01");
    dmi(&fake);
    let basis = hardware(&fake.tree).basis(&Default::default()).expect("a UUID");
    assert_eq!(basis.to_string(), "uuid:01020304-0506-0708-090a-0b0c0d0e0f10");
}

#[test]
fn facts_of_large_tree_are_bounded_and_of_empty_tree_empty() {
    let fake = machine();
    assert_eq!(collected(&fake).pci, Vec::new());
    for n in 0..MAX_DEVICES + 5 {
        fake.folder(&format!("sys/bus/pci/devices/{n:05}"));
    }
    assert_eq!(collected(&fake).pci.len(), MAX_DEVICES);
}

#[test]
fn facts_of_this_machine_are_complete() {
    let facts =
        collect(&Tree::new(Path::new("/")), Path::new("/nowhere"), None, None, &Facts::default());
    assert!(facts.cpu.threads > 0 && facts.memory.total_kib > 0);
    assert!(serde_json::to_string(&facts).expect("plain").len() < meshd_proto::MAX_MESSAGE);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_file_contents_never_panic(junk: Vec<u8>, text in "\\PC{0,80}") {
        let fake = machine();
        nics(&fake);
        for path in ["proc/cpuinfo", "proc/meminfo", "proc/uptime", "proc/net/route", "proc/net/fib_trie",
            "proc/net/if_inet6", "etc/os-release", "sys/class/dmi/id/product_uuid", "sys/block/sda/size",
            "sys/class/net/eth0/speed", "sys/bus/pci/devices/x/vendor"] {
            fake.file(path, &text);
            collected(&fake);
            fake.raw(path, &junk);
        }
        collected(&fake);
    }
}

#[test]
fn drain_hooks_are_programs_that_only_root_may_change() {
    use std::{fs, os::unix::fs::PermissionsExt as _};
    let fake = machine();
    assert!(collected(&fake).drain_hooks.is_empty());
    let modes = [
        ("20-lsf", 0o755),
        ("10-slurm", 0o700),
        ("group-writes", 0o775),
        ("all-write", 0o757),
        ("not-executable", 0o644),
        ("bad name", 0o755),
    ];
    for (name, mode) in modes {
        let path = format!("etc/meshd/drain.d/{name}");
        fake.file(&path, "#!/bin/sh\n");
        fs::set_permissions(fake.tree.path(&path), fs::Permissions::from_mode(mode)).expect("set");
    }
    let folder = fake.tree.path("etc/meshd/drain.d");
    std::os::unix::fs::symlink("/bin/true", folder.join("linked")).expect("made");
    fs::create_dir(folder.join("folder")).expect("made");
    let set_mode = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode));
    set_mode(0o755).expect("set");
    let names = |fake: &FakeMachine| {
        let hooks = collected(fake).drain_hooks;
        hooks.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names(&fake), ["10-slurm", "20-lsf"]);
    set_mode(0o777).expect("set");
    assert_eq!(names(&fake), [""; 0], "anybody could replace a hook");
}
