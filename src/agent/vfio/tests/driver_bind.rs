//! What binding writes, and what it leaves alone.

use super::*;
use crate::vfio::ProbeError;

#[test]
fn a_group_is_bound_whole_by_name_and_a_second_time_nothing_is_done() {
    let fake = Fake::new("", &CARD);
    let first = bind(&fake.tree, &wanted(&["class:0300"]), &fake).expect("recorded");
    assert_eq!(first[0].to_string(), "unit 1 (0000:01:00.0 0000:01:00.1): ready, 2 function(s) bound now");
    let device = "/sys/bus/pci/devices/0000:01:00";
    let expected = [
        format!("{device}.0/driver_override <- vfio-pci"),
        "/sys/bus/pci/drivers_probe <- 0000:01:00.0".to_owned(),
        format!("{device}.1/driver_override <- vfio-pci"),
        format!("{device}.1/driver/unbind <- 0000:01:00.1"),
        "/sys/bus/pci/drivers_probe <- 0000:01:00.1".to_owned(),
    ];
    assert_eq!(*fake.writes.borrow(), expected);
    let second = bind(&fake.tree, &wanted(&["class:0300"]), &fake).expect("recorded");
    assert_eq!(second[0].to_string(), "unit 1 (0000:01:00.0 0000:01:00.1): ready");
    assert_eq!(fake.writes.borrow().len(), expected.len());
}

#[test]
fn a_driver_name_is_not_enough_the_container_must_take_the_group() {
    let bound_rows = CARD.map(|row| (row.0, row.1, row.2, row.3, "vfio-pci", row.5));
    let mut fake = Fake::new("", &bound_rows);
    assert_eq!(states(&surveyed(&fake, &["class:0300"])), [UnitState::Ready]);
    fake.refuse(1, ProbeError::Failed("no interrupt remapping".into()));
    let units = surveyed(&fake, &["class:0300"]);
    assert_eq!(states(&units), [UnitState::Unbound]);
    assert!(units[0].reason.contains("no interrupt remapping"), "{units:?}");
    fake.refuse(1, ProbeError::Busy);
    assert_eq!(states(&surveyed(&fake, &["class:0300"])), [UnitState::InUse]);
    fake.refuse(1, ProbeError::NotViable);
    assert_eq!(states(&surveyed(&fake, &["class:0300"])), [UnitState::Conflict]);
}

#[test]
fn a_unit_that_a_virtual_machine_has_is_in_use_and_named_after_it() {
    let bound_rows = CARD.map(|row| (row.0, row.1, row.2, row.3, "vfio-pci", row.5));
    let fake = Fake::new("", &bound_rows);
    fake.process(99, "qemu-system-x86", "/dev/vfio/1");
    let units = bound(&fake, &["class:0300"]);
    assert_eq!((states(&units), units[0].reason.as_str()), (vec![UnitState::InUse], "held by qemu-system-x86 (99)"));
    assert_eq!(units_ready(&units), "0/1 GPU unit(s) ready");
}

#[test]
fn what_another_program_claims_is_a_conflict_and_stays_with_it() {
    let fake = Fake::new("", &CARD);
    fake.file("sys/devices/pci0000:00/0000:01:00.1/driver_override", "pci-stub\n");
    let units = bound(&fake, &["class:0300"]);
    assert_eq!(states(&units), [UnitState::Conflict]);
    assert_eq!(units[0].reason, "driver_override of 0000:01:00.1 claims it for pci-stub");
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}

#[test]
fn virtual_functions_that_are_on_keep_their_card_with_the_host() {
    let fake = Fake::new("", &[("0000:18:00.0", "15b3:1021", "0200", 3, "mlx5_core", 0)]);
    fake.file("sys/devices/pci0000:00/0000:18:00.0/sriov_totalvfs", "16");
    fake.file("sys/devices/pci0000:00/0000:18:00.0/sriov_numvfs", "2");
    let units = bound(&fake, &["vendor:15b3"]);
    assert_eq!(states(&units), [UnitState::Conflict]);
    assert!(units[0].reason.contains("2 virtual functions"), "{units:?}");
}

#[test]
fn without_selectors_there_are_no_units_and_a_named_address_must_be_there() {
    let fake = Fake::new("", &CARD);
    assert_eq!(bound(&fake, &[]), []);
    let units = bound(&fake, &["address:0000:7f:00.0"]);
    assert_eq!((states(&units), units_ready(&units).as_str()), (vec![UnitState::Missing], "0/1 GPU unit(s) ready"));
    assert!(units[0].reason.contains("0000:7f:00.0"), "{units:?}");
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}

#[test]
fn a_bridge_is_never_selected() {
    let fake = Fake::new("", &[("0000:00:01.0", "8086:a70d", "0604", 1, "pcieport", -1)]);
    assert_eq!(bound(&fake, &["vendor:8086"]), []);
}

#[test]
fn a_unit_that_a_virtual_machine_has_function_by_function_is_in_use_too() {
    let bound_rows = CARD.map(|row| (row.0, row.1, row.2, row.3, "vfio-pci", row.5));
    let fake = Fake::new("", &bound_rows);
    fake.file("sys/devices/pci0000:00/0000:01:00.0/vfio-dev/vfio3/uevent", "MAJOR=511\nDEVNAME=vfio/devices/vfio3\n");
    fake.process(99, "qemu-system-x86", "/dev/vfio/devices/vfio3");
    let units = bound(&fake, &["class:0300"]);
    let reason = "/dev/vfio/devices/vfio3 is held by qemu-system-x86 (99)";
    assert_eq!((states(&units), units[0].reason.as_str()), (vec![UnitState::InUse], reason));
}

#[test]
fn of_a_group_that_is_too_large_to_be_looked_at_whole_nothing_is_bound() {
    let address = |at: usize| format!("0000:01:{:02x}.{}", at / 8, at % 8).leak() as &str;
    let rows: Vec<Row> = (0..70).map(|at| (address(at), "10de:2684", "0300", 1, "nouveau", -1)).collect();
    let fake = Fake::new("", &rows);
    let units = bound(&fake, &["class:0300"]);
    assert_eq!(states(&units), [UnitState::Conflict]);
    assert!(units[0].reason.contains("70 functions"), "{units:?}");
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}
