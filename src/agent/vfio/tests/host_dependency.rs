//! What the node stands on is never taken, however it stands on it.

use super::*;

/// A disk and its reason, in the group of the card.
fn with_disk() -> Fake {
    let mut rows = CARD.to_vec();
    rows.push(("0000:03:00.0", "144d:a80a", "0108", 1, "nvme", -1));
    let fake = Fake::new("", &rows);
    fake.disk("nvme0n1", "0000:03:00.0", "259:1");
    fake
}

fn shared(fake: &Fake, reason: &str) {
    let units = bound(fake, &["class:0300"]);
    assert_eq!((states(&units), units[0].reason.as_str()), (vec![UnitState::SharedWithHost], reason));
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}

#[test]
fn a_disk_that_is_mounted_swapped_to_or_part_of_another_stays() {
    shared_by("proc/self/mountinfo", "36 35 259:1 / /data rw - ext4 /dev/mapper/x rw\n", "p1 is mounted on /data");
    // btrfs has a number of its own.
    shared_by("proc/self/mountinfo", "36 35 0:44 / /data rw - btrfs /dev/nvme0n1p1 rw\n", "p1 is mounted on /data");
    shared_by("proc/swaps", "Filename Type\n/dev/nvme0n1p1 partition 1 0 -2\n", "p1 is swapped to");
    let folder = "sys/devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1";
    shared_by(&format!("{folder}/nvme0n1p1/holders/md0"), "", "p1 is part of md0");
    shared_by(&format!("{folder}/holders/dm-0"), "", " is part of dm-0");

    fn shared_by(path: &str, text: &str, why: &str) {
        let fake = with_disk();
        fake.file(path, text);
        shared(&fake, &format!("0000:03:00.0 disk nvme0n1{why}"));
    }
}

#[test]
fn a_disk_that_nobody_uses_goes_with_its_group() {
    let fake = with_disk();
    assert_eq!(states(&bound(&fake, &["class:0300"])), [UnitState::Ready]);
    assert_eq!(fake.driver("0000:03:00.0").as_deref(), Some("vfio-pci"));
}

#[test]
fn a_disk_that_a_process_has_open_makes_its_group_busy() {
    let fake = with_disk();
    fake.process(12, "dd", "/dev/nvme0n1");
    let units = bound(&fake, &["class:0300"]);
    assert_eq!((states(&units), units[0].reason.as_str()), (vec![UnitState::Busy], "/dev/nvme0n1 is held by dd (12)"));
}

#[test]
fn nvidias_own_nodes_count_as_the_cards() {
    let fake = Fake::new("", &CARD);
    fake.file("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: X\nDevice Minor: \t 3\n");
    fake.process(12, "python3", "/dev/nvidia3");
    assert_eq!(states(&bound(&fake, &["class:0300"])), [UnitState::Busy]);
}

#[test]
fn a_card_below_a_bond_that_carries_the_default_route_stays() {
    let mut rows = CARD.to_vec();
    rows.push(("0000:04:00.0", "8086:1533", "0200", 1, "igb", -1));
    let fake = Fake::new("", &rows);
    fake.interface("eth1", "52:54:00:00:00:02", "0000:04:00.0");
    for (upper, lower) in [("bond0", "eth1"), ("br0", "bond0")] {
        fake.link(&format!("sys/class/net/{upper}/lower_{lower}"), &format!("../{lower}"));
    }
    let header = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n";
    fake.file("proc/net/route", &format!("{header}br0 00000000 0100000A 3 0 0 0 00000000 0 0 0\n"));
    shared(&fake, "0000:04:00.0 carries the default route (br0)");
}

#[test]
fn a_console_on_a_card_stays() {
    let mut rows = CARD.to_vec();
    rows.push(("0000:05:00.0", "1415:c158", "0700", 1, "serial", -1));
    let fake = Fake::new("console=ttyS4", &rows);
    fake.file("proc/consoles", "ttyS4                -W- (EC p a)    4:68\n");
    fake.link("sys/class/tty/ttyS4/device", "../../../devices/pci0000:00/0000:05:00.0");
    shared(&fake, "0000:05:00.0 is the console ttyS4");
}
