//! What the site says of all VMs, and what a node says of itself beside its units: both decide
//! where a machine goes.

use super::*;
use crate::world::{World, stderr};
use meshd_proto::{CheckReport, Hosting, HugepageFacts, NumaFacts, Resources};
use std::fs;

/// A rig whose site has `[vms]` with these keys.
fn rig(policy: &str, vms: &str) -> (World, Rig) {
    let world = World::prepared(policy);
    world.edit_site("[http]", &format!("[vms]\n{vms}\n[http]"));
    let rig = Rig::new(&world);
    (world, rig)
}

async fn why(rig: &Rig, ask: VmRequest) -> String {
    code(&create(rig, ask, None).await.expect_err("it cannot be placed"))
}

fn unproven(check: &str) -> FromAgent {
    let checks = json!([
        { "name": "kvm", "status": "PASS", "detail": "it opens" },
        { "name": check, "status": "WARN", "detail": "nobody answered", "unproven": true },
    ]);
    serde_json::from_value(json!({ "kind": "checks", "checks": checks })).unwrap()
}

#[tokio::test]
async fn slot_approval_is_independent_of_node_approval() {
    let (_world, rig) = rig("auto", "slots = \"approve\"");
    let _node = host(&rig, 1).await;
    let slot = rig.central.vms.slots().pop().expect("a candidate");
    assert_eq!(slot.state.as_str(), "candidate");
    let refused = why(&rig, ask(1, "units = 1")).await;
    assert!(refused.contains("slot_closed") && refused.contains("candidate"), "{refused}");
    let by = ordered(Verb::SlotApprove);
    rig.central.vms.approve_slot(slot.id, Default::default(), &by).await.unwrap();
    create(&rig, ask(1, "units = 1"), None).await.unwrap();
}

#[tokio::test]
async fn automatic_slot_approval_needs_proven_checks() {
    let (_world, rig) = rig("auto", "slots = \"auto\"");
    let node = host(&rig, 1).await;
    assert!(node.say(unproven("network")).await);
    assert_eq!(rig.central.vms.slots().pop().expect("one").state.as_str(), "candidate");
    let refused = why(&rig, ask(1, "units = 1")).await;
    assert!(
        refused.contains("slot_closed")
            && refused.contains("check network says WARN: nobody answered"),
        "{refused}"
    );
    // Files that are still fetched say nothing of its units.
    assert!(node.say(unproven("images")).await);
    assert_eq!(rig.central.vms.slots().pop().expect("one").state.as_str(), "available");
    create(&rig, ask(1, "units = 1"), None).await.unwrap();
}

#[tokio::test]
async fn cpu_overcommit_limits_vm_placement() {
    let (_world, rig) = rig("auto", "cpu_overcommit = 1");
    let _node = host(&rig, 1).await;
    for number in 0..4 {
        create(&rig, ask(number, ""), None).await.unwrap();
    }
    let refused = why(&rig, ask(5, "")).await;
    assert!(
        refused.contains("cpus_taken") && refused.contains("not_ready: a node has the resources"),
        "{refused}"
    );
}

#[tokio::test]
async fn node_capabilities_decide_placement_and_follow_changes() {
    let (_world, rig) = rig("auto", "cpu_overcommit = 4");
    let mut node = Machine::new(&rig, 1);
    node.facts = facts("ready");
    node.facts.units[0].numa_node = Some(1);
    let hosting = Hosting {
        qemu: true,
        qemu_img: true,
        numa: [0, 1].map(|id| NumaFacts { id, threads: 4, memory_kib: 4 << 20 }).into(),
        hugepages: vec![HugepageFacts { numa_node: Some(0), page_kib: 2048, count: 512 }],
        ..Hosting::default()
    };
    node.facts.hosting = Some(Box::new(hosting.clone()));
    node.boot(Stage::Online).await;
    ready(&node).await;
    let bridged = "[[nic]]\nbridge = \"br0\"";
    assert!(why(&rig, ask(1, bridged)).await.contains("bridge_missing (it has no bridge br0)"));
    assert!(why(&rig, ask(1, "firmware = \"uefi\"")).await.contains("firmware_missing"));
    let mut large = ask(1, "");
    large.spec.memory = "7G".parse().unwrap();
    assert!(why(&rig, large).await.contains("memory_exceeded"), "1 GiB of it are huge pages");
    let mut huge = ask(1, "hugepages = true");
    huge.spec.memory = "2G".parse().unwrap();
    assert!(why(&rig, huge).await.contains("hugepages_exceeded"));
    create(&rig, ask(2, "hugepages = true"), None).await.unwrap();

    let near = create(&rig, ask(3, "units = 1"), None).await.unwrap();
    assert_eq!((near.request.spec.numa_node, near.assigned.numa_node), (None, Some(1)));
    let detail = rig.events("vm_created").pop().expect("an event").detail;
    assert!(detail.contains("NUMA node 1"), "{detail}");
    let mut wide = ask(4, "numa_node = 1");
    wide.spec.vcpus = 3;
    assert!(why(&rig, wide).await.contains("cpus_taken"), "2 of its 4 threads are left");

    // The bridge comes while it runs.
    let resources = Resources {
        units: node.facts.units.clone(),
        hosting: Some(Box::new(Hosting { bridges: vec!["br0".to_owned()], ..hosting })),
        ..Resources::default()
    };
    let kvm = json!({ "name": "kvm", "status": "PASS", "detail": "it opens" });
    let checks = vec![serde_json::from_value(kvm).unwrap()];
    let report = CheckReport { checks, resources: Some(resources), ..CheckReport::default() };
    assert!(node.say(FromAgent::Checks(Box::new(report))).await);
    create(&rig, ask(1, bridged), None).await.unwrap();
}

#[test]
fn vm_file_uses_templates_of_the_server_site() {
    let mut world = World::prepared("auto");
    world.edit_site("[http]", "[vms.templates.default]\nvcpus = 3\nmemory = \"2G\"\n[http]");
    let file = world.path("vm.toml");
    let create = |world: &World, text: &str| {
        fs::write(&file, text).unwrap();
        let output = world.meshd(&["vm", "create", "-f", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    let least = "name = \"train-7\"\n";
    let away = create(&world, least);
    assert!(!away.contains("is required"), "what it lacks may be in a template: {away}");
    let faulty = create(&world, "name = \"train-7\"\nvcpu = 1\n");
    assert!(faulty.contains("vm.toml:2: vcpu"), "{faulty}");
    world.start();
    let known = create(&world, least);
    assert!(known.contains("no node is known"), "{known}");
    let unknown = create(&world, "name = \"train-7\"\ntemplate = \"large\"\n");
    assert!(unknown.contains("template: the site has no template `large`"), "{unknown}");
    assert!(unknown.contains("vcpus: is required") && unknown.contains("default"), "{unknown}");
}
