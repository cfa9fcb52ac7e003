//! Functions that the node needs are never assigned.

use super::*;

/// A machine with a disk in the group of the card.
fn with_disk() -> FakeMachine {
    let fake = card_with("", ("0000:03:00.0", "144d:a80a", "0108", 1, "nvme", -1));
    fake.disk("nvme0n1", "0000:03:00.0", "259:1");
    fake
}

fn shared(fake: &FakeMachine, reason: &str) {
    let units = bound(fake, &["class:0300"]);
    assert_eq!(
        (states(&units), units[0].reason.as_str()),
        (vec![UnitState::SharedWithHost], reason)
    );
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}

#[test]
fn disk_in_use_keeps_its_controller_with_the_host() {
    shared_by(
        "proc/self/mountinfo",
        "36 35 259:1 / /data rw - ext4 /dev/mapper/x rw\n",
        "p1 is mounted on /data",
    );
    // A btrfs mount has another device number.
    shared_by(
        "proc/self/mountinfo",
        "36 35 0:44 / /data rw - btrfs /dev/nvme0n1p1 rw\n",
        "p1 is mounted on /data",
    );
    shared_by(
        "proc/swaps",
        "Filename Type\n/dev/nvme0n1p1 partition 1 0 -2\n",
        "p1 is used as swap",
    );
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
fn idle_disk_does_not_keep_its_controller() {
    let fake = with_disk();
    assert_eq!(states(&bound(&fake, &["class:0300"])), [UnitState::Ready]);
    assert_eq!(fake.driver("0000:03:00.0").as_deref(), Some("vfio-pci"));
}

#[test]
fn disk_open_in_a_process_makes_its_unit_busy() {
    let fake = with_disk();
    fake.process(12, "dd", "/dev/nvme0n1");
    let units = bound(&fake, &["class:0300"]);
    assert_eq!(
        (states(&units), units[0].reason.as_str()),
        (vec![UnitState::Busy], "/dev/nvme0n1 is open in dd (12)")
    );
}

#[test]
fn nvidia_device_nodes_belong_to_the_gpu() {
    let fake = FakeMachine::new("", &CARD);
    fake.file("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: X\nDevice Minor: \t 3\n");
    fake.process(12, "python3", "/dev/nvidia3");
    assert_eq!(states(&bound(&fake, &["class:0300"])), [UnitState::Busy]);
}

#[test]
fn nic_below_a_bond_with_the_default_route_is_needed() {
    let fake = card_with("", ("0000:04:00.0", "8086:1533", "0200", 1, "igb", -1));
    fake.interface("eth1", "52:54:00:00:00:02", "0000:04:00.0");
    for (upper, lower) in [("bond0", "eth1"), ("br0", "bond0")] {
        fake.link(&format!("sys/class/net/{upper}/lower_{lower}"), &format!("../{lower}"));
    }
    fake.routes(&[("br0", [0; 4], [0; 4], [10, 0, 0, 1])]);
    shared(&fake, "0000:04:00.0 carries the default route (br0)");
}

#[test]
fn function_of_a_console_is_needed() {
    let fake = card_with("console=ttyS4", ("0000:05:00.0", "1415:c158", "0700", 1, "serial", -1));
    fake.file("proc/consoles", "ttyS4                -W- (EC p a)    4:68\n");
    fake.link("sys/class/tty/ttyS4/device", "../../../devices/pci0000:00/0000:05:00.0");
    shared(&fake, "0000:05:00.0 is the console ttyS4");
}
