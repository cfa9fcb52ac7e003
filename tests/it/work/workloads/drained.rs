//! What a drain waits for, and what is beside a task.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_api::DrainPolicy;
use meshd_central::{TaskError, TaskRequest, TaskTarget};
use meshd_model::{
    fleet::{AuditContext, Phase},
    work::task::{Launcher, Task, TaskState},
};
use meshd_proto::task::{TaskUpdate, TaskUser};

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
