//! Rows of the requirements that no other test proves, one test a row: its name begins with the
//! row.

mod program;

use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    work::workloads::{UNIT, ask, code, create, facts, host, ready, tasks_report},
    world::{World, single_orders::SingleOrders as _},
};
use meshd_central::{SlotParts, TaskRequest, TaskTarget};
use meshd_model::{
    fleet::{
        AuditOutcome, ConditionKind, Event, Phase, PhaseChange, Principal, Stage, Transition, Verb,
    },
    work::task::{Launcher, Task},
};
use meshd_proto::{CheckReport, FromAgent, Resources, task::TaskUser};
use meshd_store::AuditFilter;
use std::{collections::BTreeSet, time::Duration};

/// Every change, in the words of the phase machine.
const CHANGES: [PhaseChange; 17] = [
    PhaseChange::Approve,
    PhaseChange::Reject,
    PhaseChange::Boot,
    PhaseChange::Enrol,
    PhaseChange::LinkUp,
    PhaseChange::ChecksPass,
    PhaseChange::ChecksFail,
    PhaseChange::Silent,
    PhaseChange::Drain,
    PhaseChange::Drained,
    PhaseChange::Resume,
    PhaseChange::Quarantine,
    PhaseChange::Release,
    PhaseChange::ReleaseUnknown,
    PhaseChange::Rebuild,
    PhaseChange::Remove,
    PhaseChange::Rediscover,
];

/// The diagram of `fleet::phase`: from, to. A node whose link comes up is `enrolling` until its
/// checks are told. Every phase but `removed` may be left for `quarantined` and `removed` as well.
const DRAWN: &str = "discovered approved, discovered rejected, rejected approved, approved rejected, approved booting, \
    approved enrolling, booting enrolling, enrolling booting, enrolling enrolling, enrolling online, enrolling degraded, \
    enrolling draining, enrolling maintenance, enrolling offline, enrolling rebuilding, degraded booting, degraded online, \
    degraded draining, degraded maintenance, degraded offline, degraded rebuilding, online booting, online enrolling, \
    online degraded, online draining, online maintenance, online offline, online rebuilding, draining maintenance, \
    draining offline, draining degraded, maintenance degraded, offline booting, offline enrolling, offline maintenance, \
    offline rebuilding, quarantined approved, quarantined discovered, rebuilding enrolling, removed discovered";

#[test]
fn lc1_only_drawn_transitions_are_accepted() {
    let mut drawn: BTreeSet<(String, String)> = DRAWN
        .split(',')
        .map(|arrow| {
            arrow.trim().split_once(' ').map(|(from, to)| (from.to_owned(), to.to_owned())).unwrap()
        })
        .collect();
    for phase in Phase::ALL.into_iter().filter(|phase| *phase != Phase::Removed) {
        drawn.insert((phase.to_string(), "removed".to_owned()));
        if !matches!(phase, Phase::Quarantined | Phase::Rejected) {
            drawn.insert((phase.to_string(), "quarantined".to_owned()));
        }
    }
    let mut accepted = BTreeSet::new();
    for phase in Phase::ALL {
        for change in CHANGES {
            if let Ok(Transition::To(next)) = phase.apply(change) {
                accepted.insert((phase.to_string(), next.to_string()));
            }
        }
    }
    assert_eq!(accepted, drawn);
}

#[tokio::test]
async fn lc1_node_fault_is_a_condition_beside_its_phase() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    rig.central
        .store()
        .commit(|tx| {
            tx.edit_node(id, |node| {
                node.raise(ConditionKind::HardwareChanged, "a test", rig.central.now())
            });
            Ok::<_, meshd_store::StoreError>(())
        })
        .await
        .unwrap();
    let node = rig.node(id);
    assert_eq!((node.phase, node.conditions.len()), (Phase::Online, 1));
    let refused =
        rig.central.nodes.resume(id, &ordered(Verb::Resume)).await.expect_err("it is in service");
    assert!(refused.to_string().contains("online"), "{refused}");
    assert_eq!(rig.node(id), node, "a change that is not drawn changes nothing");
}

