//! Life cycle of tasks: every sequence of events ends, and every free node is released.

use super::*;
use meshd_proto::task::{TaskDesiredState, TaskEntry, TaskNodeState, TaskRole};
use proptest::prelude::*;
use std::{collections::BTreeMap, time::Duration};

fn node(number: u8) -> NodeId {
    format!("0000000{number}").parse().expect("a node ID")
}

fn boot(number: u8) -> BootSessionId {
    BootSessionId([number; 12])
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(second * 1000)
}

fn launch() -> HydraLaunch {
    HydraLaunch::new(4000, BTreeMap::from([("usize".to_owned(), "-2".to_owned())])).expect("plain")
}

fn spec(launcher: Launcher, nodes: usize) -> TaskSpec {
    TaskSpec {
        group: "pair".parse().expect("a name"),
        argv: vec!["./program".to_owned()],
        nodes,
        ranks_per_node: 2,
        launcher,
        user: TaskUser::Default,
        timeout_s: Some(600),
        has_input: false,
    }
}

fn task(launcher: Launcher, nodes: u8) -> Task {
    let members = (0..nodes)
        .map(|number| Member::claimed(node(number), boot(0), [10, 0, 0, number].into()))
        .collect();
    Task::claim(TaskId([1; 4]), spec(launcher, nodes.into()), "uid:0".to_owned(), members, at(0))
}

fn running(launch: Option<HydraLaunch>) -> TaskNodeState {
    TaskNodeState::Running { launch }
}

fn want(task: &Task, number: u8) -> Option<TaskDesiredState> {
    task.entry_for(node(number)).map(|TaskEntry { desired_state, .. }| desired_state)
}

fn role(task: &Task, number: u8) -> Option<TaskRole> {
    want(task, number).and_then(|want| match want {
        TaskDesiredState::Run(run) => Some(run.role),
        TaskDesiredState::Gone => None,
    })
}

#[test]
fn hydra_task_starts_head_then_proxies_and_ends_with_head() {
    let mut task = task(Launcher::Mpich, 2);
    assert!(
        matches!(role(&task, 0), Some(TaskRole::Head { hosts, ranks_per_node: 2 }) if hosts.len() == 2)
    );
    assert_eq!(want(&task, 1), None, "nobody waits for it yet");
    task.apply_report(node(1), Some(&running(Some(launch()))), at(1));
    assert_eq!(task.launch, None, "only the head says how to launch");
    task = self::task(Launcher::Mpich, 2);
    task.apply_report(node(0), Some(&running(Some(launch()))), at(1));
    assert_eq!(task.state, TaskState::Starting);
    let control = "10.0.0.0:4000".parse().expect("an address");
    assert_eq!(role(&task, 1), Some(TaskRole::Proxy { control, proxy: 1, launch: launch() }));
    task.apply_report(node(1), Some(&running(None)), at(2));
    assert_eq!((task.state, task.started_at), (TaskState::Running, Some(at(2))));
    task.apply_report(node(1), Some(&TaskNodeState::Exited { code: 0 }), at(3));
    assert_eq!(task.state, TaskState::Running, "the head has not spoken");
    task.apply_report(node(0), Some(&TaskNodeState::Exited { code: 7 }), at(4));
    assert_eq!(task.state, TaskState::Ending);
    assert_eq!(
        (want(&task, 0), want(&task, 1)),
        (Some(TaskDesiredState::Gone), Some(TaskDesiredState::Gone))
    );
    task.record_release(node(0), at(5));
    assert!(!task.holds(node(0)) && task.holds(node(1)) && !task.state.is_final());
    task.record_release(node(1), at(6));
    let end = task.end.clone().expect("decided");
    assert_eq!((task.state, end.code, task.is_open()), (TaskState::Failed, Some(7), false));
}

#[test]
fn task_without_launcher_ends_with_first_failure_or_all_successes() {
    let mut all = task(Launcher::None, 2);
    assert_eq!(role(&all, 1), Some(TaskRole::Ranks { count: 2, first: 2 }));
    all.apply_report(node(0), Some(&TaskNodeState::Exited { code: 0 }), at(1));
    assert_eq!(all.end, None);
    all.apply_report(node(1), Some(&TaskNodeState::Exited { code: 0 }), at(2));
    assert_eq!(
        all.end.as_ref().map(|end| (end.state, end.code)),
        Some((TaskState::Succeeded, Some(0)))
    );
    let mut one = task(Launcher::None, 2);
    one.apply_report(node(1), Some(&TaskNodeState::Exited { code: 3 }), at(1));
    one.apply_report(node(0), Some(&TaskNodeState::Exited { code: 4 }), at(1));
    let end = one.end.expect("decided");
    assert_eq!((end.state, end.code, end.node), (TaskState::Failed, Some(3), Some(node(1))));
}

