//! Virtual machines by an operator's word: ordered, started, stopped, deleted. Each order changes the record, and the node is told the
//! whole wish of it; what a node tells back is in `vm_news`.
//!
//! Which node takes one is decided inside the transaction that records it, so that two orders never get the same unit.

use super::{Central, OperateError, hosts::hosts, link::LinkCommand, lock};
use crate::config::Site;
use crate::config::vm::VmAsk;
use crate::fleet::{By, Cause, Event, EventKind, Phase};
use crate::id::{NodeId, PciAddress, SystemUuid, Timestamp, VmName};
use crate::store::{Model, Tx};
use crate::wire::vm::{MAX_VMS, SpecFault, VmOrder};
use crate::work::{Place, Unfit, Vm, VmWish, place};

/// Most virtual machines of a site.
pub const MAX_SITE_VMS: usize = 20_000;

/// Why an order about a virtual machine is not followed. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// There is none.
    #[error("there is no virtual machine `{0}`; `meshd vm list` shows those that there are")]
    None(String),
    /// Another one has the name.
    #[error("virtual machine {uuid} is called `{name}` already; take another name, or delete that one")]
    NameTaken {
        /// The name.
        name: VmName,
        /// Whose it is.
        uuid: SystemUuid,
    },
    /// Another one has the UUID.
    #[error("{uuid} is the virtual machine `{name}` already; leave the uuid out, or delete that one")]
    UuidTaken {
        /// The name of the one that has it.
        name: VmName,
        /// Which.
        uuid: SystemUuid,
    },
    /// The site is full.
    #[error("there are {MAX_SITE_VMS} virtual machines on record; delete some")]
    TooMany,
    /// It cannot be, on any node.
    #[error("it cannot be: {}; correct it", faults(.0))]
    Unsound(Vec<SpecFault>),
    /// No node takes it now.
    #[error("{0}; `meshd node list` shows which nodes are ready")]
    Unfit(Unfit),
    /// It would end virtual machines, or lose what they wrote.
    #[error(
        "node {node} holds virtual machines: {names}; drain it first (meshd node drain {node} --workloads stop), or give --force: what they wrote is lost then"
    )]
    Holds {
        /// Which node.
        node: NodeId,
        /// The machines' names.
        names: String,
    },
    /// It is being deleted.
    #[error("virtual machine `{0}` is being deleted; wait until `meshd vm list` has it no more")]
    Releasing(VmName),
}

fn faults(faults: &[SpecFault]) -> String {
    let words = faults.iter().map(|fault| format!("{}: {}", fault.key, fault.message));
    words.collect::<Vec<_>>().join(", ")
}

/// What an operator wants of one that is on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmVerb {
    /// It shall run; one that runs is left alone.
    Start,
    /// It shall be off.
    Stop,
    /// It shall be stopped and run again.
    Restart,
}

impl Central {
    /// Records a virtual machine and gives it a node, or does neither.
    pub async fn create_vm(&self, ask: VmAsk, only: Option<NodeId>, start: bool, by: &By) -> Result<Vm, OperateError> {
        let (site, now) = (self.site(), self.now());
        let vm = self
            .store
            .commit(|tx| {
                fresh(tx.before(), &ask)?;
                let mut vm = Vm::new(ask, only, now);
                if start {
                    vm.run();
                }
                let node = settle(tx, &mut vm, &site, now)?;
                tx.event(story(&vm, node, EventKind::VmCreated, by, placed(&vm), now));
                tx.put_vm(vm.clone());
                Ok::<_, OperateError>(vm)
            })
            .await?;
        crate::fail::point("vm-created");
        self.notify(&vm);
        Ok(vm)
    }

    /// Starts, stops or restarts one.
    pub async fn order_vm(&self, uuid: SystemUuid, verb: VmVerb, by: &By) -> Result<Vm, OperateError> {
        let (site, now) = (self.site(), self.now());
        let vm = self
            .store
            .commit(|tx| {
                let mut vm = known(tx, uuid)?;
                if vm.wish == VmWish::Release {
                    return Err(VmError::Releasing(vm.name().clone()).into());
                }
                let runs = vm.wish == VmWish::Run && vm.place.is_some() && vm.is_up();
                let what = match verb {
                    VmVerb::Start if runs => return Ok(vm),
                    VmVerb::Start => "shall run",
                    VmVerb::Restart => "shall run anew",
                    VmVerb::Stop => "shall be off",
                };
                let mut detail = what.to_owned();
                if verb == VmVerb::Stop {
                    vm.wish = VmWish::Stop;
                } else {
                    vm.run();
                    if vm.place.is_none() {
                        settle(tx, &mut vm, &site, now)?;
                        detail = format!("{what}, {}", placed(&vm));
                    }
                }
                let node = vm.node();
                tx.event(story(&vm, node, EventKind::VmOrdered, by, detail, now));
                tx.put_vm(vm.clone());
                Ok::<_, OperateError>(vm)
            })
            .await?;
        self.notify(&vm);
        Ok(vm)
    }

