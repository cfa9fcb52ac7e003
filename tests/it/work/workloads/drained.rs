//! What a drain waits for, and what is beside a task.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_api::DrainPolicy;
use meshd_central::{SpecPart, TaskError, TaskRequest, TaskTarget};
use meshd_model::{
    fleet::{AuditContext, Phase},
    work::task::{Launcher, Task, TaskState},
};
use meshd_proto::{
    DrainEntry, DrainOrder, DrainReport, HookReport, HookState, NodeSpec, SpecEntry,
    task::{TaskUpdate, TaskUser},
};

/// The site has a group of these.
async fn group(world: &World, rig: &Rig, nodes: &[NodeId]) {
    let nodes: Vec<String> = nodes.iter().map(|node| format!("\"{node}\"")).collect();
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    std::fs::write(
        world.path("site.toml"),
        format!("{site}[groups.all]\nnodes = [{}]\n", nodes.join(", ")),
    )
    .unwrap();
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
}

async fn run(rig: &Rig) -> Result<Task, TaskError> {
    let ask = TaskRequest {
        target: TaskTarget::Group("all".to_owned()),
        nodes: None,
        ranks_per_node: 1,
        launcher: Some(Launcher::None),
        user: TaskUser::Default,
        timeout_s: None,
        input_owner: None,
        argv: vec!["/bin/true".to_owned()],
    };
    rig.central.tasks.run_task(ask, &ordered(Verb::TaskRun)).await
}

fn state(rig: &Rig, task: &Task) -> TaskState {
    rig.central.tasks.task_record(task.id).unwrap().state
}

#[tokio::test]
async fn drain_waits_for_or_ends_a_task_and_maintenance_needs_force() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let id = node.id();
    group(&world, &rig, &[id]).await;
    assert!(node.heartbeat(0).await, "it runs nothing, as far as it has said");
    let task = run(&rig).await.unwrap();
    let work = || rig.central.nodes.read(|fleet| fleet.node(id).map(|node| node.active_work()));
    assert_eq!(work(), Some(vec![format!("task {}", task.id)]));
    rig.central.nodes.drain_with(id, DrainPolicy::Wait, None, &ordered(Verb::Drain)).await.unwrap();
    assert_eq!((rig.node(id).phase, state(&rig, &task)), (Phase::Draining, TaskState::Starting));
    rig.pass(std::time::Duration::from_secs(1)).await;
    assert_eq!(state(&rig, &task), TaskState::Starting, "it goes on");
    let refused = rig
        .central
        .nodes
        .maintain(id, &ordered(Verb::Maintenance))
        .await
        .expect_err("a task would fail");
    assert!(code(&refused).contains("--force"), "{refused}");
    rig.central.nodes.drain_with(id, DrainPolicy::Stop, None, &ordered(Verb::Drain)).await.unwrap();
    assert_eq!(state(&rig, &task), TaskState::Ending);
    assert!(node.heartbeat(0).await);
    assert_eq!(rig.node(id).phase, Phase::Draining, "it is not gone yet");
    assert!(node.say(tasks_report(TaskUpdate::Released { task: task.id })).await);
    assert_eq!((state(&rig, &task), work()), (TaskState::Cancelled, Some(Vec::new())));
    assert!(node.heartbeat(0).await);
    assert_eq!(rig.node(id).phase, Phase::Maintenance);
    // Forced, the task fails.
    rig.central.nodes.resume(id, &ordered(Verb::Resume)).await.unwrap();
    ready(&node).await;
    let task = run(&rig).await.unwrap();
    rig.central
        .nodes
        .maintain(id, &AuditContext { forced: true, ..ordered(Verb::Maintenance) })
        .await
        .unwrap();
    rig.pass(std::time::Duration::from_secs(1)).await;
    assert_eq!(state(&rig, &task), TaskState::Failed);
}

#[tokio::test]
async fn node_with_unrecorded_vm_is_refused_to_a_task() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    group(&world, &rig, &[node.id()]).await;
    let unrecorded = Vm::new(ask(9, ""), None, rig.central.now());
    report_vms(&node, &[(&unrecorded, ReportedVmState::Running)]).await;
    let refused = code(&run(&rig).await.expect_err("it would not be alone"));
    assert!(refused.contains("not on record"), "{refused}");
    report_vms(&node, &[]).await;
    run(&rig).await.unwrap();
}

/// A report of the drain hook of a node, about the entry of this generation.
async fn report_hook(node: &Machine<'_>, observed: u64, drains: bool, state: HookState) {
    let detail = "job 7".to_owned();
    let hooks = vec![HookReport { name: "slurm".parse().unwrap(), state, detail }];
    let state = SectionReport::Drain(DrainReport { drains, hooks });
    assert!(node.say(FromAgent::Report(NodeReport { observed, state })).await);
}

