//! Containers as the central node orders them: placement, reports, and what becomes of replicas when
//! their node drains, is lost, fenced or removed. Never two copies.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_api::{ContainerView, DrainPolicy, RunContainer};
use meshd_central::{
    ContainerError, ReplicaExecRequest, ReplicaSessionError, ShellTerminal, SpecPart,
};
use meshd_model::{
    fleet::{AuditContext, Phase},
    work::container::{Container, ReplicaPhase},
};
use meshd_proto::{
    NodeSpec, SpecEntry,
    container::{
        ContainerDesiredState, ContainerFault, ContainerUpdate, ReplicaId, ReplicaReport,
        ReplicaState,
    },
    shell::{TerminalName, WindowSize},
};
use meshd_types::Digest;
use std::{path::Path, time::Duration};

/// The site has an image, as an import makes it.
fn add_image_to(rig: &Rig) {
    add_image(&rig.central.site().blobs_dir.join("volumes"));
}

/// Adds an image to a folder of volumes.
pub(crate) fn add_image(blobs: &Path) {
    std::fs::create_dir_all(blobs).unwrap();
    let digest = Digest::of(b"a file");
    std::fs::write(blobs.join(digest.to_string()), "a file").unwrap();
    let image = json!({
        "manifest": Digest::of(b"manifest"), "arch": "x86_64", "entrypoint": ["/bin/server"],
        "env": { "PATH": "/bin" }, "working_dir": "/", "uid": 33, "gid": 33,
    });
    let info = json!({
        "name": "server", "digest": digest, "kind": "squashfs", "size": 6, "virtual_size": 6,
        "added_at": "2026-01-01T00:00:00Z", "container": image,
    });
    std::fs::write(blobs.join(format!("{digest}.json")), info.to_string()).unwrap();
}

/// A node that runs containers.
async fn container_host(rig: &Rig, number: u8) -> Machine<'_> {
    let mut machine = Machine::new(rig, number);
    machine.facts = facts("ready");
    machine.facts.container_runtime = Some("crun 1.14".to_owned());
    machine.boot(Stage::Online).await;
    ready(&machine).await;
    machine
}

fn order(more: serde_json::Value) -> RunContainer {
    let mut order = json!({ "name": "web", "image": "server" });
    order.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    serde_json::from_value(order).unwrap()
}

async fn run(rig: &Rig, more: serde_json::Value) -> Result<Container, ContainerError> {
    rig.central.containers.run(order(more), &ordered(Verb::ContainerRun)).await
}

fn web(rig: &Rig) -> Container {
    rig.central.containers.container("web").unwrap()
}

fn node_of(rig: &Rig, index: usize) -> Option<NodeId> {
    web(rig).replicas[index].node()
}

fn phase(rig: &Rig, index: usize) -> ReplicaPhase {
    let container = web(rig);
    container.phase_of(&container.replicas[index], true)
}

/// A node that runs the only replica of the site.
async fn running_replica(rig: &Rig) -> Machine<'_> {
    add_image_to(rig);
    let node = container_host(rig, 1).await;
    run(rig, json!({})).await.unwrap();
    report(&node, &[("web.0", RUNS)]).await;
    node
}

/// What the link of a node sends for its replicas.
async fn entries(node: &Machine<'_>) -> Vec<(String, ContainerDesiredState)> {
    let link = node.link.expect("a link");
    let sent = node.rig.central.agents.specs(link, SpecPart::Containers).await;
    let entry = |spec: NodeSpec| match spec.entry {
        SpecEntry::Containers(entry) => (entry.replica.to_string(), entry.desired_state),
        other => panic!("{other:?}"),
    };
    sent.into_iter().map(entry).collect()
}

async fn say(node: &Machine<'_>, update: ContainerUpdate) {
    let state = SectionReport::Containers(update);
    assert!(node.say(FromAgent::Report(NodeReport { observed: 0, state })).await);
}

/// The node reports these replicas, and no others.
async fn report(node: &Machine<'_>, replicas: &[(&str, ReplicaState)]) {
    let report = |(replica, state): &(&str, ReplicaState)| {
        let replica: ReplicaId = replica.parse().unwrap();
        ReplicaReport { replica, run: 1, restarts: 0, state: state.clone() }
    };
    say(node, ContainerUpdate::All { replicas: replicas.iter().map(report).collect() }).await;
}

async fn release(node: &Machine<'_>, replica: &str) {
    say(node, ContainerUpdate::Released { replica: replica.parse().unwrap() }).await;
}

const RUNS: ReplicaState = ReplicaState::Running { healthy: None };

