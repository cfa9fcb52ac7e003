//! The activities of the whole site that are not finished.

use crate::{Central, nodes::operations::newest_boot};
use meshd_model::{
    activities::{self, Activity},
    operations::NodeOrder,
};
use meshd_store::Model;
use meshd_types::Timestamp;

/// Activities that one answer has, at most.
pub const MAX_ACTIVITIES: usize = 500;

impl Central {
    /// Returns activities that are not finished, failed and old ones first, and the number of those
    /// beyond [`MAX_ACTIVITIES`].
    pub fn activities(&self) -> (Vec<Activity>, usize) {
        let now = self.now();
        let mut all = self.env.store.read(|model| {
            let boots = model.newest_sessions().filter_map(|session| {
                let node = session
                    .node
                    .and_then(|id| model.node(id))
                    .or_else(|| model.node_of_mac(session.mac));
                activities::boot(session, node, now)
            });
            boots.chain(self.work(model)).chain(self.orders(model, now)).collect::<Vec<_>>()
        });
        all.extend(self.vms.changing_slots());
        activities::first(all, MAX_ACTIVITIES)
    }

    fn work(&self, model: &Model) -> Vec<Activity> {
        let mut all: Vec<Activity> = model.open_tasks().filter_map(activities::task).collect();
        for vm in model.vms() {
            let is_linked = vm.node().is_some_and(|node| self.links.is_linked(node));
            let transfer = vm.node().and_then(|node| self.vms.fetching(node, vm.uuid()));
            all.extend(activities::vm(vm, is_linked));
            all.extend(activities::wipe(vm, is_linked));
            all.extend(activities::former_nodes(vm, |node| self.links.is_linked(node)));
            all.extend(transfer.map(|transfer| activities::transfer(vm, transfer)));
        }
        all
    }

    /// Reboots and drains, from the records of operations.
    fn orders(&self, model: &Model, now: Timestamp) -> Vec<Activity> {
        let nodes = model.nodes_with_open_operations().filter_map(|id| model.node(id));
        let open = nodes.flat_map(|node| {
            let newest = newest_boot(model, node);
            let open = model.open_operations_of(node.id);
            open.filter_map(move |(head, record)| match head.order {
                _ if record.observe(&head.order, Some(node), newest, now).is_some() => None,
                NodeOrder::Reboot | NodeOrder::WarmReboot => Some(activities::reboot(node, record)),
                NodeOrder::Drain { .. } => Some(activities::drain(
                    node,
                    record,
                    &self.nodes.drain_work(model, node),
                    self.links.is_linked(node.id),
                )),
                _ => None,
            })
        });
        open.collect()
    }
}
