//! Tests of containers: placement, and the life of replicas.

use super::*;
use crate::work::{Allocations, CandidateNode, VmSupport};
use meshd_proto::container::{
    ContainerDesiredState, ContainerFault, ContainerRestart, PublishedPort, ReplicaReport,
};
use meshd_types::{Basis, BootSessionId, Digest, MacAddr};
use proptest::prelude::*;

fn now() -> Timestamp {
    Timestamp::from_millis(1_000_000)
}

fn node(number: u8) -> NodeId {
    Basis::Mac(MacAddr([2, 0, 0, 0, 0, number])).node_id()
}

fn container(replicas: u16) -> Container {
    let spec = ReplicaSpec {
        run: 0,
        image: Digest([7; 32]),
        image_size: 4096,
        argv: vec!["/bin/server".to_owned()],
        env: BTreeMap::new(),
        working_dir: "/".to_owned(),
        uid: 0,
        gid: 0,
        cpu_millis: 500,
        memory_mib: 1024,
        scratch_mib: 64,
        ports: vec![PublishedPort { node: 8080, container: 80 }],
        mounts: Vec::new(),
        restart: ContainerRestart::Always,
        health: None,
        stop_seconds: 10,
    };
    Container {
        name: "web".parse().expect("a name"),
        image: "nginx".parse().expect("a name"),
        arch: Architecture::X86_64,
        spec,
        desired_state: ContainerGoal::Run,
        owner: "uid:0".to_owned(),
        created_at: now(),
        replicas: Replica::first_starts(replicas).expect("a number"),
    }
}

fn host(number: u8, allocations: &Allocations) -> ContainerHost<'_> {
    ContainerHost {
        node: CandidateNode {
            node: node(number),
            unready: None,
            vm_support: VmSupport::Nothing,
            hosting: None,
            threads: 4,
            overcommit: 4,
            memory: 8 << 30,
            hugepages: 0,
            units: &[],
            disks: &[],
            allocations,
            closed: 0,
            unassignable_units: Vec::new(),
            slots: Vec::new(),
        },
        arch: Some(Architecture::X86_64),
        has_runtime: true,
    }
}

fn placement(number: u8) -> Placement {
    Placement { node: node(number), since: now(), session: Some(BootSessionId([number; 12])) }
}

fn report(container: &Container, index: usize, state: ReplicaState) -> ReplicaReport {
    let run = container.replicas[index].run;
    ReplicaReport { replica: container.replica_id(index), run, restarts: 0, state }
}

fn failed(kind: ContainerFault) -> ReplicaState {
    ReplicaState::Failed { kind, detail: "why".to_owned() }
}

fn order_of(container: &Container, number: u8) -> Option<ContainerDesiredState> {
    container.entries_for(node(number)).next().map(|entry| entry.desired_state)
}

#[test]
fn replicas_are_spread_over_nodes_and_never_share_one() {
    let mut container = container(3);
    let nothing = Allocations::none();
    let mut busy = Allocations::none();
    busy.add_replica(
        "other.0".parse().expect("a replica"),
        &ReplicaSpec { ports: Vec::new(), memory_mib: 4096, ..container.spec.clone() },
    );
    let mut chosen = Vec::new();
    for index in 0..3 {
        let hosts = [host(1, &busy), host(2, &nothing), host(3, &nothing)];
        let node = place_replica(&container, index, hosts.into_iter()).expect("a node");
        container.assign(index, Placement { node, ..placement(1) });
        chosen.push(node);
    }
    assert_eq!(chosen.last(), Some(&node(1)), "the busy node is the last one");
    chosen.sort_unstable();
    chosen.dedup();
    assert_eq!(chosen.len(), 3);
    container.replicas.push(Replica { run: 1, ..Replica::default() });
    let hosts = [host(1, &busy), host(2, &nothing), host(3, &nothing)];
    let refused = place_replica(&container, 3, hosts.into_iter()).expect_err("no fourth node");
    assert_eq!(refused.counts, [(ReplicaReject::HasReplica, 3)]);
    assert!(refused.remedy().contains("--replicas"), "{refused}");
}

