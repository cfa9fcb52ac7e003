//! Tests of the state machine of a replica, with a simulated supervisor.

use super::*;
use crate::container::fixtures::spec;
use meshd_proto::container::HealthProbe;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

/// A node with one replica: carries out actions at once.
struct SimulatedNode {
    machine: ReplicaMachine,
    now: Duration,
    supervisor: SupervisorState,
    image: ImageState,
    /// Whether programs end by SIGTERM.
    obeys: bool,
    starts: Vec<u32>,
    actions: Vec<ReplicaAction>,
    probes: u32,
}

impl SimulatedNode {
    fn new(desired: ContainerDesiredState) -> Self {
        SimulatedNode {
            machine: ReplicaMachine::new(desired),
            now: Duration::ZERO,
            supervisor: SupervisorState::Absent,
            image: ImageState::Present,
            obeys: true,
            starts: Vec::new(),
            actions: Vec::new(),
            probes: 0,
        }
    }

    fn of(change: impl FnOnce(&mut ReplicaSpec)) -> Self {
        let mut spec = spec(1);
        change(&mut spec);
        let mut node = SimulatedNode::new(ContainerDesiredState::Run(Box::new(spec)));
        node.step();
        node
    }

    fn is_alive(&self) -> bool {
        matches!(self.supervisor, SupervisorState::Starting | SupervisorState::Running)
    }

    fn step(&mut self) {
        for passes in 0.. {
            assert!(passes < 20, "no end of actions: {:?}", self.actions);
            let Some(action) = self.machine.step(self.now, &self.supervisor, self.image) else {
                return;
            };
            match &action {
                ReplicaAction::Fetch => self.image = ImageState::Fetching { percent: 0 },
                ReplicaAction::Start(spec) => {
                    assert!(!self.is_alive(), "two programs of one replica");
                    assert_eq!(self.image, ImageState::Present);
                    assert!(self.starts.last().is_none_or(|last| *last <= spec.run));
                    self.starts.push(spec.run);
                    self.supervisor = SupervisorState::Running;
                }
                ReplicaAction::Terminate if self.obeys => self.end(143),
                ReplicaAction::Terminate => {}
                ReplicaAction::Kill if self.is_alive() => self.end(137),
                ReplicaAction::Kill => {}
                ReplicaAction::Probe(_) => self.probes += 1,
                ReplicaAction::Remove => {
                    assert!(!self.is_alive(), "removed while it runs");
                    self.supervisor = SupervisorState::Absent;
                }
            }
            self.actions.push(action);
        }
    }

    fn end(&mut self, code: u8) {
        self.supervisor = SupervisorState::Ended(ProgramEnd::Exited { code, out_of_memory: false });
    }

    fn exit(&mut self, code: u8) {
        self.end(code);
        self.step();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.step();
    }

    fn order(&mut self, desired: ContainerDesiredState) {
        self.machine.set_desired(desired);
        self.step();
    }

    fn report(&self) -> ReplicaReport {
        self.machine.report(&"web.0".parse().expect("a replica"))
    }

    fn state(&self) -> ReplicaState {
        self.report().state
    }
}

const RUNNING: ReplicaState = ReplicaState::Running { healthy: None };

fn waiting(code: u8) -> ReplicaState {
    ReplicaState::Waiting { code, out_of_memory: false }
}

#[test]
fn image_is_fetched_before_the_program_starts() {
    let mut node = SimulatedNode::new(ContainerDesiredState::Run(Box::new(spec(1))));
    node.image = ImageState::Missing;
    node.step();
    assert_eq!(node.actions, [ReplicaAction::Fetch]);
    node.image = ImageState::Fetching { percent: 40 };
    node.step();
    assert_eq!(node.state(), ReplicaState::Fetching { percent: 40 });
    node.image = ImageState::Present;
    node.step();
    assert_eq!((node.state(), node.starts.as_slice()), (RUNNING, &[1][..]));
}

#[test]
fn failed_fetch_fails_the_start_and_a_later_start_tries_again() {
    let mut node = SimulatedNode::new(ContainerDesiredState::Run(Box::new(spec(1))));
    node.image = ImageState::Missing;
    node.step();
    node.machine.fetch_failed(ContainerFault::ImageDiffers, &"é".repeat(MAX_FAULT_DETAIL));
    node.image = ImageState::Missing;
    node.step();
    let ReplicaState::Failed { kind: ContainerFault::ImageDiffers, detail } = node.state() else {
        panic!("{:?}", node.state());
    };
    assert_eq!(detail.len(), MAX_FAULT_DETAIL);
    node.order(ContainerDesiredState::Run(Box::new(spec(1))));
    assert_eq!(node.actions.len(), 1, "the same start stays failed");
    node.order(ContainerDesiredState::Run(Box::new(spec(2))));
    assert_eq!(node.actions.len(), 2, "fetched again");
}