#[tokio::test]
async fn lc8_phase_change_event_has_actor_reason_time_and_correlation() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot_approved(Stage::Online).await;
    let id = machine.id();
    let mut by = ordered(Verb::Drain);
    (by.reason, by.correlation_id) =
        (Some("new memory".to_owned()), rig.central.env.new_correlation());
    rig.clock.turn(Duration::from_secs(7));
    let at = rig.central.now();
    rig.central.nodes.drain(id, &by).await.unwrap();
    assert!(machine.heartbeat(0).await);
    machine.power_off().await;
    let phases = |events: &[Event]| -> Vec<(String, String)> {
        let word = |event: &Event| {
            event.detail.split_once(" -> ").map(|(a, b)| (a.to_owned(), b.to_owned()))
        };
        events.iter().map(|event| word(event).unwrap_or_else(|| panic!("{event:?}"))).collect()
    };
    let events = rig.events("phase");
    let walked = phases(&events);
    assert_eq!(walked.first().map(|(from, _)| from.as_str()), Some("discovered"));
    for pair in walked.windows(2) {
        assert_eq!(pair[0].1, pair[1].0, "no change without an event: {walked:?}");
    }
    assert_eq!(walked.last().map(|(_, to)| to.clone()), Some(rig.node(id).phase.to_string()));
    let drain = events.iter().find(|event| event.detail.ends_with("draining")).expect("an event");
    let told = drain.by.as_ref().expect("who ordered it");
    assert_eq!(
        (&told.principal, &told.reason, told.correlation_id),
        (&by.principal, &by.reason, by.correlation_id)
    );
    assert_eq!((drain.at, drain.node), (at, Some(id)), "the wall clock at that moment");
    // Append-only: what was written is as it was after more has happened.
    machine.boot(Stage::Online).await;
    assert_eq!(rig.events("phase")[..events.len()], events[..]);
}

async fn run_task(
    world: &World,
    rig: &Rig,
    node: &Machine<'_>,
) -> Result<Task, meshd_central::TaskError> {
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    if !site.contains("[groups.one]") {
        std::fs::write(
            world.path("site.toml"),
            format!("{site}[groups.one]\nnodes = [\"{}\"]\n", node.id()),
        )
        .unwrap();
        assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    }
    let group = "one".to_owned();
    let argv = vec!["true".to_owned()];
    let launcher = Some(Launcher::None);
    let ask = TaskRequest {
        target: TaskTarget::Group(group),
        nodes: None,
        ranks_per_node: 1,
        launcher,
        user: TaskUser::Default,
        timeout_s: None,
        input_owner: None,
        argv,
    };
    rig.central.tasks.run_task(ask, &ordered(Verb::TaskRun)).await
}

#[tokio::test]
async fn bm5_slot_claims_and_exclusive_claims_exclude_each_other() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    let refused = run_task(&world, &rig, &node).await.expect_err("its slot is reserved");
    assert!(code(&refused).contains("has VMs"), "{refused}");
    crate::work::workloads::report_vms(&node, &[]).await;
    rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    crate::work::workloads::released(&node, &vm).await;
    run_task(&world, &rig, &node).await.expect("the slot is free");
    for more in ["units = 1", ""] {
        let refused =
            create(&rig, ask(2, more), None).await.expect_err("a task has the node for itself");
        assert!(code(&refused).contains("task"), "{refused}");
    }
}

