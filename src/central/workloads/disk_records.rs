//! Audit records of disks: each image that is written, each disk that is given as it is, each wipe, with the disk's identity and its
//! previous content.

use crate::workloads::vms::story;
use meshd_model::{
    fleet::{AuditContext, EventKind, Principal, Verb},
    work::Vm,
};
use meshd_proto::{DiskFacts, vm::VmReport};
use meshd_store::Tx;
use meshd_types::{CorrelationId, NodeId, Timestamp, fail};

/// Maximum number of reported contents of a disk, and of characters of each.
const MAX_WORDS: usize = 16;
const MAX_WORD: usize = 64;

/// Records disks that became a VM's own by this report; `vm` is the record before it.
pub(crate) fn given(tx: &mut Tx<'_>, vm: &Vm, report: &VmReport, node: NodeId, order: CorrelationId, now: Timestamp) {
    if !fail::defends("disk-records") {
        return;
    }
    let by = AuditContext::new(Principal::Node, Verb::DiskWrite, order);
    for volume in vm.request.spec.volumes.iter().filter(|volume| !vm.disks.contains_key(&volume.name)) {
        let Some(disk) = volume.source.disk().and_then(|disk| disk.identity()) else { continue };
        if !report.disks.contains_key(&volume.name) {
            continue;
        }
        let before = held(report.contents.get(&volume.name).map_or(&[], Vec::as_slice));
        let detail = match volume.source.digest() {
            Some(digest) => format!("image {} is written onto disk {disk}, which held {before}", digest.short()),
            None => format!("gets disk {disk} as it is, which held {before}"),
        };
        tx.event(story(vm, node, EventKind::DiskWritten, &by, detail, now));
    }
}

/// Records disks that a node wiped before it released a VM; `vm` is the record before it.
pub(crate) fn wiped(tx: &mut Tx<'_>, vm: &Vm, node: NodeId, order: CorrelationId, now: Timestamp) {
    let by = AuditContext::new(Principal::Node, Verb::DiskWipe, order);
    let facts = tx.node(node).and_then(|node| node.facts.clone());
    for disk in vm.wiped_disks(node) {
        let known = facts.as_ref().and_then(|facts| DiskFacts::called(&facts.disks, disk.as_str()));
        let before = known.map_or_else(|| "what is not known".to_owned(), |known| held(&known.signatures));
        let detail = format!("disk {disk} is wiped; it was last seen with {before}");
        tx.event(story(vm, node, EventKind::DiskWiped, &by, detail, now));
    }
}

/// Limits the reported contents.
fn held(words: &[String]) -> String {
    let word = |word: &String| word.chars().filter(|c| !c.is_control()).take(MAX_WORD).collect::<String>();
    let words: Vec<String> = words.iter().take(MAX_WORDS).map(word).collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}
