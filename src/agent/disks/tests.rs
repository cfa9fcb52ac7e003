//! Which disks may be given away, on made-up machines and on real loop devices' kin.

use super::*;
use crate::fake::{Fake, Loop};

/// A disk behind an NVMe controller on NUMA node 1, with a partition.
fn machine() -> Fake {
    let fake = Fake::new("", &[("0000:03:00.0", "144d:a80a", "0108", 1, "nvme", 1)]);
    fake.disk("nvme0n1", "0000:03:00.0", "259:1");
    let folder = "sys/devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1";
    for (name, text) in [("size", "2048"), ("wwid", "eui.0025"), ("device/serial", "  SN-1  "), ("dev", "259:0")] {
        fake.file(&format!("{folder}/{name}"), text);
    }
    blank(&fake, "nvme0n1");
    blank(&fake, "nvme0n1p1");
    fake
}

/// A disk or partition on which nothing is written.
fn blank(fake: &Fake, name: &str) {
    fake.raw(&format!("dev/{name}"), &vec![0; 1 << 21]);
}

fn blocked(fake: &Fake, data: &[&str]) -> Option<String> {
    let data: Vec<String> = data.iter().map(|name| (*name).to_owned()).collect();
    survey(&fake.tree, &data).into_iter().find(|disk| disk.name == "nvme0n1").expect("there").blocked
}

#[test]
fn a_disk_tells_where_it_hangs_and_what_is_on_it() {
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
    assert_eq!((disk.identity(), disk.serial.as_deref(), disk.bytes), (Some("eui.0025"), Some("SN-1"), 1 << 20));
    assert_eq!((disk.function.as_deref(), disk.numa_node), (Some("0000:03:00.0"), Some(1)));
    assert_eq!(disk.signatures, ["crypto_LUKS on nvme0n1", "swap space on nvme0n1p1"]);
    assert_eq!(disk.blocked, None, "what is written on it is told, and does not make it anybody's");
}

#[test]
fn whatever_uses_a_disk_or_a_part_of_it_blocks_it() {
    for (path, text, why) in [
        ("proc/self/mountinfo", "36 35 259:1 / /data rw - ext4 /dev/x rw\n", "disk nvme0n1p1 is mounted on /data"),
        ("proc/self/mountinfo", "36 35 259:0 / /data rw - xfs /dev/x rw\n", "disk nvme0n1 is mounted on /data"),
        ("proc/swaps", "Filename Type\n/dev/nvme0n1p1 partition 1 0 -2\n", "disk nvme0n1p1 is swapped to"),
        (
            "sys/devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1/nvme0n1p1/holders/md0",
            "",
            "disk nvme0n1p1 is part of md0",
        ),
        ("sys/devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1/holders/dm-0", "", "disk nvme0n1 is part of dm-0"),
        ("sys/block/loop0/loop/backing_file", "/dev/nvme0n1p1\n", "disk nvme0n1p1 is behind loop0"),
    ] {
        let fake = machine();
        assert_eq!(blocked(&fake, &[]), None);
        fake.file(path, text);
        assert_eq!(blocked(&fake, &[]).as_deref(), Some(why));
    }
    let fake = machine();
    fake.process(12, "qemu-system-x86", "/dev/nvme0n1");
    assert_eq!(blocked(&fake, &[]).as_deref(), Some("/dev/nvme0n1 is open in qemu-system-x86 (12)"));
    let fake = machine();
    fake.process(12, "mesh-agent", "/dev/nvme0n1");
    assert_eq!(blocked(&fake, &[]), None, "the agent looks at it for a moment");
}

#[test]
fn what_the_profile_marks_and_what_has_no_name_of_its_own_is_never_a_candidate() {
    let fake = machine();
    assert_eq!(blocked(&fake, &["SN-1"]).as_deref(), Some("the profile marks SN-1 as data"));
    assert_eq!(blocked(&fake, &["eui.0025"]).as_deref(), Some("the profile marks eui.0025 as data"));
    assert_eq!(blocked(&fake, &["nvme0n1"]), None, "a kernel name marks nothing");
    fake.file("sys/block/sdb/size", "2048");
    fake.file("sys/block/sdb/device/serial", "SN-1");
    assert_eq!(blocked(&fake, &[]).as_deref(), Some("another disk is called SN-1, too"));
    fake.file("sys/block/sdc/size", "2048");
    fake.file("sys/block/sdd/serial", "SN-4");
    let why: BTreeMap<String, Option<String>> =
        survey(&fake.tree, &[]).into_iter().map(|disk| (disk.name, disk.blocked)).collect();
    assert_eq!(why["sdc"].as_deref(), Some("it has neither WWN nor serial number"));
    assert_eq!(why["sdd"].as_deref(), Some("it has no medium"));
}

