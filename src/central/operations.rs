//! The operations of the whole site that are not finished.

use crate::{Central, active_work};
use meshd_model::{
    fleet::{Event, EventKind, Phase},
    operations::{self, Operation},
};
use meshd_store::{EventFilter, Model, StoreError};
use meshd_types::{NodeId, Timestamp};
use std::collections::BTreeMap;

/// Operations that one answer has, at most.
pub const MAX_OPERATIONS: usize = 500;
/// Newest events that are searched for the time of an order.
const MAX_EVENTS: usize = 1000;

impl Central {
    /// Returns operations that are not finished, failed and old ones first, and the number of those beyond [`MAX_OPERATIONS`]. Blocks.
    ///
    /// # Errors
    /// The event log cannot be read.
    pub fn operations(&self) -> Result<(Vec<Operation>, usize), StoreError> {
        let now = self.now();
        let mut all = self.env.store.read(|model| {
            let boots = model.newest_sessions().filter_map(|session| {
                let node = session.node.and_then(|id| model.node(id)).or_else(|| model.node_of_mac(session.mac));
                operations::boot(session, node, now)
            });
            boots.chain(self.work(model)).collect::<Vec<_>>()
        });
        all.extend(self.workloads.changing_slots());
        all.extend(self.orders()?);
        Ok(operations::first(all, MAX_OPERATIONS))
    }

    fn work(&self, model: &Model) -> Vec<Operation> {
        let mut all: Vec<Operation> = model.open_tasks().filter_map(operations::task).collect();
        for vm in model.vms() {
            let is_linked = vm.node().is_some_and(|node| self.links.is_linked(node));
            let transfer = vm.node().and_then(|node| self.workloads.fetching(node, vm.uuid()));
            all.extend(operations::vm(vm, is_linked));
            all.extend(operations::wipe(vm, is_linked));
            all.extend(operations::former_nodes(vm, |node| self.links.is_linked(node)));
            all.extend(transfer.map(|transfer| operations::transfer(vm, transfer)));
        }
        all
    }

    /// Reboots and drains. Only the event log has the time of these orders.
    fn orders(&self) -> Result<Vec<Operation>, StoreError> {
        let sent = self.links.pending_reboots();
        let all = |since: &BTreeMap<(NodeId, bool), Timestamp>| {
            self.env.store.read(|model| {
                let nodes = model.nodes().filter(|node| node.phase != Phase::Removed);
                let of = nodes.flat_map(|node| {
                    let since = |is_drain| since.get(&(node.id, is_drain)).copied();
                    let boot = node.boot.and_then(|id| model.session(id)).filter(|boot| boot.reboot_ordered);
                    // A machine that asks for an address again has rebooted.
                    let newest = boot.filter(|boot| model.boots_of(node).first().is_some_and(|one| one.id == boot.id));
                    let reboot = operations::reboot(node, newest, sent.get(&node.id).copied(), since(false));
                    let drains = node.drains || node.phase == Phase::Draining;
                    let work = if drains { active_work(model, node.id) } else { Vec::new() };
                    [reboot, operations::drain(node, &work, self.links.is_linked(node.id), since(true))]
                });
                of.flatten().collect::<Vec<_>>()
            })
        };
        let found = all(&BTreeMap::new());
        if found.is_empty() { Ok(found) } else { Ok(all(&self.order_times()?)) }
    }

    /// The newest order of each node: whether it is a drain, and its time.
    fn order_times(&self) -> Result<BTreeMap<(NodeId, bool), Timestamp>, StoreError> {
        let kinds = ["phase", "node_action"].map(str::to_owned).to_vec();
        let events = self.env.store.events(EventFilter { kinds, limit: MAX_EVENTS, ..EventFilter::default() })?;
        let order = |event: &Event| match event.kind {
            EventKind::Phase { to: Phase::Draining, .. } => Some((event.node?, true)),
            EventKind::NodeAction if event.by.is_some() => Some((event.node?, false)),
            _ => None,
        };
        Ok(events.iter().filter_map(|(_, event)| Some((order(event)?, event.at))).collect())
    }
}
