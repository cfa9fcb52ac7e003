//! Orders to BMCs: each second, each order takes its next step. The request is stored before it is
//! sent, so a restart does not repeat a change before its effect could be seen.

use super::BATCH;
use crate::{
    environment::{
        alarms::log_failure,
        bmcs::{BmcError, BmcOwner, InFlight, RequestPermit, ResolvedBmc, resolve, shared_with},
    },
    links::announce_end,
    nodes::{NodeOps, OperateError, lifecycle::existing_node, naming::search_key},
    vms::check_no_running_work,
};
use meshd_model::{
    fleet::{Event, EventKind, ExpectedMachine, Fingerprint, Node, find_nodes},
    operations::{
        BmcResult, NodeOperation, NodeOperationState, NodeOutcome, Operation, PowerProgress,
        PowerStep, Sighting,
    },
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{
    Basis, BmcRequest, Hostlist, MacAddr, NodeId, OperationId, Timestamp, failpoint,
};
use std::{collections::BTreeMap, sync::Arc};

/// A step of one order: its record before and after, and its end.
struct Advance {
    head: Operation,
    node: NodeId,
    before: PowerProgress,
    after: PowerProgress,
    outcome: Option<NodeOutcome>,
    request: Option<PreparedRequest>,
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
        self.bmc_of_machine(id, self.bmcs.machine(id))
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
            let owner = node.or_else(|| machine().map(BmcOwner::of_machine));
            let owner = owner.ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
            Ok(resolve(&site, &owner)?)
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
        if let Some(other) = self.env.store.read(|model| shared_with(model, &bmc)) {
            let (machine, address) = (bmc.title(), bmc.address);
            return Err(BmcError::Shared { machine, other, address }.into());
        }
        let checked = tokio::task::spawn_blocking(move || bmc.check_password()).await;
        // The only other end is a panic, which the task has logged.
        Ok(checked.unwrap_or(Ok(()))?)
    }

    /// Starts an order to a BMC, in the transaction that stores it.
    pub(super) fn start_power_in(
        &self,
        tx: &mut Tx<'_>,
        head: &Operation,
        id: NodeId,
        now: Timestamp,
    ) -> Result<Node, OperateError> {
        let machine = self.bmcs.machine(id).filter(|_| tx.node(id).is_none());
        if let Some(machine) = machine.and_then(|mac| tx.expected_machine(mac)).cloned() {
            return Ok(start_for_machine(tx, head, id, &machine, now));
        }
        let node = existing_node(tx, id)?;
        if head.order.cuts_power() {
            check_no_running_work(tx.before(), id, &head.by)?;
        }
        let session = newest_boot(tx.before(), &node);
        tx.edit_node_operation(head.id, id, |record| {
            record.power = Some(PowerProgress::new(now));
            record.session = session.map(|(boot, _)| boot);
        });
        let detail = format!("to its BMC: {}", words(head));
        tx.event(Event::new(now, &head.by, EventKind::NodeAction, detail).of_node(id));
        Ok(node)
    }

    /// Takes the next step of each order to a BMC.
    pub(super) async fn drive_power(self: &Arc<Self>) -> Result<(), StoreError> {
        let now = self.env.now();
        let mut advances = Vec::new();
        let running = self.env.store.read(|model| running(model, self));
        // Machines that were powered on and have not appeared load soon: the boot API bounds them.
        let acts = |power: &PowerProgress| power.acted_at.is_some();
        let mut starting =
            running.iter().filter(|(_, record, _)| record.power.as_ref().is_some_and(acts)).count();
        for (head, record, seen) in running {
            let Some(before) = record.power.clone() else { continue };
            let mut advance = Advance {
                node: record.node,
                after: before.clone(),
                before,
                head,
                outcome: None,
                request: None,
            };
            self.advance(&mut advance, &record, seen, starting, now);
            starting += usize::from(acts(&advance.after) && !acts(&advance.before));
            let is_changed = advance.outcome.is_some() || advance.after != advance.before;
            if is_changed {
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
    fn advance(
        self: &Arc<Self>,
        advance: &mut Advance,
        record: &NodeOperation,
        seen: Sighting,
        starting: usize,
        now: Timestamp,
    ) {
        let site = self.env.site();
        let order = (advance.head.id, advance.node);
        if advance.after.sent.is_some() && !self.bmcs.is_in_flight(order.0, order.1) {
            advance.after.lose_answer(now);
        }
        let within = site.power.appear_within;
        let next = advance.after.next(&advance.head.order, record.session, seen, within, now);
        match next {
            PowerStep::Wait => {}
            PowerStep::End(outcome) => advance.outcome = Some(outcome),
            PowerStep::Request(request) => {
                let machine = advance.after.machine;
                let bmc = match self.bmc_of_machine(advance.node, machine) {
                    Ok(bmc) => bmc,
                    // The site or the record has changed meanwhile.
                    Err(error) => {
                        advance.outcome = Some(NodeOutcome::Failed(error.to_string()));
                        return;
                    }
                };
                let is_start = matches!(request, BmcRequest::On | BmcRequest::Cycle);
                let is_held = is_start
                    && advance.after.acted_at.is_none()
                    && starting >= site.boot.max_loading;
                let permitted = if is_held { None } else { self.bmcs.try_permit(&bmc, request) };
                let taken =
                    permitted.and_then(|permit| Some((permit, self.bmcs.mark_in_flight(order)?)));
                // Without a permit, the next call repeats the request.
                let Some((permit, flight)) = taken else { return };
                advance.after.send(request, now);
                advance.request = Some(PreparedRequest { bmc, request, permit, flight });
            }
        }
    }

    /// Stores the steps of one batch, then sends their requests.
    async fn store_advances(
        self: &Arc<Self>,
        advances: Vec<Advance>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let stored = self.env.store.commit(|tx| {
            let mut stored = Vec::with_capacity(advances.len());
            for advance in &advances {
                let change = |record: &mut NodeOperation| {
                    let is_same = record.state == NodeOperationState::Running
                        && record.power.as_ref() == Some(&advance.before);
                    if is_same {
                        record.power = Some(advance.after.clone());
                        if let Some(outcome) = advance.outcome.clone() {
                            record.finish(outcome, now);
                        }
                    }
                    is_same
                };
                let is_stored = tx.edit_node_operation(advance.head.id, advance.node, change);
                stored.push(is_stored == Some(true));
            }
            Ok::<_, StoreError>(stored)
        });
        let stored = stored.await?;
        failpoint::point("power-recorded");
        for (advance, is_stored) in advances.into_iter().zip(stored) {
            let Some(prepared) = advance.request.filter(|_| is_stored) else { continue };
            let acts = advance.after.acted_at.is_some();
            let (this, operation, node) = (self.clone(), advance.head.id, advance.node);
            tokio::spawn(async move { this.request(operation, node, prepared, acts).await });
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
        let recorded = self.record_answer(operation, node, request, answered).await;
        log_failure(recorded, "cannot record the answer of a BMC");
        drop(flight);
    }

    async fn record_answer(
        &self,
        operation: OperationId,
        node: NodeId,
        request: BmcRequest,
        (result, is_alive): (BmcResult, bool),
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let ends_boot = result.is_ok()
            && matches!(
                request,
                BmcRequest::ShutDown | BmcRequest::Off | BmcRequest::Cycle | BmcRequest::Reset
            );
        let recorded = self.env.store.commit(|tx| {
            tx.edit_node_operation(operation, node, |record| {
                let is_running = record.state == NodeOperationState::Running;
                if let Some(progress) = record.power.as_mut().filter(|_| is_running) {
                    progress.answer(result, is_alive, now);
                }
            });
            if let Some(session) = tx.node(node).and_then(|node| node.boot).filter(|_| ends_boot) {
                // The present boot does not count as failed: an order ends it.
                announce_end(tx, node, session, |session| session.reboot_ordered = true);
            }
            Ok::<_, StoreError>(())
        });
        recorded.await
    }
}

/// Starts an order to a machine that has not booted. Returns the node that it would be.
fn start_for_machine(
    tx: &mut Tx<'_>,
    head: &Operation,
    id: NodeId,
    machine: &ExpectedMachine,
    now: Timestamp,
) -> Node {
    let boot = tx.before().newest_session(machine.mac).map(|boot| boot.id);
    let progress = PowerProgress { machine: Some(machine.mac), ..PowerProgress::new(now) };
    tx.edit_node_operation(head.id, id, |record| {
        (record.power, record.session, record.name) = (Some(progress), boot, machine.title());
    });
    let detail = format!("to the BMC of {}: {}", machine.title(), words(head));
    tx.event(Event::new(now, &head.by, EventKind::NodeAction, detail));
    let name = machine.title();
    let basis = Basis::Mac(machine.mac);
    Node { name, ..Node::discovered(basis, Fingerprint::default(), machine.mac, now) }
}

/// Orders to BMCs that run, with what is seen of their machines.
fn running(model: &Model, nodes: &NodeOps) -> Vec<(Operation, NodeOperation, Sighting)> {
    let mut running = Vec::new();
    for id in model.nodes_with_open_operations() {
        for (head, record) in model.open_operations_of(id) {
            let Some(power) = record.power.as_ref() else { continue };
            let boot = match (model.node(id), power.machine) {
                (Some(node), _) => newest_boot(model, node),
                (None, Some(mac)) => {
                    model.newest_session(mac).map(|boot| (boot.id, boot.refreshed_at))
                }
                (None, None) => continue,
            };
            if record.state == NodeOperationState::Running {
                let seen = Sighting { newest_boot: boot, is_linked: nodes.links.is_linked(id) };
                running.push((head.clone(), record.clone(), seen));
            }
        }
    }
    running
}

/// The newest boot session of a machine, and the time of its last DHCP exchange.
fn newest_boot(model: &Model, node: &Node) -> Option<(meshd_types::BootSessionId, Timestamp)> {
    model.boots_of(node).first().map(|boot| (boot.id, boot.refreshed_at))
}

/// An order in words, for an event.
fn words(head: &Operation) -> String {
    use meshd_model::operations::NodeOrder;
    match &head.order {
        NodeOrder::Power { action, .. } => format!("power {action}"),
        NodeOrder::BootDevice { device } => format!("boot device {device}"),
        NodeOrder::Identify { on } => format!("identify {}", if *on { "on" } else { "off" }),
        _ => String::new(),
    }
}