#[test]
fn lost_node_fails_task_and_stays_claimed_until_known_free() {
    let mut task = task(Launcher::Mpich, 2);
    task.observe(node(1), NodeObservation::Lost("silent".to_owned()), at(1));
    assert_eq!(want(&task, 0), Some(TaskDesiredState::Gone));
    task.record_release(node(0), at(2));
    assert_eq!(
        (task.state, task.holds(node(0)), task.holds(node(1))),
        (TaskState::Failed, false, true)
    );
    assert!(task.is_open());
    // The node was only silent and still runs its part, so it is released after it confirmed the
    // end.
    let mut back = task.clone();
    back.observe(node(1), NodeObservation::Linked(boot(0)), at(3));
    assert_eq!((want(&back, 1), back.holds(node(1))), (Some(TaskDesiredState::Gone), true));
    back.record_release(node(1), at(4));
    assert!(!back.is_open());
    task.observe(node(1), NodeObservation::Linked(boot(1)), at(3));
    assert!(!task.is_open(), "the node booted again: nothing is left there");
    assert_eq!(task.end.map(|end| end.cause), Some(TaskCause::NodeLost), "what came first counts");
}

fn timer(task: &mut Task, now: Timestamp) {
    let proxy = task.members.iter().skip(1).find_map(|member| member.ended_at);
    let failed_proxy = proxy.map(|at| now.since(at)).unwrap_or_default();
    task.timer(TaskAges { task: now.since(task.created_at), failed_proxy }, now);
}

#[test]
fn time_limit_is_of_the_age_and_not_of_the_clock() {
    let ages = |seconds| TaskAges { task: Duration::from_secs(seconds), ..TaskAges::default() };
    let mut long = task(Launcher::None, 1);
    long.apply_report(node(0), Some(&running(None)), at(1));
    for wrong in [Timestamp::EPOCH, at(4_300_000_000)] {
        long.timer(ages(599), wrong);
        assert_eq!(long.state, TaskState::Running, "{wrong}");
    }
    long.timer(ages(600), Timestamp::EPOCH);
    assert_eq!(long.end.map(|end| end.state), Some(TaskState::TimedOut));
}

#[test]
fn task_ends_at_start_timeout_or_run_timeout() {
    let mut hangs = task(Launcher::Mpich, 2);
    hangs.apply_report(node(0), Some(&running(Some(launch()))), at(1));
    timer(&mut hangs, at(89));
    assert_eq!(hangs.end, None);
    timer(&mut hangs, at(90));
    let end = hangs.end.expect("decided");
    assert_eq!((end.cause, end.node), (TaskCause::StartTimeout, Some(node(1))));
    let mut long = task(Launcher::None, 1);
    long.apply_report(node(0), Some(&running(None)), at(1));
    timer(&mut long, at(599));
    assert_eq!(long.state, TaskState::Running);
    timer(&mut long, at(600));
    assert_eq!(long.end.map(|end| end.state), Some(TaskState::TimedOut));
}

#[test]
fn failed_proxy_ends_task_when_head_does_not_exit() {
    let mut running = task(Launcher::Mpich, 2);
    running.apply_report(node(0), Some(&self::running(Some(launch()))), at(1));
    running.apply_report(node(1), Some(&self::running(None)), at(2));
    let limit = i64::try_from(HEAD_EXIT_LIMIT.as_secs()).expect("a few seconds");
    let exits = |code: u8| {
        let mut task = running.clone();
        task.apply_report(node(1), Some(&TaskNodeState::Exited { code }), at(10));
        // A repeated report does not change the time.
        task.apply_report(node(1), Some(&TaskNodeState::Exited { code }), at(10 + limit));
        task
    };
    let mut hangs = exits(5);
    hangs.timer(TaskAges::default(), at(4_300_000_000));
    assert_eq!(hangs.end, None, "the clock jumped");
    timer(&mut hangs, at(9 + limit));
    assert_eq!(hangs.end, None);
    timer(&mut hangs, at(10 + limit));
    let end = hangs.end.expect("decided");
    assert_eq!(
        (end.state, end.cause, end.node),
        (TaskState::Failed, TaskCause::ProxyFailed, Some(node(1)))
    );
    assert!(end.detail.contains("exit code 5"), "{}", end.detail);
    let mut over = exits(5);
    over.apply_report(node(0), Some(&TaskNodeState::Exited { code: 9 }), at(11));
    timer(&mut over, at(10 + limit));
    assert_eq!(
        over.end.map(|end| (end.cause, end.code)),
        Some((TaskCause::Exited, Some(9))),
        "the head speaks"
    );
    // The ranks of that node have ended and reported to the head; ranks of another node still run.
    let mut done = exits(0);
    timer(&mut done, at(10 + 2 * limit));
    assert_eq!(done.end, None);
    done.apply_report(node(0), Some(&TaskNodeState::Exited { code: 0 }), at(500));
    assert_eq!(done.end.map(|end| end.state), Some(TaskState::Succeeded));
}

#[test]
fn node_listed_twice_in_task_record_is_released() {
    let mut twice = task(Launcher::Mpich, 2);
    twice.members[1].node = node(0);
    twice.cancel(String::new(), at(1));
    twice.record_release(node(0), at(2));
    assert_eq!(
        (twice.state, want(&twice, 0)),
        (TaskState::Ending, Some(TaskDesiredState::Gone)),
        "the order is repeated"
    );
    twice.record_release(node(0), at(3));
    assert!(twice.state.is_final() && !twice.is_open());
    let mut gone = task(Launcher::None, 2);
    gone.members[1].node = node(0);
    (0..2).for_each(|_| gone.observe(node(0), NodeObservation::Gone("fenced".to_owned()), at(1)));
    assert!(!gone.is_open());
}

