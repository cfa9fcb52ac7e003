//! In any order of requests and reports, no unit has two owners, and released units are free.

use super::{
    vm::placement::fixtures::{candidate, choose_node, node_id, request, unit},
    *,
};
use meshd_config::vm::{OnNodeLoss, VmRequest};
use meshd_proto::{
    UnitFacts,
    vm::{ReportedVmState, VmReport},
};
use meshd_types::{BootSessionId, NodeId, SystemUuid, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The records and allocations of a rack.
struct Rack {
    units: Vec<UnitFacts>,
    nodes: Vec<NodeId>,
    allocations: BTreeMap<NodeId, Allocations>,
    vms: BTreeMap<SystemUuid, Vm>,
    boot: u8,
}

impl Rack {
    fn new(nodes: u16, units_of_each: u8) -> Self {
        let nodes: Vec<NodeId> = (0..nodes).map(node_id).collect();
        let allocations = nodes.iter().map(|node| (*node, Allocations::default())).collect();
        let units = (1..=units_of_each).map(|bus| unit(bus, None)).collect();
        Rack { units, nodes, allocations, vms: BTreeMap::new(), boot: 1 }
    }

    fn create(&mut self, request: VmRequest) -> bool {
        let hosts =
            self.nodes.iter().map(|node| candidate(*node, &self.units, &self.allocations[node]));
        let Ok(fit) = choose_node(&request, None, hosts) else { return false };
        let mut vm = Vm::new(request, None, Timestamp::EPOCH);
        vm.run();
        let session = Some(BootSessionId([self.boot; 12]));
        vm.assign(Placement { node: fit.node, since: Timestamp::EPOCH, session }, fit.assigned);
        self.put(vm);
        true
    }

    fn put(&mut self, vm: Vm) {
        for allocations in self.allocations.values_mut() {
            allocations.remove(vm.uuid());
        }
        if let Some(allocations) = vm.node().and_then(|node| self.allocations.get_mut(&node)) {
            allocations.add(&vm);
        }
        self.vms.insert(vm.uuid(), vm);
    }

    fn gone(&mut self, uuid: SystemUuid) {
        self.vms.remove(&uuid);
        for allocations in self.allocations.values_mut() {
            allocations.remove(uuid);
        }
    }

    /// Checks that each unit of each node has at most one owner, and that the allocations equal the
    /// records.
    fn check(&self) {
        let mut owned = BTreeSet::new();
        for vm in self.vms.values() {
            let Some(node) = vm.node() else { continue };
            for unit in &vm.assigned.units {
                assert!(owned.insert((node, unit.clone())), "{unit} of {node} has two owners");
                assert_eq!(
                    self.allocations[&node].unit([unit.as_str()].into_iter()),
                    Some(vm.uuid())
                );
            }
        }
        let counted: usize = self.allocations.values().map(Allocations::unit_count).sum();
        assert_eq!(counted, owned.len());
    }
}

#[test]
fn placements_use_each_unit_of_fifty_nodes_once() {
    let mut rack = Rack::new(50, 8);
    let placed = (0..600).filter(|number| rack.create(request(*number, 1))).count();
    assert_eq!(placed, 400, "every unit, once");
    rack.check();
}

#[derive(Clone, Debug)]
enum Step {
    Create { number: u16, wishes: usize },
    Report { number: u16, state: ReportedVmState },
    Missing { number: u16 },
    Reboot { node: usize },
    Delete { number: u16 },
    Released { number: u16 },
    Lost { node: usize },
}

fn step() -> impl Strategy<Value = Step> {
    use ReportedVmState::*;
    let number = 0..12u16;
    let state = prop::sample::select(vec![Starting, Running, Stopping, Waiting, Stopped, Failed]);
    prop_oneof![
        3 => (number.clone(), 0..3usize).prop_map(|(number, wishes)| Step::Create { number, wishes }),
        3 => (number.clone(), state).prop_map(|(number, state)| Step::Report { number, state }),
        1 => number.clone().prop_map(|number| Step::Missing { number }),
        1 => (0..3usize).prop_map(|node| Step::Reboot { node }),
        2 => number.clone().prop_map(|number| Step::Delete { number }),
        2 => number.prop_map(|number| Step::Released { number }),
        1 => (0..3usize).prop_map(|node| Step::Lost { node }),
    ]
}

impl Rack {
    fn take(&mut self, step: &Step) {
        let uuid = |number: u16| request(number, 0).spec.uuid;
        let at = Timestamp::EPOCH;
        match *step {
            Step::Create { number, wishes } => {
                if !self.vms.contains_key(&uuid(number)) {
                    let mut request = request(number, wishes);
                    request.on_node_loss =
                        if number % 2 == 0 { OnNodeLoss::Restart } else { OnNodeLoss::Wait };
                    self.create(request);
                }
            }
            Step::Report { number, state } => self.edit(uuid(number), |vm| {
                let name = vm.name().clone();
                vm.apply_report(VmReport::new(vm.uuid(), name, state), at);
            }),
            Step::Missing { number } => {
                self.edit(uuid(number), |vm| drop(vm.apply_absence(true, at)))
            }
            Step::Reboot { node } => {
                self.boot += 1;
                let node = self.nodes[node];
                let session = BootSessionId([self.boot; 12]);
                let own: Vec<_> =
                    self.vms.values().filter(|vm| vm.node() == Some(node)).map(Vm::uuid).collect();
                own.into_iter().for_each(|uuid| {
                    self.edit(uuid, |vm| drop(vm.apply_reboot(session, true, at)))
                });
            }
            Step::Delete { number } => {
                self.edit(uuid(number), |vm| vm.desired_state = VmDesiredState::Release)
            }
            Step::Released { number } => {
                let is_over = self
                    .vms
                    .get(&uuid(number))
                    .is_some_and(|vm| vm.desired_state == VmDesiredState::Release);
                if is_over {
                    self.gone(uuid(number));
                }
            }
            Step::Lost { node } => {
                let node = self.nodes[node];
                let lost = self.vms.values().filter(|vm| vm.node() == Some(node) && vm.may_move());
                let lost: Vec<_> = lost.map(Vm::uuid).collect();
                lost.into_iter()
                    .for_each(|uuid| self.edit(uuid, |vm| vm.unplace("lost".to_owned())));
            }
        }
    }

    fn edit(&mut self, uuid: SystemUuid, change: impl FnOnce(&mut Vm)) {
        if let Some(mut vm) = self.vms.get(&uuid).cloned() {
            change(&mut vm);
            self.put(vm);
        }
    }
}

proptest! {
    #[test]
    fn unit_has_one_owner_and_is_freed_on_release_in_any_interleaving(steps in prop::collection::vec(step(), 0..60)) {
        let mut rack = Rack::new(3, 2);
        for step in &steps {
            rack.take(step);
            rack.check();
        }
        for number in 0..12 {
            rack.take(&Step::Delete { number });
            rack.take(&Step::Released { number });
        }
        prop_assert!(rack.vms.is_empty() && rack.allocations.values().all(Allocations::is_empty));
    }
}
