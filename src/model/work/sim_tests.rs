//! Whatever is ordered and told, in whatever order: no unit has two owners, and what was released is free.

use super::*;
use meshd_config::vm::{OnNodeLoss, UnitSelector, VmRequest};
use meshd_proto::{
    PciFacts, UnitFacts, UnitState,
    vm::{ReportedVmState, VmReport, VmSpec},
};
use meshd_types::{Basis, BootSessionId, MacAddr, NodeId, SystemUuid, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const GIB: u64 = 1 << 30;

fn node(number: u16) -> NodeId {
    let [high, low] = number.to_be_bytes();
    Basis::Mac(MacAddr([2, 0, 0, 0, high, low])).node_id()
}

fn units(count: u8) -> Vec<UnitFacts> {
    let unit = |number| {
        let address = format!("0000:{number:02x}:00.0");
        let members = vec![PciFacts { address: address.clone(), vendor: "10de".into(), ..PciFacts::default() }];
        UnitFacts { state: UnitState::Ready, selected: vec![address], members, ..UnitFacts::default() }
    };
    (1..=count).map(unit).collect()
}

fn request(number: u16, wishes: usize) -> VmRequest {
    let [high, low] = number.to_be_bytes();
    let uuid = SystemUuid([8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, high, low]);
    let mut request = VmRequest::new(VmSpec::unknown(format!("vm-{number}").parse().expect("a name"), uuid));
    (request.spec.vcpus, request.spec.memory) = (2, "1G".parse().expect("a size"));
    request.units.each = vec![UnitSelector::Any; wishes];
    request
}

/// A rack without meshd around it.
struct Rack {
    units: Vec<UnitFacts>,
    nodes: Vec<NodeId>,
    held: BTreeMap<NodeId, Allocations>,
    vms: BTreeMap<SystemUuid, Vm>,
    boot: u8,
}

impl Rack {
    fn new(nodes: u16, units_of_each: u8) -> Self {
        let nodes: Vec<NodeId> = (0..nodes).map(node).collect();
        let held = nodes.iter().map(|node| (*node, Allocations::default())).collect();
        Rack { units: units(units_of_each), nodes, held, vms: BTreeMap::new(), boot: 1 }
    }

    fn create(&mut self, request: VmRequest) -> bool {
        let hosts = self.nodes.iter().map(|node| CandidateNode {
            node: *node,
            unready: None,
            runs: VmSupport::Kvm,
            hosting: None,
            overcommit: 4,
            threads: 64,
            memory: 64 * GIB,
            hugepages: 0,
            units: &self.units,
            disks: &[],
            pci: &[],
            allocations: &self.held[node],
            closed: 0,
            unassignable_units: Vec::new(),
            slots: Vec::new(),
        });
        let Ok(fit) = place(&request, None, hosts) else { return false };
        let mut vm = Vm::new(request, None, Timestamp::EPOCH);
        vm.run();
        let session = Some(BootSessionId([self.boot; 12]));
        vm.assign(Placement { node: fit.node, since: Timestamp::EPOCH, session }, fit.units, fit.disks);
        self.put(vm);
        true
    }

    fn put(&mut self, vm: Vm) {
        for held in self.held.values_mut() {
            held.remove(vm.uuid());
        }
        if let Some(held) = vm.node().and_then(|node| self.held.get_mut(&node)) {
            held.add(&vm);
        }
        self.vms.insert(vm.uuid(), vm);
    }

    fn gone(&mut self, uuid: SystemUuid) {
        self.vms.remove(&uuid);
        for held in self.held.values_mut() {
            held.remove(uuid);
        }
    }

    /// Each unit of each node has one owner at most, and what is held is what the records say.
    fn check(&self) {
        let mut owned = BTreeSet::new();
        for vm in self.vms.values() {
            let Some(node) = vm.node() else { continue };
            for unit in &vm.request.spec.units {
                assert!(owned.insert((node, unit.clone())), "{unit} of {node} has two owners");
                assert_eq!(self.held[&node].unit([unit.as_str()].into_iter()), Some(vm.uuid()));
            }
        }
        let counted: usize = self.held.values().map(Allocations::unit_count).sum();
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
                    request.on_node_loss = if number % 2 == 0 { OnNodeLoss::Restart } else { OnNodeLoss::Wait };
                    self.create(request);
                }
            }
            Step::Report { number, state } => self.edit(uuid(number), |vm| {
                let name = vm.name().clone();
                vm.apply_report(VmReport::new(vm.uuid(), name, state), at);
            }),
            Step::Missing { number } => self.edit(uuid(number), |vm| drop(vm.missing(true, at))),
            Step::Reboot { node } => {
                self.boot += 1;
                let (node, session) = (self.nodes[node], BootSessionId([self.boot; 12]));
                let own: Vec<_> = self.vms.values().filter(|vm| vm.node() == Some(node)).map(Vm::uuid).collect();
                own.into_iter().for_each(|uuid| self.edit(uuid, |vm| drop(vm.rebooted(session, true, at))));
            }
            Step::Delete { number } => self.edit(uuid(number), |vm| vm.desired_state = VmDesiredState::Release),
            Step::Released { number } => {
                let is_over = self.vms.get(&uuid(number)).is_some_and(|vm| vm.desired_state == VmDesiredState::Release);
                if is_over {
                    self.gone(uuid(number));
                }
            }
            Step::Lost { node } => {
                let node = self.nodes[node];
                let lost = self.vms.values().filter(|vm| vm.node() == Some(node) && vm.may_move());
                let lost: Vec<_> = lost.map(Vm::uuid).collect();
                lost.into_iter().for_each(|uuid| self.edit(uuid, |vm| vm.unplace("lost".to_owned())));
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
        prop_assert!(rack.vms.is_empty() && rack.held.values().all(Allocations::is_empty));
    }
}
