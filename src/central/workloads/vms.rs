//! Creates, starts, stops and deletes virtual machines.
//!
//! Each order changes the record, and the node receives the complete desired state. The transaction that records a virtual machine also
//! places it, so that two orders never get the same unit.

use crate::workloads::{
    Workloads,
    nics::{check_slot_cards, is_private_taken, reserve},
    placement::{complete, hosts, slot_disks},
    readiness::{may_be_told, startable},
};
use meshd_config::{Site, vm::VmRequest};
use meshd_model::{
    fleet::{AuditContext, Cause, Event, EventKind, Phase},
    work::{NoPlacement, Placement, SlotId, SlotState, Vm, VmDesiredState, fill_slot_nics, place_by},
};
use meshd_proto::vm::{MAX_VMS, SpecFault, VmOrder, VmWant, VolumeName};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{Digest, NodeId, PciAddress, SystemUuid, Timestamp, VmName};

/// Most virtual machines of a site.
pub const MAX_SITE_VMS: usize = 20_000;

/// Why an order about a virtual machine is not followed. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// No such virtual machine.
    #[error("there is no virtual machine `{0}`; `meshd vm list` shows those that there are")]
    None(String),
    /// Another one has the name.
    #[error("cannot create virtual machine `{name}`: {uuid} has this name; use another name, or delete that one")]
    NameTaken { name: VmName, uuid: SystemUuid },
    /// Another one has the UUID.
    #[error("{uuid} is the virtual machine `{name}` already; leave the uuid out, or delete that one")]
    UuidTaken {
        /// The virtual machine with this UUID.
        name: VmName,
        uuid: SystemUuid,
    },
    /// The site is full.
    #[error("cannot create a virtual machine: the site has {MAX_SITE_VMS}; delete some")]
    TooMany,
    /// It cannot be, on any node.
    #[error("invalid VM specification: {}", faults(.0))]
    Unsound(Vec<SpecFault>),
    /// Its network cards are not its own.
    #[error("invalid NIC configuration: {}; correct it", faults(.0))]
    Cards(Vec<SpecFault>),
    /// No node takes it now.
    #[error("{0}; `meshd node list` shows which nodes are ready")]
    NoPlacement(NoPlacement),
    /// Its node takes no work now.
    #[error("virtual machine `{name}` is on node {node}, which is {why}; {hint}")]
    NotInService {
        name: VmName,
        node: NodeId,
        /// Why the node takes no work.
        why: String,
        hint: String,
    },
    /// Something that it has cannot be used now.
    #[error(
        "virtual machine `{name}` has slot {slot}, which is {}: {why}; see meshd slot show {slot}, or delete the machine and create it anew", state.as_str()
    )]
    SlotClosed { name: VmName, slot: SlotId, state: SlotState, why: String },
    /// A node reports it, and it is not on record there.
    #[error(
        "node {node} has a virtual machine {uuid} that is not on record there; release that one: meshd vm delete {uuid} --node {node}"
    )]
    Elsewhere { uuid: SystemUuid, node: NodeId },
    /// A volume that it names was not added.
    #[error("volume `{volume}` has the digest {digest}, which is not here; add the file first: meshd volume add FILE")]
    NoVolume {
        /// The volume's name.
        volume: VolumeName,
        digest: Digest,
    },
    /// It is being deleted.
    #[error("virtual machine `{0}` is being deleted; retry after it disappears from `meshd vm list`")]
    Releasing(VmName),
    /// No such node.
    #[error("there is no node `{0}`; `meshd node list` shows those that there are")]
    NoNode(NodeId),
    /// The store cannot be written.
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

fn faults(faults: &[SpecFault]) -> String {
    let words = faults.iter().map(|fault| format!("{}: {}", fault.key, fault.message));
    words.collect::<Vec<_>>().join(", ")
}

/// An order about a virtual machine on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmVerb {
    /// Start it; a running one is left alone.
    Start,
    /// Stop it.
    Stop,
    /// Stop it, then start it.
    Restart,
}

impl Workloads {
    /// Records a virtual machine and gives it a node, or does neither.
    pub async fn create_vm(
        &self,
        mut ask: VmRequest,
        only: Option<NodeId>,
        start: bool,
        by: &AuditContext,
    ) -> Result<Vm, VmError> {
        let (live, now) = (self.env.live(), self.env.now());
        fill_slot_nics(&mut ask.spec, Vec::new());
        // No volume may be removed between its check and the record that names it.
        let _stay = self.volume_use.read().await;
        let vm = self
            .env
            .store
            .commit(|tx| {
                fresh(tx.before(), &ask)?;
                self.not_elsewhere(ask.spec.uuid)?;
                self.has_files(&ask.spec)?;
                reserve(tx.before(), &live, &mut ask.spec, now).map_err(VmError::Cards)?;
                let mut vm = Vm::new(ask, only, now);
                if start {
                    vm.run();
                }
                let node = self.assign(tx, &mut vm, &live.site, now)?;
                tx.event(story(&vm, node, EventKind::VmCreated, by, placed(&vm), now));
                tx.put_vm(vm.clone());
                Ok::<_, VmError>(vm)
            })
            .await?;
        meshd_types::fail::point("vm-created");
        self.notify(&vm);
        Ok(vm)
    }

