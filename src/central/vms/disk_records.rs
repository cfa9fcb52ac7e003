//! Audit records of disks: each written image, each disk assigned unchanged, and each wipe, with
//! the disk's identity and previous content.

use crate::vms::lifecycle::vm_event;
use meshd_model::{
    fleet::{AuditContext, EventKind, Principal, Verb},
    work::Vm,
};
use meshd_proto::{DiskFacts, vm::VmReport};
use meshd_store::Tx;
use meshd_types::{CorrelationId, NodeId, Timestamp, failpoint};

/// Maximum number of reported contents of a disk, and of characters of each.
const MAX_CONTENTS: usize = 16;
const MAX_CONTENT_CHARS: usize = 64;

/// Records disks that this report assigns to a VM. `vm` is the record before the report.
pub(crate) fn record_assigned_disks(
    tx: &mut Tx<'_>,
    vm: &Vm,
    report: &VmReport,
    node: NodeId,
    order: CorrelationId,
    now: Timestamp,
) {
    if !failpoint::defends("disk-records") {
        return;
    }
    let audit = AuditContext::new(Principal::Node, Verb::DiskWrite, order);
    for volume in vm.volumes().filter(|volume| !vm.disks.contains_key(&volume.name)) {
        let Some(disk) = volume.source.disk().and_then(|disk| disk.identity()) else { continue };
        if !report.disks.contains_key(&volume.name) {
            continue;
        }
        let before =
            describe_contents(report.contents.get(&volume.name).map_or(&[], Vec::as_slice));
        let detail = match volume.source.digest() {
            Some(digest) => format!(
                "image {} is written onto disk {disk}, which contained {before}",
                digest.short()
            ),
            None => format!("gets disk {disk} unchanged, which contained {before}"),
        };
        tx.event(vm_event(vm, node, EventKind::DiskWritten, &audit, detail, now));
    }
}

/// Records disks that a node wiped before it released a VM. `vm` is the record before the release.
pub(crate) fn record_wiped_disks(
    tx: &mut Tx<'_>,
    vm: &Vm,
    node: NodeId,
    order: CorrelationId,
    now: Timestamp,
) {
    let audit = AuditContext::new(Principal::Node, Verb::DiskWipe, order);
    let facts = tx.node(node).and_then(|node| node.facts.clone());
    for disk in vm.wiped_disks(node) {
        let disk_facts =
            facts.as_ref().and_then(|facts| DiskFacts::by_identity(&facts.disks, disk.as_str()));
        let before = disk_facts.map_or_else(
            || "unknown contents".to_owned(),
            |disk_facts| describe_contents(&disk_facts.signatures),
        );
        let detail = format!("disk {disk} is wiped; it was last seen with {before}");
        tx.event(vm_event(vm, node, EventKind::DiskWiped, &audit, detail, now));
    }
}

/// Lists the reported contents, within limits.
fn describe_contents(contents: &[String]) -> String {
    let limited = |limited: &String| {
        limited.chars().filter(|c| !c.is_control()).take(MAX_CONTENT_CHARS).collect::<String>()
    };
    let contents: Vec<String> = contents.iter().take(MAX_CONTENTS).map(limited).collect();
    if contents.is_empty() { "nothing".to_owned() } else { contents.join(", ") }
}