#[test]
fn rejection_names_the_reason_and_the_remedy() {
    let container = container(1);
    let nothing = Allocations::none();
    let mut taken = Allocations::none();
    taken.add_replica("db.0".parse().expect("a replica"), &container.spec);
    let mut full = Allocations::none();
    let large = ReplicaSpec { memory_mib: 7 * 1024, ports: Vec::new(), ..container.spec.clone() };
    full.add_replica("db.0".parse().expect("a replica"), &large);
    let with = |change: fn(&mut ContainerHost<'_>)| {
        let mut host = host(1, &nothing);
        change(&mut host);
        host
    };
    let cases = [
        (with(|host| host.has_runtime = false), ReplicaReject::RunsNoContainers, "root image"),
        (
            with(|host| host.arch = Some(Architecture::Aarch64)),
            ReplicaReject::OtherArchitecture,
            "--arch",
        ),
        (with(|host| host.node.memory = 1 << 30), ReplicaReject::MemoryExceeded, "at most"),
        (with(|host| host.node.threads = 0), ReplicaReject::CpusExceeded, "--cpus"),
        (
            with(|host| host.node.unready = Some("draining")),
            ReplicaReject::NotReady,
            "meshd node list",
        ),
        (host(1, &taken), ReplicaReject::PortTaken, "--publish"),
        (host(1, &full), ReplicaReject::MemoryTaken, "--memory"),
    ];
    for (host, reason, remedy) in cases {
        let refused = place_replica(&container, 0, [host].into_iter()).expect_err(reason.as_str());
        assert_eq!(refused.counts, [(reason, 1)]);
        assert!(refused.remedy().contains(remedy), "{}", refused.remedy());
        assert!(refused.to_string().contains("web.0"), "{refused}");
    }
    let none = place_replica(&container, 0, std::iter::empty()).expect_err("no node");
    assert!(none.to_string().contains("no node is approved"), "{none}");
}

#[test]
fn replicas_and_vms_share_memory_and_processors() {
    let mut allocations = Allocations::none();
    let container = container(1);
    for index in 0..5 {
        let id = ReplicaId { container: "web".parse().expect("a name"), index };
        allocations.add_replica(id, &container.spec);
    }
    assert_eq!(allocations.all().memory, 5 << 30);
    assert_eq!(allocations.all().shared, 3, "2500 thousandths of a CPU");
    for index in 0..5 {
        let id = ReplicaId { container: "web".parse().expect("a name"), index };
        allocations.remove_replica(&id);
    }
    assert!(allocations.is_empty());
    assert_eq!(allocations, Allocations::none());
}

#[test]
fn node_that_cannot_run_a_replica_releases_it_for_another() {
    let mut container = container(1);
    container.assign(0, placement(1));
    let fault = report(&container, 0, failed(ContainerFault::PortInUse));
    let change = container.apply_report(&fault, now());
    assert!(matches!(change, Some(ReplicaChange::Failed(why)) if why.contains("port_in_use")));
    assert_eq!(order_of(&container, 1), Some(ContainerDesiredState::Gone));
    assert!(!container.needs_placement(0), "its node has not released it");
    assert!(container.unplace(0, "released"));
    assert!(container.needs_placement(0));
    let nothing = Allocations::none();
    let hosts = [host(1, &nothing)].into_iter();
    let refused = place_replica(&container, 0, hosts).expect_err("refused");
    assert_eq!(refused.counts, [(ReplicaReject::Refused, 1)]);
    container.start();
    assert!(place_replica(&container, 0, [host(1, &nothing)].into_iter()).is_ok());
}

#[test]
fn fault_of_the_image_is_no_reason_to_try_another_node() {
    let mut container = container(1);
    container.assign(0, placement(1));
    let fault = report(&container, 0, failed(ContainerFault::ProgramMissing));
    container.apply_report(&fault, now());
    assert_eq!(order_of(&container, 1), Some(ContainerDesiredState::Stopped));
    assert_eq!(container.phase_of(&container.replicas[0], true), ReplicaPhase::Failed);
    assert!(!container.may_work(0), "a drain does not wait for it");
}

#[test]
fn program_that_exited_is_not_run_again_after_a_boot_of_its_node() {
    let mut container = container(1);
    container.assign(0, placement(1));
    let exited = report(&container, 0, ReplicaState::Exited { code: 0 });
    assert_eq!(container.apply_report(&exited, now()), Some(ReplicaChange::Exited { code: 0 }));
    assert_eq!(container.apply_reboot(0, BootSessionId([9; 12])), None);
    assert_eq!(order_of(&container, 1), Some(ContainerDesiredState::Stopped));
    container.start();
    let Some(ContainerDesiredState::Run(spec)) = order_of(&container, 1) else {
        panic!("it runs again")
    };
    assert_eq!(spec.run, 2);
}

