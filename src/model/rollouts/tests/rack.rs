//! A simulated site: nodes that follow orders, boot, and fail.

use crate::{
    fleet::{Generation, LabelValue, Phase},
    operations::NodeOrder,
    rollouts::{
        Amount, BootKey, EndedProgram, Floor, Inventory, NodePresent, NodeSettings, NodeStage,
        PlannedNode, ProgramOutcome, ProgramPoint, RefusedOrder, Rollout, RolloutNode,
        RolloutPolicy, RolloutState, RolloutTarget, StepTime, advance, waves,
    },
};
use meshd_types::{
    BootSessionId, CorrelationId, Digest, GroupName, NodeId, ProfileName, RolloutId, Timestamp,
};
use std::{collections::BTreeMap, time::Duration};

/// What happens to a node when it boots the profile `new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boot {
    Good,
    /// A check fails.
    Degraded,
    /// The node is never heard of again.
    Silent,
    /// The node boots again and again, each time what it boots next.
    Loop,
}

#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) id: NodeId,
    pub(super) phase: Phase,
    pub(super) is_linked: bool,
    pub(super) passes: bool,
    pub(super) settings: NodeSettings,
    boot: u8,
    pub(super) domain: Option<LabelValue>,
    /// Ticks until its work ends.
    pub(super) work: u32,
    pub(super) on_new: Boot,
    /// Ticks until its boot ends.
    booting: u32,
    pub(super) is_removed: bool,
    pub(super) orders: Vec<NodeOrder>,
    looping: bool,
    /// Number of reloads that gave its profile another generation.
    pub(super) reloads: u32,
    /// What it boots next is not known.
    pub(super) is_stale: bool,
    /// The order that it refuses.
    pub(super) refuses: Option<NodeOrder>,
    /// Ticks that a drain takes to reach it.
    pub(super) delay: u32,
    arriving: Option<NodeOrder>,
    pub(super) ended: Option<EndedProgram>,
    /// Its programs wait until those of other nodes have ended.
    pub(super) is_queued: bool,
}

pub(super) fn profile(name: &str) -> ProfileName {
    name.parse().expect("a name")
}

/// The generation of a profile.
pub(super) fn generation(name: &ProfileName) -> Generation {
    Generation(Digest::of(name.as_str().as_bytes()))
}

pub(super) fn node_id(number: u32) -> NodeId {
    let alphabet = b"0123456789abcdefghjkmnpqrstvwxyz";
    let letters = (0..8)
        .map(|place| char::from(alphabet[(number >> (5 * (7 - place).min(6))) as usize % 32]));
    letters.collect::<String>().parse().expect("an ID")
}

impl Machine {
    fn new(id: NodeId) -> Self {
        let old = profile("old");
        let booted = Some(generation(&old));
        Machine {
            id,
            phase: Phase::Online,
            is_linked: true,
            passes: true,
            settings: NodeSettings { profile: old, pinned: None, booted },
            boot: 0,
            domain: None,
            work: 0,
            on_new: Boot::Good,
            booting: 0,
            is_removed: false,
            orders: Vec::new(),
            looping: false,
            reloads: 0,
            is_stale: false,
            refuses: None,
            delay: 0,
            arriving: None,
            ended: None,
            is_queued: false,
        }
    }

    pub(super) fn next(&self) -> Generation {
        self.settings.pinned.unwrap_or_else(|| match self.reloads {
            0 => generation(&self.settings.profile),
            count => generation(&profile(&format!("{}-{count}", self.settings.profile))),
        })
    }

    pub(super) fn serves(&self) -> bool {
        !self.is_removed && self.phase == Phase::Online && self.is_linked
    }

    fn obey(&mut self, order: NodeOrder) {
        match &order {
            NodeOrder::Drain { .. } if self.delay > 0 => self.arriving = Some(order.clone()),
            NodeOrder::Drain { .. } if self.work > 0 => self.phase = Phase::Draining,
            NodeOrder::Drain { .. } => self.phase = Phase::Maintenance,
            NodeOrder::Unpin => self.settings.pinned = None,
            NodeOrder::Pin { generation } => {
                let text = generation.as_ref().expect("a generation");
                self.settings.pinned = Some(text.parse().expect("a digest"));
            }
            NodeOrder::AssignProfile { profile } => self.settings.profile = profile.clone(),
            NodeOrder::Reboot => (self.is_linked, self.passes, self.booting) = (false, false, 3),
            NodeOrder::Resume => self.settle(Phase::Online),
            order => panic!("a rollout gives no {order:?}"),
        }
        self.orders.push(order);
    }

