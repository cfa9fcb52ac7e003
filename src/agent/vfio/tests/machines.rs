//! Machines: HGX H200, MI300, a desktop, one with a disabled IOMMU, one whose GPU vanishes from the
//! bus, and a Grace Hopper.

use super::*;
use proptest::prelude::*;

/// Rows of an HGX H200: eight GPUs behind switches, four NVSwitches, eight InfiniBand cards, the
/// NIC that it boots from.
fn h200() -> Vec<PciFunctionRow> {
    let mut rows: Vec<PciFunctionRow> = vec![("0000:02:00.0", "8086:1533", "0200", 70, "igb", 0)];
    let gpus = ["0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0"];
    let more = ["0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0"];
    for (at, address) in (40..).zip(gpus) {
        rows.push((address, "10de:2335", "0302", at, "", 0));
    }
    for (at, address) in (44..).zip(more) {
        rows.push((address, "10de:2335", "0302", at, "", 1));
    }
    for (at, address) in
        (50..).zip(["0000:07:00.0", "0000:08:00.0", "0000:09:00.0", "0000:0a:00.0"])
    {
        rows.push((address, "10de:22a3", "0680", at, "", 0));
    }
    let fabric = ["0000:18:00.0", "0000:40:00.0", "0000:4f:00.0", "0000:5e:00.0"];
    let more = ["0000:9a:00.0", "0000:c0:00.0", "0000:ce:00.0", "0000:dc:00.0"];
    for (at, address) in (60..).zip(fabric.into_iter().chain(more)) {
        rows.push((address, "15b3:1021", "0207", at, "mlx5_core", 0));
    }
    // A port of the switch in the group of a GPU. A bridge is not a member of the unit.
    rows.push(("0000:1a:00.0", "1000:c030", "0604", 40, "pcieport", 0));
    rows
}

#[test]
fn hgx_h200_has_eight_gpu_units_and_four_switches() {
    let fake = FakeMachine::new("intel_iommu=on iommu=pt BOOTIF=01-52-54-00-00-00-01", &h200());
    fake.interface("eth0", "52:54:00:00:00:01", "0000:02:00.0");
    for name in ["0000:18:00.0", "0000:dc:00.0"] {
        fake.file(&format!("sys/devices/pci0000:00/{name}/sriov_totalvfs"), "16\n");
        fake.file(&format!("sys/devices/pci0000:00/{name}/sriov_numvfs"), "4\n");
    }
    let before = surveyed(&fake, &["vendor:10de"]);
    assert_eq!(units_ready(&before), "0/8 GPU unit(s) ready");
    assert!(
        before.iter().all(|unit| unit.state == UnitState::Unbound && unit.members.len() == 1),
        "{before:?}"
    );

    let units = bound(&fake, &["vendor:10de"]);
    assert_eq!(units.len(), 12);
    assert_eq!(units_ready(&units), "8/8 GPU unit(s) ready");
    let switches: Vec<_> = units.iter().filter(|unit| unit.kind == UnitKind::Switch).collect();
    assert!(
        switches.len() == 4 && switches.iter().all(|unit| unit.state == UnitState::Ready),
        "{switches:?}"
    );
    assert_eq!(units.iter().filter(|unit| unit.numa_node == Some(1)).count(), 4);
    for row in h200().iter().filter(|row| row.2 == "0207" || row.2 == "0604" || row.2 == "0200") {
        assert_eq!(fake.driver(row.0).as_deref(), Some(row.4), "{} stays with the host", row.0);
    }
    let sriov: Vec<_> =
        crate::system::pci_functions(&fake.tree).filter_map(|function| function.sriov).collect();
    assert_eq!(
        sriov.iter().map(|sriov| (sriov.total, sriov.enabled)).collect::<Vec<_>>(),
        [(16, 4), (16, 4)]
    );
}

#[test]
fn mi300_has_seven_units_and_reports_the_holder_of_the_eighth() {
    let addresses = ["05", "26", "46", "65", "85", "a6", "c6", "e5"]
        .map(|bus| format!("0000:{bus}:00.0").leak() as &str);
    let rows: Vec<PciFunctionRow> = (0..)
        .zip(addresses)
        .map(|(at, address)| (address, "1002:74a1", "1200", at + 20, "amdgpu", at / 4))
        .collect();
    let fake = FakeMachine::new("iommu=pt", &rows);
    let last = "sys/devices/pci0000:00/0000:e5:00.0";
    fake.file(&format!("{last}/drm/renderD135/uevent"), "MAJOR=226\nDEVNAME=dri/renderD135\n");
    fake.process(4711, "train.py", "/dev/dri/renderD135");
    let units = bound(&fake, &["class:1200"]);
    assert_eq!(units_ready(&units), "7/8 GPU unit(s) ready");
    let busy = units.last().expect("eight");
    assert_eq!(
        (busy.state, busy.reason.as_str()),
        (UnitState::Busy, "/dev/dri/renderD135 is open in train.py (4711)")
    );
    assert_eq!(fake.driver("0000:e5:00.0").as_deref(), Some("amdgpu"), "the process still uses it");
}