#[test]
fn running_replica_starts_again_after_a_boot_of_its_node() {
    let mut container = container(1);
    container.assign(0, placement(1));
    let runs = report(&container, 0, ReplicaState::Running { healthy: None });
    assert_eq!(container.apply_report(&runs, now()), Some(ReplicaChange::Runs));
    assert_eq!(container.apply_reboot(0, BootSessionId([1; 12])), None, "the same boot");
    let change = container.apply_reboot(0, BootSessionId([9; 12]));
    assert!(matches!(change, Some(ReplicaChange::Lost(_))), "{change:?}");
    assert!(matches!(order_of(&container, 1), Some(ContainerDesiredState::Run(_))));
    assert_eq!(container.phase_of(&container.replicas[0], true), ReplicaPhase::Ordered);
}

#[test]
fn health_and_restarts_are_reported_once_each() {
    let mut container = container(1);
    container.assign(0, placement(1));
    let mut apply = |state: ReplicaState, restarts| {
        let report = ReplicaReport { restarts, ..report(&container, 0, state) };
        container.apply_report(&report, now())
    };
    let running = |healthy| ReplicaState::Running { healthy };
    assert_eq!(apply(ReplicaState::Fetching { percent: 14 }, 0), None);
    assert_eq!(apply(ReplicaState::Fetching { percent: 19 }, 0), None);
    assert_eq!(apply(running(None), 0), Some(ReplicaChange::Runs));
    assert_eq!(apply(running(Some(true)), 0), Some(ReplicaChange::Healthy));
    assert_eq!(apply(running(Some(true)), 0), None);
    assert_eq!(apply(running(Some(false)), 0), Some(ReplicaChange::Unhealthy));
    let waiting = ReplicaState::Waiting { code: 1, out_of_memory: false };
    assert_eq!(apply(waiting, 0), Some(ReplicaChange::Restarts { code: 1, why: None }));
    assert_eq!(apply(running(None), 1), Some(ReplicaChange::Runs));
}

#[test]
fn memory_fault_is_named_with_the_limit() {
    let reason = |state| transitions::reason_of(&state, 64).expect("a reason");
    let killed = ReplicaState::Waiting { code: 137, out_of_memory: true };
    assert_eq!(reason(killed), "out of memory (limit 64 MiB)");
    assert_eq!(reason(failed(ContainerFault::OutOfMemory)), "out of memory (limit 64 MiB)");
}

#[test]
fn detail_of_a_node_is_one_bounded_line() {
    let mut container = container(1);
    container.assign(0, placement(1));
    let detail = format!("a\nb\u{202e}{}", "x".repeat(10_000));
    let state = ReplicaState::Failed { kind: ContainerFault::OutOfMemory, detail };
    let fault = report(&container, 0, state);
    container.apply_report(&fault, now());
    let status = container.replicas[0].last_report.as_ref().expect("a report");
    let ReplicaState::Failed { detail, .. } = &status.state else { panic!("it failed") };
    assert!(detail.len() <= 500 && !detail.contains(['\n', '\u{202e}']), "{detail}");
}

#[test]
fn stopped_container_keeps_its_nodes_and_starts_again() {
    let mut container = container(1);
    container.assign(0, placement(1));
    container.stop();
    assert_eq!(order_of(&container, 1), Some(ContainerDesiredState::Stopped));
    assert!(!container.leave(0, "drained"), "nothing runs that would have to move");
    container.start();
    assert_eq!(container.replicas[0].run, 2);
    assert!(container.leave(0, "drained"));
    assert_eq!(order_of(&container, 1), Some(ContainerDesiredState::Gone));
    let exited = report(&container, 0, ReplicaState::Exited { code: 143 });
    container.apply_report(&exited, now());
    assert!(container.unplace(0, "released") && container.needs_placement(0));
}