/// What the link of a node sends for its drain hooks: generation and order.
async fn entry(node: &Machine<'_>) -> (u64, Option<DrainOrder>) {
    let sent = node.rig.central.agents.specs(node.link.expect("a link"), SpecPart::Drain).await;
    match sent.as_slice() {
        [NodeSpec { generation, entry: SpecEntry::Drain(DrainEntry { drain }) }] => {
            (*generation, drain.clone())
        }
        other => panic!("{other:?}"),
    }
}

/// A node whose agent has a drain hook.
async fn hooked(rig: &Rig) -> Machine<'_> {
    let mut node = Machine::new(rig, 1);
    node.facts = facts("ready");
    node.facts.drain_hooks = vec!["slurm".parse().unwrap()];
    node.boot(Stage::Online).await;
    ready(&node).await;
    node
}

#[tokio::test]
async fn drain_waits_for_hooks_and_resume_tells_them() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = hooked(&rig).await;
    let id = node.id();
    let work = || rig.central.nodes.waiting_hooks(&rig.node(id));
    assert_eq!(entry(&node).await, (1, None));
    report_hook(&node, 1, false, HookState::Done).await;
    assert!(node.heartbeat(0).await && work().is_empty());
    let audit = AuditContext { reason: Some("disks".to_owned()), ..ordered(Verb::Drain) };
    rig.central.nodes.drain_with(id, DrainPolicy::Wait, None, &audit).await.unwrap();
    assert_eq!(rig.node(id).phase, Phase::Draining);
    let (generation, order) = entry(&node).await;
    let reason = order.map(|order| (order.reason, order.stop_work));
    assert_eq!((generation, reason), (2, Some(("meshd: uid:0: disks".to_owned(), false))));
    assert!(node.heartbeat(0).await);
    assert_eq!(rig.node(id).phase, Phase::Draining, "the hook has not answered");
    report_hook(&node, 1, true, HookState::Done).await;
    assert_eq!(work(), ["slurm: no report"], "it has not taken the order");
    report_hook(&node, 2, true, HookState::Failed).await;
    assert_eq!(work(), ["slurm failed: job 7"]);
    report_hook(&node, 2, true, HookState::Waiting).await;
    assert_eq!((work(), rig.node(id).phase), (vec!["slurm: job 7".to_owned()], Phase::Draining));
    let activities = rig.central.activities().0;
    let reasons: Vec<_> = activities.iter().filter_map(|it| it.reason.as_deref()).collect();
    assert_eq!(reasons, ["waits for slurm: job 7"]);
    rig.central.nodes.drain_with(id, DrainPolicy::Stop, Some(9), &audit).await.unwrap();
    let order = entry(&node).await.1.unwrap();
    assert_eq!((order.stop_work, order.grace_s), (true, Some(9)));
    report_hook(&node, 3, true, HookState::Done).await;
    assert_eq!((rig.node(id).phase, work()), (Phase::Maintenance, Vec::new()));
    assert_eq!(
        entry(&node).await.1.map(|order| order.reason),
        Some("meshd: maintenance".to_owned())
    );

    // The old report does not end a drain that follows a resume.
    rig.central.nodes.resume(id, &ordered(Verb::Resume)).await.unwrap();
    assert_eq!(entry(&node).await, (5, None));
    rig.central.nodes.drain_with(id, DrainPolicy::Wait, None, &audit).await.unwrap();
    assert!(node.heartbeat(0).await);
    assert_eq!(
        (rig.node(id).phase, work()),
        (Phase::Draining, vec!["slurm: no report".to_owned()])
    );
    rig.central.nodes.resume(id, &ordered(Verb::Resume)).await.unwrap();
    assert!(work().is_empty());
    // An operator who does not wait for the hooks.
    rig.central.nodes.drain_with(id, DrainPolicy::Wait, None, &audit).await.unwrap();
    rig.central.nodes.maintain(id, &ordered(Verb::Maintenance)).await.unwrap();
    assert_eq!(rig.node(id).phase, Phase::Maintenance);
}

#[tokio::test]
async fn offline_node_with_hooks_drains_when_it_returns() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = hooked(&rig).await;
    let id = node.id();
    assert!(node.heartbeat(0).await);
    entry(&node).await;
    report_hook(&node, 1, true, HookState::Done).await;
    node.lose_power().await;
    rig.pass(SILENT * 4).await;
    assert_eq!(rig.node(id).phase, Phase::Offline);
    let audit = ordered(Verb::Drain);
    rig.central.nodes.drain_with(id, DrainPolicy::Wait, None, &audit).await.unwrap();
    assert_eq!(rig.node(id).phase, Phase::Offline, "jobs may run there");
    node.boot(Stage::Link).await;
    assert!(node.heartbeat(0).await);
    assert_eq!(rig.node(id).phase, Phase::Draining, "the report of the last link does not count");
    let (generation, order) = entry(&node).await;
    assert!(order.is_some());
    report_hook(&node, generation, true, HookState::Done).await;
    assert_eq!(rig.node(id).phase, Phase::Maintenance);
}
