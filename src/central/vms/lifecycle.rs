//! Creates, starts, stops and deletes VMs.
//!
//! Each order changes the record, and the node receives the complete desired state. The transaction
//! that records a VM also places it, so that two orders never get the same unit.

use crate::vms::{
    MAX_SITE_VMS, Vms,
    error::VmError,
    nics::{assign_nic_addresses, check_slot_nics, is_private_address_taken},
    placement_candidates::{add_slots, candidate_nodes, slot_disks},
    start_checks::{check_startable, may_run},
};
use crate::{links::SpecPart, reported_work::UnknownWork};
use meshd_config::{
    Site,
    vm::{NewVm, VmRequest},
};
use meshd_model::{
    fleet::{AuditContext, Cause, Event, EventKind},
    work::{Placement, Vm, VmDesiredState, place},
};
use meshd_proto::vm::{MAX_VMS, VmEntry, VmTarget};
use meshd_store::{Model, Tx};
use meshd_types::{Digest, NodeId, PciAddress, SystemUuid, Timestamp, VmName};
use std::collections::BTreeSet;

/// An order about a VM on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmVerb {
    /// Start it; a running one is left alone.
    Start,
    Stop,
    Restart,
}

impl Vms {
    /// Collects a view of each VM on record, by UUID.
    pub fn collect_vms<R>(&self, view: impl FnMut(&Vm) -> R) -> Vec<R> {
        self.env.store.read(|model| model.vms().map(view).collect())
    }

    /// Returns a copy of the record of a VM; `None` if there is no such record.
    pub fn vm(&self, uuid: SystemUuid) -> Option<Vm> {
        self.env.store.read(|model| model.vm(uuid).cloned())
    }

    /// Completes a new VM with its template of the site.
    pub fn complete_vm(&self, vm: NewVm) -> Result<VmRequest, VmError> {
        let fresh = SystemUuid::from_random(self.env.random());
        vm.complete(&self.env.site().vms.rules.templates, fresh).map_err(VmError::Unsound)
    }

    /// Records a VM and places it, or does neither.
    pub async fn create_vm(
        &self,
        mut request: VmRequest,
        only: Option<NodeId>,
        start: bool,
        audit: &AuditContext,
    ) -> Result<Vm, VmError> {
        let snapshot = self.env.snapshot();
        let now = self.env.now();
        // No volume may be removed between its check and the record that names it.
        let _stay = self.volume_use.read().await;
        let files: BTreeSet<Digest> = request.spec.files().map(|(_, digest)| digest).collect();
        if !files.is_empty() {
            self.declare_volumes_with(files).await;
        }
        let committed = self.env.store.commit(|tx| {
            check_new(tx.before(), &request)?;
            self.check_not_elsewhere(tx.before(), request.spec.uuid, audit.forced)?;
            self.check_files(&request.spec)?;
            assign_nic_addresses(tx.before(), &snapshot, &mut request.spec, now)
                .map_err(VmError::Nics)?;
            let mut vm = Vm::new(request, only, now);
            if start {
                vm.run();
            }
            let node = self.choose_node_in(tx, &mut vm, &snapshot.site, now)?;
            tx.event(vm_event(
                &vm,
                node,
                EventKind::VmCreated,
                audit,
                describe_placement(&vm),
                now,
            ));
            tx.put_vm(vm.clone());
            Ok::<_, VmError>(vm)
        });
        let vm = committed.await?;
        meshd_types::failpoint::point("vm-created");
        self.notify(&vm);
        Ok(vm)
    }

    /// Starts, stops or restarts a VM.
    pub async fn order_vm(
        &self,
        uuid: SystemUuid,
        verb: VmVerb,
        audit: &AuditContext,
    ) -> Result<Vm, VmError> {
        let site = self.env.site();
        let now = self.env.now();
        let recorded = self.env.store.commit(|tx| {
            let mut vm = existing_vm(tx, uuid)?;
            if vm.desired_state == VmDesiredState::Release {
                return Err(VmError::Releasing(vm.name().clone()));
            }
            let is_running = vm.desired_state == VmDesiredState::Run
                && vm.placement.is_some()
                && vm.may_work()
                && !vm.is_paused();
            let what = match verb {
                VmVerb::Start if is_running => return Ok(vm),
                VmVerb::Start => "start ordered",
                VmVerb::Restart => "restart ordered",
                VmVerb::Stop => "shutdown ordered",
            };
            let mut detail = what.to_owned();
            if verb == VmVerb::Stop {
                vm.stop(None);
            } else {
                self.check_not_elsewhere(tx.before(), uuid, false)?;
                check_startable(tx.before(), &site, &vm)?;
                vm.start_by_operator();
                if vm.placement.is_none() {
                    self.check_files(&vm.request.spec)?;
                    self.choose_node_in(tx, &mut vm, &site, now)?;
                    detail = format!("{what}, {}", describe_placement(&vm));
                }
            }
            let node = vm.node();
            tx.event(vm_event(&vm, node, EventKind::VmOrdered, audit, detail, now));
            tx.put_vm(vm.clone());
            Ok::<_, VmError>(vm)
        });
        let vm = recorded.await?;
        self.notify(&vm);
        Ok(vm)
    }