    /// Sets the phase that link and checks permit.
    fn settle(&mut self, phase: Phase) {
        self.phase = match phase {
            Phase::Online if !self.is_linked => Phase::Offline,
            Phase::Online if !self.passes => Phase::Degraded,
            phase => phase,
        };
    }

    fn tick(&mut self) {
        self.work = self.work.saturating_sub(1);
        if self.arriving.is_some() {
            self.delay -= 1;
            if let Some(order) = self.arriving.take_if(|_| self.delay == 0) {
                self.obey(order);
            }
        }
        if self.phase == Phase::Draining && self.work == 0 {
            self.phase = Phase::Maintenance;
        }
        if self.booting == 0 {
            return;
        }
        self.booting -= 1;
        if self.booting > 0 {
            return;
        }
        self.boot = self.boot.wrapping_add(1);
        let is_new = match self.settings.pinned {
            None => self.settings.profile == profile("new"),
            Some(pinned) => pinned == generation(&profile("new")),
        };
        match self.on_new {
            Boot::Silent if is_new => {}
            Boot::Loop if is_new => (self.booting, self.looping) = (2, true),
            outcome => {
                self.settings.booted = Some(self.next());
                self.looping = false;
                self.is_linked = true;
                self.passes = !is_new || outcome == Boot::Good;
            }
        }
    }
}

/// The site, and one rollout.
pub(super) struct Rack {
    pub(super) machines: BTreeMap<NodeId, Machine>,
    pub(super) rollout: Rollout,
    pub(super) records: BTreeMap<NodeId, RolloutNode>,
    pub(super) ticks: u64,
    pub(super) waits: Option<String>,
    pub(super) now: Timestamp,
    /// Outcomes of the next runs of programs, the first first; later runs pass.
    pub(super) outcomes: Vec<ProgramOutcome>,
    /// Programs that ran, and the phase of the node.
    pub(super) runs: Vec<(NodeId, ProgramPoint, Phase)>,
}

impl Inventory for BTreeMap<NodeId, Machine> {
    fn node(&self, id: NodeId) -> Option<NodePresent> {
        let machine = self.get(&id).filter(|machine| !machine.is_removed)?;
        Some(NodePresent {
            phase: machine.phase,
            is_linked: machine.is_linked,
            passes: machine.passes,
            settings: machine.settings.clone(),
            next: Some(machine.next()).filter(|_| !machine.is_stale),
            is_next_stale: machine.is_stale,
            boot: BootKey {
                session: Some(BootSessionId([machine.boot; 12])),
                kernel: String::new(),
            },
            boot_loop: machine.looping.then(|| "it boots again and again".to_owned()),
            has_work: machine.work > 0,
            is_ordering: machine.arriving.is_some(),
            is_rebooting: machine.booting > 0,
            domain: machine.domain.clone(),
            refusal: machine
                .refuses
                .clone()
                .map(|order| RefusedOrder { order, reason: "it is gone".to_owned() }),
            goal: None,
            is_program_queued: machine.is_queued,
            ended: machine.ended.clone(),
        })
    }

    fn exists(&self, id: NodeId) -> bool {
        self.get(&id).is_some_and(|machine| !machine.is_removed)
    }

    fn serves(&self, id: NodeId) -> bool {
        self.get(&id).is_some_and(Machine::serves)
    }

    fn group(&self, _: &GroupName) -> Option<Vec<NodeId>> {
        Some(self.keys().copied().collect())
    }
}

impl Rack {
    pub(super) fn new(count: u32, policy: RolloutPolicy) -> Self {
        Self::with_target(count, policy, RolloutTarget::Profile { profile: profile("new") })
    }

    pub(super) fn with_target(count: u32, policy: RolloutPolicy, target: RolloutTarget) -> Self {
        let machines: BTreeMap<NodeId, Machine> =
            (0..count).map(|number| (node_id(number), Machine::new(node_id(number)))).collect();
        let by = crate::fleet::AuditContext::new(
            crate::fleet::Principal::Operator(0),
            crate::fleet::Verb::Reboot,
            CorrelationId([0; 8]),
        );
        let rollout = Rollout {
            id: RolloutId([1; 4]),
            target,
            policy,
            by,
            started_at: Timestamp::EPOCH,
            state: RolloutState::Running,
            reason: None,
            frozen: false,
            nodes: count,
            waves: 1,
            clock_ms: 0,
            finished_at: None,
            undoes: None,
        };
        let mut rack = Rack {
            machines,
            rollout,
            records: BTreeMap::new(),
            ticks: 0,
            waits: None,
            now: Timestamp::EPOCH,
            outcomes: Vec::new(),
            runs: Vec::new(),
        };
        rack.plan();
        rack
    }

