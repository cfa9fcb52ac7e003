//! Writes to sysfs, and functions that must not be bound.

use super::*;
use crate::vfio::ProbeError;

#[test]
fn bind_binds_the_whole_group_and_is_idempotent() {
    let fake = FakeMachine::new("", &CARD);
    let first = bind(&fake.tree, &selectors(&["class:0300"]), &fake).expect("recorded");
    assert_eq!(
        first[0].to_string(),
        "unit 1 (0000:01:00.0 0000:01:00.1): ready, 2 function(s) bound now"
    );
    let device = "/sys/bus/pci/devices/0000:01:00";
    let expected = [
        format!("{device}.0/driver_override <- vfio-pci"),
        "/sys/bus/pci/drivers_probe <- 0000:01:00.0".to_owned(),
        format!("{device}.1/driver_override <- vfio-pci"),
        format!("{device}.1/driver/unbind <- 0000:01:00.1"),
        "/sys/bus/pci/drivers_probe <- 0000:01:00.1".to_owned(),
    ];
    assert_eq!(*fake.writes.borrow(), expected);
    let second = bind(&fake.tree, &selectors(&["class:0300"]), &fake).expect("recorded");
    assert_eq!(second[0].to_string(), "unit 1 (0000:01:00.0 0000:01:00.1): ready");
    assert_eq!(fake.writes.borrow().len(), expected.len());
}

#[test]
fn bound_unit_is_ready_only_if_the_container_accepts_its_group() {
    let mut fake = bound_card();
    assert_eq!(states(&surveyed(&fake, &["class:0300"])), [UnitState::Ready]);
    fake.fail_probe(1, ProbeError::Failed("no interrupt remapping".into()));
    let units = surveyed(&fake, &["class:0300"]);
    assert_eq!(states(&units), [UnitState::Unbound]);
    assert!(units[0].reason.contains("no interrupt remapping"), "{units:?}");
    fake.fail_probe(1, ProbeError::Busy);
    assert_eq!(states(&surveyed(&fake, &["class:0300"])), [UnitState::InUse]);
    fake.fail_probe(1, ProbeError::NotViable);
    assert_eq!(states(&surveyed(&fake, &["class:0300"])), [UnitState::Conflict]);
}

#[test]
fn unit_open_in_a_vm_is_in_use_with_its_process() {
    let fake = bound_card();
    fake.process(99, "qemu-system-x86", "/dev/vfio/1");
    let units = bound(&fake, &["class:0300"]);
    assert_eq!(
        (states(&units), units[0].reason.as_str()),
        (vec![UnitState::InUse], "open in qemu-system-x86 (99)")
    );
    assert_eq!(units_ready(&units), "0/1 GPU unit(s) ready");
}

#[test]
fn driver_override_of_another_program_is_a_conflict() {
    let fake = FakeMachine::new("", &CARD);
    fake.file("sys/devices/pci0000:00/0000:01:00.1/driver_override", "pci-stub\n");
    let units = bound(&fake, &["class:0300"]);
    assert_eq!(states(&units), [UnitState::Conflict]);
    assert_eq!(units[0].reason, "driver_override of 0000:01:00.1 selects pci-stub");
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}

#[test]
fn enabled_virtual_functions_are_a_conflict() {
    let fake = FakeMachine::new("", &[("0000:18:00.0", "15b3:1021", "0200", 3, "mlx5_core", 0)]);
    fake.file("sys/devices/pci0000:00/0000:18:00.0/sriov_totalvfs", "16");
    fake.file("sys/devices/pci0000:00/0000:18:00.0/sriov_numvfs", "2");
    let units = bound(&fake, &["vendor:15b3"]);
    assert_eq!(states(&units), [UnitState::Conflict]);
    assert!(units[0].reason.contains("2 virtual functions"), "{units:?}");
}

#[test]
fn selected_address_without_function_is_missing() {
    let fake = FakeMachine::new("", &CARD);
    assert_eq!(bound(&fake, &[]), []);
    let units = bound(&fake, &["address:0000:7f:00.0"]);
    assert_eq!(
        (states(&units), units_ready(&units).as_str()),
        (vec![UnitState::Missing], "0/1 GPU unit(s) ready")
    );
    assert!(units[0].reason.contains("0000:7f:00.0"), "{units:?}");
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}

#[test]
fn bridge_is_never_selected() {
    let fake = FakeMachine::new("", &[("0000:00:01.0", "8086:a70d", "0604", 1, "pcieport", -1)]);
    assert_eq!(bound(&fake, &["vendor:8086"]), []);
}

#[test]
fn unit_open_by_iommufd_is_in_use() {
    let fake = bound_card();
    fake.file(
        "sys/devices/pci0000:00/0000:01:00.0/vfio-dev/vfio3/uevent",
        "MAJOR=511\nDEVNAME=vfio/devices/vfio3\n",
    );
    fake.process(99, "qemu-system-x86", "/dev/vfio/devices/vfio3");
    let units = bound(&fake, &["class:0300"]);
    let reason = "/dev/vfio/devices/vfio3 is open in qemu-system-x86 (99)";
    assert_eq!((states(&units), units[0].reason.as_str()), (vec![UnitState::InUse], reason));
}

#[test]
fn group_with_too_many_functions_is_not_bound() {
    let address = |at: usize| format!("0000:01:{:02x}.{}", at / 8, at % 8).leak() as &str;
    let rows: Vec<PciFunctionRow> =
        (0..70).map(|at| (address(at), "10de:2684", "0300", 1, "nouveau", -1)).collect();
    let fake = FakeMachine::new("", &rows);
    let units = bound(&fake, &["class:0300"]);
    assert_eq!(states(&units), [UnitState::Conflict]);
    assert!(units[0].reason.contains("70 functions"), "{units:?}");
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}
