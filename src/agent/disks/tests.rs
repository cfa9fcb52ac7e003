//! Disks of fake machines, and loop devices of the running kernel.

use super::*;
use crate::fake::{FakeMachine, LoopDevice};

/// A disk behind an NVMe controller on NUMA node 1, with a partition.
fn machine() -> FakeMachine {
    let fake = FakeMachine::new("", &[("0000:03:00.0", "144d:a80a", "0108", 1, "nvme", 1)]);
    fake.disk("nvme0n1", "0000:03:00.0", "259:1");
    let folder = "sys/devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1";
    for (name, text) in
        [("size", "2048"), ("wwid", "eui.0025"), ("device/serial", "  SN-1  "), ("dev", "259:0")]
    {
        fake.file(&format!("{folder}/{name}"), text);
    }
    blank(&fake, "nvme0n1");
    blank(&fake, "nvme0n1p1");
    fake
}

/// An empty disk or partition.
fn blank(fake: &FakeMachine, name: &str) {
    fake.raw(&format!("dev/{name}"), &vec![0; 1 << 21]);
}

fn blocked(fake: &FakeMachine, data: &[&str]) -> Option<String> {
    let data: Vec<String> = data.iter().map(|name| (*name).to_owned()).collect();
    survey(&fake.tree, &data)
        .into_iter()
        .find(|disk| disk.name == "nvme0n1")
        .expect("there")
        .blocked
}

#[test]
fn disk_reports_its_location_and_content() {
    let fake = machine();
    let mut image = vec![0; 1 << 21];
    image[..6].copy_from_slice(b"LUKS\xba\xbe");
    fake.raw("dev/nvme0n1", &image);
    image[..6].fill(0);
    image[0xff6..0x1000].copy_from_slice(b"SWAPSPACE2");
    image[0x400] = 1;
    image[0x404..0x408].copy_from_slice(&[1, 1, 0, 0]);
    fake.raw("dev/nvme0n1p1", &image);
    let disks = survey(&fake.tree, &[]);
    let [disk] = disks.as_slice() else { panic!("{disks:?}") };
    assert_eq!(
        (disk.identity(), disk.serial.as_deref(), disk.bytes),
        (Some("eui.0025"), Some("SN-1"), 1 << 20)
    );
    assert_eq!((disk.function.as_deref(), disk.numa_node), (Some("0000:03:00.0"), Some(1)));
    assert_eq!(disk.signatures, ["crypto_LUKS on nvme0n1", "swap space on nvme0n1p1"]);
    assert_eq!(disk.blocked, None, "content does not block a disk");
}

#[test]
fn use_of_a_disk_or_partition_blocks_the_disk() {
    for (path, text, why) in [
        (
            "proc/self/mountinfo",
            "36 35 259:1 / /data rw - ext4 /dev/x rw\n",
            "disk nvme0n1p1 is mounted on /data",
        ),
        (
            "proc/self/mountinfo",
            "36 35 259:0 / /data rw - xfs /dev/x rw\n",
            "disk nvme0n1 is mounted on /data",
        ),
        (
            "proc/swaps",
            "Filename Type\n/dev/nvme0n1p1 partition 1 0 -2\n",
            "disk nvme0n1p1 is used as swap",
        ),
        (
            "sys/devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1/nvme0n1p1/holders/md0",
            "",
            "disk nvme0n1p1 is part of md0",
        ),
        (
            "sys/devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1/holders/dm-0",
            "",
            "disk nvme0n1 is part of dm-0",
        ),
        ("sys/block/loop0/loop/backing_file", "/dev/nvme0n1p1\n", "disk nvme0n1p1 is behind loop0"),
    ] {
        let fake = machine();
        assert_eq!(blocked(&fake, &[]), None);
        fake.file(path, text);
        assert_eq!(blocked(&fake, &[]).as_deref(), Some(why));
    }
    let fake = machine();
    fake.process(12, "qemu-system-x86", "/dev/nvme0n1");
    assert_eq!(
        blocked(&fake, &[]).as_deref(),
        Some("/dev/nvme0n1 is open in qemu-system-x86 (12)")
    );
    let fake = machine();
    fake.process(12, "mesh-agent", "/dev/nvme0n1");
    assert_eq!(blocked(&fake, &[]), None, "the agent itself");
}

#[test]
fn disk_marked_as_data_or_without_unique_identity_is_blocked() {
    let fake = machine();
    assert_eq!(blocked(&fake, &["SN-1"]).as_deref(), Some("the profile marks SN-1 as data"));
    assert_eq!(
        blocked(&fake, &["eui.0025"]).as_deref(),
        Some("the profile marks eui.0025 as data")
    );
    assert_eq!(blocked(&fake, &["nvme0n1"]), None, "a kernel name marks nothing");
    fake.file("sys/block/sdb/size", "2048");
    fake.file("sys/block/sdb/device/serial", "SN-1");
    assert_eq!(blocked(&fake, &[]).as_deref(), Some("another disk has the same identity SN-1"));
    fake.file("sys/block/sdc/size", "2048");
    fake.file("sys/block/sdd/serial", "SN-4");
    let why: BTreeMap<String, Option<String>> =
        survey(&fake.tree, &[]).into_iter().map(|disk| (disk.name, disk.blocked)).collect();
    assert_eq!(why["sdc"].as_deref(), Some("no WWN and no serial number"));
    assert_eq!(why["sdd"].as_deref(), Some("no medium"));
}