#[test]
fn restart_delay_doubles_to_a_minute_and_begins_anew_after_a_stable_minute() {
    let mut node = SimulatedNode::of(|_| {});
    let mut delays = Vec::new();
    for _ in 0..8 {
        node.exit(3);
        assert_eq!(node.state(), waiting(3));
        let before = node.now;
        while node.state() != RUNNING {
            node.pass(SECOND);
        }
        delays.push((node.now - before).as_secs());
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(node.report().restarts, 8);
    node.pass(STABLE);
    node.exit(3);
    node.pass(SECOND);
    assert_eq!(node.state(), RUNNING);
}

#[test]
fn restart_policy_decides_after_each_end() {
    let never = ContainerRestart::Never;
    let on_failure = ContainerRestart::OnFailure { max: 2 };
    for (restart, code, restarts) in [
        (never, 0, 0),
        (never, 1, 0),
        (on_failure, 0, 0),
        (on_failure, 1, 2),
        (ContainerRestart::Always, 0, 9),
    ] {
        let mut node = SimulatedNode::of(|spec| spec.restart = restart);
        for _ in 0..9 {
            node.exit(code);
            node.pass(BACKOFF.1);
        }
        assert_eq!(node.report().restarts, restarts, "{restart:?} {code}");
        if restart != ContainerRestart::Always {
            assert_eq!(node.state(), ReplicaState::Exited { code });
        }
    }
}

#[test]
fn program_that_exceeds_its_memory_fails_unless_it_restarts() {
    let killed = || SupervisorState::Ended(ProgramEnd::Exited { code: 137, out_of_memory: true });
    let mut node = SimulatedNode::of(|spec| spec.restart = ContainerRestart::Never);
    node.supervisor = killed();
    node.step();
    let detail = "the program exceeded its memory".to_owned();
    let failed = ReplicaState::Failed { kind: ContainerFault::OutOfMemory, detail };
    assert_eq!(node.state(), failed);
    let mut node = SimulatedNode::of(|_| {});
    node.supervisor = killed();
    node.step();
    assert_eq!(node.state(), ReplicaState::Waiting { code: 137, out_of_memory: true });
}

#[test]
fn stopped_program_has_its_grace_and_is_killed_then() {
    let mut node = SimulatedNode::of(|_| {});
    node.obeys = false;
    node.order(ContainerDesiredState::Stopped);
    node.pass(9 * SECOND);
    assert!(node.is_alive(), "within its grace");
    node.pass(SECOND);
    assert_eq!(node.state(), ReplicaState::Exited { code: 137 });
    assert_eq!(node.actions.last(), Some(&ReplicaAction::Kill));
    node.order(ContainerDesiredState::Run(Box::new(spec(1))));
    assert!(!node.is_alive(), "the same start stays ended");
    node.order(ContainerDesiredState::Run(Box::new(spec(2))));
    assert_eq!((node.state(), node.report().run), (RUNNING, 2));
}

#[test]
fn later_start_replaces_the_running_program_and_an_earlier_one_does_not() {
    let mut node = SimulatedNode::of(|spec| spec.run = 5);
    node.order(ContainerDesiredState::Run(Box::new(spec(4))));
    assert_eq!(node.starts, [5]);
    node.order(ContainerDesiredState::Run(Box::new(spec(6))));
    assert_eq!((node.starts.as_slice(), node.state()), (&[5, 6][..], RUNNING));
    assert_eq!((node.report().run, node.report().restarts), (6, 0));
}

#[test]
fn unhealthy_program_is_restarted_by_its_policy() {
    let health = || HealthCheck {
        probe: HealthProbe::Tcp { port: 80 },
        interval_seconds: 10,
        timeout_seconds: 1,
        failures: 2,
        start_seconds: 5,
    };
    let mut node = SimulatedNode::of(|spec| spec.health = Some(health()));
    let probe = |node: &mut SimulatedNode, is_healthy| {
        node.pass(10 * SECOND);
        node.machine.probe_ended(node.now, is_healthy);
        node.step();
    };
    assert_eq!(node.probes, 1, "at once");
    node.machine.probe_ended(node.now, false);
    node.step();
    assert_eq!(node.state(), RUNNING, "it may still start");
    probe(&mut node, true);
    assert_eq!(node.state(), ReplicaState::Running { healthy: Some(true) });
    probe(&mut node, false);
    assert_eq!(node.state(), ReplicaState::Running { healthy: Some(true) }, "one failure");
    probe(&mut node, false);
    assert_eq!(node.state(), waiting(143));
    node.pass(SECOND);
    assert_eq!(node.starts, [1, 1]);

    let mut node = SimulatedNode::of(|spec| {
        spec.health = Some(health());
        spec.restart = ContainerRestart::Never;
    });
    for _ in 0..3 {
        probe(&mut node, false);
    }
    assert_eq!(node.state(), ReplicaState::Running { healthy: Some(false) });
    probe(&mut node, true);
    assert_eq!(node.state(), ReplicaState::Running { healthy: Some(true) });
}

#[test]
fn lost_supervisor_ends_its_program_and_restarts_it() {
    let mut node = SimulatedNode::of(|_| {});
    node.supervisor = SupervisorState::Absent;
    node.step();
    assert_eq!(node.actions.last(), Some(&ReplicaAction::Kill));
    assert_eq!(node.state(), waiting(137));
}

#[test]
fn restarted_agent_continues_with_the_record() {
    let mut node = SimulatedNode::of(|_| {});
    let restored = |node: &SimulatedNode| {
        let text = serde_json::to_string(node.machine.record()).expect("plain");
        ReplicaMachine::restore(serde_json::from_str(&text).expect("its own text"))
    };
    node.machine = restored(&node);
    node.step();
    assert_eq!((node.state(), node.starts.as_slice()), (RUNNING, &[1][..]), "adopted");
    // It ended while no agent ran.
    node.end(7);
    node.machine = restored(&node);
    node.step();
    assert_eq!(node.state(), waiting(7));
    node.order(ContainerDesiredState::Stopped);
    node.machine = restored(&node);
    node.step();
    assert_eq!(node.state(), ReplicaState::Exited { code: 7 });
    assert_eq!(node.starts, [1]);
}

#[derive(Clone, Copy, Debug)]
enum SimulatedEvent {
    Run(u32),
    Stopped,
    Gone,
    Exit(u8),
    Lost,
    NotStarted,
    Probe(bool),
    Time(u16),
    ImageRemoved,
    ImageFetched,
    FetchFailed,
    AgentRestarted,
}

fn event() -> impl Strategy<Value = SimulatedEvent> {
    prop_oneof![
        (1..5_u32).prop_map(SimulatedEvent::Run),
        Just(SimulatedEvent::Stopped),
        Just(SimulatedEvent::Gone),
        (0..3_u8).prop_map(SimulatedEvent::Exit),
        Just(SimulatedEvent::Lost),
        Just(SimulatedEvent::NotStarted),
        any::<bool>().prop_map(SimulatedEvent::Probe),
        (0..100_u16).prop_map(SimulatedEvent::Time),
        Just(SimulatedEvent::ImageRemoved),
        Just(SimulatedEvent::ImageFetched),
        Just(SimulatedEvent::FetchFailed),
        Just(SimulatedEvent::AgentRestarted),
    ]
}

impl SimulatedNode {
    fn handle(&mut self, event: SimulatedEvent) {
        match event {
            SimulatedEvent::Run(run) => {
                self.machine.set_desired(ContainerDesiredState::Run(Box::new(spec(run))));
            }
            SimulatedEvent::Stopped => self.machine.set_desired(ContainerDesiredState::Stopped),
            SimulatedEvent::Gone => self.machine.set_desired(ContainerDesiredState::Gone),
            SimulatedEvent::Exit(code) if self.is_alive() => self.end(code),
            SimulatedEvent::Lost if self.is_alive() => self.supervisor = SupervisorState::Absent,
            SimulatedEvent::NotStarted if self.is_alive() => {
                let detail = String::new();
                let end = ProgramEnd::NotStarted { kind: ContainerFault::PortInUse, detail };
                self.supervisor = SupervisorState::Ended(end);
            }
            SimulatedEvent::Probe(is_healthy) => self.machine.probe_ended(self.now, is_healthy),
            SimulatedEvent::Time(seconds) => self.now += Duration::from_secs(seconds.into()),
            SimulatedEvent::ImageRemoved => self.image = ImageState::Missing,
            SimulatedEvent::ImageFetched => self.image = ImageState::Present,
            SimulatedEvent::FetchFailed => {
                self.machine.fetch_failed(ContainerFault::ImageMissing, "no image");
            }
            SimulatedEvent::AgentRestarted => {
                self.machine = ReplicaMachine::restore(self.machine.record().clone());
            }
            SimulatedEvent::Exit(_) | SimulatedEvent::Lost | SimulatedEvent::NotStarted => {}
        }
        self.step();
    }
}

proptest! {
    /// [`SimulatedNode::step`] checks that no two programs run, and that none runs when its files
    /// are removed.
    #[test]
    fn last_order_is_reached_from_every_state(
        events in prop::collection::vec(event(), 0..40),
        last in prop_oneof![
            Just(SimulatedEvent::Run(9)), Just(SimulatedEvent::Stopped), Just(SimulatedEvent::Gone)
        ],
        obeys in any::<bool>(),
    ) {
        let mut node = SimulatedNode::new(ContainerDesiredState::Run(Box::new(spec(1))));
        node.obeys = obeys;
        let mut is_gone = false;
        for event in events {
            is_gone |= matches!(event, SimulatedEvent::Gone);
            node.handle(event);
        }
        node.handle(last);
        node.handle(SimulatedEvent::ImageFetched);
        for _ in 0..4 {
            node.pass(BACKOFF.1);
        }
        match last {
            _ if is_gone => prop_assert_eq!(node.actions.last(), Some(&ReplicaAction::Remove)),
            SimulatedEvent::Run(run) => {
                prop_assert_eq!(node.state(), RUNNING);
                prop_assert_eq!(node.report().run, run);
                prop_assert!(node.is_alive());
            }
            SimulatedEvent::Stopped => prop_assert!(!node.is_alive() && node.state().has_ended()),
            _ => prop_assert_eq!(node.actions.last(), Some(&ReplicaAction::Remove)),
        }
    }
}