#[tokio::test]
async fn replica_is_placed_only_on_nodes_that_run_containers() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let plain = host(&rig, 1).await;
    let missing = code(&run(&rig, json!({})).await.expect_err("nothing is imported"));
    assert!(missing.contains("server") && missing.contains("meshd volume list"), "{missing}");
    add_image_to(&rig);
    let refused = code(&run(&rig, json!({})).await.expect_err("no node has crun"));
    assert!(refused.contains("runs_no_containers") && refused.contains("crun"), "{refused}");
    let node = container_host(&rig, 2).await;
    let large = json!({ "memory_mib": 64 * 1024 });
    let refused = code(&run(&rig, large).await.expect_err("no node has as much"));
    assert!(refused.contains("memory_exceeded") && refused.contains("--memory"), "{refused}");
    let two = code(&run(&rig, json!({ "replicas": 2 })).await.expect_err("one node"));
    assert!(two.contains("web.1") && two.contains("--replicas"), "{two}");
    assert!(rig.central.containers.container("web").is_err(), "all replicas or none");

    let container = run(&rig, json!({ "env": { "A": "b" } })).await.unwrap();
    assert_eq!(container.replicas[0].node(), Some(node.id()));
    let sent = entries(&node).await;
    let [(replica, ContainerDesiredState::Run(spec))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((replica.as_str(), spec.run, spec.uid), ("web.0", 1, 33));
    assert_eq!(spec.argv, ["/bin/server"]);
    assert_eq!(spec.env.len(), 2, "those of the image and of the order");
    let taken = code(&run(&rig, json!({})).await.expect_err("the name is taken"));
    assert!(taken.contains("meshd container delete web"), "{taken}");
    let digest = Digest::of(b"a file");
    assert!(rig.central.vms.volume_for(node.id(), &digest).is_some());
    assert!(rig.central.vms.volume_for(plain.id(), &digest).is_none());
    let used = code(&rig.central.vms.remove_volume("server").await.expect_err("it is in use"));
    assert!(used.contains("container web"), "{used}");
}

#[tokio::test]
async fn report_of_a_node_changes_only_its_own_replicas() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    add_image_to(&rig);
    let first = container_host(&rig, 1).await;
    let second = container_host(&rig, 2).await;
    run(&rig, json!({ "replicas": 2 })).await.unwrap();
    let (own, other) = match node_of(&rig, 0) == Some(first.id()) {
        true => (&first, &second),
        false => (&second, &first),
    };
    report(own, &[("web.0", RUNS), ("web.1", RUNS)]).await;
    assert_eq!((phase(&rig, 0), phase(&rig, 1)), (ReplicaPhase::Running, ReplicaPhase::Ordered));
    let gone = entries(own).await;
    let is_gone = |(replica, state): &(String, ContainerDesiredState)| {
        replica == "web.1" && *state == ContainerDesiredState::Gone
    };
    assert!(gone.iter().any(is_gone), "it must remove what another node has: {gone:?}");
    release(other, "web.0").await;
    assert_eq!(node_of(&rig, 0), Some(own.id()));
}

#[tokio::test]
async fn release_by_another_node_changes_nothing() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let first = running_replica(&rig).await;
    let second = container_host(&rig, 2).await;
    rig.central.containers.delete("web", &ordered(Verb::ContainerDelete)).await.unwrap();
    release(&second, "web.0").await;
    assert_eq!(node_of(&rig, 0), Some(first.id()));
    assert_eq!(entries(&first).await, [("web.0".to_owned(), ContainerDesiredState::Gone)]);
    release(&first, "web.0").await;
    assert!(rig.central.containers.container("web").is_err(), "nothing of it is left");
    assert!(rig.central.store().read(|model| model.allocations(first.id()).is_none()));
}

#[tokio::test]
async fn drained_node_releases_its_replicas_and_others_get_them() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let first = running_replica(&rig).await;
    let second = container_host(&rig, 2).await;
    let id = first.id();
    let drain = ordered(Verb::Drain);
    rig.central.nodes.drain_with(id, DrainPolicy::Wait, None, &drain).await.unwrap();
    assert_eq!(rig.node(id).phase, Phase::Draining, "the replica is there");
    rig.pass(Duration::from_secs(6)).await;
    assert_eq!(entries(&first).await, [("web.0".to_owned(), ContainerDesiredState::Gone)]);
    assert_eq!(node_of(&rig, 0), Some(id), "it may run there");
    release(&first, "web.0").await;
    assert_eq!(node_of(&rig, 0), Some(second.id()));
    assert!(first.heartbeat(0).await);
    assert_eq!(rig.node(id).phase, Phase::Maintenance);
}

