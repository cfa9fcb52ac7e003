//! Placements on a rack of made-up nodes, as an operator's order does them: a central node in this
//! process decides and writes each down, while the rack fills up. Its store lies in memory, so that
//! no disk is measured.

use super::{Goal, Table, central};
use anyhow::Context as _;
use meshd_config::vm::{UnitSelector, VmRequest};
use meshd_model::{
    fleet::{CheckProvenance, Fingerprint, Node, Phase, Verb},
    work::{ApprovedSlot, SlotId, functions},
};
use meshd_proto::{
    Check, CheckStatus, CpuFacts, Facts, Hosting, MemoryFacts, NumaFacts, PciFacts, UnitFacts,
    UnitState, vm::VmSpec,
};
use meshd_store::StoreError;
use meshd_types::{Basis, BootSessionId, MacAddr, NodeId, SystemUuid, Timestamp};
use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

const NODES: u16 = 1000;
const PLACEMENTS: u16 = 10_000;
const UNITS: u8 = 8;
/// A folder in memory, where there is one.
const MEMORY: &str = "/dev/shm";
const BOOT: BootSessionId = BootSessionId([1; 12]);

fn unit(number: u8) -> UnitFacts {
    let address = format!("0000:{number:02x}:00.0");
    let function = |last: u8| PciFacts {
        address: format!("0000:{number:02x}:00.{last}"),
        vendor: "10de".to_owned(),
        device: "2335".to_owned(),
        class: "0302".to_owned(),
        numa_node: Some(u32::from(number % 2)),
        ..PciFacts::default()
    };
    UnitFacts {
        group: Some(number.into()),
        state: UnitState::Ready,
        numa_node: Some(u32::from(number % 2)),
        selected: vec![address],
        members: vec![function(0), function(1)],
        ..UnitFacts::default()
    }
}

/// A node with eight GPUs that is online, and whose checks have passed.
fn node(number: u16) -> Node {
    let [high, low] = number.to_be_bytes();
    let mac = MacAddr([2, 0, 0, 0, high, low]);
    let mut node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH);
    let numa = |id| NumaFacts { id, threads: 128, memory_kib: 512 << 20 };
    let hosting =
        Hosting { qemu: true, qemu_img: true, numa: vec![numa(0), numa(1)], ..Hosting::default() };
    node.facts = Some(Facts {
        cpu: CpuFacts { threads: 256, ..CpuFacts::default() },
        memory: MemoryFacts {
            total_kib: 1 << 30,
            available_kib: 1 << 30,
            ..MemoryFacts::default()
        },
        units: (1..=UNITS).map(unit).collect(),
        hosting: Some(Box::new(hosting)),
        ..Facts::default()
    });
    let check = |name: &str| Check {
        name: name.to_owned(),
        status: CheckStatus::Pass,
        detail: "as it should be".to_owned(),
        remediation: String::new(),
        unproven: false,
    };
    node.checks = meshd_proto::CHECKS.map(check).into();
    node.evidence = Some(CheckProvenance {
        session: BOOT,
        kernel_boot_id: String::new(),
        at: Timestamp::EPOCH,
    });
    (node.phase, node.boot) = (Phase::Online, Some(BOOT));
    node
}

/// Its slots, as an operator approved them.
fn slots(node: NodeId) -> impl Iterator<Item = ApprovedSlot> {
    (1..=UNITS).map(unit).map(move |unit| ApprovedSlot {
        id: SlotId { node, unit: unit.selected[0].parse().expect("an address") },
        functions: functions(&unit),
        disk: None,
        fabric: None,
        nic: None,
        disabled: None,
        approved_at: Timestamp::EPOCH,
    })
}

/// Four of five want a unit, so that at the end nearly none is left.
fn ask(number: u16) -> VmRequest {
    let [high, low] = number.to_be_bytes();
    // All bytes equal would be one that many machines have.
    let uuid = SystemUuid([8, 1, 8, 2, 8, 3, 8, 4, 8, 5, 8, 6, 8, 7, high, low]);
    let mut ask =
        VmRequest::new(VmSpec::unknown(format!("vm-{number}").parse().expect("a name"), uuid));
    (ask.spec.vcpus, ask.spec.memory) = (8, "64G".parse().expect("a size"));
    ask.units.each = if number.is_multiple_of(5) { Vec::new() } else { vec![UnitSelector::Any] };
    ask
}

/// 10,000 placements on 1,000 nodes, none of them double: where every slot has to be approved, and
/// where none has.
pub fn placements(table: &mut Table) -> anyhow::Result<()> {
    for policy in ["approve", "auto"] {
        let (mut took, units) = fill(policy)?;
        took.sort_unstable();
        let median = took[took.len() / 2].as_secs_f64() * 1e3;
        let worst = took[took.len() - 1].as_secs_f64() * 1e3;
        let row = format!("one of 10,000 placements on 1,000 nodes, slots = \"{policy}\"");
        table.alone(&row, "ms", median, Goal::AtMost(1.0));
        table.note(&format!(
            "the longest of them took {worst:.2} ms; {units} units were given, none twice"
        ));
    }
    Ok(())
}

/// How long each order took, and how many units were given.
fn fill(policy: &str) -> anyhow::Result<(Vec<Duration>, usize)> {
    let memory = Path::new(MEMORY);
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
    let (central, _) = central(dir.path(), &format!("vms.slots = \"{policy}\"\n"))?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(central.store().commit(|tx| {
        for node in (0..NODES).map(node) {
            slots(node.id).for_each(|slot| {
                if policy == "approve" {
                    tx.put_slot(slot)
                }
            });
            tx.put_node(node);
        }
        Ok::<_, StoreError>(())
    }))?;
    let mut took = Vec::new();
    let mut owned = BTreeSet::new();
    let by = central.env.own_audit_context(Verb::VmCreate);
    for number in 0..PLACEMENTS {
        let begun = Instant::now();
        let vm = runtime.block_on(central.vms.create_vm(ask(number), None, false, &by))?;
        took.push(begun.elapsed());
        let node = vm.node().context("it has a node")?;
        for unit in vm.assigned.units {
            anyhow::ensure!(owned.insert((node, unit.clone())), "{unit} of {node} is given twice");
        }
    }
    Ok((took, owned.len()))
}
