//! Tests of VM rules and templates in `[vms]`.

use super::*;
use crate::vm::parse_with;
use meshd_proto::vm::{Firmware, RestartWhen};
use meshd_types::SystemUuid;

const UUID: SystemUuid = SystemUuid([7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8]);

fn site(vms: &str) -> Result<Site, Faults> {
    read(&format!("{LEAST}{vms}"))
}

fn faults(vms: &str) -> Vec<String> {
    let Faults(faults) = site(vms).expect_err("it has faults");
    faults.into_iter().map(|fault| fault.key).collect()
}

#[test]
fn slot_policy_defaults_to_the_enrolment_policy() {
    let policy = |enroll: &str, vms: &str| {
        let read = site(&format!("[enroll]\npolicy = \"{enroll}\"\n{vms}"));
        read.unwrap_or_else(|faults| panic!("{faults}")).slot_policy()
    };
    assert_eq!(policy("approve", ""), SlotPolicy::Approve);
    assert_eq!(policy("auto", ""), SlotPolicy::Auto);
    assert_eq!(policy("auto", "[vms]\nslots = \"approve\""), SlotPolicy::Approve);
    assert_eq!(policy("approve", "[vms]\nslots = \"auto\""), SlotPolicy::Auto);
}

#[test]
fn vms_section_reports_each_fault() {
    assert_eq!(
        faults("[vms]\nslots = \"some\"\ncpu_overcommit = 0\nslot = 1"),
        ["vms.slots", "vms.cpu_overcommit", "vms.slot"]
    );
    let templates = "[vms.templates.default]\nvcpus = 0\nsecure_boot = true\n[vms.templates.default.restart]\n\
                     when = \"always\"\ndelay = \"10s\"\nmax_delay = \"1s\"\n[vms.templates.\"a b\"]\nunits = 2";
    let expected = [
        "vms.templates.default.vcpus",
        "vms.templates.default.secure_boot",
        "vms.templates.default.restart.max_delay",
        "vms.templates.a b",
        "vms.templates.a b.units",
    ];
    assert_eq!(faults(templates), expected);
}

#[test]
fn vm_template_fills_missing_keys_of_vm_file() {
    let text = "[vms.templates.default]\nvcpus = 24\nmemory = \"64G\"\n\
                [vms.templates.uefi]\nvcpus = 2\nfirmware = \"uefi\"\non_node_loss = \"restart\"\ngrace = \"5s\"\n\
                [vms.templates.uefi.restart]\nwhen = \"always\"";
    let site = valid(site(text));
    let request =
        |text: &str| parse_with(text, Path::new("vm.toml"), UUID, Some(&site.vms.rules.templates));
    let read = |text: &str| valid(request(text));
    let spec = read("name = \"a\"").spec;
    assert_eq!((spec.vcpus, spec.memory.to_string().as_str()), (24, "64G"));
    assert_eq!(read("name = \"a\"\nvcpus = 8").spec.vcpus, 8, "the VM file takes precedence");
    let uefi = read("name = \"a\"\ntemplate = \"uefi\"\nmemory = \"1G\"\ngrace = \"7s\"");
    assert_eq!(
        (uefi.spec.firmware, uefi.spec.restart.when, uefi.grace_s),
        (Firmware::Uefi, RestartWhen::Always, 7)
    );
    assert_eq!(uefi.on_node_loss, crate::vm::OnNodeLoss::Restart);

    let faults = |text: &str| request(text).expect_err("it has faults").to_string();
    let unknown = faults("name = \"a\"\ntemplate = \"uefy\"");
    assert!(unknown.contains("no template `uefy`") && unknown.contains("uefi"), "{unknown}");
    assert!(
        faults("name = \"a\"\ntemplate = \"uefi\"").contains("memory: is required"),
        "the template has no memory"
    );
    let beside = faults(
        "name = \"a\"\ntemplate = \"uefi\"\nmemory = \"1G\"\nfirmware = \"bios\"\nsecure_boot = true",
    );
    assert!(beside.contains("secure_boot") && !beside.contains("template"), "{beside}");
    let restart = "restart = { when = \"always\", max_delay = \"1s\" }";
    let beside = faults(&format!("name = \"a\"\ntemplate = \"uefi\"\nmemory = \"1G\"\n{restart}"));
    assert!(beside.contains("restart.max_delay"), "{beside}");
}

#[test]
fn vm_file_without_templates_reports_only_unfixable_faults() {
    let read = |text: &str| parse_with(text, Path::new("vm.toml"), UUID, None);
    assert!(read("name = \"a\"\ntemplate = \"any\"").is_ok());
    assert!(
        read("template = \"any\"")
            .is_err_and(|faults| faults.to_string().contains("name: is required"))
    );
    assert!(read("name = \"a\"\nvcpus = 0").is_err());
}
