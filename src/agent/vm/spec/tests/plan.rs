//! Each refusal of a specification alone, and all together.

use super::*;
use crate::vm::{
    fixtures::{nic, spec},
    host::{
        installed::Programs,
        memory::Memory,
        resources::{HugePool, ImageFile, NumaNode},
    },
};
use VmRefusalReason as Reason;
use meshd_proto::{DiskFacts, PciFacts, vm::SlotDisk};
use meshd_types::Digest;

const GIB: u64 = 1 << 30;

fn digest() -> Digest {
    Digest::of(b"image")
}

fn unit(group: u32, state: UnitState, members: &[&str]) -> UnitFacts {
    let member =
        |address: &&str| PciFacts { address: (*address).to_owned(), ..PciFacts::default() };
    let reason = if state == UnitState::Ready { "" } else { "it fell off the bus" };
    UnitFacts {
        group: Some(group),
        state,
        reason: reason.into(),
        members: members.iter().map(member).collect(),
        ..UnitFacts::default()
    }
}

fn host() -> HostResources {
    let header = meshd_proto::vm::qcow2::sample_header(10 * GIB);
    let disk = |name: &str, wwid: &str, blocked: Option<&str>| DiskFacts {
        name: name.into(),
        wwid: Some(wwid.into()),
        serial: Some(format!("S{wwid}")),
        blocked: blocked.map(str::to_owned),
        ..DiskFacts::default()
    };
    HostResources {
        programs: Programs {
            qemu: Some("/usr/bin/qemu-system-x86_64".into()),
            qemu_img: Some("/usr/bin/qemu-img".into()),
            swtpm: None,
            agent: None,
        },
        unconfined: None,
        vhost: false,
        models: Some(
            ["host", "max", "EPYC"].map(str::to_owned).into_iter().collect::<BTreeSet<_>>().into(),
        ),
        kvm: true,
        threads: 16,
        memory: Memory { total: 64 * GIB, available: 60 * GIB, ..Memory::default() },
        layers_in_memory: true,
        hugepages: vec![
            HugePool { node: Some(0), page: 2 << 20, count: 4096 },
            HugePool { node: Some(1), page: 2 << 20, count: 512 },
            HugePool { node: Some(0), page: GIB, count: 2 },
        ],
        numa: vec![
            NumaNode { id: 0, cpus: (0..8).collect() },
            NumaNode { id: 1, cpus: (8..16).collect() },
        ],
        units: vec![
            unit(14, UnitState::Ready, &["0000:01:00.0", "0000:01:00.1"]),
            unit(15, UnitState::Wedged, &["0000:02:00.0"]),
        ],
        dev: "/dev".into(),
        disks: vec![
            disk("sda", "eui.1", Some("disk sda is mounted on /")),
            disk("sdb", "eui.2", None),
            disk("sdc", "eui.3", None),
        ],
        slots: Vec::new(),
        bridges: BTreeSet::from(["br0".to_owned(), "mesh-nat0".to_owned()]),
        private: Some(meshd_proto::Subnet::containing([172, 30, 2, 0].into(), 24)),
        uefi: vec![Uefi { code: "/code".into(), vars: "/vars".into(), secure: false }],
        images: [(digest(), ImageFile { path: "/images/x".into(), header })].into(),
    }
}

fn reasons(more: serde_json::Value) -> Vec<Reason> {
    let refused = plan(&spec(more), &host(), &[]).expect_err("refused");
    assert!(refused.iter().all(|refusal| !refusal.detail.is_empty()));
    refused.into_iter().map(|refusal| refusal.reason).collect()
}

