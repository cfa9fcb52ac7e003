//! VMs as the central node orders them: records, placement, what nodes tell, and what becomes of
//! them when their node goes.

mod claimed;
mod nics;
pub(crate) mod containers;
mod drained;
mod guarded;
mod lost;
mod moved;
mod ordered;
mod policy;
mod slots;
mod started;
mod tasks;
mod commands;

use crate::boot::sessions::rig::{Machine, Rig, ordered};
use meshd_central::{LinkCommand, VmError};
use meshd_config::vm::{VmRequest, VmTemplates, parse};
use meshd_model::{
    fleet::{Stage, Verb},
    work::{Vm, VmPhase},
};
use meshd_proto::{
    Facts, FromAgent, Hello, NodeReport, SectionReport, VERSION,
    task::TaskUpdate,
    vm::{ReportedVmState, VmReport, VmUpdate},
};
use meshd_trust::Peer;
use meshd_types::{NodeId, SystemUuid};
use serde_json::json;
use std::path::Path;
use tokio::sync::mpsc;

/// What its only unit is called.
/// Longer than the silence after which a node may be fenced.
pub const SILENT: std::time::Duration = std::time::Duration::from_secs(25);
pub const UNIT: &str = "0000:41:00.0";

/// A vm.toml: two processors, 1 GiB, and what else is said.
pub fn ask(number: u8, more: &str) -> VmRequest {
    let text = format!("name = \"vm-{number}\"\nvcpus = 2\nmemory = \"1G\"\n{more}\n");
    let uuid = SystemUuid([0x77, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, number]);
    let vm = parse(&text, Path::new("vm.toml")).unwrap_or_else(|faults| panic!("{faults}"));
    vm.complete(&VmTemplates::new(), uuid).unwrap()
}

/// What a machine with 8 threads, 8 GiB and one unit tells.
pub fn facts(unit: &str) -> Facts {
    let member = |function: &str| json!({ "address": function, "vendor": "10de", "device": "2335", "class": "0302" });
    let unit = json!({ "group": 4, "state": unit, "selected": [UNIT], "members": [member(UNIT)] });
    let facts = json!({
        "cpu": { "threads": 8 },
        "memory": { "total_kib": 8 << 20, "available_kib": 7 << 20 },
        "units": [unit],
    });
    serde_json::from_value(facts).unwrap()
}

/// Its checks pass, and `/dev/kvm` opens.
pub async fn ready(machine: &Machine<'_>) {
    let checks = json!({ "kind": "checks", "checks": [{ "name": "kvm", "status": "PASS", "detail": "it opens" }] });
    assert!(machine.say(serde_json::from_value(checks).unwrap()).await);
}

/// A node that runs VMs.
pub async fn host(rig: &Rig, number: u8) -> Machine<'_> {
    let mut machine = Machine::new(rig, number);
    machine.facts = facts("ready");
    machine.boot(Stage::Online).await;
    ready(&machine).await;
    machine
}

pub async fn create(rig: &Rig, ask: VmRequest, node: Option<NodeId>) -> Result<Vm, VmError> {
    rig.central.vms.create_vm(ask, node, true, &ordered(Verb::VmCreate)).await
}

pub fn record(rig: &Rig, vm: &Vm) -> Option<Vm> {
    rig.central.store().read(|model| model.vm(vm.uuid()).cloned())
}

pub fn life(rig: &Rig, vm: &Vm) -> VmPhase {
    record(rig, vm).expect("it is on record").phase(true)
}

/// A report of the section of VMs.
pub fn vms_report(update: VmUpdate) -> FromAgent {
    FromAgent::Report(NodeReport { observed: 0, state: SectionReport::Vms(update) })
}

/// A report of the section of tasks.
pub fn tasks_report(update: TaskUpdate) -> FromAgent {
    FromAgent::Report(NodeReport { observed: 0, state: SectionReport::Tasks(update) })
}

/// The node tells of these, and of no others.
pub async fn report_vms(machine: &Machine<'_>, vms: &[(&Vm, ReportedVmState)]) {
    let report =
        |(vm, state): &(&Vm, ReportedVmState)| VmReport::new(vm.uuid(), vm.name().clone(), *state);
    let vms = vms.iter().map(report).collect();
    assert!(machine.say(vms_report(VmUpdate::All { vms })).await);
}

pub async fn released(machine: &Machine<'_>, vm: &Vm) {
    assert!(machine.say(vms_report(VmUpdate::Released { uuid: vm.uuid() })).await);
}

pub fn code<E: std::fmt::Display + meshd_types::Hint>(error: &E) -> String {
    format!("{error}; {}", error.hint().unwrap_or_default())
}

/// Another link of a machine, whose orders are read by the test and by nobody else.
pub async fn read_orders(machine: &mut Machine<'_>) -> mpsc::Receiver<LinkCommand> {
    let node = machine.id();
    let rig = machine.rig;
    let newest = rig.node(node).certificates.last().cloned().expect("a certificate");
    let peer = Peer { node, serial: newest.serial, key: newest.key, expired: false };
    let hello =
        Hello { version: VERSION, node, session: machine.session(), facts: machine.facts.clone() };
    let (commands, inbox) = mpsc::channel(8);
    machine.link = Some(
        rig.central.agents.link_up(&peer, hello, machine.address.into(), commands).await.unwrap().0,
    );
    inbox
}