#[test]
fn task_missing_on_node_fails_only_after_its_first_report() {
    let mut task = task(Launcher::None, 1);
    task.apply_report(node(0), None, at(1));
    assert_eq!(task.end, None);
    task.apply_report(node(0), Some(&running(None)), at(2));
    task.apply_report(node(0), None, at(3));
    assert!(task.end.is_some() && task.holds(node(0)), "it says itself when it is free");
}

#[test]
fn invalid_task_spec_is_refused() {
    let good = spec(Launcher::Mpich, 2);
    assert_eq!(good.check(), Ok(()));
    let wrong = [
        TaskSpec { nodes: 0, ..good.clone() },
        TaskSpec { nodes: MAX_NODES + 1, ..good.clone() },
        TaskSpec { ranks_per_node: 0, ..good.clone() },
        TaskSpec { user: TaskUser::Uid(0), ..good.clone() },
        TaskSpec { user: TaskUser::Uid(999), ..good.clone() },
        TaskSpec { timeout_s: Some(0), ..good.clone() },
        TaskSpec { has_input: true, ..good.clone() },
        TaskSpec { argv: vec!["a".to_owned(), ":".to_owned()], ..good.clone() },
    ];
    for spec in wrong {
        assert!(spec.check().is_err(), "{spec:?}");
    }
    let colon =
        TaskSpec { argv: vec!["a".to_owned(), ":".to_owned()], launcher: Launcher::None, ..good };
    assert_eq!(colon.check(), Ok(()), "only mpiexec minds it");
}

/// Anything that can happen to one of three nodes, or to the task.
fn happening() -> impl Strategy<Value = (u8, u8)> {
    (0u8..12, 0u8..3)
}

fn happens(task: &mut Task, (what, number): (u8, u8), now: Timestamp) {
    let id = node(number);
    match what {
        0 => task.apply_report(id, Some(&TaskNodeState::Starting), now),
        1 => task.apply_report(id, Some(&running(None)), now),
        2 => task.apply_report(id, Some(&running(Some(launch()))), now),
        3 => task.apply_report(id, Some(&TaskNodeState::Exited { code: number }), now),
        4 => {
            let kind = TaskFault::Prepare;
            task.apply_report(
                id,
                Some(&TaskNodeState::Failed { kind, detail: "x".repeat(9000) }),
                now,
            );
        }
        5 => task.apply_report(id, None, now),
        6 => task.record_release(id, now),
        7 => task.observe(id, NodeObservation::Lost(String::new()), now),
        8 => task.observe(id, NodeObservation::Linked(boot(number % 2)), now),
        9 => task.observe(id, NodeObservation::There, now),
        10 if number == 0 => task.observe(id, NodeObservation::Gone(String::new()), now),
        11 if number == 0 => drop(task.cancel(String::new(), now)),
        _ => timer(task, now),
    }
}

proptest! {
    #[test]
    fn task_ends_once_and_releases_all_nodes_in_any_interleaving(
        hydra: bool, story in prop::collection::vec(happening(), 0..60), ends in prop::collection::vec(0u8..3, 3),
    ) {
        let mut task = task(if hydra { Launcher::Mpich } else { Launcher::None }, 3);
        let mut decided = None;
        let mut over = None;
        for (second, what) in (0..).zip(story) {
            happens(&mut task, what, at(second));
            if decided.is_none() {
                decided.clone_from(&task.end);
            }
            prop_assert_eq!(&task.end, &decided, "what ends it is decided once");
            prop_assert_eq!(task.state.is_final() || task.state == TaskState::Ending, decided.is_some());
            if over.is_none() {
                over = task.state.is_final().then_some(task.state);
            }
            if let Some(over) = over {
                prop_assert_eq!(task.state, over);
                prop_assert_eq!(Some(over), decided.as_ref().map(|end| end.state));
            }
            for number in 0..3 {
                let is_held = task.holds(node(number));
                match want(&task, number) {
                    Some(TaskDesiredState::Gone) => prop_assert!(is_held && decided.is_some()),
                    Some(TaskDesiredState::Run(_)) => prop_assert!(is_held && decided.is_none()),
                    None => prop_assert!(!is_held || hydra && number > 0 && decided.is_none()),
                }
            }
        }
        task.cancel(String::new(), at(1000));
        for (number, end) in (0..).zip(ends) {
            match end {
                0 => task.record_release(node(number), at(1001)),
                1 => task.observe(node(number), NodeObservation::Linked(boot(9)), at(1001)),
                _ => task.observe(node(number), NodeObservation::Gone(String::new()), at(1001)),
            }
        }
        prop_assert!(task.state.is_final() && !task.is_open(), "{:?}", task);
        let stored = serde_json::to_string(&task).expect("plain data");
        prop_assert_eq!(serde_json::from_str::<Task>(&stored).expect("what was written"), task);
    }
}