    /// Starts, stops or restarts one.
    pub async fn order_vm(&self, uuid: SystemUuid, verb: VmVerb, by: &AuditContext) -> Result<Vm, VmError> {
        let (site, now) = (self.env.site(), self.env.now());
        let vm = self
            .env
            .store
            .commit(|tx| {
                let mut vm = known(tx, uuid)?;
                if vm.desired_state == VmDesiredState::Release {
                    return Err(VmError::Releasing(vm.name().clone()));
                }
                let runs =
                    vm.desired_state == VmDesiredState::Run && vm.place.is_some() && vm.may_work() && !vm.is_paused();
                let what = match verb {
                    VmVerb::Start if runs => return Ok(vm),
                    VmVerb::Start => "start ordered",
                    VmVerb::Restart => "restart ordered",
                    VmVerb::Stop => "shutdown ordered",
                };
                let mut detail = what.to_owned();
                if verb == VmVerb::Stop {
                    vm.stop(None);
                } else {
                    self.not_elsewhere(uuid)?;
                    startable(tx.before(), &site, &vm)?;
                    vm.ordered();
                    if vm.place.is_none() {
                        self.has_files(&vm.request.spec)?;
                        self.assign(tx, &mut vm, &site, now)?;
                        detail = format!("{what}, {}", placed(&vm));
                    }
                }
                let node = vm.node();
                tx.event(story(&vm, node, EventKind::VmOrdered, by, detail, now));
                tx.put_vm(vm.clone());
                Ok::<_, VmError>(vm)
            })
            .await?;
        self.notify(&vm);
        Ok(vm)
    }

    /// Deletes one: its node releases all that it has, and then the record goes. With a node, also what that node has of one that is
    /// not on record, or is on record elsewhere.
    ///
    /// The answer has no place if nothing is left to be released. Forced, its disks are left as they are, unwiped.
    pub async fn delete_vm(&self, uuid: SystemUuid, node: Option<NodeId>, by: &AuditContext) -> Result<Vm, VmError> {
        let now = self.env.now();
        let stranger = node.and_then(|node| self.orphan(node, uuid));
        let vm = self
            .env
            .store
            .commit(|tx| {
                let mut vm = match (tx.vm(uuid), stranger, node) {
                    (Some(vm), ..) => vm.clone(),
                    (None, Some(ask), Some(node)) => Vm::unknown(ask, node, now),
                    (None, ..) => return Err(VmError::None(uuid.to_string())),
                };
                let is_in = |node: &NodeId| tx.node(*node).is_some_and(|node| node.phase.is_admitted());
                match node.filter(|node| vm.node() != Some(*node)) {
                    Some(node) if !is_in(&node) => return Err(VmError::NoNode(node)),
                    // The part on another node; the record stays.
                    Some(node) => drop(vm.stray_nodes.insert(node)),
                    None => (vm.desired_state, vm.obstacle) = (VmDesiredState::Release, None),
                }
                if by.forced {
                    vm.cancel_wipes();
                }
                let of = node.or(vm.node());
                if vm.place.is_none() && vm.stray_nodes.is_empty() {
                    tx.event(story(&vm, of, EventKind::VmReleased, by, "no node had anything of it".to_owned(), now));
                    tx.remove_vm(uuid);
                } else {
                    tx.event(story(&vm, of, EventKind::VmOrdered, by, "release ordered".to_owned(), now));
                    tx.put_vm(vm.clone());
                }
                Ok::<_, VmError>(vm)
            })
            .await?;
        meshd_types::fail::point("vm-deleted");
        self.notify(&vm);
        Ok(vm)
    }

    /// The virtual machine that an operator means: by UUID, else by name.
    pub fn resolve_vm(&self, text: &str) -> Result<SystemUuid, VmError> {
        let none = || VmError::None(text.chars().take(80).collect());
        if let Ok(uuid) = text.parse() {
            return Ok(uuid);
        }
        let name: VmName = text.parse().map_err(|_| none())?;
        self.env.store.read(|model| model.vm_named(&name).map(Vm::uuid)).ok_or_else(none)
    }

