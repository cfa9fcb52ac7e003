//! The life of jobs: every story ends, and no node stays claimed that could be free.

use super::*;
use meshd_proto::job::{JobNodeState, JobOrder, JobRole, JobWant};
use proptest::prelude::*;
use std::collections::BTreeMap;

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

fn spec(launcher: Launcher, nodes: usize) -> JobSpec {
    JobSpec {
        group: "pair".parse().expect("a name"),
        argv: vec!["./program".to_owned()],
        nodes,
        ranks_per_node: 2,
        launcher,
        user: JobUser::Job,
        timeout_s: Some(600),
    }
}

fn job(launcher: Launcher, nodes: u8) -> Job {
    let members = (0..nodes).map(|number| Member::claimed(node(number), boot(0), [10, 0, 0, number].into())).collect();
    Job::claim(JobId([1; 4]), spec(launcher, nodes.into()), "uid:0".to_owned(), members, at(0))
}

fn running(launch: Option<HydraLaunch>) -> JobNodeState {
    JobNodeState::Running { launch }
}

fn want(job: &Job, number: u8) -> Option<JobWant> {
    job.order_for(node(number)).map(|JobOrder { want, .. }| want)
}

fn role(job: &Job, number: u8) -> Option<JobRole> {
    want(job, number).and_then(|want| match want {
        JobWant::Run(run) => Some(run.role),
        JobWant::Gone => None,
    })
}

#[test]
fn hydra_starts_at_the_head_goes_to_the_others_and_the_head_says_how_it_ended() {
    let mut job = job(Launcher::Mpich, 2);
    assert!(matches!(role(&job, 0), Some(JobRole::Head { hosts, ranks_per_node: 2 }) if hosts.len() == 2));
    assert_eq!(want(&job, 1), None, "nobody waits for it yet");
    job.told(node(1), Some(&running(Some(launch()))), at(1));
    assert_eq!(job.launch, None, "only the head says how to launch");
    job = self::job(Launcher::Mpich, 2);
    job.told(node(0), Some(&running(Some(launch()))), at(1));
    assert_eq!(job.state, JobState::Starting);
    let control = "10.0.0.0:4000".parse().expect("an address");
    assert_eq!(role(&job, 1), Some(JobRole::Proxy { control, proxy: 1, launch: launch() }));
    job.told(node(1), Some(&running(None)), at(2));
    assert_eq!((job.state, job.started_at), (JobState::Running, Some(at(2))));
    job.told(node(1), Some(&JobNodeState::Exited { code: 0 }), at(3));
    assert_eq!(job.state, JobState::Running, "the head has not spoken");
    job.told(node(0), Some(&JobNodeState::Exited { code: 7 }), at(4));
    assert_eq!(job.state, JobState::Ending);
    assert_eq!((want(&job, 0), want(&job, 1)), (Some(JobWant::Gone), Some(JobWant::Gone)));
    job.released(node(0), at(5));
    assert!(!job.holds(node(0)) && job.holds(node(1)) && !job.state.is_final());
    job.released(node(1), at(6));
    let end = job.end.clone().expect("decided");
    assert_eq!((job.state, end.code, job.is_open()), (JobState::Failed, Some(7), false));
}

#[test]
fn without_a_launcher_all_nodes_have_to_succeed_and_the_first_failure_ends_it() {
    let mut all = job(Launcher::None, 2);
    assert_eq!(role(&all, 1), Some(JobRole::Ranks { count: 2, first: 2 }));
    all.told(node(0), Some(&JobNodeState::Exited { code: 0 }), at(1));
    assert_eq!(all.end, None);
    all.told(node(1), Some(&JobNodeState::Exited { code: 0 }), at(2));
    assert_eq!(all.end.as_ref().map(|end| (end.state, end.code)), Some((JobState::Succeeded, Some(0))));
    let mut one = job(Launcher::None, 2);
    one.told(node(1), Some(&JobNodeState::Exited { code: 3 }), at(1));
    one.told(node(0), Some(&JobNodeState::Exited { code: 4 }), at(1));
    let end = one.end.expect("decided");
    assert_eq!((end.state, end.code, end.node), (JobState::Failed, Some(3), Some(node(1))));
}