#[tokio::test]
async fn replica_of_a_lost_node_moves_after_its_boot_and_not_before() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut first = running_replica(&rig).await;
    let lost = first.id();
    first.power_off().await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.node(lost).phase, Phase::Offline);
    let second = container_host(&rig, 2).await;
    rig.pass(Duration::from_secs(6)).await;
    assert_eq!(node_of(&rig, 0), Some(lost), "it may run there still");
    first.boot(Stage::Script).await;
    assert!(rig.node(lost).certificates.is_empty(), "the credentials of the boot before go first");
    assert!(second.heartbeat(0).await);
    rig.pass(Duration::from_secs(6)).await;
    assert_eq!(node_of(&rig, 0), Some(second.id()));
}

#[tokio::test]
async fn fenced_node_loses_its_replicas_and_removed_one_only_by_order() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut first = running_replica(&rig).await;
    first.lose_power().await;
    rig.pass(SILENT).await;
    let second = container_host(&rig, 2).await;
    rig.central.nodes.fence(first.id(), &ordered(Verb::Fence)).await.unwrap();
    assert_eq!(node_of(&rig, 0), Some(second.id()));

    report(&second, &[("web.0", RUNS)]).await;
    let remove = ordered(Verb::Remove);
    let refused = rig.central.nodes.remove(second.id(), &remove).await.expect_err("it has work");
    assert!(code(&refused).contains("web.0"), "{refused}");
    let forced = AuditContext { forced: true, ..remove };
    rig.central.nodes.remove(second.id(), &forced).await.unwrap();
    let third = container_host(&rig, 3).await;
    rig.pass(Duration::from_secs(6)).await;
    assert_eq!(node_of(&rig, 0), None, "the removed node may run it");
    let obstacle = web(&rig).replicas[0].obstacle.clone().expect("a reason");
    assert!(obstacle.contains("meshd container start"), "{obstacle}");
    rig.central.containers.start("web", &ordered(Verb::ContainerStart)).await.unwrap();
    assert_eq!(node_of(&rig, 0), Some(third.id()));
}

#[tokio::test]
async fn replica_that_a_node_cannot_run_goes_to_another_node() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    add_image_to(&rig);
    let first = container_host(&rig, 1).await;
    run(&rig, json!({ "ports": [{ "node": 80, "container": 80 }] })).await.unwrap();
    let second = container_host(&rig, 2).await;
    let failed = ReplicaState::Failed {
        kind: ContainerFault::PortInUse,
        detail: "port 80 belongs to nginx".to_owned(),
    };
    report(&first, &[("web.0", failed)]).await;
    assert_eq!(entries(&first).await, [("web.0".to_owned(), ContainerDesiredState::Gone)]);
    release(&first, "web.0").await;
    assert_eq!(node_of(&rig, 0), Some(second.id()));
    // A second container cannot have the port there.
    let other = json!({ "name": "api", "ports": [{ "node": 80, "container": 8080 }] });
    let api = run(&rig, other).await.unwrap();
    assert_eq!(api.replicas[0].node(), Some(first.id()));
}

#[tokio::test]
async fn replica_without_record_blocks_its_node_until_it_is_deleted() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    add_image_to(&rig);
    let node = container_host(&rig, 1).await;
    report(&node, &[("old.0", RUNS)]).await;
    let refused = code(&run(&rig, json!({})).await.expect_err("its work is not known"));
    assert!(refused.contains("not_ready"), "{refused}");
    assert_eq!(entries(&node).await, [], "meshd ends nothing without an order");
    let delete = ordered(Verb::ContainerDelete);
    assert_eq!(rig.central.containers.delete("old", &delete).await.unwrap(), None);
    report(&node, &[("old.0", RUNS)]).await;
    assert_eq!(entries(&node).await, [("old.0".to_owned(), ContainerDesiredState::Gone)]);
    release(&node, "old.0").await;
    report(&node, &[]).await;
    run(&rig, json!({})).await.unwrap();
}

#[tokio::test]
async fn stopped_container_starts_again_under_a_new_number() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = running_replica(&rig).await;
    rig.central.containers.stop("web", &ordered(Verb::ContainerStop)).await.unwrap();
    assert_eq!(entries(&node).await, [("web.0".to_owned(), ContainerDesiredState::Stopped)]);
    report(&node, &[("web.0", ReplicaState::Exited { code: 143 })]).await;
    assert_eq!(phase(&rig, 0), ReplicaPhase::Stopped);
    rig.central.containers.start("web", &ordered(Verb::ContainerStart)).await.unwrap();
    let sent = entries(&node).await;
    let [(_, ContainerDesiredState::Run(spec))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(spec.run, 2);
}

