//! Reads of boots with what precedes them, and of boots to compare them with.

use super::{Fleet, NodeRecords};
use meshd_model::{
    fleet::{Baseline, BootComparison, BootDelay, BootOrder, BootPath, BootSession, Node, Stage},
    operations::{NodeOperation, NodeOrder, Operation},
};
use meshd_types::{Basis, BootSessionId, MacAddr};
use std::collections::BTreeSet;

/// Maximum number of machines of a model to compare with.
const MAX_NEIGHBOURS: usize = 100;
/// Maximum number of operations that are searched for the order of a boot, the newest first.
const MAX_ORDERS: usize = 200;

/// A boot, and what it is compared with.
pub struct ComparedBoot<'a> {
    pub path: BootPath<'a>,
    pub comparison: BootComparison,
    /// A newer boot of the machine exists.
    pub is_over: bool,
}

impl<'a> Fleet<'a> {
    /// Compares a boot of a node with earlier ones, and with those of machines of its model. The
    /// newest boot is the default; `None` if the boot is not on record.
    pub fn compare_boot(
        self,
        node: NodeRecords<'a>,
        session: Option<BootSessionId>,
    ) -> Option<ComparedBoot<'a>> {
        let boots = node.boots();
        let index = match session {
            Some(session) => boots.iter().position(|boot| boot.id == session)?,
            None => 0,
        };
        let (&boot, earlier) = boots.get(index..)?.split_first()?;
        let orders = self.boot_orders();
        let is_online = |boot: &&BootSession| boot.reached(Stage::Online).is_some();
        let path_of = |of: NodeRecords<'a>, boot: &'a BootSession, macs: &BTreeSet<MacAddr>| {
            self.path(of, boot, macs, &orders)
        };
        let own_nics = nics(node.node);
        let own =
            earlier.iter().copied().filter(is_online).map(|boot| path_of(node, boot, &own_nics));
        let neighbours = self.nodes().filter(|other| is_of_model(other.node, node.node));
        let model = neighbours.filter_map(|other| {
            let boots = other.boots();
            let newest = boots.iter().copied().find(is_online)?;
            Some(path_of(other, newest, &nics(other.node)))
        });
        let comparison = BootComparison {
            own: Baseline::new(own),
            model: Baseline::new(model.take(MAX_NEIGHBOURS)),
        };
        let mut all_nics = own_nics;
        all_nics.extend(self.nics_with_uuid(node.node));
        let path = path_of(node, boot, &all_nics);
        Some(ComparedBoot { path, comparison, is_over: index > 0 })
    }

    /// Returns what cost time in the newest boot of each node that came online, as far as the
    /// packets show it: without a comparison with other boots.
    pub fn observed_delays(self) -> impl Iterator<Item = (&'a Node, BootDelay)> {
        self.nodes().filter_map(move |node| {
            let boots = node.boots();
            let newest =
                boots.iter().copied().find(|boot| boot.reached(Stage::Online).is_some())?;
            let path = self.path(node, newest, &nics(node.node), &[]);
            let delays = BootComparison::default().delays(&path, None);
            Some((node.node, delays.into_iter().next()?))
        })
    }

    fn path(
        self,
        node: NodeRecords<'a>,
        boot: &'a BootSession,
        macs: &BTreeSet<MacAddr>,
        orders: &[&'a Operation],
    ) -> BootPath<'a> {
        let id = node.node.id;
        let sessions = macs.iter().flat_map(|mac| self.boots_of_nic(*mac));
        let sessions = sessions.filter(|session| session.node.is_none_or(|of| of == id));
        let orders = orders
            .iter()
            .filter_map(|order| boot_order(&order.order, self.node_operation(order.id, id)?));
        BootPath::new(boot, sessions, orders)
    }

    /// Returns the operations that begin boots, the newest first.
    fn boot_orders(self) -> Vec<&'a Operation> {
        let begins_boot = |operation: &&Operation| {
            operation.order.is_reboot() || matches!(operation.order, NodeOrder::Power { .. })
        };
        self.operations().filter(begins_boot).take(MAX_ORDERS).collect()
    }

    /// Returns the NICs that asked with the UUID of a node. A NIC that never booted is not known
    /// otherwise.
    fn nics_with_uuid(self, node: &Node) -> impl Iterator<Item = MacAddr> {
        let uuid = match node.basis {
            Basis::Uuid(uuid) => Some(uuid),
            Basis::Serial(_) | Basis::Mac(_) => None,
        };
        let boots = self.newest_boots();
        boots.filter(move |boot| uuid.is_some() && boot.uuid == uuid).map(|boot| boot.mac)
    }
}

fn nics(node: &Node) -> BTreeSet<MacAddr> {
    node.fingerprint.macs.iter().copied().collect()
}

/// True for another machine with the same manufacturer and product.
fn is_of_model(other: &Node, node: &Node) -> bool {
    let [known, compared] = [&node.fingerprint, &other.fingerprint];
    other.id != node.id
        && !known.product.is_empty()
        && known.product == compared.product
        && known.manufacturer == compared.manufacturer
}

/// Returns the order that begins a boot, with the times of its requests.
fn boot_order(order: &NodeOrder, record: &NodeOperation) -> Option<BootOrder> {
    let words = match order {
        NodeOrder::Power { action, .. } => format!("power {action}"),
        NodeOrder::WarmReboot => "warm reboot".to_owned(),
        _ => "reboot".to_owned(),
    };
    let Some(power) = &record.power else {
        let at = record.started_at?;
        return Some(BootOrder { order: words, first_at: at, at });
    };
    let first_at = power.acted_at?;
    let at = if power.rung == 0 { first_at } else { power.since };
    Some(BootOrder { order: words, first_at, at })
}
