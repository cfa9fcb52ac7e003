//! What the central node wishes, said once or many times, and what the node tells of it.

use super::guest::{DEADLINE, Guest, Node};
use meshd_agent::vm::VmManager;
use meshd_proto::{
    DiskUse,
    vm::{ReportedVmState, VmEntry, VmFailureKind, VmReport, VmSpec, VmTarget, VmUpdate},
};
use meshd_types::SystemUuid;
use serde_json::json;
use std::{fs, time::Duration};
use tokio::time::timeout;

fn run(manager: &VmManager, spec: &VmSpec, start: u32) {
    let want = VmTarget::Run {
        spec: Box::new(spec.clone()),
        start,
        grace_s: 0,
        slots: Vec::new(),
        disks: Default::default(),
    };
    manager.apply(1, VmEntry { uuid: spec.uuid, desired_state: want });
}

/// The next news of a kind.
pub async fn wait_for_update<T>(
    manager: &mut VmManager,
    mut is: impl FnMut(VmUpdate) -> Option<T>,
) -> T {
    let mut seen = Vec::new();
    let waited = timeout(DEADLINE, async {
        loop {
            let (_, news) = manager.next_update().await;
            seen.push(format!("{news:?}"));
            if let Some(found) = is(news) {
                return found;
            }
        }
    });
    let found = waited.await;
    found.unwrap_or_else(|_| panic!("not told; told was: {seen:#?}"))
}

pub async fn reaches(
    manager: &mut VmManager,
    uuid: SystemUuid,
    state: ReportedVmState,
) -> VmReport {
    let is = |news| match news {
        VmUpdate::All { vms } => {
            vms.into_iter().find(|report| report.uuid == uuid && report.state == state)
        }
        _ => None,
    };
    // It may be told already.
    let (_, now) = manager.full_report();
    match is(now) {
        Some(report) => report,
        None => wait_for_update(manager, is).await,
    }
}

/// Waits until everything that was ordered before is taken: a release of what is not there is told
/// in its turn.
async fn follows(manager: &mut VmManager) {
    let uuid = "99999999-5566-7788-99aa-bbccddeeff00".parse().unwrap();
    manager.apply(1, VmEntry { uuid, desired_state: VmTarget::Release { disks: Vec::new() } });
    wait_for_update(manager, |news| (news == VmUpdate::Released { uuid }).then_some(())).await;
}

#[tokio::test]
async fn repeated_order_starts_vm_once_and_new_number_restarts_it() {
    let node = Node::new();
    let spec = node.spec(Guest::Deaf, json!({}));
    let mut manager = node.manager();
    (0..3).for_each(|_| run(&manager, &spec, 1));
    reaches(&mut manager, spec.uuid, ReportedVmState::Running).await;
    assert_eq!(manager.workloads(), 1);
    let first = node.processes();
    assert_eq!(first.len(), 1);
    run(&manager, &spec, 2);
    // What changes fast is told together, so the states in between may never be seen; the process
    // is another one.
    let restarted = timeout(DEADLINE, async {
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        while node.processes().iter().all(|pid| first.contains(pid)) {
            looks.tick().await;
        }
    });
    restarted.await.expect("a newer number restarts it");
    reaches(&mut manager, spec.uuid, ReportedVmState::Running).await;
    assert_eq!(node.processes().len(), 1);

    manager.apply(1, VmEntry { uuid: spec.uuid, desired_state: VmTarget::Stop { grace_s: 0 } });
    reaches(&mut manager, spec.uuid, ReportedVmState::Stopped).await;
    run(&manager, &spec, 2);
    drop(manager);
    let mut manager = node.manager();
    run(&manager, &spec, 2);
    follows(&mut manager).await;
    assert_eq!(reaches(&mut manager, spec.uuid, ReportedVmState::Stopped).await.failure, None);
    assert!(
        node.processes().is_empty() && manager.workloads() == 0,
        "the number outlives the agent"
    );
    run(&manager, &spec, 3);
    reaches(&mut manager, spec.uuid, ReportedVmState::Running).await;

    // An agent that comes anew takes it over, with the number.
    drop(manager);
    let mut manager = node.manager();
    let before = node.processes();
    run(&manager, &spec, 3);
    reaches(&mut manager, spec.uuid, ReportedVmState::Running).await;
    for _ in 0..2 {
        manager.apply(
            1,
            VmEntry { uuid: spec.uuid, desired_state: VmTarget::Release { disks: Vec::new() } },
        );
        wait_for_update(&mut manager, |news| {
            (news == VmUpdate::Released { uuid: spec.uuid }).then_some(())
        })
        .await;
    }
    assert_eq!((before.len(), node.processes().len()), (1, 0));
    assert_eq!(node.vm_folders(), 0);
    assert_eq!(
        fs::read_dir(node.path().join("images")).unwrap().count(),
        0,
        "nobody names the volume any more"
    );
}