#[tokio::test]
async fn replica_that_exceeds_its_memory_is_shown_with_its_limit() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = running_replica(&rig).await;
    let waits = ReplicaState::Waiting { code: 137, out_of_memory: true };
    report(&node, &[("web.0", waits)]).await;
    let replica = ContainerView::new(&web(&rig), |_| true).replicas.remove(0);
    let why = "out of memory (limit 256 MiB)";
    assert_eq!((replica.phase, replica.detail.as_str()), (ReplicaPhase::Waiting, why));
    let events = format!("{:?}", rig.events("container"));
    assert!(events.contains(&format!("ended with code 137 and restarts: {why}")), "{events}");
}

#[tokio::test]
async fn refused_container_names_no_part_of_a_secret_and_no_replica() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    add_image_to(&rig);
    let node = container_host(&rig, 1).await;
    let env = json!({ "env": { "PASS WORD-s3cr3t": "s3cr3t" } });
    let refused = code(&run(&rig, env).await.expect_err("no name of a variable"));
    assert!(refused.contains("env") && !refused.contains("s3cr3t"), "{refused}");
    for name in ["web.0", "web.64", "a.b.7"] {
        let refused = run(&rig, json!({ "name": name })).await;
        assert!(matches!(refused, Err(ContainerError::ReplicaName(_))), "{name}: {refused:?}");
    }
    // A name on record from an earlier version does not hide the replica.
    let container = run(&rig, json!({})).await.unwrap();
    let hiding = Container { name: "web.0".parse().unwrap(), ..container };
    let stored = rig.central.store().commit(|tx| {
        tx.put_container(hiding);
        Ok::<_, meshd_store::StoreError>(())
    });
    stored.await.unwrap();
    for (text, replica) in [("web", "web.0"), ("web.0", "web.0"), ("web.0.0", "web.0.0")] {
        let window = WindowSize::default();
        let terminal = ShellTerminal { window, name: TerminalName::default() };
        let request = ReplicaExecRequest { argv: Vec::new(), terminal };
        let audit = ordered(Verb::ContainerExec);
        let opened = rig.central.containers.open_exec(text, request, &audit).await;
        match opened {
            Err(ReplicaSessionError::Argv { replica: found, .. }) => {
                assert_eq!(found.to_string(), replica, "{text} on {}", node.id());
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

/// The record of the container, as a restore of a backup leaves it.
async fn restore(rig: &Rig) {
    let marked = rig.central.store().commit(|tx| {
        let mut container = tx.container(&"web".parse().unwrap()).cloned().unwrap();
        container.mark_unconfirmed();
        tx.put_container(container);
        Ok::<_, meshd_store::StoreError>(())
    });
    marked.await.unwrap();
}

#[tokio::test]
async fn restored_replica_is_not_started_while_another_node_may_run_it() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut first = running_replica(&rig).await;
    restore(&rig).await;
    assert_eq!((phase(&rig, 0), entries(&first).await), (ReplicaPhase::Unconfirmed, Vec::new()));

    // It was moved after the backup: the other node has it, and this one boots again.
    let second = container_host(&rig, 2).await;
    report(&second, &[("web.0", RUNS)]).await;
    report(&first, &[]).await;
    first.power_off().await;
    first.boot(Stage::Online).await;
    ready(&first).await;
    report(&first, &[]).await;
    rig.pass(Duration::from_secs(10)).await;
    for node in [&first, &second] {
        assert_eq!(entries(node).await, [], "never two copies, and the only one goes on");
    }
    let start = ordered(Verb::ContainerStart);
    let refused = rig.central.containers.start("web", &start).await.expect_err("it runs");
    assert!(code(&refused).contains("meshd container delete web.0"), "{refused}");
    rig.central.containers.stop("web", &ordered(Verb::ContainerStop)).await.unwrap();
    assert!(rig.central.containers.start("web", &start).await.is_err(), "it runs there still");

    let delete = ordered(Verb::ContainerDelete);
    assert_eq!(rig.central.containers.delete("web.0", &delete).await.unwrap(), None);
    assert_eq!(entries(&second).await, [("web.0".to_owned(), ContainerDesiredState::Gone)]);
    release(&second, "web.0").await;
    rig.central.containers.start("web", &start).await.unwrap();
    let sent = entries(&first).await;
    let [(_, ContainerDesiredState::Run(spec))] = &sent[..] else { panic!("{sent:?}") };
    assert!(spec.run > 1, "the node may have executed later starts than the backup knows");
}

#[tokio::test]
async fn restored_replica_is_confirmed_by_its_node_under_the_number_there() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let first = running_replica(&rig).await;
    restore(&rig).await;
    let second = container_host(&rig, 2).await;
    report(&second, &[("web.0", RUNS)]).await;
    let replica: ReplicaId = "web.0".parse().unwrap();
    let there = ReplicaReport { replica, run: 5, restarts: 0, state: RUNS };
    say(&first, ContainerUpdate::All { replicas: vec![there] }).await;
    assert_eq!(phase(&rig, 0), ReplicaPhase::Running);
    let sent = entries(&first).await;
    let [(_, ContainerDesiredState::Run(spec))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(spec.run, 5);
    assert_eq!(entries(&second).await, [("web.0".to_owned(), ContainerDesiredState::Gone)]);

    // The copy is not removed yet when another backup is restored, in which the container is off.
    report(&second, &[("web.0", RUNS)]).await;
    rig.central.containers.stop("web", &ordered(Verb::ContainerStop)).await.unwrap();
    restore(&rig).await;
    let start = ordered(Verb::ContainerStart);
    let refused = rig.central.containers.start("web", &start).await.expect_err("a copy is there");
    assert!(code(&refused).contains("meshd node fence"), "{refused}");
}

#[tokio::test]
async fn mounted_volume_is_given_to_its_node_and_stays_while_it_is_used() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    add_image_to(&rig);
    let volumes = rig.central.site().blobs_dir.join("volumes");
    let add = |name: &str, kind: &str| {
        let digest = Digest::of(name.as_bytes());
        std::fs::write(volumes.join(digest.to_string()), name).unwrap();
        let info = json!({
            "name": name, "digest": digest, "kind": kind, "size": name.len(),
            "virtual_size": name.len(), "added_at": "2026-01-01T00:00:00Z",
        });
        std::fs::write(volumes.join(format!("{digest}.json")), info.to_string()).unwrap();
        digest
    };
    let data = add("data", "squashfs");
    add("disk", "qcow2");
    let node = container_host(&rig, 1).await;
    let other = container_host(&rig, 2).await;
    let mount =
        |volume: &str, path: &str| json!({ "mounts": [{ "volume": volume, "path": path }] });
    for (volume, path, why) in [
        ("none", "/data", "meshd volume list"),
        ("disk", "/data", "mksquashfs"),
        ("data", "/proc/x", "outside"),
        ("data", "../data", "absolute"),
    ] {
        let refused = code(&run(&rig, mount(volume, path)).await.expect_err(why));
        assert!(refused.contains(why), "{refused}");
    }
    run(&rig, mount("data", "/data")).await.unwrap();
    let own = if node_of(&rig, 0) == Some(node.id()) { &node } else { &other };
    let foreign = if own.id() == node.id() { &other } else { &node };
    let sent = entries(own).await;
    let [(_, ContainerDesiredState::Run(spec))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((spec.mounts[0].volume, spec.mounts[0].size), (data, 4));
    assert!(rig.central.vms.volume_for(own.id(), &data).is_some());
    assert!(rig.central.vms.volume_for(foreign.id(), &data).is_none());
    let used = code(&rig.central.vms.remove_volume("data").await.expect_err("it is in use"));
    assert!(used.contains("container web"), "{used}");
    rig.central.containers.delete("web", &ordered(Verb::ContainerDelete)).await.unwrap();
    release(own, "web.0").await;
    rig.central.vms.remove_volume("data").await.unwrap();
}

#[tokio::test]
async fn restarted_meshd_places_no_replica_before_its_node_reports_containers() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    add_image_to(&rig);
    let mut node = container_host(&rig, 1).await;
    let id = node.id();
    node.lose_power().await;
    drop(node);
    let rig = rig.restarted(&world);
    let mut node = Machine::new(&rig, 1);
    node.facts = rig.node(id).facts.expect("reported");
    node.link_up().await;
    ready(&node).await;
    report_vms(&node, &[]).await;
    assert!(node.say(tasks_report(TaskUpdate::All { tasks: Vec::new() })).await);
    let refused = code(&run(&rig, json!({})).await.expect_err("its replicas are not known"));
    assert!(refused.contains("not_ready"), "{refused}");
    report(&node, &[]).await;
    run(&rig, json!({})).await.unwrap();
}
