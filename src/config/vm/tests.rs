//! Tests of `vm.toml`: faults, a full and a minimal file, and arbitrary text.

use super::*;
use meshd_proto::vm::{ReportedVmState, VmSpec};
use meshd_types::SystemUuid;
use proptest::prelude::*;

const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn fresh() -> SystemUuid {
    "11223344-5566-7788-99aa-bbccddeeff00".parse().expect("a UUID")
}

fn request(text: &str) -> Result<VmRequest, String> {
    let vm = parse(text, Path::new("vm.toml")).map_err(|faults| faults.to_string())?;
    vm.complete(&VmTemplates::new(), fresh()).map_err(|faults| format!("{faults:?}"))
}

fn read(text: &str) -> Result<VmSpec, String> {
    request(text).map(|request| request.spec)
}

fn fault_positions(text: &str) -> Vec<(usize, String)> {
    let Faults(faults) = parse(text, Path::new("vm.toml")).expect_err("it has faults");
    assert!(
        faults.iter().all(|fault| !fault.message.is_empty() && !fault.hint.is_empty()),
        "{faults:?}"
    );
    faults.into_iter().map(|fault| (fault.line, fault.key)).collect()
}

#[test]
fn vm_file_reports_every_fault_with_line_key_and_hint() {
    let text = r#"name = "train 7"
vcpus = 0
memory = "64GB"
firmware = "bios"
secure_boot = true
[[volume]]
name = "root"
format = "qcow"
"#;
    let expected =
        [(1, "name"), (2, "vcpus"), (3, "memory"), (5, "secure_boot"), (8, "volume[0].format")];
    assert_eq!(fault_positions(text), expected.map(|(line, key)| (line, key.to_owned())));
}

#[test]
fn sample_vm_file_is_valid_with_and_without_optional_keys() {
    let sample = include_str!("../../../docs/vm.toml");
    let spec = read(sample).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!((spec.volumes.len(), spec.nics.len()), (1, 1));
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => rest.to_owned(),
        _ => line.to_owned(),
    };
    let whole: Vec<String> = sample.lines().map(uncomment).collect();
    let templates = VmTemplates::from([("small".parse().expect("a name"), VmTemplate::default())]);
    let vm =
        parse(&whole.join("\n"), Path::new("vm.toml")).unwrap_or_else(|faults| panic!("{faults}"));
    let spec = vm.complete(&templates, fresh()).expect("it is valid").spec;
    assert_eq!(spec.volumes.len(), 3);
    assert!(spec.cloud_init.is_some() && spec.nics[0].address.is_some());
}

#[test]
fn fault_of_vm_spec_has_line_of_its_key() {
    let text = format!(
        r#"name = "a"
vcpus = 2
memory = "1G"
units = ["0000:01:00.0", "0000:01:00.0"]
[[volume]]
format = "raw"
name = "broken"
[[volume]]
name = "root"
format = "qcow2"
digest = "{DIGEST}"
size = "0M"
[[nic]]
mac = "01:00:5e:00:00:01"
address = "224.0.0.2"
[restart]
when = "always"
delay = "10s"
max_delay = "5s"
"#
    );
    let expected = [
        (4, "units"),
        (5, "volume[0].disk"),
        (12, "volume[1].size"),
        (13, "nic[0].bridge"),
        (14, "nic[0].mac"),
        (15, "nic[0].address"),
        (19, "restart.max_delay"),
    ];
    assert_eq!(fault_positions(&text), expected.map(|(line, key)| (line, key.to_owned())));
}

#[test]
fn unknown_missing_or_misplaced_vm_key_is_a_fault() {
    let text = format!(
        r#"nmae = "a"
vcpus = 2
[[volume]]
name = "cd"
format = "iso"
digest = "{DIGEST}"
size = "1G"
disk = "eui.1"
[cloud_init]
"#
    );
    let keys: Vec<String> = fault_positions(&text).into_iter().map(|(_, key)| key).collect();
    assert_eq!(keys, ["name", "nmae", "volume[0].size", "volume[0].disk", "cloud_init.user_data"]);
}

#[test]
fn complete_vm_file_is_read_unchanged() {
    let text = format!(
        r##"name = "train-7"
uuid = "01020304-0506-0708-090a-0b0c0d0e0f10"
vcpus = 8
memory = "64G"
machine = "q35"
cpu = "EPYC-Milan"
firmware = "uefi"
secure_boot = true
vtpm = true
hugepages = true
numa_node = 1
units = ["0000:41:00.0"]
allow_tcg = true
[restart]
when = "on-failure"
delay = "1s"
max_delay = "1m"
attempts = 3
stable_after = "1h"
[[volume]]
name = "root"
format = "qcow2"
digest = "{DIGEST}"
size = "40G"
[[volume]]
name = "data"
format = "raw"
disk = "eui.0025388b71b0c6a0"
[[volume]]
name = "cd"
format = "iso"
digest = "{DIGEST}"
[[nic]]
bridge = "br0"
mac = "52:54:00:00:00:01"
address = "10.77.0.50"
[[nic]]
bridge = "mesh-nat0"
peers = true
[cloud_init]
user_data = "#cloud-config\n"
network_config = "version: 2\n"
"##
    );
    let spec = read(&text).expect("it is sound");
    assert_eq!(spec.uuid.to_string(), "01020304-0506-0708-090a-0b0c0d0e0f10");
    assert_eq!((spec.vcpus, spec.memory.to_string().as_str(), spec.numa_node), (8, "64G", Some(1)));
    assert!(spec.secure_boot && spec.vtpm && spec.hugepages && spec.allow_tcg);
    let RestartPolicy { when, delay_s, max_delay_s, attempts, stable_after_s } = spec.restart;
    assert_eq!(
        (when, delay_s, max_delay_s, attempts, stable_after_s),
        (RestartWhen::OnFailure, 1, 60, 3, 3600)
    );
    assert_eq!((spec.volumes.len(), spec.nics.len()), (3, 2));
    assert!(
        spec.nics[1].peers && !spec.nics[0].peers && spec.nics[1].mac.0[..3] == [0x52, 0x54, 0x00]
    );
    assert!(
        spec.cloud_init
            .is_some_and(|seed| seed.network_config.is_some() && seed.meta_data.is_none())
    );
}