#[test]
fn vm_that_uses_every_resource_is_planned_with_whole_units() {
    let plan = plan(
        &spec(serde_json::json!({
            "units": ["0000:01:00.1"], "numa_node": 0, "hugepages": true, "memory": "2G", "firmware": "uefi",
            "volumes": [
                { "name": "root", "format": "qcow2", "digest": digest(), "size": "20G" },
                { "name": "small", "format": "qcow2", "digest": digest(), "size": "1G" },
                { "name": "data", "format": "raw", "disk": "Seui.2" },
                { "name": "cd", "format": "iso", "digest": digest() },
            ],
            "nics": [{ "mac": "52:54:00:00:00:01", "bridge": "br0" }],
        })),
        &host(),
        &[],
    )
    .expect("planned");
    let functions: Vec<&str> = plan.functions.iter().map(PciAddress::as_str).collect();
    assert_eq!(functions, ["0000:01:00.0", "0000:01:00.1"]);
    assert_eq!((plan.accel, plan.hugepage), (Accel::Kvm, Some(GIB)), "the largest pages that fit");
    assert_eq!(plan.cpus, Some((0..8).collect()));
    let base = PathBuf::from("/images/x");
    let expected = [
        PlannedVolume::Layer { base: base.clone(), size: Some(ByteSize::from_bytes(20 * GIB)) },
        PlannedVolume::Layer { base: base.clone(), size: None },
        PlannedVolume::Disk { device: "/dev/sdb".into() },
        PlannedVolume::Cd { file: base },
    ];
    assert_eq!(plan.volumes, expected, "a size below the size of the image is ignored");
}

#[test]
fn node_without_kvm_refuses_unless_tcg_is_allowed() {
    let host = HostResources { kvm: false, ..host() };
    let refused = plan(&spec(serde_json::json!({})), &host, &[]).expect_err("refused");
    assert_eq!(refused[0].reason.as_str(), "kvm_missing");
    let plan = plan(&spec(serde_json::json!({ "allow_tcg": true })), &host, &[]).expect("allowed");
    assert_eq!(plan.accel, Accel::Tcg);
}

#[test]
fn unknown_cpu_model_is_refused() {
    assert!(plan(&spec(serde_json::json!({ "cpu": "EPYC" })), &host(), &[]).is_ok());
    assert_eq!(reasons(serde_json::json!({ "cpu": "EPIC" })), [Reason::CpuUnknown]);
    let silent = HostResources { models: None, ..host() };
    assert!(
        plan(&spec(serde_json::json!({ "cpu": "EPIC" })), &silent, &[]).is_ok(),
        "QEMU reports the error itself"
    );
}

#[test]
fn layers_count_as_memory_only_in_a_store_in_memory() {
    let volumes = serde_json::json!([{ "name": "d", "format": "qcow2", "digest": digest() }]);
    let wants = |memory: &str, in_memory: bool| {
        let host = HostResources { layers_in_memory: in_memory, ..host() };
        plan(&spec(serde_json::json!({ "memory": memory, "volumes": volumes })), &host, &[])
            .map(|plan| plan.growth)
            .map_err(|refusals| refusals[0].reason)
    };
    assert_eq!(wants("59G", false), Ok(0));
    assert_eq!(wants("59G", true), Err(Reason::MemoryExceeded));
    assert_eq!(wants("58G", true), Ok(GIB), "a margin for the 10 GiB of the layer");
}

#[test]
fn memory_reserved_for_other_vms_is_not_free() {
    let other = VmSpec {
        name: "b".parse().expect("a name"),
        ..spec(serde_json::json!({ "memory": "50G" }))
    };
    let wants =
        |memory: &str| plan(&spec(serde_json::json!({ "memory": memory })), &host(), &[&other]);
    assert!(wants("9G").is_ok());
    assert_eq!(wants("10G").expect_err("refused")[0].reason, Reason::MemoryExceeded);
    assert_eq!(reasons(serde_json::json!({ "memory": "61G" })), [Reason::MemoryExceeded]);
    let huge = VmSpec { hugepages: true, ..other.clone() };
    assert!(
        plan(&spec(serde_json::json!({ "memory": "14G" })), &host(), &[&huge]).is_ok(),
        "huge pages are not free memory"
    );
}

