//! Placements on a rack of made-up nodes: how long one takes while the rack fills up.

use super::{Goal, Table};
use meshd::{
    config::vm::{UnitWish, VmAsk},
    id::{Basis, MacAddr, NodeId, SystemUuid, Timestamp},
    wire::{PciFacts, UnitFacts, UnitState, vm::VmSpec},
    work::{Held, Host, Place, Runs, Vm, place},
};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const NODES: u16 = 1000;
const PLACEMENTS: u16 = 10_000;
const UNITS: u8 = 8;

struct Simulated {
    node: NodeId,
    units: Vec<UnitFacts>,
    held: Held,
}

impl Simulated {
    fn new(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        let unit = |number: u8| {
            let address = format!("0000:{number:02x}:00.0");
            let members = vec![PciFacts { address: address.clone(), vendor: "10de".into(), ..PciFacts::default() }];
            UnitFacts { state: UnitState::Ready, selected: vec![address], members, ..UnitFacts::default() }
        };
        let node = Basis::Mac(MacAddr([2, 0, 0, 0, high, low])).node_id();
        Simulated { node, units: (1..=UNITS).map(unit).collect(), held: Held::default() }
    }

    fn host(&self) -> Host<'_> {
        Host {
            node: self.node,
            unready: None,
            runs: Runs::Kvm,
            threads: 256,
            memory: 1 << 40,
            hugepages: 0,
            units: &self.units,
            disks: &[],
            pci: &[],
            held: &self.held,
            barred: Vec::new(),
        }
    }
}

/// Four of five want a unit, so that at the end nearly none is left.
fn ask(number: u16) -> VmAsk {
    let [high, low] = number.to_be_bytes();
    let uuid = SystemUuid([8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, high, low]);
    let mut ask = VmAsk::new(VmSpec::unknown(format!("vm-{number}").parse().expect("a name"), uuid));
    (ask.spec.vcpus, ask.spec.memory) = (8, "64G".parse().expect("a size"));
    ask.units.each = if number.is_multiple_of(5) { Vec::new() } else { vec![UnitWish::Any] };
    ask
}

/// 10,000 placements on 1,000 nodes, none of them double.
pub fn placements(table: &mut Table) {
    let mut rack: Vec<Simulated> = (0..NODES).map(Simulated::new).collect();
    let (mut took, mut owned) = (Vec::<Duration>::new(), BTreeSet::new());
    for number in 0..PLACEMENTS {
        let ask = ask(number);
        let begun = Instant::now();
        let fit = place(&ask, None, rack.iter().map(Simulated::host)).expect("there is room");
        took.push(begun.elapsed());
        for unit in &fit.units {
            assert!(owned.insert((fit.node, unit.clone())), "{unit} of {} is given twice", fit.node);
        }
        let mut vm = Vm::new(ask, None, Timestamp::EPOCH);
        vm.settle(Place { node: fit.node, since: Timestamp::EPOCH, session: None }, fit.units);
        let host = rack.iter_mut().find(|host| host.node == fit.node).expect("one of them");
        host.held.add(&vm);
    }
    took.sort_unstable();
    let (median, worst) = (took[took.len() / 2].as_secs_f64() * 1e3, took[took.len() - 1].as_secs_f64() * 1e3);
    table.alone("one of 10,000 placements on 1,000 nodes", "ms", median, Goal::AtMost(1.0));
    table.note(&format!("the longest of them took {worst:.2} ms; {} units were given, none twice", owned.len()));
}
