//! Tasks and the nodes that they have for themselves, as the central node keeps them.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_central::{LinkCommand, SpecPart, TaskError, TaskRequest, TaskTarget};
use meshd_model::{
    fleet::AuditContext,
    work::task::{Launcher, Task, TaskCause, TaskState},
};
use meshd_proto::{
    FromCentral, NodeSpec, SpecEntry,
    task::{
        MAX_PIECE, Output, OutputStored, Piece, Stream, TaskDesiredState, TaskEntry, TaskFault,
        TaskNodeState, TaskReport, TaskUpdate, TaskUser,
    },
};
use meshd_types::TaskId;

/// Writes something into the site file, which then holds.
async fn say(world: &World, rig: &Rig, text: &str) {
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    std::fs::write(world.path("site.toml"), site + text).unwrap();
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
}

async fn group(world: &World, rig: &Rig, nodes: &[NodeId]) {
    let nodes: Vec<String> = nodes.iter().map(|id| format!("\"{id}\"")).collect();
    say(world, rig, &format!("[groups.pair]\nnodes = [{}]\n", nodes.join(", "))).await;
}

async fn run(rig: &Rig, nodes: Option<usize>) -> Result<Task, TaskError> {
    run_on(rig, TaskTarget::Group("pair".to_owned()), nodes).await
}

async fn run_on(rig: &Rig, target: TaskTarget, nodes: Option<usize>) -> Result<Task, TaskError> {
    let argv = vec!["true".to_owned()];
    let launcher = Some(Launcher::None);
    let ask = TaskRequest {
        target,
        nodes,
        ranks_per_node: 1,
        launcher,
        user: TaskUser::Default,
        timeout_s: None,
        input_owner: None,
        argv,
    };
    rig.central.tasks.run_task(ask, &ordered(Verb::TaskRun)).await
}

fn record(rig: &Rig, id: TaskId) -> Task {
    rig.central.tasks.task_record(id).unwrap()
}

async fn send(machine: &Machine<'_>, message: FromAgent) -> Option<FromCentral> {
    machine.rig.central.agents.link_message(machine.link.expect("a link"), message).await.unwrap()
}

async fn send_update(machine: &Machine<'_>, send_update: TaskUpdate) -> Option<FromCentral> {
    send(machine, tasks_report(send_update)).await
}

async fn runs(machine: &Machine<'_>, task: TaskId) {
    let tasks = vec![TaskReport { task, state: TaskNodeState::Running { launch: None } }];
    send_update(machine, TaskUpdate::All { tasks }).await;
}

/// Two nodes of group `pair`.
async fn pair<'a>(world: &World, rig: &'a Rig) -> [Machine<'a>; 2] {
    let pair = [host(rig, 1).await, host(rig, 2).await];
    group(world, rig, &[pair[0].id(), pair[1].id()]).await;
    pair
}

