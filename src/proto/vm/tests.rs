//! Tests of VM messages and specifications.

use super::*;
use crate::{FromCentral, NodeSpec, SpecEntry, disk::DiskIdentity, network::InterfaceName};
use proptest::prelude::*;

fn spec() -> VmSpec {
    let text = r#"{"name": "a", "uuid": "11223344-5566-7788-99aa-bbccddeeff00", "vcpus": 2, "memory": "1G"}"#;
    serde_json::from_str(text).expect("a minimal specification")
}

fn raw(disk: &str) -> VolumeSource {
    let disk = disk.parse().expect("a disk");
    VolumeSource::Raw { disk, digest: None, overwrite: false, adopt: false, on_release: None }
}

fn nic(address: Option<&str>, bridge: Option<&str>) -> Nic {
    Nic {
        mac: "52:54:00:00:00:01".parse().expect("a MAC"),
        address: address.map(|address| address.parse().expect("an address")),
        bridge: bridge.map(|bridge| bridge.parse().expect("a name")),
        slot: false,
        peers: false,
    }
}

fn keys(spec: &VmSpec) -> Vec<String> {
    spec.faults().into_iter().map(|fault| fault.key).collect()
}

#[test]
fn readiness_check_needs_a_nic_in_the_private_network() {
    let ready = "ssh".parse().ok();
    let with = |bridge| VmSpec { ready, nics: vec![nic(None, Some(bridge))], ..spec() };
    assert_eq!(keys(&VmSpec { ready, ..spec() }), ["ready"]);
    assert_eq!(keys(&with("br0")), ["ready"]);
    assert_eq!(keys(&with("mesh-nat0")), [""; 0]);
}

#[test]
fn minimal_vm_spec_is_valid_with_options_off() {
    let spec = spec();
    assert_eq!(spec.faults(), []);
    assert!(!spec.secure_boot && !spec.vtpm && !spec.allow_tcg && !spec.hugepages);
    assert_eq!(
        (spec.firmware, spec.cpu.as_str(), spec.restart.when),
        (Firmware::Bios, "host", RestartWhen::Never)
    );
}

#[test]
fn vm_state_and_refusal_text_equals_wire_format() {
    for state in ReportedVmState::ALL.iter().copied() {
        assert_eq!(serde_json::to_value(state).expect("a word"), state.as_str());
    }
    for reason in <VmRefusalReason as strum::VariantArray>::VARIANTS.iter().copied() {
        assert_eq!(serde_json::to_value(reason).expect("a word"), reason.as_str());
    }
}

#[test]
fn vm_spec_reports_all_faults_at_once() {
    let mut spec = spec();
    spec.vcpus = 0;
    spec.memory = ByteSize::from_bytes(1024);
    spec.uuid = "00000000-0000-0000-0000-000000000000".parse().expect("a UUID");
    spec.secure_boot = true;
    spec.numa_node = Some(5000);
    spec.restart = RestartPolicy {
        delay_s: 0,
        max_delay_s: 9999,
        attempts: 0,
        stable_after_s: 1,
        ..spec.restart
    };
    let expected = [
        "vcpus",
        "memory",
        "memory",
        "uuid",
        "numa_node",
        "secure_boot",
        "restart.delay",
        "restart.max_delay",
        "restart.attempts",
        "restart.stable_after",
    ];
    assert_eq!(keys(&spec), expected);
}

#[test]
fn duplicate_entries_and_long_lists_in_vm_spec_are_refused() {
    let mut spec = spec();
    let disk = Volume { name: "data".parse().expect("a name"), source: raw("wwn-1") };
    spec.volumes = vec![disk.clone(); 2];
    spec.nics = vec![nic(None, Some("br0")); 2];
    spec.units = vec!["0000:01:00.0".parse().expect("an address"); 2];
    assert_eq!(keys(&spec), ["units[1]", "volume[1].name", "volume[1].disk", "nic[1].mac"]);
    spec.machine = MachineType::Pc;
    spec.volumes = vec![disk; 9];
    assert!(keys(&spec).starts_with(&[
        "machine".to_owned(),
        "units[1]".to_owned(),
        "volume".to_owned()
    ]));
}

#[test]
fn nic_without_bridge_or_host_address_is_refused() {
    let mut spec = spec();
    for (address, bridge, is_valid) in [
        ("10.0.2.15", None, false),
        ("172.30.0.9", Some("mesh-nat0"), true),
        ("8.8.8.8", Some("br0"), true),
        ("127.0.0.1", Some("br0"), false),
        ("224.0.0.1", Some("br0"), false),
    ] {
        spec.nics = vec![nic(Some(address), bridge)];
        assert_eq!(spec.faults().is_empty(), is_valid, "{address} {bridge:?}");
    }
}

#[test]
fn text_with_qemu_option_syntax_is_refused() {
    for text in ["", "host,+svm", "a b", "-x", "é", &"a".repeat(65)] {
        assert!(text.parse::<CpuModel>().is_err(), "{text}");
        assert!(text.parse::<VolumeName>().is_err(), "{text}");
        assert!(text.parse::<InterfaceName>().is_err(), "{text}");
    }
    for text in ["host", "EPYC-Milan", "Skylake-Server-v4"] {
        assert!(text.parse::<CpuModel>().is_ok(), "{text}");
    }
}