    /// Deletes one: its node releases all that it has, and then the record goes. With a node, also what that node has of one that is
    /// not on record, or is on record elsewhere.
    ///
    /// The answer has no place if nothing is left to be released.
    pub async fn delete_vm(&self, uuid: SystemUuid, node: Option<NodeId>, by: &By) -> Result<Vm, OperateError> {
        let now = self.now();
        let stranger = node.and_then(|node| self.stranger(node, uuid));
        let vm = self
            .store
            .commit(|tx| {
                let mut vm = match (tx.vm(uuid), stranger, node) {
                    (Some(vm), ..) => vm.clone(),
                    (None, Some(ask), Some(node)) => Vm::stranger(ask, node, now),
                    (None, ..) => return Err(VmError::None(uuid.to_string()).into()),
                };
                match node.filter(|node| vm.node() != Some(*node)) {
                    // What another node has of it; the record stays.
                    Some(node) => drop(vm.strays.insert(node)),
                    None => (vm.wish, vm.trouble) = (VmWish::Release, None),
                }
                let of = node.or(vm.node());
                if vm.place.is_none() && vm.strays.is_empty() {
                    tx.event(story(&vm, of, EventKind::VmReleased, by, "no node had anything of it".to_owned(), now));
                    tx.remove_vm(uuid);
                } else {
                    tx.event(story(&vm, of, EventKind::VmOrdered, by, "shall be released".to_owned(), now));
                    tx.put_vm(vm.clone());
                }
                Ok::<_, OperateError>(vm)
            })
            .await?;
        crate::fail::point("vm-deleted");
        self.notify(&vm);
        Ok(vm)
    }

    /// The virtual machine that an operator means: by UUID, else by name.
    pub fn resolve_vm(&self, text: &str) -> Result<SystemUuid, OperateError> {
        let none = || VmError::None(text.chars().take(80).collect());
        if let Ok(uuid) = text.parse() {
            return Ok(uuid);
        }
        let name: VmName = text.parse().map_err(|_| none())?;
        Ok(self.store.read(|model| model.vm_named(&name).map(Vm::uuid)).ok_or_else(none)?)
    }

    /// What a node is told of one virtual machine, or of all that concern it. Read when it is sent, so that the newest wish is
    /// the last that is said.
    pub fn vm_orders(&self, node: NodeId, which: Option<SystemUuid>) -> Vec<VmOrder> {
        self.store.read(|model| match which {
            Some(uuid) => model.vm(uuid).and_then(|vm| vm.order(node)).into_iter().collect(),
            None => {
                let strays = model.stray_vms().filter(|vm| vm.strays.contains(&node));
                let all = model.vms_of(node).chain(strays);
                all.filter_map(|vm| vm.order(node)).take(MAX_VMS).collect()
            }
        })
    }

    /// Tells the nodes that are concerned; one without a link is told at its next welcome.
    pub(super) fn notify(&self, vm: &Vm) {
        for node in vm.node().into_iter().chain(vm.strays.iter().copied()) {
            self.notify_node(node, Some(vm.uuid()));
        }
    }

    pub(super) fn notify_node(&self, node: NodeId, which: Option<SystemUuid>) {
        if let Some(live) = lock(&self.links.0).live.get(&node) {
            // A full queue is no loss: what is not settled is said again at the next heartbeat.
            let _ = live.commands.try_send(LinkCommand::Vms(which));
        }
    }
}

/// A new one: sound, and with a name and UUID of its own.
fn fresh(model: &Model, ask: &VmAsk) -> Result<(), VmError> {
    let faults = ask.spec.faults();
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

/// Gives one a node, with the units that it wants.
pub(super) fn settle(tx: &Tx<'_>, vm: &mut Vm, site: &Site, now: Timestamp) -> Result<NodeId, VmError> {
    let model = tx.before();
    let fit = place(&vm.ask, vm.only, hosts(model, site)).map_err(VmError::Unfit)?;
    let session = model.node(fit.node).and_then(|node| node.boot);
    vm.settle(Place { node: fit.node, since: now, session }, fit.units);
    // Units that were found by what they are may bring what holds between fields.
    let faults = vm.ask.spec.faults();
    if faults.is_empty() { Ok(fit.node) } else { Err(VmError::Unsound(faults)) }
}

pub(super) fn known(tx: &Tx<'_>, uuid: SystemUuid) -> Result<Vm, VmError> {
    tx.vm(uuid).cloned().ok_or_else(|| VmError::None(uuid.to_string()))
}

fn placed(vm: &Vm) -> String {
    let node = vm.node().map_or_else(|| "no node".to_owned(), |node| node.to_string());
    let units: Vec<&str> = vm.ask.spec.units.iter().map(PciAddress::as_str).collect();
    if units.is_empty() { format!("on {node}") } else { format!("on {node} with {}", units.join(" ")) }
}

/// What became of a virtual machine.
pub(super) fn story(
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
pub(super) fn takes_work(phase: Phase) -> bool {
    phase == Phase::Online
}
