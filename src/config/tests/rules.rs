//! Tests of VM rules and templates in `[vms]`.

use super::*;
use crate::vm::{VmRequest, parse};
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
                [vms.templates.uefi.restart]\nwhen = \"always\"\n\
                [vms.templates.bios]\nvcpus = 2\nmemory = \"1G\"\nfirmware = \"bios\"";
    let site = valid(site(text));
    let complete = |text: &str| {
        valid(parse(text, Path::new("vm.toml"))).complete(&site.vms.rules.templates, UUID)
    };
    let read = |text: &str| -> VmRequest { complete(text).expect("it is valid") };
    let spec = read("name = \"a\"").spec;
    assert_eq!((spec.vcpus, spec.memory.to_string().as_str()), (24, "64G"));
    assert_eq!(read("name = \"a\"\nvcpus = 8").spec.vcpus, 8, "the VM file takes precedence");
    let uefi = read("name = \"a\"\ntemplate = \"uefi\"\nmemory = \"1G\"\ngrace = \"7s\"");
    assert_eq!(
        (uefi.spec.firmware, uefi.spec.restart.when, uefi.grace_s),
        (Firmware::Uefi, RestartWhen::Always, 7)
    );
    assert_eq!(uefi.on_node_loss, crate::vm::OnNodeLoss::Restart);

    let faults = |text: &str| {
        let faults = complete(text).expect_err("it has faults");
        faults
            .iter()
            .map(|fault| format!("{}: {}; {}\n", fault.key, fault.message, fault.hint))
            .collect::<String>()
    };
    let unknown = faults("name = \"a\"\ntemplate = \"uefy\"");
    assert!(unknown.contains("no template `uefy`") && unknown.contains("uefi"), "{unknown}");
    assert!(
        faults("name = \"a\"\ntemplate = \"uefi\"").contains("memory: is required"),
        "the template has no memory"
    );
    let beside = faults("name = \"a\"\ntemplate = \"bios\"\nsecure_boot = true");
    assert!(
        beside.contains("secure_boot: a BIOS has no Secure Boot (with template `bios`)"),
        "{beside}"
    );
    assert!(!faults("name = \"a\"\nsecure_boot = true").contains("template `"), "it names none");
}

#[test]
fn vm_file_alone_reports_only_faults_that_no_template_repairs() {
    let read = |text: &str| parse(text, Path::new("vm.toml"));
    assert!(read("name = \"a\"\ntemplate = \"any\"\nsecure_boot = true").is_ok());
    assert!(
        read("template = \"any\"")
            .is_err_and(|faults| faults.to_string().contains("name: is required"))
    );
    assert!(read("name = \"a\"\nvcpus = 0").is_err());
    assert!(read("name = \"a\"\nfirmware = \"bios\"\nsecure_boot = true").is_err());
    let restart = "restart = { when = \"always\", max_delay = \"1s\" }";
    let refused = read(&format!("name = \"a\"\n{restart}"))
        .expect_err("the first delay is longer")
        .to_string();
    assert!(refused.contains("vm.toml:2: restart.max_delay"), "{refused}");
}