    /// Plans again, after the machines were changed.
    pub(super) fn plan(&mut self) {
        let planned = self.machines.values().map(|machine| PlannedNode {
            id: machine.id,
            name: machine.id.to_string(),
            serves: machine.serves(),
            domain: machine.domain.clone(),
        });
        let waves = waves(&self.rollout.policy, planned.collect());
        let goal = self.rollout.target.pins().then(|| generation(&profile("new")));
        self.rollout.waves = u32::try_from(waves.len()).expect("few");
        self.records = (0..)
            .zip(waves)
            .flat_map(|(number, wave)| wave.into_iter().map(move |node| (number, node)))
            .map(|(number, node)| {
                let record =
                    RolloutNode::waiting(self.rollout.id, node.id, node.name.clone(), number);
                (node.id, RolloutNode { served: node.serves, goal, ..record })
            })
            .collect();
    }

    pub(super) fn machine(&mut self, number: u32) -> &mut Machine {
        self.machines.get_mut(&node_id(number)).expect("a machine")
    }

    pub(super) fn stage(&self, number: u32) -> NodeStage {
        self.records[&node_id(number)].stage
    }

    pub(super) fn count(&self, stage: NodeStage) -> usize {
        self.records.values().filter(|record| record.stage == stage).count()
    }

    /// One step, ten seconds of it. `is_lost` loses an order: meshd is killed before it is given.
    pub(super) fn tick(&mut self, mut is_lost: impl FnMut() -> bool) {
        self.ticks += 1;
        self.rollout.clock_ms += 10_000;
        let time = StepTime { now: self.now, clock: Duration::from_millis(self.rollout.clock_ms) };
        let step = advance(&self.rollout, &self.records, &self.machines, time);
        if let Some(head) = step.head {
            self.rollout = head;
        }
        for record in step.nodes {
            self.records.insert(record.node, record);
        }
        self.waits = step.waits;
        // A step has seen these results.
        self.machines.values_mut().for_each(|machine| machine.ended = None);
        for (id, point) in step.programs {
            let machine = self.machines.get_mut(&id).expect("a machine");
            if machine.is_queued {
                continue;
            }
            self.runs.push((id, point, machine.phase));
            if !is_lost() {
                let scripted = self.outcomes.is_empty().then_some(ProgramOutcome::Passed);
                let outcome = scripted.unwrap_or_else(|| self.outcomes.remove(0));
                machine.ended = Some(EndedProgram { point, outcome });
            }
        }
        let present = self.machines.values().filter(|machine| !machine.is_removed).count();
        let mut serving = self.machines.values().filter(|machine| machine.serves()).count();
        for (id, order) in step.orders {
            if is_lost() {
                continue;
            }
            let machine = self.machines.get_mut(&id).expect("a machine");
            let served = machine.serves();
            machine.obey(order);
            match (served, machine.serves()) {
                (true, false) => {
                    serving -= 1;
                    self.check_floors(present, serving);
                }
                (false, true) => serving += 1,
                _ => {}
            }
        }
        self.machines.values_mut().for_each(Machine::tick);
    }

    /// Checks that no order took a node out of service below a floor.
    fn check_floors(&self, present: usize, serving: usize) {
        for floor in &self.rollout.policy.floors {
            let required = floor.serving.rounded_up(present);
            assert!(serving >= required, "{serving} serve, {required} must");
        }
    }

    /// Runs until the rollout ends.
    pub(super) fn run(&mut self) {
        self.run_until(|rack| rack.rollout.state.is_final());
    }

    pub(super) fn run_until(&mut self, is_over: impl Fn(&Rack) -> bool) {
        for _ in 0..100_000 {
            if is_over(self) {
                return;
            }
            self.tick(|| false);
        }
        panic!("the rollout does not end: {:?} {:?}", self.rollout, self.waits);
    }
}

/// A policy with this size of a wave and this floor of all nodes.
pub(super) fn policy(wave: Amount, floor: Option<Amount>) -> RolloutPolicy {
    let floors = floor.map(|serving| Floor { group: None, serving }).into_iter().collect();
    RolloutPolicy { wave, floors, ..RolloutPolicy::default() }
}