#[test]
fn huge_pages_are_taken_from_the_numa_node_of_the_vm() {
    let wants = |memory: &str, node: Option<u32>| {
        plan(
            &spec(serde_json::json!({ "memory": memory, "hugepages": true, "numa_node": node })),
            &host(),
            &[],
        )
        .map(|plan| plan.hugepage)
        .map_err(|refusals| refusals[0].reason)
    };
    assert_eq!(wants("2G", Some(0)), Ok(Some(GIB)));
    assert_eq!(wants("3G", Some(0)), Ok(Some(2 << 20)));
    assert_eq!(wants("9G", None), Ok(Some(2 << 20)));
    assert_eq!(wants("2G", Some(1)), Err(Reason::HugepagesExceeded));
    assert_eq!(wants("10G", None), Err(Reason::HugepagesExceeded));
}

#[test]
fn missing_unready_duplicate_or_taken_unit_is_refused() {
    assert_eq!(reasons(serde_json::json!({ "units": ["0000:09:00.0"] })), [Reason::UnitMissing]);
    assert_eq!(reasons(serde_json::json!({ "units": ["0000:02:00.0"] })), [Reason::UnitNotReady]);
    assert_eq!(
        reasons(serde_json::json!({ "units": ["0000:01:00.0", "0000:01:00.1"] })),
        [Reason::SpecInvalid]
    );
    let other = spec(serde_json::json!({ "name": "b", "units": ["0000:01:00.1"] }));
    let refused = plan(&spec(serde_json::json!({ "units": ["0000:01:00.0"] })), &host(), &[&other]);
    assert_eq!(refused.expect_err("taken")[0].reason, Reason::UnitTaken);
}

#[test]
fn disk_of_a_slot_requires_the_unit_of_the_slot() {
    let slots = vec![SlotDisk {
        unit: "0000:01:00.0".parse().expect("one"),
        disk: "Seui.2".parse().expect("one"),
    }];
    let host = HostResources { slots, ..host() };
    let wants = |disk: &str, units: &[&str]| {
        let volumes = serde_json::json!([{ "name": "d", "format": "raw", "disk": disk }]);
        let spec = spec(serde_json::json!({ "volumes": volumes, "units": units }));
        plan(&spec, &host, &[]).map(drop).map_err(|refusals| refusals[0].clone())
    };
    let refused = wants("eui.2", &[]).expect_err("without the unit");
    assert_eq!(
        (refused.reason, refused.detail.as_str()),
        (Reason::DiskTaken, "volume d: `eui.2` belongs to slot 0000:01:00.0")
    );
    assert_eq!(wants("eui.3", &[]), Ok(()), "no slot has it");
    assert_eq!(wants("slot:eui.2", &["0000:01:00.1"]), Ok(()), "any function of the unit");
    assert_eq!(
        wants("slot", &["0000:01:00.0"]).map_err(|refused| refused.reason),
        Err(Reason::DiskMissing)
    );
}

#[test]
fn disk_is_found_by_identity_and_refused_if_in_use_or_ambiguous() {
    let wants = |disk: &str, others: &[&VmSpec]| {
        let spec = spec(
            serde_json::json!({ "volumes": [{ "name": "d", "format": "raw", "disk": disk }] }),
        );
        plan(&spec, &host(), others).map_err(|refusals| refusals[0].reason)
    };
    assert!(wants("eui.2", &[]).is_ok());
    assert_eq!(wants("eui.1", &[]), Err(Reason::DiskInUse));
    assert_eq!(wants("eui.9", &[]), Err(Reason::DiskMissing));
    let other = spec(
        serde_json::json!({ "name": "b", "volumes": [{ "name": "d", "format": "raw", "disk": "Seui.2" }] }),
    );
    assert_eq!(wants("eui.2", &[&other]), Err(Reason::DiskInUse), "by its WWID");
    let mut twins = host();
    twins.disks[2].wwid = Some("eui.2".into());
    let spec =
        spec(serde_json::json!({ "volumes": [{ "name": "d", "format": "raw", "disk": "eui.2" }] }));
    assert_eq!(plan(&spec, &twins, &[]).expect_err("two")[0].reason, Reason::DiskMissing);
}