#[test]
fn a_disk_that_is_renamed_is_still_the_same_and_paths_and_made_up_devices_are_none() {
    let fake = Fake::new("", &[]);
    for name in ["loop0", "ram0", "zram0", "dm-0", "md0", "sr0", "nvme0c0n1"] {
        fake.file(&format!("sys/block/{name}/size"), "2048");
    }
    for (name, wwid) in [("sda", "naa.1"), ("sdb", "naa.2")] {
        fake.file(&format!("sys/block/{name}/size"), "2048");
        fake.file(&format!("sys/block/{name}/device/wwid"), wwid);
        blank(&fake, name);
    }
    let named = |fake: &Fake, wwid: &str| {
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
fn a_real_device_is_in_use_while_it_is_mounted_or_open_and_free_again_after() {
    let tree = Tree::new(std::path::Path::new("/"));
    let real = Loop::new(8 << 20);
    real.ext4();
    let used = || in_use(&tree).into_iter().find(|(disk, _)| disk == real.name()).map(|(_, why)| why);
    let nodes = BTreeSet::from([real.device.clone()]);
    assert_eq!(used(), None);
    assert_eq!(content::of_disk(&tree, &real.device), Ok(vec!["ext4 file system".to_owned()]));
    let open = std::fs::File::open(&real.device).expect("opened");
    assert!(holders::of(&tree, &nodes)[&real.device].contains(&std::process::id().to_string()));
    drop(open);
    // A child of another test may have it for the moment before it becomes a program of its own.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while holders::of(&tree, &nodes).contains_key(&real.device) {
        assert!(std::time::Instant::now() < patience, "still open");
        std::thread::yield_now();
    }
    real.mount();
    assert_eq!(used(), Some(format!("disk {} is mounted on {}", real.name(), real.place())));
    real.umount();
    assert_eq!(used(), None);
    assert!(survey(&tree, &[]).iter().all(|disk| disk.name != real.name()), "a loop device is no disk");
}

#[test]
fn disk_that_cannot_be_read_is_blocked_and_one_with_unknown_data_holds_something() {
    let fake = machine();
    std::fs::remove_file(fake.tree.path("/dev/nvme0n1")).expect("removed");
    let why = blocked(&fake, &[]).expect("nobody knows what it holds");
    assert!(why.starts_with("it cannot be read: "), "{why}");
    let mut image = vec![0; 1 << 21];
    image[(1 << 21) - 1] = 1;
    fake.raw("dev/nvme0n1", &image);
    let disks = survey(&fake.tree, &[]);
    assert_eq!(disks[0].signatures, ["unrecognised data on nvme0n1"]);
}

/// Two disks, of which one hangs whoever opens it, as a pipe without a writer does.
#[test]
fn disk_that_hangs_is_blocked_and_the_others_are_judged() {
    let fake = machine();
    fake.file("sys/block/sdb/size", "2048");
    fake.file("sys/block/sdb/wwid", "naa.1");
    crate::fake::run("mkfifo", &[fake.tree.path("/dev/sdb").to_str().expect("a plain path")]);
    let (sender, found) = std::sync::mpsc::channel();
    let tree = fake.tree.clone();
    std::thread::spawn(move || sender.send(survey(&tree, &[])));
    let found = found.recv_timeout(4 * source::DEADLINE).expect("the survey does not wait for it");
    let why = |name: &str| found.iter().find(|disk| disk.name == name).expect("there").blocked.clone();
    assert_eq!(why("nvme0n1"), None);
    assert_eq!(why("sdb"), Some(source::Late::Deadline.to_string()));
    assert_eq!(found[1].identity(), Some("naa.1"), "what it calls itself is known all the same");
}