#[test]
fn gpu_in_the_group_of_the_boot_nic_stays_unbound() {
    let mut rows = CARD.to_vec();
    rows.push(("0000:00:01.0", "8086:a70d", "0604", 1, "pcieport", -1));
    rows.push(("0000:02:00.0", "10ec:8168", "0200", 1, "r8169", -1));
    let fake = FakeMachine::new("intel_iommu=on iommu=pt BOOTIF=01-52-54-00-00-00-01", &rows);
    fake.interface("eth0", "52:54:00:00:00:01", "0000:02:00.0");
    let units = bound(&fake, &["vendor:10de"]);
    assert_eq!((units.len(), units_ready(&units).as_str()), (1, "0/1 GPU unit(s) ready"));
    assert_eq!(units[0].state, UnitState::SharedWithHost);
    assert_eq!(units[0].reason, "0000:02:00.0 is the NIC that the node booted from");
    let members: Vec<&str> =
        units[0].members.iter().map(|member| member.address.as_str()).collect();
    assert_eq!(members, ["0000:01:00.0", "0000:01:00.1", "0000:02:00.0"], "all but the bridge");
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}

#[test]
fn disabled_iommu_reports_a_slot_as_one_unbound_unit() {
    let rows = CARD.map(|row| (row.0, row.1, row.2, -1, row.4, row.5));
    let fake = FakeMachine::new("intel_iommu=on iommu=pt", &rows);
    let units = bound(&fake, &["vendor:10de"]);
    assert_eq!(units_ready(&units), "0/1 GPU unit(s) ready");
    assert_eq!(
        (units[0].group, units[0].members.len(), units[0].state),
        (None, 2, UnitState::Unbound)
    );
    assert_eq!(units[0].reason, "no IOMMU group: the IOMMU is off");
    assert_eq!(*fake.writes.borrow(), Vec::<String>::new());
}

#[test]
fn gpu_without_answer_is_wedged_and_after_removal_missing() {
    let fake = FakeMachine::new("intel_iommu=on iommu=pt", &CARD);
    assert_eq!(states(&bound(&fake, &["class:0300"])), [UnitState::Ready]);
    fake.raw("sys/devices/pci0000:00/0000:01:00.0/config", &[0xff; 256]);
    let units = surveyed(&fake, &["class:0300"]);
    assert_eq!(states(&units), [UnitState::Wedged]);
    assert!(
        units[0].reason.contains("0000:01:00.0") && units[0].reason.contains("cold power cycle"),
        "{units:?}"
    );

    fake.vanish("0000:01:00.0");
    let units = surveyed(&fake, &["class:0300"]);
    assert_eq!(
        (states(&units), units_ready(&units).as_str()),
        (vec![UnitState::Missing], "0/1 GPU unit(s) ready")
    );
    fake.vanish("0000:01:00.1");
    let units = bound(&fake, &["class:0300"]);
    assert_eq!((states(&units), units[0].group), (vec![UnitState::Missing], Some(1)));
    assert!(units[0].reason.contains("cold power cycle"), "{units:?}");
    assert_eq!(
        states(&surveyed(&fake, &["class:0300"])),
        [UnitState::Missing],
        "a second bind still reports the loss"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn arbitrary_file_contents_never_panic(junk: Vec<u8>, text in "\\PC{0,60}") {
        let fake = FakeMachine::new(&text, &CARD);
        let device = "sys/devices/pci0000:00/0000:01:00.0";
        fake.disk("nvme0n1", "0000:01:00.1", &text);
        fake.interface("eth0", &text, "0000:01:00.0");
        fake.process(7, &text, "/dev/dri/card0");
        for file in ["config", "driver_override", "sriov_totalvfs", "sriov_numvfs", "uevent", "class"] {
            fake.raw(&format!("{device}/{file}"), &junk);
            surveyed(&fake, &["vendor:10de", "class:0403"]);
        }
        for file in ["proc/net/route", "proc/net/ipv6_route", "proc/consoles", "proc/swaps", "proc/self/mountinfo",
            "proc/driver/nvidia/gpus/0000:01:00.0/information", "run/mesh-vfio/units.json"] {
            fake.file(file, &text);
            surveyed(&fake, &["vendor:10de", "class:0403"]);
            fake.raw(file, &junk);
            bound(&fake, &["vendor:10de", "class:0403"]);
        }
    }
}

#[test]
fn grace_hopper_unit_is_ready_without_x86_kernel_arguments() {
    let rows: [PciFunctionRow; 3] = [
        ("0002:01:00.0", "15b3:1021", "0200", 4, "mlx5_core", 0),
        ("0009:00:00.0", "10de:22b9", "0604", 20, "pcieport", 0),
        ("0009:01:00.0", "10de:2342", "0302", 20, "", 0),
    ];
    let fake = FakeMachine::new("iommu.passthrough=0 BOOTIF=01-52-54-00-00-00-01", &rows);
    let units = bound(&fake, &["vendor:10de"]);
    assert_eq!(
        (units_ready(&units).as_str(), units[0].numa_node),
        ("1/1 GPU unit(s) ready", Some(0))
    );
    assert_eq!(units[0].name(), "unit 20 (0009:01:00.0)");
    assert_eq!(fake.driver("0009:00:00.0").as_deref(), Some("pcieport"));
}