#[tokio::test]
async fn bm5_concurrent_slot_and_exclusive_claim_have_one_winner() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    drop(run_task(&world, &rig, &node).await.expect("alone"));
    let task = rig
        .central
        .store()
        .read(|model| model.task_on(node.id()).map(|task| task.id))
        .expect("a task");
    rig.central.tasks.cancel_task(task, &ordered(Verb::TaskCancel)).await.unwrap();
    assert!(node.say(tasks_report(meshd_proto::task::TaskUpdate::Released { task })).await);
    let (task, vm) =
        tokio::join!(run_task(&world, &rig, &node), create(&rig, ask(1, "units = 1"), None));
    assert!(task.is_ok() != vm.is_ok(), "{task:?} {vm:?}");
}

#[tokio::test]
async fn gp16_rediscovery_shows_its_difference_from_the_approved_map() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    let id = node.id();
    let slot = rig.central.vms.slots().pop().expect("one").id;
    rig.central
        .vms
        .approve_slot(slot.clone(), SlotParts::default(), &ordered(Verb::SlotApprove))
        .await
        .unwrap();
    // While it runs: the unit is at another address.
    let mut moved = facts("ready");
    let other = "0000:81:00.0";
    (moved.units[0].selected, moved.units[0].members[0].address) =
        (vec![other.to_owned()], other.to_owned());
    let resources = Resources { units: moved.units.clone(), ..Resources::default() };
    let kvm = serde_json::json!({ "name": "kvm", "status": "PASS", "detail": "it opens" });
    let checks = vec![serde_json::from_value(kvm).unwrap()];
    let report = CheckReport { checks, resources: Some(resources), ..CheckReport::default() };
    assert!(node.say(FromAgent::Checks(Box::new(report))).await);
    let drift = rig.condition(id, ConditionKind::UnitDrift).expect("a difference");
    assert!(drift.contains(&format!("{UNIT} (10de:2335) is gone")), "{drift}");
    assert!(drift.contains(&format!("{other} (10de:2335) is new")), "{drift}");
    assert_eq!(rig.events("unit_drift").len(), 1, "told once");
    let state = |unit: &str| {
        let slots = rig.central.vms.slots();
        let found =
            slots.iter().find(|slot| slot.id.unit.as_str() == unit).map(|slot| slot.state.as_str());
        found.map(str::to_owned)
    };
    assert_eq!(state(UNIT).as_deref(), Some("failed"), "what was approved is not there");
    assert_ne!(state(other).as_deref(), Some("active"));
    // In the next boot it is there still, until an operator takes the map as it is.
    node.power_off().await;
    node.facts = moved;
    node.boot(Stage::Online).await;
    ready(&node).await;
    assert!(rig.condition(id, ConditionKind::UnitDrift).is_some());
    rig.central.nodes.approve(id, &ordered(Verb::Approve)).await.unwrap();
    assert_eq!(rig.condition(id, ConditionKind::UnitDrift), None);
}

#[tokio::test]
async fn en7_reenrolment_keeps_node_record_and_revokes_old_credential() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    let id = node.id();
    let slot = rig.central.vms.slots().pop().expect("one").id;
    rig.central
        .vms
        .approve_slot(slot.clone(), SlotParts::default(), &ordered(Verb::SlotApprove))
        .await
        .unwrap();
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    let before = rig.node(id);
    let old = before.certificates[0].clone();
    assert!(rig.central.enrolment.check_certificate(id, &old).is_ok());
    node.power_off().await;
    node.boot(Stage::Online).await;
    ready(&node).await;
    let after = rig.node(id);
    assert_eq!(
        (after.id, after.address, &after.name, &after.profile),
        (id, before.address, &before.name, &before.profile)
    );
    let vm_record = crate::work::workloads::record(&rig, &vm).expect("on record");
    assert_eq!(vm_record.node(), Some(id), "references to the node hold");
    let [kept] = rig.central.vms.slots().try_into().expect("one slot");
    assert_eq!((kept.id, kept.approved.is_some()), (slot, true));
    assert_eq!(after.certificates.len(), 1);
    assert_ne!(after.certificates[0], old, "another credential");
    assert!(rig.central.enrolment.check_certificate(id, &after.certificates[0]).is_ok());
    assert!(rig.central.enrolment.check_certificate(id, &old).is_err(), "the old one is void");
}