#[test]
fn a_lost_node_fails_the_job_frees_the_others_and_stays_claimed_until_it_is_known_to_be_free() {
    let mut job = job(Launcher::Mpich, 2);
    job.seen(node(1), NodeObservation::Lost("silent".to_owned()), at(1));
    assert_eq!(want(&job, 0), Some(JobWant::Gone));
    job.released(node(0), at(2));
    assert_eq!((job.state, job.holds(node(0)), job.holds(node(1))), (JobState::Failed, false, true));
    assert!(job.is_open());
    // It was only silent, and still runs its part: it is told so before it is free.
    let mut back = job.clone();
    back.seen(node(1), NodeObservation::Linked(boot(0)), at(3));
    assert_eq!((want(&back, 1), back.holds(node(1))), (Some(JobWant::Gone), true));
    back.released(node(1), at(4));
    assert!(!back.is_open());
    job.seen(node(1), NodeObservation::Linked(boot(1)), at(3));
    assert!(!job.is_open(), "it was started anew: nothing is left there");
    assert_eq!(job.end.map(|end| end.cause), Some(JobCause::NodeLost), "what came first counts");
}

#[test]
fn time_ends_what_does_not_start_and_what_does_not_end() {
    let mut hangs = job(Launcher::Mpich, 2);
    hangs.told(node(0), Some(&running(Some(launch()))), at(1));
    hangs.timer(at(89));
    assert_eq!(hangs.end, None);
    hangs.timer(at(90));
    let end = hangs.end.expect("decided");
    assert_eq!((end.cause, end.node), (JobCause::StartTimeout, Some(node(1))));
    let mut long = job(Launcher::None, 1);
    long.told(node(0), Some(&running(None)), at(1));
    long.timer(at(599));
    assert_eq!(long.state, JobState::Running);
    long.timer(at(600));
    assert_eq!(long.end.map(|end| end.state), Some(JobState::TimedOut));
}

#[test]
fn a_proxy_that_fails_and_a_head_that_does_not_notice_end_the_task() {
    let mut running = job(Launcher::Mpich, 2);
    running.told(node(0), Some(&self::running(Some(launch()))), at(1));
    running.told(node(1), Some(&self::running(None)), at(2));
    let patience = i64::try_from(HEAD_PATIENCE.as_secs()).expect("a few seconds");
    let exits = |code: u8| {
        let mut job = running.clone();
        job.told(node(1), Some(&JobNodeState::Exited { code }), at(10));
        // Said again, it is no later.
        job.told(node(1), Some(&JobNodeState::Exited { code }), at(10 + patience));
        job
    };
    let mut hangs = exits(5);
    hangs.timer(at(9 + patience));
    assert_eq!(hangs.end, None);
    hangs.timer(at(10 + patience));
    let end = hangs.end.expect("decided");
    assert_eq!((end.state, end.cause, end.node), (JobState::Failed, JobCause::ProxyFailed, Some(node(1))));
    assert!(end.detail.contains("exit code 5"), "{}", end.detail);
    let mut over = exits(5);
    over.told(node(0), Some(&JobNodeState::Exited { code: 9 }), at(11));
    over.timer(at(10 + patience));
    assert_eq!(over.end.map(|end| (end.cause, end.code)), Some((JobCause::Exited, Some(9))), "the head speaks");
    // The ranks of that node are done, and the head has heard so; those of another one still work.
    let mut done = exits(0);
    done.timer(at(10 + 2 * patience));
    assert_eq!(done.end, None);
    done.told(node(0), Some(&JobNodeState::Exited { code: 0 }), at(500));
    assert_eq!(done.end.map(|end| end.state), Some(JobState::Succeeded));
}

#[test]
fn a_record_that_names_a_node_twice_lets_go_of_it_as_well() {
    let mut twice = job(Launcher::Mpich, 2);
    twice.members[1].node = node(0);
    twice.cancel(String::new(), at(1));
    twice.released(node(0), at(2));
    assert_eq!((twice.state, want(&twice, 0)), (JobState::Ending, Some(JobWant::Gone)), "it is asked again");
    twice.released(node(0), at(3));
    assert!(twice.state.is_final() && !twice.is_open());
    let mut gone = job(Launcher::None, 2);
    gone.members[1].node = node(0);
    (0..2).for_each(|_| gone.seen(node(0), NodeObservation::Gone("fenced".to_owned()), at(1)));
    assert!(!gone.is_open());
}

#[test]
fn an_agent_that_forgot_the_task_fails_it_but_one_that_was_not_told_yet_does_not() {
    let mut job = job(Launcher::None, 1);
    job.told(node(0), None, at(1));
    assert_eq!(job.end, None);
    job.told(node(0), Some(&running(None)), at(2));
    job.told(node(0), None, at(3));
    assert!(job.end.is_some() && job.holds(node(0)), "it says itself when it is free");
}