#[test]
fn kernel_disk_name_is_refused_as_disk_identity() {
    for text in [
        "sda",
        "sda1",
        "vdb",
        "xvda",
        "nvme0n1",
        "nvme0n1p2",
        "dm-0",
        "md127",
        "/dev/sda",
        "mmcblk0",
        " ab1 ",
    ] {
        assert!(text.parse::<DiskIdentity>().is_err(), "{text}");
    }
    for text in ["slot", "slot:eui.1", "nearest"] {
        assert!(text.parse::<DiskIdentity>().is_err(), "{text} is a keyword");
    }
    for text in [
        "eui.0025388b71b0c6a0",
        "naa.5000c500a1b2c3d4",
        "t10.ATA     QEMU HARDDISK QM00001",
        "S4EWNX0R",
    ] {
        assert!(text.parse::<DiskIdentity>().is_ok(), "{text}");
    }
}

#[test]
fn slot_disk_round_trips_with_and_without_assignment() {
    let read = |text: &str| text.parse::<RawDisk>();
    let disk: DiskIdentity = "eui.1234".parse().expect("an identity");
    for (text, expected) in [
        ("eui.1234", RawDisk::Named(disk.clone())),
        ("slot", RawDisk::Slot(None)),
        ("slot:eui.1234", RawDisk::Slot(Some(disk.clone()))),
    ] {
        assert_eq!(read(text), Ok(expected));
        assert_eq!(read(text).map(|disk| disk.to_string()), Ok(text.to_owned()));
    }
    assert!(read("slot:sda").is_err() && read("slots:eui.1").is_ok());
    let mut spec = spec();
    let raw = |name: &str, disk: &str| Volume {
        name: name.parse().expect("a name"),
        source: self::raw(disk),
    };
    spec.volumes = vec![raw("a", "slot"), raw("b", "slot")];
    assert!(keys(&spec).is_empty(), "two slots have two disks");
    spec.volumes = vec![raw("a", "slot:eui.1234"), raw("b", "eui.1234")];
    assert_eq!(keys(&spec), ["volume[1].disk"]);
}

#[test]
fn slot_disk_is_wiped_by_default_and_named_disk_on_request() {
    let read = |more: &str| {
        let text = format!(r#"{{"name": "d", "format": "raw"{more}}}"#);
        serde_json::from_str::<Volume>(&text).expect("a volume").source.is_wiped()
    };
    assert!(read(r#", "disk": "slot""#) && read(r#", "disk": "slot:eui.1""#));
    assert!(!read(r#", "disk": "eui.1""#));
    assert!(
        !read(r#", "disk": "slot", "on_release": "keep""#)
            && read(r#", "disk": "eui.1", "on_release": "wipe""#)
    );
}

#[test]
fn cloud_init_seed_is_bounded_and_not_printed() {
    let mut spec = spec();
    let seed = |text: String| CloudInit {
        user_data: meshd_types::Secret::new(text),
        meta_data: None,
        network_config: None,
    };
    spec.cloud_init = Some(seed("hunter2".into()));
    assert!(!format!("{spec:?}").contains("hunter2"));
    spec.cloud_init = Some(seed("x".repeat(MAX_SEED_TEXT + 1)));
    assert_eq!(keys(&spec), ["cloud_init.user_data"]);
}

#[test]
fn cloud_init_with_control_characters_is_refused() {
    let mut spec = spec();
    for (text, fault) in [("a: b\n\tc\r\n", None), ("\u{1b}[0m", Some("cloud_init.user_data"))] {
        let user_data = meshd_types::Secret::new(text.to_owned());
        spec.cloud_init = Some(CloudInit { user_data, meta_data: None, network_config: None });
        assert_eq!(keys(&spec), Vec::from_iter(fault), "{text:?}");
    }
}

#[test]
fn largest_vm_spec_fits_into_one_message() {
    let mut spec = spec();
    let text = || meshd_types::Secret::new("\"".repeat(MAX_SEED_TEXT));
    let meta_data = Some(text());
    let network_config = Some(text());
    spec.cloud_init = Some(CloudInit { user_data: text(), meta_data, network_config });
    let order = VmEntry {
        uuid: spec.uuid,
        desired_state: VmTarget::Run {
            spec: Box::new(spec),
            start: u32::MAX,
            grace_s: u32::MAX,
            slots: Vec::new(),
            disks: Default::default(),
        },
    };
    let entry = SpecEntry::Vms(order);
    let message = FromCentral::Spec(NodeSpec { generation: u64::MAX, entry });
    let length = serde_json::to_string(&message).expect("plain data").len();
    // Slots of the node and the state of its disks follow.
    assert!(length + 64 * 1024 < crate::MAX_MESSAGE, "{length}");
}

proptest! {
    #[test]
    fn vm_spec_round_trips_and_junk_never_panics(text in "\\PC{0,200}", vcpus: u32, mib in 0..1u64 << 40) {
        let _ = serde_json::from_str::<VmSpec>(&text);
        let _ = text.parse::<DiskIdentity>();
        let spec = VmSpec { vcpus, memory: ByteSize::from_mib(mib), ..spec() };
        let _ = spec.faults();
        let json = serde_json::to_string(&spec).expect("plain");
        prop_assert_eq!(serde_json::from_str::<VmSpec>(&json).expect("valid JSON"), spec);
    }
}
