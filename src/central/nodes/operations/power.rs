//! Orders to BMCs: each second, each order takes its next step. The request is stored before it is
//! sent, so a restart does not repeat a change before its effect could be seen.

use super::{BATCH, settle::retract_end};
use crate::{
    environment::{
        alarms::log_failure,
        bmcs::{
            BmcError, BmcOwner, InFlight, RequestPermit, ResolvedBmc, ladder_of, resolve,
            shared_with,
        },
    },
    links::announce_end,
    nodes::{NodeOps, OperateError, lifecycle::existing_node, naming::search_key},
    vms::check_no_running_work,
};
use meshd_model::{
    fleet::{Event, EventKind, ExpectedMachine, Fingerprint, Node, find_nodes},
    operations::{
        BmcFailure, BmcResult, NodeOperation, NodeOperationState, NodeOrder, NodeOutcome,
        Operation, PowerProgress, PowerStep, Sighting,
    },
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{
    Basis, BmcRequest, Hostlist, MacAddr, NodeId, OperationId, PowerAction, PowerLadder, Timestamp,
    failpoint,
};
use std::{collections::BTreeMap, sync::Arc};

/// A running order to a BMC, with what is seen of its machine.
struct OrderInProgress {
    head: Operation,
    record: NodeOperation,
    power: PowerProgress,
    seen: Sighting,
}

impl OrderInProgress {
    /// Whether the machine was started and is on its way to its first packet.
    fn is_starting(&self, power: &PowerProgress) -> bool {
        let is_off = matches!(self.head.order, NodeOrder::Power { action: PowerAction::Off, .. });
        power.acted_at.is_some() && !is_off
    }
}

/// A step of one order: its progress after it, and its end.
struct Advance {
    order: OrderInProgress,
    after: PowerProgress,
    outcome: Option<NodeOutcome>,
    request: Option<PreparedRequest>,
}

impl Advance {
    /// Whether the step sends the first request of the order that ends the work of the node.
    fn begins_cut(&self) -> bool {
        let cuts = self.request.as_ref().is_some_and(|it| it.request.cuts_power());
        // An order to power on cuts the power after other attempts.
        cuts && (self.order.power.acted_at.is_none() || !self.order.head.order.cuts_power())
    }
}

struct PreparedRequest {
    bmc: ResolvedBmc,
    request: BmcRequest,
    permit: RequestPermit,
    flight: InFlight,
}

impl NodeOps {
    /// Returns the BMC of a node, or of a machine that has not booted.
    pub(in crate::nodes) fn bmc_of(&self, id: NodeId) -> Result<ResolvedBmc, OperateError> {
        self.bmc_of_machine(id, self.machine_of(id))
    }

    /// Returns the machine of an ID that no node has. A restart forgets the machines of accepted
    /// orders: then they are looked up again.
    fn machine_of(&self, id: NodeId) -> Option<MacAddr> {
        let known = self.bmcs.machine(id);
        if known.is_some() || self.env.store.read(|model| model.node(id).is_some()) {
            return known;
        }
        let expected = self.env.store.read(|model| {
            let machines = model.expected_machines().filter(|machine| machine.node.is_none());
            machines.map(|it| (Basis::Mac(it.mac).node_id(), it.mac)).collect::<Vec<_>>()
        });
        self.bmcs.add_machines(expected);
        self.bmcs.machine(id)
    }

    /// Returns the BMC of a node. Without a node of this ID, that of the machine.
    pub(in crate::nodes) fn bmc_of_machine(
        &self,
        id: NodeId,
        machine: Option<MacAddr>,
    ) -> Result<ResolvedBmc, OperateError> {
        let site = self.env.site();
        self.env.store.read(|model| {
            let node = model.node(id).map(|node| BmcOwner::of_node(model, node));
            let machine = || machine.and_then(|mac| model.expected_machine(mac));
            let owner =
                node.or_else(|| machine().map(|machine| BmcOwner::of_machine(model, machine)));
            let owner = owner.ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
            Ok(resolve(&site, &owner, self.env.now())?)
        })
    }

    /// Finds all nodes of a hostlist, and the machines that have not booted, in its order.
    pub fn resolve_machines(&self, hostlist: &Hostlist) -> Result<Vec<NodeId>, OperateError> {
        let (found, machines) = self.env.store.read(|model| {
            let expected = model.expected_machines().filter(|machine| machine.node.is_none());
            let machines = expected.map(|it| (Basis::Mac(it.mac).node_id(), it));
            let machines: BTreeMap<_, _> =
                machines.filter(|(id, _)| model.node(*id).is_none()).collect();
            let titles: Vec<(NodeId, String)> =
                machines.iter().map(|(id, machine)| (*id, machine.title())).collect();
            let keys = titles.iter().map(|(id, title)| (*id, title.as_str(), true));
            let found = find_nodes(hostlist, model.nodes().map(search_key).chain(keys));
            let macs: BTreeMap<NodeId, MacAddr> =
                machines.iter().map(|(id, machine)| (*id, machine.mac)).collect();
            (found, macs)
        });
        let found = found?;
        let chosen = found.iter().filter_map(|id| Some((*id, *machines.get(id)?)));
        self.bmcs.add_machines(chosen);
        Ok(found)
    }

    /// Refuses an order to a node whose BMC cannot be asked, before anything is stored.
    pub(super) async fn check_bmc(&self, id: NodeId) -> Result<(), OperateError> {
        let bmc = self.bmc_of(id)?;
        if let Some(other) = self.other_machine_of(&bmc) {
            let machine = bmc.title();
            let address = bmc.address;
            return Err(BmcError::Shared { machine, other, address }.into());
        }
        let checked = tokio::task::spawn_blocking(move || bmc.check_password()).await;
        // The only other end is a panic, which the task has logged.
        Ok(checked.unwrap_or(Ok(()))?)
    }

    /// Returns another machine on record with the same BMC.
    pub(in crate::nodes) fn other_machine_of(&self, bmc: &ResolvedBmc) -> Option<String> {
        let site = self.env.site();
        self.env.store.read(|model| shared_with(model, &site, bmc))
    }

    /// Starts an order to a BMC, in the transaction that stores it.
    pub(super) fn start_power_in(
        &self,
        tx: &mut Tx<'_>,
        head: &Operation,
        id: NodeId,
        now: Timestamp,
    ) -> Result<Node, OperateError> {
        // The work on a machine that is no node is unknown.
        let is_machine = tx.node(id).is_none() && !head.order.cuts_power();
        let machine = self.bmcs.machine(id).filter(|_| is_machine);
        let machine = machine.and_then(|mac| tx.expected_machine(mac));
        if let Some(machine) = machine.filter(|machine| machine.node.is_none()).cloned() {
            let ladder = self.ladder_of(&BmcOwner::of_machine(tx.before(), &machine));
            return Ok(start_for_machine(tx, head, &machine, ladder, now));
        }
        let node = existing_node(tx, id)?;
        if head.order.cuts_power() {
            check_no_running_work(tx.before(), id, &head.by)?;
        }
        let session = newest_boot(tx.before(), &node);
        let ladder = self.ladder_of(&BmcOwner::of_node(tx.before(), &node));
        tx.edit_node_operation(head.id, id, |record| {
            record.power = Some(PowerProgress::new(ladder, now));
            record.session = session.map(|(boot, _)| boot);
        });
        let detail = format!("to its BMC: {}", words(head));
        tx.event(Event::new(now, &head.by, EventKind::NodeAction, detail).of_node(id));
        Ok(node)
    }

    /// Returns the ladder of an order to the BMC of a machine.
    fn ladder_of(&self, owner: &BmcOwner) -> PowerLadder {
        ladder_of(&self.env.site(), owner)
    }

    /// Takes the next step of each order to a BMC.
    pub(super) async fn drive_power(self: &Arc<Self>) -> Result<(), StoreError> {
        let now = self.env.now();
        let mut advances = Vec::new();
        let mut running = self.env.store.read(|model| running(model, self));
        // A machine whose BMC does not answer delays no other one.
        running.sort_by_key(|order| order.power.polled_at.max(Some(order.power.since)));
        // Machines that were powered on and have not appeared load soon: the boot API bounds them.
        let mut starting = running.iter().filter(|order| order.is_starting(&order.power)).count();
        let has_jumped = self.bmcs.has_clock_jumped(now);
        for order in running {
            let mut after = order.power.clone();
            if has_jumped {
                after.restart_wait(now);
            }
            let mut advance = Advance { after, outcome: None, request: None, order };
            self.advance(&mut advance, starting, now);
            let OrderInProgress { power: before, .. } = &advance.order;
            let is_starting = |power: &PowerProgress| usize::from(advance.order.is_starting(power));
            starting += is_starting(&advance.after).saturating_sub(is_starting(before));
            if advance.outcome.is_some() || advance.after != *before {
                advances.push(advance);
            }
        }
        while !advances.is_empty() {
            let rest = advances.split_off(advances.len().min(BATCH));
            self.store_advances(advances, now).await?;
            advances = rest;
        }
        Ok(())
    }

    /// Determines the next step of one order.
    fn advance(self: &Arc<Self>, advance: &mut Advance, starting: usize, now: Timestamp) {
        let site = self.env.site();
        let OrderInProgress { head, record, seen, .. } = &advance.order;
        let key = (head.id, record.node);
        if advance.after.sent.is_some() && !self.bmcs.is_in_flight(key.0, key.1) {
            advance.after.lose_answer(now);
        }
        let within = site.power.appear_within;
        let request = match advance.after.next(&head.order, record.session, *seen, within, now) {
            PowerStep::Wait => return,
            PowerStep::End(outcome) => {
                advance.outcome = Some(outcome);
                return;
            }
            PowerStep::Request(request) => request,
        };
        let is_held = request.starts_machine()
            && advance.after.acted_at.is_none()
            && starting >= site.boot.max_loading;
        // Without a permit, the next call repeats the request.
        if is_held || !self.bmcs.admits(request) {
            return;
        }
        let bmc = match self.bmc_of_machine(record.node, advance.after.machine) {
            Ok(bmc) => bmc,
            // As a BMC that does not answer: it may renew its lease.
            Err(OperateError::Bmc(
                error @ (BmcError::NoLease { .. } | BmcError::SeveralLeases { .. }),
            )) => {
                advance.after.sent = Some(request);
                advance.after.answer(Err(BmcFailure::Failed(error.to_string())), false, now);
                return;
            }
            // The site or the record has changed meanwhile.
            Err(error) => {
                advance.outcome = Some(NodeOutcome::Failed(error.to_string()));
                return;
            }
        };
        let Some(permit) = self.bmcs.try_permit(&bmc, request) else { return };
        let Some(flight) = self.bmcs.mark_in_flight(key) else { return };
        advance.after.send(request, now);
        advance.request = Some(PreparedRequest { bmc, request, permit, flight });
    }

    /// Stores the steps of one batch, then sends their requests.
    async fn store_advances(
        self: &Arc<Self>,
        advances: Vec<Advance>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let stored = self.env.store.commit(|tx| {
            let stored = advances.iter().map(|advance| store_advance(tx, advance, now));
            Ok::<_, StoreError>(stored.collect::<Vec<bool>>())
        });
        let stored = stored.await?;
        failpoint::point("power-recorded");
        for (advance, is_stored) in advances.into_iter().zip(stored) {
            let Some(prepared) = advance.request.filter(|_| is_stored) else { continue };
            let acts = advance.after.acted_at.is_some();
            let OrderInProgress { head, record, .. } = advance.order;
            let this = self.clone();
            tokio::spawn(async move { this.request(head.id, record.node, prepared, acts).await });
        }
        Ok(())
    }

    /// Sends a request and records its answer. `acts`: the power of the machine was changed, so
    /// its agent is probed, too.
    async fn request(
        self: Arc<Self>,
        operation: OperationId,
        node: NodeId,
        prepared: PreparedRequest,
        acts: bool,
    ) {
        let PreparedRequest { bmc, request, permit, flight } = prepared;
        let probe = async { request == BmcRequest::Status && acts && self.links.probe(node).await };
        let sent = self.bmcs.send(permit, &bmc, request);
        let answered: (BmcResult, bool) = tokio::join!(sent, probe);
        failpoint::point("power-answered");
        let recorded = self.record_answer(operation, node, answered).await;
        log_failure(recorded, "cannot record the answer of a BMC");
        drop(flight);
    }

    async fn record_answer(
        &self,
        operation: OperationId,
        node: NodeId,
        (result, is_alive): (BmcResult, bool),
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let recorded = self.env.store.commit(|tx| {
            tx.edit_node_operation(operation, node, |record| {
                let is_running = record.state == NodeOperationState::Running;
                if let Some(progress) = record.power.as_mut().filter(|_| is_running) {
                    progress.answer(result, is_alive, now);
                }
            });
            Ok::<_, StoreError>(())
        });
        recorded.await
    }
}

/// Starts an order to a machine that has not booted. Returns the node that it would be.
fn start_for_machine(
    tx: &mut Tx<'_>,
    head: &Operation,
    machine: &ExpectedMachine,
    ladder: PowerLadder,
    now: Timestamp,
) -> Node {
    let id = Basis::Mac(machine.mac).node_id();
    let boot = tx.before().newest_session(machine.mac).map(|boot| boot.id);
    let progress = PowerProgress { machine: Some(machine.mac), ..PowerProgress::new(ladder, now) };
    tx.edit_node_operation(head.id, id, |record| {
        (record.power, record.session, record.name) = (Some(progress), boot, machine.title());
    });
    let detail = format!("to the BMC of {}: {}", machine.title(), words(head));
    tx.event(Event::new(now, &head.by, EventKind::NodeAction, detail));
    let name = machine.title();
    let basis = Basis::Mac(machine.mac);
    Node { name, ..Node::discovered(basis, Fingerprint::default(), machine.mac, now) }
}

/// Stores a step, unless its order has changed meanwhile. Returns true if its request may be sent.
fn store_advance(tx: &mut Tx<'_>, advance: &Advance, now: Timestamp) -> bool {
    let OrderInProgress { head, record, power: before, .. } = &advance.order;
    let node = record.node;
    // Work may have come to the node since the order was accepted.
    let check = || check_no_running_work(tx.before(), node, &head.by).err();
    let refusal = if advance.begins_cut() { check() } else { None };
    let refused = refusal.map(|error| NodeOutcome::Failed(error.to_string()));
    let is_refused = refused.is_some();
    let outcome = refused.or_else(|| advance.outcome.clone());
    let is_power = matches!(head.order, NodeOrder::Power { .. });
    let runs_on = match outcome {
        None => false,
        Some(NodeOutcome::Done) => is_power && !head.order.cuts_power(),
        Some(_) => is_power,
    };
    let change = |record: &mut NodeOperation| {
        let is_same =
            record.state == NodeOperationState::Running && record.power.as_ref() == Some(before);
        if is_same && !is_refused {
            record.power = Some(advance.after.clone());
        }
        if let Some(outcome) = outcome.filter(|_| is_same) {
            record.finish(outcome, now);
        }
        is_same
    };
    let is_stored = tx.edit_node_operation(head.id, node, change) == Some(true);
    if is_stored && runs_on {
        retract_end(tx, node);
    } else if is_stored && advance.request.as_ref().is_some_and(|it| it.request.cuts_power()) {
        // The present boot does not count as failed: an order ends it.
        if let Some(running) = tx.node(node).and_then(|node| node.boot) {
            announce_end(tx, node, running, |session| session.reboot_ordered = true);
        }
    }
    is_stored && !is_refused
}

/// Orders to BMCs that run.
fn running(model: &Model, nodes: &NodeOps) -> Vec<OrderInProgress> {
    let mut running = Vec::new();
    for id in model.nodes_with_open_operations() {
        for (head, record) in model.open_operations_of(id) {
            let Some(power) = record.power.clone() else { continue };
            let newest_boot = match (model.node(id), power.machine) {
                (Some(node), _) => newest_boot(model, node),
                (None, Some(mac)) => {
                    model.newest_session(mac).map(|boot| (boot.id, boot.refreshed_at))
                }
                (None, None) => continue,
            };
            if record.state == NodeOperationState::Running {
                let seen = Sighting { newest_boot, is_linked: nodes.links.is_linked(id) };
                let head = head.clone();
                let record = record.clone();
                running.push(OrderInProgress { head, record, power, seen });
            }
        }
    }
    running
}

/// Machines that an order has switched on, until their first packet; with the MAC address of those
/// that have not booted.
pub(in crate::nodes) fn starting_machines(
    model: &Model,
    nodes: &NodeOps,
) -> Vec<(NodeId, Option<MacAddr>)> {
    let is_silent = |order: &OrderInProgress| {
        let newest = order.seen.newest_boot.map(|(boot, _)| boot);
        order.is_starting(&order.power) && newest == order.record.session
    };
    let orders = running(model, nodes).into_iter().filter(is_silent);
    orders.map(|order| (order.record.node, order.power.machine)).collect()
}

/// The newest boot session of a machine, and the time of its last DHCP exchange.
fn newest_boot(model: &Model, node: &Node) -> Option<(meshd_types::BootSessionId, Timestamp)> {
    model.begun_boot_of(node).map(|boot| (boot.id, boot.refreshed_at))
}

/// An order in words, for an event.
fn words(head: &Operation) -> String {
    match &head.order {
        NodeOrder::Power { action, .. } => format!("power {action}"),
        NodeOrder::BootDevice { device } => format!("boot device {device}"),
        NodeOrder::Identify { on } => format!("identify {}", if *on { "on" } else { "off" }),
        _ => String::new(),
    }
}