#[test]
fn minimal_vm_file_gets_new_uuid_and_stable_macs() {
    let text = "name = \"a\"\nvcpus = 1\nmemory = \"512M\"\n[[nic]]\nbridge = \"br0\"\n[[nic]]\nbridge = \"br0\"\n";
    let one = read(text).expect("sound");
    let two = read(text).expect("sound");
    assert_eq!(one, two);
    assert_eq!(one.uuid, fresh());
    assert_ne!(one.nics[0].mac, one.nics[1].mac);
    assert!(!ReportedVmState::Stopped.is_live());
}

#[test]
fn units_are_a_number_a_selector_list_or_the_whole_node() {
    let least = "name = \"a\"\nvcpus = 1\nmemory = \"1G\"\n";
    let units = |line: &str| request(&format!("{least}{line}\n")).expect("sound").units;
    assert_eq!(units("units = 2").each, [UnitSelector::Any, UnitSelector::Any]);
    assert!(units("units = \"all\"").whole && units("").each.is_empty());
    let mixed = units("units = [\"any\", \"vendor:10de\", \"0000:41:00.0\"]").each;
    let words: Vec<String> = mixed.iter().map(ToString::to_string).collect();
    assert_eq!(words, ["any", "vendor:10de", "0000:41:00.0"]);
    for line in [
        "units = -1",
        "units = 33",
        "units = \"every\"",
        "units = true",
        "units = [\"gpu\"]",
        "units = [1]",
    ] {
        assert!(request(&format!("{least}{line}\n")).is_err(), "{line}");
    }
    assert_eq!(
        fault_positions(&format!("{least}machine = \"pc\"\nunits = 1\n")),
        [(4, "machine".to_owned())]
    );
}

#[test]
fn policy_for_a_lost_node_is_read_from_the_file() {
    let text =
        "name = \"a\"\nvcpus = 1\nmemory = \"1G\"\non_node_loss = \"restart\"\ngrace = \"5s\"\n";
    let restarts = request(text).expect("sound");
    assert_eq!(
        (restarts.on_node_loss, restarts.grace_s, restarts.is_bound()),
        (OnNodeLoss::Restart, 5, false)
    );
    assert!(request(&format!("{text}units = 1\n")).is_ok_and(|request| request.is_bound()));
    let stored = serde_json::to_string(&restarts).expect("plain");
    assert_eq!(serde_json::from_str::<VmRequest>(&stored).expect("its own text"), restarts);
}

#[test]
fn new_vm_of_an_api_user_is_checked_as_a_file_is() {
    let new = |more: serde_json::Value| {
        let mut vm = serde_json::json!({ "name": "a", "settings": { "vcpus": 1, "memory": "1G" } });
        vm.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        serde_json::from_value::<NewVm>(vm).expect("a VM").complete(&VmTemplates::new(), fresh())
    };
    let faults = |more| {
        new(more).expect_err("it has faults").into_iter().map(|fault| fault.key).collect::<Vec<_>>()
    };
    let vm =
        new(serde_json::json!({ "nics": [{ "bridge": "br0" }], "units": { "each": ["any"] } }))
            .expect("valid");
    assert_eq!((vm.spec.uuid, vm.units.each.len(), vm.spec.nics.len()), (fresh(), 1, 1));
    assert_eq!(faults(serde_json::json!({ "units": { "each": vec!["any"; 33] } })), ["units"]);
    let settings =
        serde_json::json!({ "vcpus": 1, "memory": "1G", "machine": "pc", "grace_s": 9999 });
    assert_eq!(
        faults(serde_json::json!({ "settings": settings, "units": { "whole": true } })),
        ["machine", "grace"]
    );
    assert_eq!(
        faults(serde_json::json!({ "settings": {}, "template": "x" })),
        ["template", "vcpus", "memory"]
    );
}

proptest! {
    #[test]
    fn vm_file_with_junk_is_refused_or_yields_a_valid_spec(
        lines in proptest::collection::vec(prop_oneof![
            "(name|vcpus|memory|units|cpu|uuid|machine) = (\"[a-z0-9:.G-]{0,40}\"|[0-9]{1,12}|\\[\\]|true)",
            Just("[[volume]]".to_owned()), Just("[[nic]]".to_owned()), Just("[restart]".to_owned()),
            "(format|digest|size|disk|mac|address|bridge|when|delay|attempts) = (\"[a-z0-9:.sM]{0,20}\"|-?[0-9]{1,6})",
            "\\PC{0,40}",
        ], 0..14),
    ) {
        if let Ok(spec) = read(&lines.join("\n")) {
            prop_assert_eq!(spec.faults(), []);
        }
    }
}
