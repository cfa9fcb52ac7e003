//! Checks of KVM, IOMMU, VFIO and units: each cause of a failure has a separate text.

use super::*;
use crate::{
    fake::{FakeMachine, PciFunctionRow},
    vfio,
};
use meshd_proto::{UnitFacts, UnitState};

const INTEL: &str = "processor : 0\nvendor_id : GenuineIntel\nflags : fpu vmx\n";
const AMD: &str = "processor : 0\nvendor_id : AuthenticAMD\nflags : fpu svm\n";
const GPU: [PciFunctionRow; 1] = [("0000:01:00.0", "10de:2335", "0302", 1, "", -1)];
const NO_GROUP: [PciFunctionRow; 1] = [("0000:01:00.0", "10de:2335", "0302", -1, "", -1)];

fn vfio() -> AgentConfig {
    AgentConfig { vfio: vec!["vendor:10de".parse().expect("a selector")], ..config(&[]) }
}

fn check_node(name: &str, fake: &FakeMachine, config: &AgentConfig) -> (CheckStatus, String) {
    let units = vfio::survey(&fake.tree, &config.vfio, fake);
    check_units(name, &fake.tree, config, &units)
}

fn check_units(
    name: &str,
    tree: &Tree,
    config: &AgentConfig,
    units: &[UnitFacts],
) -> (CheckStatus, String) {
    let check = check_of(name, &Context { units: units.to_vec(), ..context(tree, config, 1000) });
    (check.status, check.detail)
}

fn without_iommu(cmdline: &str, cpu: &str, files: &[(&str, &str)]) -> String {
    let fake = FakeMachine::new(cmdline, &NO_GROUP);
    fake.file("proc/cpuinfo", cpu);
    files.iter().for_each(|(path, text)| fake.file(path, text));
    let (status, detail) = check_node("iommu", &fake, &vfio());
    assert_eq!(status, CheckStatus::Fail);
    let why = detail.strip_prefix("no IOMMU groups: ").unwrap_or_else(|| panic!("{detail}"));
    assert_eq!(check_node("units", &fake, &vfio()).0, CheckStatus::Fail, "never advertised");
    why.to_owned()
}

#[test]
fn iommu_cause_is_argument_or_firmware_and_active_passes() {
    const DMAR: (&str, &str) = ("sys/firmware/acpi/tables/DMAR", "x");
    let missing = without_iommu("quiet", INTEL, &[DMAR]);
    assert_eq!(missing, "the kernel argument intel_iommu=on is missing");
    assert_eq!(
        without_iommu("quiet intel_iommu=on_x", INTEL, &[DMAR]),
        missing,
        "the whole argument must match"
    );
    let off = without_iommu("intel_iommu=on iommu=off", INTEL, &[DMAR]);
    assert_eq!(off, "the kernel argument iommu=off disables the IOMMU");
    let disabled = "disabled by BIOS or unsupported: no table DMAR, IVRS or IORT";
    assert_eq!(without_iommu("intel_iommu=on iommu=pt", INTEL, &[]), disabled);
    assert_eq!(without_iommu("quiet", AMD, &[]), disabled, "AMD needs no argument");
    let log = ("dev/kmsg", "6,1,0,-;Linux version 6.1\n4,2,0,-;DMAR: Disabled: no usable unit\n");
    let why = without_iommu("intel_iommu=on", INTEL, &[DMAR, log]);
    assert!(why.starts_with("the firmware has the table DMAR"), "{why}");
    assert!(why.ends_with("DMAR: Disabled: no usable unit"), "{why}");

    let fake = FakeMachine::new("intel_iommu=on", &GPU);
    assert_eq!(
        check_node("iommu", &fake, &vfio()),
        (CheckStatus::Pass, "active, 1 IOMMU groups".to_owned())
    );
}