#[test]
fn restored_replica_is_held_until_its_node_reports_it() {
    let mut container = container(2);
    container.assign(0, placement(1));
    let runs = report(&container, 0, ReplicaState::Running { healthy: None });
    container.apply_report(&runs, now());
    container.mark_unconfirmed();
    assert_eq!(order_of(&container, 1), None);
    assert_eq!(container.phase_of(&container.replicas[0], true), ReplicaPhase::Unconfirmed);
    assert!(container.is_settled(0), "no order is repeated");
    assert!(!container.may_work(0) && !container.leave(0, "drained"), "a drain does not wait");
    assert!(!container.needs_placement(1), "one without a node may have got one");
    assert_eq!(container.apply_absence(0), None);
    container.apply_reboot(0, BootSessionId([9; 12]));
    assert!(container.is_unconfirmed(0) && container.is_unconfirmed(7), "it may run elsewhere");

    let mut moved = container.clone();
    assert!(moved.unplace(0, "fenced") && !moved.needs_placement(0));
    let later = ReplicaReport { run: 6, ..runs.clone() };
    assert_eq!(container.apply_report(&later, now()), Some(ReplicaChange::Runs));
    let order = order_of(&container, 1);
    assert!(matches!(order, Some(ContainerDesiredState::Run(spec)) if spec.run == 6), "taken over");
    container.mark_unconfirmed();
    container.apply_report(&ReplicaReport { run: u32::MAX, ..runs }, now());
    assert_eq!(container.replicas[0].run, 10_006, "a node does not use up the numbers");
}

#[test]
fn restored_container_runs_by_order_of_an_operator_under_a_number_of_its_own() {
    let mut container = container(2);
    container.assign(0, placement(1));
    container.assign(1, placement(2));
    let exited = report(&container, 1, ReplicaState::Exited { code: 0 });
    container.apply_report(&exited, now());
    container.mark_unconfirmed();
    assert!(container.replicas[1].has_ended(), "its end stays known");
    let mut stopped = container.clone();
    stopped.stop();
    assert_eq!(order_of(&stopped, 1), Some(ContainerDesiredState::Stopped));
    assert_eq!(stopped.phase_of(&stopped.replicas[0], true), ReplicaPhase::Stopped);
    container.start();
    for (index, number) in [(0, 1), (1, 2)] {
        let order = order_of(&container, number);
        let runs = matches!(order, Some(ContainerDesiredState::Run(spec)) if spec.run == 10_001);
        assert!(runs && !container.is_unconfirmed(index), "{container:?}");
    }
}

#[test]
fn stopped_replica_of_a_backup_starts_under_a_number_of_its_own() {
    let mut container = container(1);
    container.assign(0, placement(1));
    container.stop();
    container.mark_unconfirmed();
    assert!(container.is_unconfirmed(0), "it may have been started after the backup");
    assert_eq!(order_of(&container, 1), Some(ContainerDesiredState::Stopped));
    assert_eq!(container.phase_of(&container.replicas[0], true), ReplicaPhase::Stopped);
    container.start();
    assert_eq!((container.replicas[0].run, container.is_unconfirmed(0)), (10_001, false));
}

#[test]
fn start_catches_up_with_the_number_of_the_node() {
    let mut container = container(1);
    container.assign(0, placement(1));
    let later = |run| ReplicaReport {
        replica: "web.0".parse().expect("an ID"),
        run,
        restarts: 0,
        state: ReplicaState::Running { healthy: None },
    };
    container.mark_unconfirmed();
    container.start();
    container.apply_report(&later(10_004), now());
    assert_eq!(container.phase_of(&container.replicas[0], true), ReplicaPhase::Ordered);
    container.start();
    assert_eq!(container.replicas[0].run, 10_005, "a second restore of the same backup");
    container.apply_report(&later(u32::MAX), now());
    container.start();
    assert_eq!(container.replicas[0].run, 20_006, "a node does not use up the numbers");
    container.apply_report(&later(20_006), now());
    container.start();
    assert_eq!(container.replicas[0].run, 20_006, "one that runs goes on");
}

#[test]
fn replica_that_runs_elsewhere_does_not_stop_the_others_from_starting() {
    let mut container = container(2);
    container.assign(0, placement(1));
    container.assign(1, placement(2));
    container.mark_unconfirmed();
    container.start_except(&BTreeMap::from([(0, "elsewhere".to_owned())]));
    assert_eq!((order_of(&container, 1), container.is_unconfirmed(0)), (None, true));
    assert_eq!(container.replicas[0].obstacle.as_deref(), Some("elsewhere"));
    assert!(matches!(order_of(&container, 2), Some(ContainerDesiredState::Run(_))));
}