#[tokio::test]
async fn group_naming_a_node_by_two_ids_counts_it_once() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let [mut first, second] = pair(&world, &rig).await;
    first.power_off().await;
    rig.central.nodes.replace(first.id(), second.id(), &ordered(Verb::Replace)).await.unwrap();
    match run(&rig, Some(2)).await {
        Err(TaskError::NotEnough { free: 1, why, .. }) => {
            assert!(why.contains("which the group already contains"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    // All of its nodes are one node.
    let task = run(&rig, None).await.unwrap();
    assert_eq!(task.holding().collect::<Vec<_>>(), [second.id()]);
    rig.central.tasks.cancel_task(task.id, &ordered(Verb::TaskCancel)).await.unwrap();
    send_update(&second, TaskUpdate::Released { task: task.id }).await;
    assert_eq!(
        (record(&rig, task.id).state, record(&rig, task.id).is_open()),
        (TaskState::Cancelled, false)
    );
    run(&rig, None).await.expect("it is free again");
}

#[tokio::test]
async fn task_on_a_node_that_is_not_free_names_the_node_and_the_reason() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let machine = host(&rig, 1).await;
    let id = machine.id();
    let refused = async || {
        let error = run_on(&rig, TaskTarget::Node(id), None).await.expect_err("it is not free");
        error.to_string()
    };
    let name = rig.central.store().read(|model| model.node(id).unwrap().name.clone());
    let task = run_on(&rig, TaskTarget::Node(id), None).await.unwrap();
    let title = format!("cannot start the task: node {name} ({id})");
    assert_eq!(refused().await, format!("{title} has task {}", task.id));
    rig.central.nodes.drain(id, &ordered(Verb::Drain)).await.unwrap();
    assert_eq!(refused().await, format!("{title} is draining"));
}

#[tokio::test]
async fn fenced_or_removed_node_is_released_from_its_task() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let [mut first, mut second] = pair(&world, &rig).await;
    let task = run(&rig, None).await.unwrap();
    runs(&first, task.id).await;
    runs(&second, task.id).await;
    assert_eq!(record(&rig, task.id).state, TaskState::Running);
    first.power_off().await;
    rig.clock.turn(SILENT);
    rig.central.nodes.fence(first.id(), &ordered(Verb::Fence)).await.unwrap();
    let failed = record(&rig, task.id);
    let end = failed.end.clone().expect("decided in the same transaction");
    assert_eq!(
        (end.state, end.cause, end.node),
        (TaskState::Failed, TaskCause::NodeLost, Some(first.id()))
    );
    assert!(end.detail.contains("fenced"), "{}", end.detail);
    assert_eq!(failed.holding().collect::<Vec<_>>(), [second.id()]);
    assert!(
        failed
            .entry_for(second.id())
            .is_some_and(|order| order.desired_state == TaskDesiredState::Gone)
    );
    // The other one is lost before it can say so.
    second.power_off().await;
    let by = AuditContext { forced: true, ..ordered(Verb::Remove) };
    rig.central.nodes.remove(second.id(), &by).await.unwrap();
    assert_eq!(
        (record(&rig, task.id).state, record(&rig, task.id).is_open()),
        (TaskState::Failed, false)
    );
    // What the fenced one has of it when it is back is ended.
    first.boot(Stage::Online).await;
    ready(&first).await;
    runs(&first, task.id).await;
    assert!(!record(&rig, task.id).is_open());
    run(&rig, Some(1)).await.expect("it takes work again");
}

#[tokio::test]
async fn task_output_is_accepted_only_while_the_task_holds_the_node() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let [first, second] = pair(&world, &rig).await;
    let task = run(&rig, None).await.unwrap();
    let piece = |at: u64, text: &str| {
        let data = Piece::from_bytes(text.as_bytes().to_vec());
        FromAgent::Output(Output { task: task.id, stream: Stream::Out, at, data })
    };
    let kept = |upto| {
        Some(FromCentral::OutputStored(OutputStored {
            task: task.id,
            stream: Stream::Out,
            end: upto,
        }))
    };
    assert_eq!(send(&first, piece(0, "good\n")).await, kept(5));
    rig.central.tasks.cancel_task(task.id, &ordered(Verb::TaskCancel)).await.unwrap();
    assert_eq!(
        send(&first, piece(5, "last\n")).await,
        kept(10),
        "what it wrote until it was killed"
    );
    for node in [&first, &second] {
        send_update(node, TaskUpdate::Released { task: task.id }).await;
    }
    assert_eq!(record(&rig, task.id).state, TaskState::Cancelled);
    assert_eq!(send(&first, piece(10, "bad\n")).await, kept(u64::MAX), "thrown away");
    let kept = rig.central.tasks.task_output(task.id, 0).await.unwrap();
    let kept = String::from_utf8(kept.lines).unwrap();
    assert!(kept.contains("good") && kept.contains("last") && !kept.contains("bad"), "{kept}");
}

#[tokio::test]
async fn output_flood_of_one_node_displaces_no_output_of_others() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let [chatty, quiet] = pair(&world, &rig).await;
    let task = run(&rig, None).await.unwrap();
    let write = async |node: &Machine<'_>, at: usize, text: &str| {
        let data = Piece::from_bytes(text.as_bytes().to_vec());
        let piece = Output { task: task.id, stream: Stream::Out, at: at as u64, data };
        assert!(send(node, FromAgent::Output(piece)).await.is_some(), "stored");
    };
    let block = "x".repeat(MAX_PIECE);
    for number in 0..4_000 {
        write(&chatty, number * block.len(), &block).await;
        if number == 500 {
            write(&quiet, 0, "the result is 42").await;
        }
    }
    let mut from = 0;
    let mut found = false;
    let mut size = 0;
    loop {
        let chunk = rig.central.tasks.task_output(task.id, from).await.unwrap();
        if chunk.lines.is_empty() {
            break;
        }
        found |= String::from_utf8_lossy(&chunk.lines).contains("the result is 42");
        (from, size) = (chunk.next, size + chunk.lines.len());
    }
    assert!(found, "32 MiB of the other node displaced it");
    assert!((6 << 20..=9 << 20).contains(&size), "{size}");
}