#[test]
fn renamed_disk_keeps_its_identity_and_virtual_devices_are_ignored() {
    let fake = FakeMachine::new("", &[]);
    for name in ["loop0", "ram0", "zram0", "dm-0", "md0", "sr0", "nvme0c0n1"] {
        fake.file(&format!("sys/block/{name}/size"), "2048");
    }
    for (name, wwid) in [("sda", "naa.1"), ("sdb", "naa.2")] {
        fake.file(&format!("sys/block/{name}/size"), "2048");
        fake.file(&format!("sys/block/{name}/device/wwid"), wwid);
        blank(&fake, name);
    }
    let named = |fake: &FakeMachine, wwid: &str| {
        let disks = survey(&fake.tree, &["naa.2".to_owned()]);
        assert_eq!(disks.len(), 2);
        disks.into_iter().find(|disk| disk.identity() == Some(wwid)).expect("there")
    };
    let data = named(&fake, "naa.2");
    assert_eq!((data.name.as_str(), data.blocked.is_some()), ("sdb", true));
    for (name, wwid) in [("sda", "naa.2"), ("sdb", "naa.1")] {
        fake.file(&format!("sys/block/{name}/device/wwid"), wwid);
    }
    let data = named(&fake, "naa.2");
    assert_eq!((data.name.as_str(), data.blocked.is_some()), ("sda", true));
    assert_eq!(named(&fake, "naa.1").blocked, None);
}

#[test]
fn loop_device_is_in_use_while_mounted_or_open() {
    let tree = Tree::new(std::path::Path::new("/"));
    let real = LoopDevice::new(8 << 20);
    real.ext4();
    let used =
        || in_use(&tree).into_iter().find(|(disk, _)| disk == real.name()).map(|(_, why)| why);
    let nodes = BTreeSet::from([real.device.clone()]);
    assert_eq!(used(), None);
    assert_eq!(content::of_disk(&tree, &real.device), Ok(vec!["ext4 file system".to_owned()]));
    let open = std::fs::File::open(&real.device).expect("opened");
    assert!(holders::find(&tree, &nodes)[&real.device].contains(&std::process::id().to_string()));
    drop(open);
    // A child of another test inherits the descriptor until `exec`.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while holders::find(&tree, &nodes).contains_key(&real.device) {
        assert!(std::time::Instant::now() < deadline, "still open");
        std::thread::yield_now();
    }
    real.mount();
    assert_eq!(used(), Some(format!("disk {} is mounted on {}", real.name(), real.mount_point())));
    real.umount();
    assert_eq!(used(), None);
    assert!(
        survey(&tree, &[]).iter().all(|disk| disk.name != real.name()),
        "a loop device is no disk"
    );
}

#[test]
fn unreadable_disk_is_blocked_and_unknown_data_is_a_signature() {
    let fake = machine();
    std::fs::remove_file(fake.tree.path("/dev/nvme0n1")).expect("removed");
    let why = blocked(&fake, &[]).expect("unreadable");
    assert!(why.starts_with("cannot read the disk: "), "{why}");
    let mut image = vec![0; 1 << 21];
    image[(1 << 21) - 1] = 1;
    fake.raw("dev/nvme0n1", &image);
    let disks = survey(&fake.tree, &[]);
    assert_eq!(disks[0].signatures, ["unrecognised data on nvme0n1"]);
}

/// Opening a pipe without a writer hangs.
#[test]
fn hanging_disk_is_blocked_and_other_disks_are_surveyed() {
    let fake = machine();
    fake.file("sys/block/sdb/size", "2048");
    fake.file("sys/block/sdb/wwid", "naa.1");
    crate::fake::run("mkfifo", &[fake.tree.path("/dev/sdb").to_str().expect("a plain path")]);
    let (sender, found) = std::sync::mpsc::channel();
    let tree = fake.tree.clone();
    std::thread::spawn(move || sender.send(survey(&tree, &[])));
    let found = found.recv_timeout(4 * source::DEADLINE).expect("the survey does not wait for it");
    let why =
        |name: &str| found.iter().find(|disk| disk.name == name).expect("there").blocked.clone();
    assert_eq!(why("nvme0n1"), None);
    assert_eq!(why("sdb"), Some(source::ReadError::Timeout.to_string()));
    assert_eq!(found[1].identity(), Some("naa.1"), "the identity is known nevertheless");
}