#[tokio::test]
async fn se9_approvals_and_credential_events_are_in_the_audit_log() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot_approved(Stage::Online).await;
    let id = machine.id();
    machine.facts = facts("ready");
    machine.link_up().await;
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key).unwrap();
    assert!(machine.say(FromAgent::Renew { csr_pem: request.pem().unwrap() }).await);
    let slot = rig.central.vms.slots().pop().expect("one").id;
    rig.central
        .vms
        .approve_slot(slot, SlotParts::default(), &ordered(Verb::SlotApprove))
        .await
        .unwrap();
    rig.central.nodes.revoke(id, &ordered(Verb::CertificateRevoke)).await.unwrap();
    rig.central
        .enrolment
        .rotate_authority(Duration::ZERO, false, &ordered(Verb::CaRotate))
        .await
        .unwrap();
    let filter = AuditFilter { limit: 1000, ..AuditFilter::default() };
    let lines = rig.central.store().audit(&filter).unwrap();
    let of = |verb: Verb| {
        let found = lines.iter().map(|(_, audit)| audit).find(|audit| audit.by.verb == verb);
        found.unwrap_or_else(|| panic!("{verb} in {lines:?}"))
    };
    for verb in [Verb::Approve, Verb::SlotApprove, Verb::CertificateRevoke, Verb::CaRotate] {
        assert_eq!(
            (&of(verb).by.principal, &of(verb).outcome),
            (&Principal::Operator(0), &AuditOutcome::Done),
            "{verb}"
        );
    }
    for verb in [Verb::Enrol, Verb::Renew] {
        assert_eq!((&of(verb).by.principal, of(verb).node), (&Principal::Node, Some(id)), "{verb}");
    }
}

#[tokio::test]
async fn ov12_node_that_ran_without_its_overlay_is_shown_as_overlay_missing() {
    let world = World::prepared("auto");
    world.edit_site("[boot]\n", "[boot]\ndelivery = \"url\"\n");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Packages).await;
    let id = machine.id();
    // Alpine goes on without its overlay, finds no mesh-init, and reboots ten seconds later.
    machine.step(Stage::OsDhcp).await;
    rig.pass(Duration::from_secs(20)).await;
    assert_eq!(rig.condition(id, ConditionKind::OverlayMissing), None, "it may still fetch it");
    machine.boot(Stage::Script).await;
    let detail =
        rig.condition(id, ConditionKind::OverlayMissing).expect("it is shown at its next boot");
    assert!(detail.contains("without its overlay"), "{detail}");
    machine.step(Stage::IpxeDhcp).await;
    machine.step(Stage::Script).await;
    assert!(
        rig.condition(id, ConditionKind::OverlayMissing).is_some(),
        "also when it asks once more"
    );
    assert_eq!(rig.events("overlay_missing").len(), 1, "told once");
    assert!(machine.script.contains("/apkovl.tar.gz"), "by URL: {}", machine.script);
}

#[tokio::test]
async fn ov12_default_delivery_starts_no_kernel_without_the_overlay() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Script).await;
    let at = |text: &str| {
        machine.script.find(text).unwrap_or_else(|| panic!("{text} in {}", machine.script))
    };
    let overlay = machine
        .script
        .lines()
        .find(|line| line.starts_with("initrd --name overlay "))
        .expect("an initrd");
    assert!(overlay.ends_with("|| goto failed"), "{overlay}");
    assert!(at("initrd --name overlay") < at("\nboot ||"), "iPXE has it before Linux starts");
    machine.boot(Stage::Overlay).await;
    machine.step(Stage::OsDhcp).await;
    machine.boot(Stage::Script).await;
    assert_eq!(rig.condition(machine.id(), ConditionKind::OverlayMissing), None);
}