/// What may happen to a container.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Place,
    Report(u8),
    Absent,
    Reboot(u8),
    Lost,
    Leave,
    Released,
    Start,
    Stop,
    Restore,
}

fn any_happening() -> impl Strategy<Value = (usize, Happening)> {
    let happening = prop_oneof![
        3 => Just(Happening::Place),
        4 => (0..7_u8).prop_map(Happening::Report),
        1 => Just(Happening::Absent),
        1 => any::<u8>().prop_map(Happening::Reboot),
        1 => Just(Happening::Lost),
        1 => Just(Happening::Leave),
        2 => Just(Happening::Released),
        1 => Just(Happening::Start),
        1 => Just(Happening::Stop),
        1 => Just(Happening::Restore),
    ];
    (0..3_usize, happening)
}

fn apply(container: &mut Container, index: usize, happening: Happening) {
    let nothing = Allocations::none();
    match happening {
        Happening::Place if container.needs_placement(index) => {
            let hosts = (1..=4).map(|number| host(number, &nothing));
            if let Ok(node) = place_replica(container, index, hosts) {
                container.assign(index, Placement { node, ..placement(1) });
            }
        }
        // A node keeps a program that has ended under this number as it is.
        Happening::Report(state)
            if container.replicas[index].placement.is_some()
                && !container.replicas[index].has_ended() =>
        {
            let state = match state {
                0 => ReplicaState::Starting,
                1 => ReplicaState::Running { healthy: Some(true) },
                2 => ReplicaState::Waiting { code: 1, out_of_memory: false },
                3 => ReplicaState::Exited { code: 0 },
                4 => failed(ContainerFault::PortInUse),
                5 => failed(ContainerFault::ImageMissing),
                _ => ReplicaState::Fetching { percent: 50 },
            };
            container.apply_report(&report(container, index, state), now());
        }
        Happening::Absent => {
            container.apply_absence(index);
        }
        Happening::Reboot(session) => {
            container.apply_reboot(index, BootSessionId([session; 12]));
        }
        Happening::Lost => {
            container.unplace(index, "its node was fenced");
        }
        Happening::Leave => {
            container.leave(index, "its node is drained");
        }
        Happening::Released if container.is_releasing(&container.replicas[index]) => {
            container.unplace(index, "its node released it");
        }
        Happening::Start => container.start(),
        Happening::Stop => container.stop(),
        Happening::Restore => container.mark_unconfirmed(),
        Happening::Place | Happening::Report(_) | Happening::Released => {}
    }
}

proptest! {
    #[test]
    fn replica_has_one_node_and_runs_under_each_number_once(
        happenings in prop::collection::vec(any_happening(), 0..60)
    ) {
        let mut container = container(3);
        let mut ended: Vec<(usize, u32)> = Vec::new();
        for (index, happening) in happenings {
            apply(&mut container, index, happening);
            let mut nodes: Vec<_> = container.replicas.iter().filter_map(Replica::node).collect();
            nodes.sort_unstable();
            let placed = nodes.len();
            nodes.dedup();
            prop_assert_eq!(placed, nodes.len(), "two replicas on one node");
            for (index, replica) in container.replicas.iter().enumerate() {
                // One that ended because it leaves its node runs on the next one.
                if replica.has_ended() && replica.leaving.is_none() {
                    ended.push((index, replica.run));
                }
                let mut entries =
                    replica.node().into_iter().flat_map(|node| container.entries_for(node));
                let runs =
                    entries.any(|entry| matches!(entry.desired_state, ContainerDesiredState::Run(_)));
                let has_ended = ended.contains(&(index, replica.run));
                prop_assert!(!(runs && has_ended), "a program that ended runs again");
                prop_assert!(!(runs && replica.unconfirmed), "it may run elsewhere");
                let may_place = replica.placement.is_none() && !replica.unconfirmed;
                prop_assert!(!container.needs_placement(index) || may_place);
                prop_assert!(replica.refused.len() <= crate::work::MAX_REFUSED);
            }
            let text = serde_json::to_string(&container).expect("plain data");
            prop_assert_eq!(&serde_json::from_str::<Container>(&text).expect("its text"), &container);
        }
    }
}