#[tokio::test]
async fn refused_vm_fails_and_is_not_retried_by_the_same_number() {
    let node = Node::new();
    let spec = node.spec(Guest::Deaf, json!({ "allow_tcg": false }));
    let mut manager = node.manager();
    run(&manager, &spec, 1);
    let failure = reaches(&mut manager, spec.uuid, ReportedVmState::Failed).await.failure.unwrap();
    assert!(
        failure.kind == VmFailureKind::Refused && failure.detail.contains("kvm_missing"),
        "{failure:?}"
    );
    drop(manager);
    let mut manager = node.manager();
    assert_eq!(
        reaches(&mut manager, spec.uuid, ReportedVmState::Failed).await.failure,
        Some(failure)
    );
    assert_eq!(manager.workloads(), 0);

    // Another specification is not run over it, and what there is stays.
    let other = VmSpec { allow_tcg: true, ..spec.clone() };
    run(&manager, &other, 2);
    let reported = wait_for_update(&mut manager, |news| match news {
        VmUpdate::All { vms } => {
            vms.first()?.failure.clone().filter(|failure| failure.detail.contains("another"))
        }
        _ => None,
    });
    assert!(reported.await.detail.contains("release it first"));
    manager.apply(
        1,
        VmEntry { uuid: spec.uuid, desired_state: VmTarget::Release { disks: Vec::new() } },
    );
    run(&manager, &other, 2);
    reaches(&mut manager, spec.uuid, ReportedVmState::Running).await;
    manager.apply(
        1,
        VmEntry { uuid: spec.uuid, desired_state: VmTarget::Release { disks: Vec::new() } },
    );
    wait_for_update(&mut manager, |news| {
        (news == VmUpdate::Released { uuid: spec.uuid }).then_some(())
    })
    .await;
    assert!(node.processes().is_empty());
}

#[tokio::test]
async fn vm_whose_disk_states_cannot_be_stored_is_refused() {
    let node = Node::new();
    let digest = node.image(Guest::Deaf);
    let volume = json!({ "name": "root", "format": "raw", "disk": "slot:eui.1", "digest": digest });
    let spec = node.spec(Guest::Deaf, json!({ "volumes": [volume] }));
    let mut manager = node.manager();
    // No folder can be made where a file is.
    fs::create_dir_all(node.run_folder()).unwrap();
    fs::write(node.files(spec.uuid), "").unwrap();
    let disks = spec.volumes.iter().map(|volume| (volume.name.clone(), DiskUse::Done)).collect();
    let slots = Vec::new();
    let want = VmTarget::Run { spec: Box::new(spec.clone()), start: 1, grace_s: 0, slots, disks };
    manager.apply(1, VmEntry { uuid: spec.uuid, desired_state: want });
    let report = reaches(&mut manager, spec.uuid, ReportedVmState::Failed).await;
    let failure = report.failure.expect("a reason");
    assert!(failure.detail.contains("cannot store the state of its disks"), "{failure:?}");
    assert_eq!((failure.kind, report.start), (VmFailureKind::Refused, Some(1)));
}

#[tokio::test]
async fn private_network_address_is_reported_and_not_assigned_twice() {
    let node = Node::new();
    // The node has no KVM, so nothing runs; a machine that has failed is there all the same.
    let nics = json!([{ "mac": "52:54:00:00:00:01", "bridge": "mesh-nat0" }]);
    let spec = node.spec(Guest::Deaf, json!({ "allow_tcg": false, "nics": nics }));
    let mut manager = node.manager();
    run(&manager, &spec, 1);
    assert!(reaches(&mut manager, spec.uuid, ReportedVmState::Failed).await.addresses.is_empty());
    let given = [("52:54:00:00:00:01".parse().unwrap(), [172, 30, 0, 57].into())].into();
    manager.nic_addresses().send_replace(given);
    let reported = wait_for_update(&mut manager, |news| match news {
        VmUpdate::All { vms } => vms.into_iter().find(|report| !report.addresses.is_empty()),
        _ => None,
    });
    assert_eq!(reported.await.addresses, *manager.nic_addresses().borrow());
    let nics =
        json!([{ "mac": "52:54:00:00:00:02", "bridge": "mesh-nat0", "address": "172.30.0.57" }]);
    let more = json!({ "allow_tcg": false, "name": "b", "uuid": "11223344-5566-7788-99aa-bbccddeeff01", "nics": nics });
    let other = node.spec(Guest::Deaf, more);
    run(&manager, &other, 1);
    let failure = reaches(&mut manager, other.uuid, ReportedVmState::Failed).await.failure.unwrap();
    let taken = "address_taken: nic[0].address: 172.30.0.57 is the address of the NIC 52:54:00:00:00:01 on this node";
    assert!(failure.detail.contains(taken), "{failure:?}");
}

#[tokio::test]
async fn report_names_the_last_order_that_was_taken_on_its_link() {
    let node = Node::new();
    let mut manager = node.manager();
    manager.begin_link();
    let uuid = "99999999-5566-7788-99aa-bbccddeeff00".parse().unwrap();
    manager.apply(7, VmEntry { uuid, desired_state: VmTarget::Stop { grace_s: 0 } });
    let taken = async { while manager.next_update().await.0 != 7 {} };
    timeout(DEADLINE, taken).await.expect("an order that changes nothing is observed, too");
    manager.begin_link();
    assert_eq!(
        manager.next_update().await,
        (0, VmUpdate::All { vms: Vec::new() }),
        "a new link counts anew"
    );
}