    /// What a node is told of one virtual machine, or of all that concern it. Read when it is sent, so that the newest desired_state is
    /// the last that is said. What is to run is said only while the node's checks of this boot pass.
    pub fn vm_orders(&self, node: NodeId, which: Option<SystemUuid>) -> Vec<VmOrder> {
        self.env.store.read(|model| {
            let may_run = may_be_told(model, node);
            let is_due = |order: &VmOrder| may_run || !matches!(order.want, VmWant::Run { .. });
            let with_slots = |mut order: VmOrder| {
                if let VmWant::Run { slots, .. } = &mut order.want {
                    *slots = slot_disks(model, node);
                }
                order
            };
            let due = |vm: &Vm| vm.order(node).filter(is_due).map(with_slots);
            match which {
                Some(uuid) => model.vm(uuid).and_then(due).into_iter().collect(),
                None => {
                    let stray_nodes = model.stray_vms().filter(|vm| vm.stray_nodes.contains(&node));
                    let all = model.vms_of(node).chain(stray_nodes);
                    all.filter_map(due).take(MAX_VMS).collect()
                }
            }
        })
    }

    /// Gives one a node, with the units that it wants. At most once in a transaction.
    pub(crate) fn assign(&self, tx: &Tx<'_>, vm: &mut Vm, site: &Site, now: Timestamp) -> Result<NodeId, VmError> {
        let (model, odd) = (tx.before(), self.orphans.nodes());
        let hosts = hosts(model, site).map(|mut host| {
            if odd.contains(&host.node) {
                host.unready = host.unready.or(Some("has_work_not_on_record"));
            } else if vm.refused.contains_key(&host.node) {
                host.unready = host.unready.or(Some("refused_it"));
            } else if vm.pending_wipes.contains_key(&host.node) {
                host.unready = host.unready.or(Some("has_to_wipe_its_disks_first"));
            } else if is_private_taken(model, host.node, vm) {
                // In its private network an address is one machine's.
                host.unready = Some("address_taken");
            }
            host
        });
        let fit =
            place_by(&vm.request, vm.only, hosts, |host| complete(model, site, host)).map_err(VmError::NoPlacement)?;
        let session = model.node(fit.node).and_then(|node| node.boot);
        vm.assign(Placement { node: fit.node, since: now, session }, fit.units, fit.disks);
        fill_slot_nics(&mut vm.request.spec, fit.nics);
        check_slot_cards(model, &self.env.live(), vm, now).map_err(VmError::Cards)?;
        vm.bind(fit.near, fit.numa_mismatch);
        // Units that were found by what they are may bring what holds between fields.
        let faults = vm.request.spec.faults();
        if faults.is_empty() { Ok(fit.node) } else { Err(VmError::Unsound(faults)) }
    }

    /// Sends the desired state to the affected nodes; a node without link receives it at its next welcome.
    pub(crate) fn notify(&self, vm: &Vm) {
        for node in vm.node().into_iter().chain(vm.stray_nodes.iter().copied()) {
            self.links.notify_node(node, Some(vm.uuid()));
        }
    }
}

/// Refuses an unsound specification, and a name or UUID that is taken.
fn fresh(model: &Model, ask: &VmRequest) -> Result<(), VmError> {
    let faults = ask.faults();
    if !faults.is_empty() {
        return Err(VmError::Unsound(faults));
    }
    let (name, uuid) = (&ask.spec.name, ask.spec.uuid);
    if let Some(other) = model.vm(uuid) {
        return Err(VmError::UuidTaken { name: other.name().clone(), uuid });
    }
    if let Some(other) = model.vm_named(name) {
        return Err(VmError::NameTaken { name: name.clone(), uuid: other.uuid() });
    }
    if model.vm_count() >= MAX_SITE_VMS { Err(VmError::TooMany) } else { Ok(()) }
}

pub(crate) fn known(tx: &Tx<'_>, uuid: SystemUuid) -> Result<Vm, VmError> {
    tx.vm(uuid).cloned().ok_or_else(|| VmError::None(uuid.to_string()))
}

fn placed(vm: &Vm) -> String {
    let node = vm.node().map_or_else(|| "no node".to_owned(), |node| node.to_string());
    let units: Vec<&str> = vm.request.spec.units.iter().map(PciAddress::as_str).collect();
    let addresses: Vec<String> = vm.request.spec.nics.iter().filter_map(|nic| Some(nic.address?.to_string())).collect();
    let part = |word: &str, all: String| if all.is_empty() { all } else { format!(" {word} {all}") };
    let numa = match (vm.locality.mismatch, vm.request.spec.numa_node.filter(|_| vm.locality.near)) {
        (true, _) => ", units on several NUMA nodes (numa_mismatch)".to_owned(),
        (false, Some(near)) => format!(", all on its NUMA node {near}"),
        (false, None) => String::new(),
    };
    format!("on {node}{}{}{numa}", part("with", units.join(" ")), part("at", addresses.join(" ")))
}

/// An event of a virtual machine.
pub(crate) fn story(
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

/// Whether a node may be given work at all.
pub(crate) fn takes_work(phase: Phase) -> bool {
    phase == Phase::Online
}