    /// Deletes a VM: its node releases all resources, then the record is removed. With `node`,
    /// releases what that node has of a VM that has no record or is placed elsewhere.
    ///
    /// The returned VM has no node if nothing is left to release. A forced deletion does not wipe
    /// disks.
    pub async fn delete_vm(
        &self,
        uuid: SystemUuid,
        node: Option<NodeId>,
        audit: &AuditContext,
    ) -> Result<Vm, VmError> {
        let now = self.env.now();
        let orphan = node.and_then(|node| self.orphan_vm(node, uuid));
        let stored = self.env.store.commit(|tx| {
            let mut vm = match (tx.vm(uuid), orphan, node) {
                (Some(vm), ..) => vm.clone(),
                (None, Some(request), Some(node)) => Vm::unknown(request, node, now),
                (None, ..) => return Err(VmError::None(uuid.to_string())),
            };
            let is_admitted =
                |node: &NodeId| tx.node(*node).is_some_and(|node| node.phase.is_admitted());
            match node.filter(|node| vm.node() != Some(*node)) {
                Some(node) if !is_admitted(&node) => return Err(VmError::NoNode(node)),
                // The part on another node; the record stays.
                Some(node) => drop(vm.stray_nodes.insert(node)),
                None => (vm.desired_state, vm.obstacle) = (VmDesiredState::Release, None),
            }
            if audit.forced {
                vm.cancel_wipes();
            }
            let of = node.or(vm.node());
            if vm.placement.is_none() && vm.stray_nodes.is_empty() {
                tx.event(vm_event(
                    &vm,
                    of,
                    EventKind::VmReleased,
                    audit,
                    "no node had resources of it",
                    now,
                ));
                tx.remove_vm(uuid);
            } else {
                tx.event(vm_event(
                    &vm,
                    of,
                    EventKind::VmOrdered,
                    audit,
                    "release ordered".to_owned(),
                    now,
                ));
                tx.put_vm(vm.clone());
            }
            Ok::<_, VmError>(vm)
        });
        let vm = stored.await?;
        meshd_types::failpoint::point("vm-deleted");
        self.notify(&vm);
        Ok(vm)
    }

    /// Finds a VM by UUID, else by name.
    pub fn resolve_vm(&self, text: &str) -> Result<SystemUuid, VmError> {
        let not_found = || VmError::None(text.chars().take(80).collect());
        if let Ok(uuid) = text.parse() {
            return Ok(uuid);
        }
        let name: VmName = text.parse().map_err(|_| not_found())?;
        self.env.store.read(|model| model.vm_named(&name).map(Vm::uuid)).ok_or_else(not_found)
    }

    /// Chooses the node of a VM, and assigns units. At most once in a transaction: candidates are
    /// read from the state before it, so a second VM would not see the first.
    pub(crate) fn choose_node_in(
        &self,
        tx: &Tx<'_>,
        vm: &mut Vm,
        site: &Site,
        now: Timestamp,
    ) -> Result<NodeId, VmError> {
        let model = tx.before();
        let unknown = self.reported.nodes_with_unknown_work();
        let candidates = candidate_nodes(model, site).map(|mut candidate| {
            if let Some(unknown) = unknown.get(&candidate.node) {
                let reason = match unknown {
                    UnknownWork::NotOnRecord => "has_work_not_on_record",
                    UnknownWork::NotReported => "has_not_reported_its_work",
                };
                candidate.unready = candidate.unready.or(Some(reason));
            } else if vm.refused.contains_key(&candidate.node) {
                candidate.unready = candidate.unready.or(Some("refused_it"));
            } else if vm.pending_wipes.contains_key(&candidate.node) {
                candidate.unready = candidate.unready.or(Some("has_to_wipe_its_disks_first"));
            } else if is_private_address_taken(model, candidate.node, vm) {
                // An address is unique in the private network of a node.
                candidate.unready = candidate.unready.or(Some("address_taken"));
            }
            candidate
        });
        let fit = place(&vm.request, vm.required_node, candidates, |candidate| {
            add_slots(model, site, candidate)
        })
        .map_err(VmError::NoPlacement)?;
        let session = model.node(fit.node).and_then(|node| node.boot);
        vm.assign(Placement { node: fit.node, since: now, session }, fit.assigned);
        check_slot_nics(model, &self.env.snapshot(), vm, now).map_err(VmError::Nics)?;
        // Assigned units may violate rules between fields.
        let faults = vm.spec().faults();
        if faults.is_empty() { Ok(fit.node) } else { Err(VmError::Unsound(faults)) }
    }