#[test]
fn what_cannot_be_run_is_refused_in_words() {
    let good = spec(Launcher::Mpich, 2);
    assert_eq!(good.check(), Ok(()));
    let wrong = [
        JobSpec { nodes: 0, ..good.clone() },
        JobSpec { nodes: MAX_NODES + 1, ..good.clone() },
        JobSpec { ranks_per_node: 0, ..good.clone() },
        JobSpec { user: JobUser::Uid(0), ..good.clone() },
        JobSpec { user: JobUser::Uid(999), ..good.clone() },
        JobSpec { timeout_s: Some(0), ..good.clone() },
        JobSpec { argv: vec!["a".to_owned(), ":".to_owned()], ..good.clone() },
    ];
    for spec in wrong {
        assert!(spec.check().is_err(), "{spec:?}");
    }
    let colon = JobSpec { argv: vec!["a".to_owned(), ":".to_owned()], launcher: Launcher::None, ..good };
    assert_eq!(colon.check(), Ok(()), "only mpiexec minds it");
}

/// Anything that can happen to one of three nodes, or to the job.
fn happening() -> impl Strategy<Value = (u8, u8)> {
    (0u8..12, 0u8..3)
}

fn happens(job: &mut Job, (what, number): (u8, u8), now: Timestamp) {
    let id = node(number);
    match what {
        0 => job.told(id, Some(&JobNodeState::Starting), now),
        1 => job.told(id, Some(&running(None)), now),
        2 => job.told(id, Some(&running(Some(launch()))), now),
        3 => job.told(id, Some(&JobNodeState::Exited { code: number }), now),
        4 => {
            let kind = JobFault::Prepare;
            job.told(id, Some(&JobNodeState::Failed { kind, detail: "x".repeat(9000) }), now);
        }
        5 => job.told(id, None, now),
        6 => job.released(id, now),
        7 => job.seen(id, NodeObservation::Lost(String::new()), now),
        8 => job.seen(id, NodeObservation::Linked(boot(number % 2)), now),
        9 => job.seen(id, NodeObservation::There, now),
        10 if number == 0 => job.seen(id, NodeObservation::Gone(String::new()), now),
        11 if number == 0 => drop(job.cancel(String::new(), now)),
        _ => job.timer(now),
    }
}

proptest! {
    #[test]
    fn whatever_happens_a_job_ends_once_and_no_node_stays_claimed(
        hydra: bool, story in prop::collection::vec(happening(), 0..60), ends in prop::collection::vec(0u8..3, 3),
    ) {
        let mut job = job(if hydra { Launcher::Mpich } else { Launcher::None }, 3);
        let mut decided = None;
        let mut over = None;
        for (second, what) in (0..).zip(story) {
            happens(&mut job, what, at(second));
            if decided.is_none() {
                decided.clone_from(&job.end);
            }
            prop_assert_eq!(&job.end, &decided, "what ends it is decided once");
            prop_assert_eq!(job.state.is_final() || job.state == JobState::Ending, decided.is_some());
            if over.is_none() {
                over = job.state.is_final().then_some(job.state);
            }
            if let Some(over) = over {
                prop_assert_eq!(job.state, over);
                prop_assert_eq!(Some(over), decided.as_ref().map(|end| end.state));
            }
            for number in 0..3 {
                let held = job.holds(node(number));
                match want(&job, number) {
                    Some(JobWant::Gone) => prop_assert!(held && decided.is_some()),
                    Some(JobWant::Run(_)) => prop_assert!(held && decided.is_none()),
                    None => prop_assert!(!held || hydra && number > 0 && decided.is_none()),
                }
            }
        }
        job.cancel(String::new(), at(1000));
        for (number, end) in (0..).zip(ends) {
            match end {
                0 => job.released(node(number), at(1001)),
                1 => job.seen(node(number), NodeObservation::Linked(boot(9)), at(1001)),
                _ => job.seen(node(number), NodeObservation::Gone(String::new()), at(1001)),
            }
        }
        prop_assert!(job.state.is_final() && !job.is_open(), "{:?}", job);
        let stored = serde_json::to_string(&job).expect("plain data");
        prop_assert_eq!(serde_json::from_str::<Job>(&stored).expect("what was written"), job);
    }
}