#[tokio::test]
async fn events_of_unrecorded_work_are_rate_limited() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let invent = async |round: u8| {
        let vms = (0..50u8).map(|number| {
            let vm = Vm::new(ask(number, ""), None, rig.central.now());
            let mut uuid = vm.uuid();
            uuid.0[1] = round;
            VmReport::new(uuid, vm.name().clone(), ReportedVmState::Running)
        });
        assert!(node.say(vms_report(VmUpdate::All { vms: vms.collect() })).await);
        let tasks = vec![TaskReport { task: TaskId([round; 4]), state: TaskNodeState::Starting }];
        send_update(&node, TaskUpdate::All { tasks }).await;
    };
    for round in 0..100 {
        invent(round).await;
    }
    assert_eq!(rig.central.vms.orphan_vms().len(), 50, "what it says last is shown");
    let vms = rig.events("vm_unknown").len();
    let tasks = rig.events("task").len();
    assert!((1..=20).contains(&vms) && (1..=20).contains(&tasks), "{vms} {tasks}");
    rig.clock.turn(std::time::Duration::from_secs(60));
    assert!(node.heartbeat(0).await);
    invent(101).await;
    assert!(
        rig.events("vm_unknown").len() > vms && rig.events("task").len() > tasks,
        "later they are told again"
    );
}

/// Lets the time of a scan pass, in which both nodes stay alive.
async fn wait_for_scan(rig: &Rig, nodes: [&Machine<'_>; 2]) {
    rig.clock.turn(std::time::Duration::from_secs(60));
    for node in nodes {
        assert!(node.heartbeat(0).await);
    }
    rig.central.watch().await;
}

#[tokio::test]
async fn unrecorded_task_is_released_only_after_it_ended() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let [mut first, second] = pair(&world, &rig).await;
    let mut inbox = read_orders(&mut first).await;
    ready(&first).await;
    let runs = TaskId([1; 4]);
    let over = TaskId([2; 4]);
    let detail = "the agent was started anew".to_owned();
    let states = [
        (runs, TaskNodeState::Running { launch: None }),
        (over, TaskNodeState::Failed { kind: TaskFault::AgentRestarted, detail }),
    ];
    let tasks = states.map(|(task, state)| TaskReport { task, state }).to_vec();
    send_update(&first, TaskUpdate::All { tasks: tasks.clone() }).await;
    let link = first.link.expect("a link");
    let mut sent = async || {
        let mut specs = Vec::new();
        while let Ok(command) = inbox.try_recv() {
            if let LinkCommand::Spec(part @ SpecPart::Task(_)) = command {
                specs.extend(rig.central.agents.specs(link, part).await);
            }
        }
        specs
    };
    let gone = |generation| {
        let order = TaskEntry { task: over, desired_state: TaskDesiredState::Gone };
        NodeSpec { generation, entry: SpecEntry::Tasks(order) }
    };
    assert_eq!(sent().await, [gone(1)]);
    // The node reports after each order. Only time causes the next one.
    for generation in [1, 2] {
        for _ in 0..2 {
            let state = SectionReport::Tasks(TaskUpdate::All { tasks: tasks.clone() });
            send(&first, FromAgent::Report(NodeReport { observed: generation, state })).await;
            assert!(sent().await.is_empty(), "a report causes no repetition");
        }
        wait_for_scan(&rig, [&first, &second]).await;
        assert_eq!(sent().await, [gone(generation + 1)]);
    }
    wait_for_scan(&rig, [&first, &second]).await;
    assert!(sent().await.is_empty(), "the node has not taken the last one");
    // It is not free before it has nothing of either.
    for (left, free) in [(tasks, false), (Vec::new(), true)] {
        send_update(&first, TaskUpdate::All { tasks: left }).await;
        let started = run(&rig, Some(2)).await;
        assert_eq!(started.is_ok(), free, "{started:?}");
    }
}