#[test]
fn unit_passes_only_when_fully_bound_and_modules_are_loaded() {
    let fake = FakeMachine::new("", &GPU);
    assert_eq!(check_node("vfio", &fake, &vfio()).0, CheckStatus::Pass);
    let (status, detail) = check_node("units", &fake, &vfio());
    assert_eq!(status, CheckStatus::Fail);
    assert_eq!(
        detail,
        "0/1 GPU unit(s) ready; unit 1 (0000:01:00.0) is unbound: 0000:01:00.0 has no driver"
    );
    vfio::bind(&fake.tree, &vfio().vfio, &fake).expect("recorded");
    assert_eq!(
        check_node("units", &fake, &vfio()),
        (CheckStatus::Pass, "1/1 GPU unit(s) ready".to_owned())
    );

    let bare = FakeMachine::new("", &[]);
    std::fs::remove_dir(bare.tree.path("/sys/module/vfio_pci")).expect("removed");
    assert_eq!(
        check_node("vfio", &bare, &vfio()),
        (CheckStatus::Fail, "modules not loaded: vfio_pci".to_owned())
    );
    let (status, detail) = check_node("units", &bare, &vfio());
    assert!(status == CheckStatus::Fail && detail.contains("matches vendor:10de"), "{detail}");
}

#[test]
fn unusable_unit_warns_beside_usable_ones_and_fails_alone() {
    let unit = |state| UnitFacts { state, reason: "so".into(), ..UnitFacts::default() };
    let fake = FakeMachine::new("", &[]);
    let status = |units: &[UnitFacts]| check_units("units", &fake.tree, &vfio(), units).0;
    assert_eq!(status(&[unit(UnitState::Ready), unit(UnitState::Wedged)]), CheckStatus::Warn);
    assert_eq!(status(&[unit(UnitState::InUse), unit(UnitState::InUse)]), CheckStatus::Pass);
    use UnitState::{Busy, Conflict, Missing, SharedWithHost, Wedged};
    for state in [Wedged, Missing, SharedWithHost, Busy, Conflict] {
        assert_eq!(status(&[unit(state)]), CheckStatus::Fail, "{state:?}");
    }
    let many: Vec<_> = (0..20).map(|_| unit(UnitState::Wedged)).collect();
    assert!(check_units("units", &fake.tree, &vfio(), &many).1.ends_with("and 12 more"));
}

#[test]
fn kvm_is_opened_and_its_absence_is_explained() {
    let fake = FakeMachine::new("", &GPU);
    fake.file("proc/cpuinfo", AMD);
    let host = AgentConfig { kvm: true, ..config(&[]) };
    let (status, detail) = check_node("kvm", &fake, &host);
    assert!(status == CheckStatus::Fail && detail.contains("cannot open /dev/kvm"), "{detail}");
    assert_eq!(
        check_node("kvm", &fake, &config(&["kvm-host"])).0,
        CheckStatus::Fail,
        "the overlay requires KVM"
    );
    assert_eq!(check_node("kvm", &fake, &vfio()).0, CheckStatus::Warn, "no overlay requires KVM");
    // A folder cannot be opened for writing.
    fake.folder("dev/kvm");
    assert_eq!(check_node("kvm", &fake, &host).0, CheckStatus::Fail);
    fake.file("dev/kmsg", "3,9,9,-;kvm: disabled by bios\n");
    let (_, detail) = check_node("kvm", &fake, &host);
    assert_eq!(detail, "virtualization is disabled by BIOS (kvm: disabled by bios)");
    fake.file("dev/kmsg", "");
    fake.file("proc/cpuinfo", "processor : 0\nflags : fpu\n");
    assert!(
        check_node("kvm", &fake, &host).1.contains("disabled by BIOS"),
        "by the processor's flags"
    );
    std::fs::remove_dir(fake.tree.path("/dev/kvm")).expect("removed");
    fake.file("dev/kvm", "");
    assert_eq!(
        check_node("kvm", &fake, &host),
        (CheckStatus::Fail, "QEMU is not installed".to_owned())
    );
    assert_eq!(check_node("kvm", &fake, &vfio()).0, CheckStatus::Pass, "no overlay runs VMs");
    fake.folder("usr/bin");
    crate::fake::write_program(&fake.tree.path("/usr/bin/qemu-system-x86_64"), "#!/bin/sh\n");
    assert_eq!(check_node("kvm", &fake, &host), (CheckStatus::Pass, "/dev/kvm opens".to_owned()));
}

#[test]
fn bare_metal_profile_skips_virtualization_checks() {
    let fake = FakeMachine::new("", &NO_GROUP);
    for name in ["kvm", "iommu", "vfio", "units", "store", "images"] {
        assert_eq!(check_node(name, &fake, &config(&[])).0, CheckStatus::Skip, "{name}");
    }
}