    /// Sends the desired state to the affected nodes; a node without link receives it at its next
    /// welcome.
    pub(crate) fn notify(&self, vm: &Vm) {
        for node in vm.node().into_iter().chain(vm.stray_nodes.iter().copied()) {
            self.links.notify_node(node, SpecPart::Vm(vm.uuid()));
        }
    }
}

/// The desired state of one VM, or of all VMs, for a node. It is read when it is sent, so that the
/// newest state is sent last. Orders to run are sent only while the checks of the node's present
/// boot pass.
pub fn vm_entries(model: &Model, node: NodeId, vm: Option<SystemUuid>) -> Vec<VmEntry> {
    let may_run = may_run(model, node);
    let is_due = |entry: &VmEntry| may_run || !matches!(entry.desired_state, VmTarget::Run { .. });
    let add_slot_disks = |mut entry: VmEntry| {
        if let VmTarget::Run { slots, .. } = &mut entry.desired_state {
            *slots = slot_disks(model, node);
        }
        entry
    };
    let due = |vm: &Vm| vm.entry_for(node).filter(is_due).map(add_slot_disks);
    match vm {
        Some(uuid) => model.vm(uuid).and_then(due).into_iter().collect(),
        None => {
            let strays = model.stray_vms().filter(|vm| vm.stray_nodes.contains(&node));
            let all = model.vms_of(node).chain(strays);
            all.filter_map(due).take(MAX_VMS).collect()
        }
    }
}

/// Refuses an invalid specification, and a name or UUID that exists.
fn check_new(model: &Model, request: &VmRequest) -> Result<(), VmError> {
    let faults = request.faults();
    if !faults.is_empty() {
        return Err(VmError::Unsound(faults));
    }
    let name = &request.spec.name;
    let uuid = request.spec.uuid;
    if let Some(other) = model.vm(uuid) {
        return Err(VmError::UuidTaken { name: other.name().clone(), uuid });
    }
    if let Some(other) = model.vm_named(name) {
        return Err(VmError::NameTaken { name: name.clone(), uuid: other.uuid() });
    }
    if model.vm_count() >= MAX_SITE_VMS { Err(VmError::TooMany) } else { Ok(()) }
}

pub(crate) fn existing_vm(tx: &Tx<'_>, uuid: SystemUuid) -> Result<Vm, VmError> {
    tx.vm(uuid).cloned().ok_or_else(|| VmError::None(uuid.to_string()))
}

fn describe_placement(vm: &Vm) -> String {
    let node = vm.node().map_or_else(|| "no node".to_owned(), |node| node.to_string());
    let units: Vec<&str> = vm.assigned.units.iter().map(PciAddress::as_str).collect();
    let addresses: Vec<String> =
        vm.nics().filter_map(|nic| Some(nic.address?.to_string())).collect();
    let labelled =
        |word: &str, all: String| if all.is_empty() { all } else { format!(" {word} {all}") };
    let numa = match (vm.assigned.numa_mismatch, vm.assigned.numa_node) {
        (true, _) => ", units on several NUMA nodes (numa_mismatch)".to_owned(),
        (false, Some(near)) => format!(", all on its NUMA node {near}"),
        (false, None) => String::new(),
    };
    format!(
        "on {node}{}{}{numa}",
        labelled("with", units.join(" ")),
        labelled("at", addresses.join(" "))
    )
}

pub(crate) fn vm_event(
    vm: &Vm,
    node: impl Into<Option<NodeId>>,
    kind: EventKind,
    cause: impl Into<Cause>,
    detail: impl Into<String>,
    now: Timestamp,
) -> Event {
    let detail = format!("{} ({}): {}", vm.name(), vm.uuid(), detail.into());
    Event::new(now, cause, kind, detail).of_node(node.into())
}