#[test]
fn missing_or_invalid_image_is_refused() {
    let volume = |format: &str, digest: Digest| serde_json::json!({ "volumes": [{ "name": "d", "format": format, "digest": digest }] });
    assert_eq!(reasons(volume("qcow2", Digest::of(b"other"))), [Reason::VolumeMissing]);
    assert_eq!(reasons(volume("iso", Digest::of(b"other"))), [Reason::VolumeMissing]);
    let mut host = host();
    host.images.get_mut(&digest()).expect("it is there").header[15] = 1;
    let refused = plan(&spec(volume("qcow2", digest())), &host, &[])
        .expect_err("the image has a backing file");
    assert_eq!(refused[0].reason, Reason::VolumeUnfit);
}

#[test]
fn private_address_must_be_in_the_subnet_and_unique() {
    let wants =
        |nics: &[serde_json::Value]| spec(serde_json::json!({ "nics": nics, "memory": "1G" }));
    let mut other = wants(&[nic(7, "mesh-nat0", "172.30.2.9"), nic(8, "br0", "172.30.2.10")]);
    (other.name, other.uuid) = ("b".parse().expect("a name"), meshd_types::SystemUuid([7; 16]));
    let sound = wants(&[nic(1, "mesh-nat0", "172.30.2.10"), nic(2, "br0", "10.77.0.210")]);
    assert!(plan(&sound, &host(), &[&other]).is_ok(), "addresses on other bridges do not conflict");
    let conflicting = wants(&[
        nic(1, "mesh-nat0", "172.30.2.9"),
        nic(2, "mesh-nat0", "10.0.0.1"),
        nic(3, "mesh-nat0", "172.30.2.1"),
    ]);
    let refused: Vec<String> = plan(&conflicting, &host(), &[&other])
        .expect_err("refused")
        .into_iter()
        .map(|refusal| format!("{}: {}", refusal.reason.as_str(), refusal.detail))
        .collect();
    let outside =
        "is outside of 172.30.2.2 to 172.30.2.254, the range of mesh-nat0 on this node; omit it";
    let expected = [
        "address_taken: nic[0].address: 172.30.2.9 belongs to b".to_owned(),
        format!("address_unfit: nic[1].address: 10.0.0.1 {outside}"),
        format!("address_unfit: nic[2].address: 172.30.2.1 {outside}"),
    ];
    assert_eq!(refused, expected);
}

#[test]
fn qemu_without_seccomp_sandbox_is_refused() {
    let host = HostResources { unconfined: Some("it has no seccomp sandbox".to_owned()), ..host() };
    let refused =
        plan(&spec(serde_json::json!({ "memory": "1G" })), &host, &[]).expect_err("refused");
    assert_eq!(refused[0].reason, Reason::QemuMissing);
    assert!(refused[0].detail.contains("no seccomp sandbox"), "{refused:?}");
}

#[test]
fn refusals_are_all_returned_at_once() {
    let other =
        spec(serde_json::json!({ "nics": [{ "mac": "52:54:00:00:00:01", "bridge": "br0" }] }));
    let conflicting = spec(serde_json::json!({
        "vcpus": 64, "memory": "1T", "numa_node": 7, "vtpm": true, "firmware": "uefi", "secure_boot": true,
        "nics": [{ "mac": "52:54:00:00:00:01", "bridge": "br7" }],
    }));
    let refused = plan(
        &conflicting,
        &HostResources { kvm: false, programs: Programs::default(), ..host() },
        &[&other],
    );
    let reasons: Vec<Reason> =
        refused.expect_err("refused").into_iter().map(|refusal| refusal.reason).collect();
    let expected = [
        Reason::NameTaken,
        Reason::MacTaken,
        Reason::QemuMissing,
        Reason::TpmMissing,
        Reason::KvmMissing,
        Reason::CpusExceeded,
        Reason::NumaMissing,
        Reason::BridgeMissing,
        Reason::FirmwareMissing,
        Reason::MemoryExceeded,
    ];
    assert_eq!(reasons, expected);
}
