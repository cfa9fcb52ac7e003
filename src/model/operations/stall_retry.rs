//! The policy that retries stalled boots by the BMC of their machine. Pure.

use super::{NodeOperation, NodeOrder, Operation};
use crate::fleet::{BootSession, Node, Phase, Principal, Stage};
use meshd_config::StallRetryPolicy;
use meshd_types::{PowerAction, Timestamp};

/// The order that retries a boot.
pub const STALL_RETRY: NodeOrder = NodeOrder::Power { action: PowerAction::Cycle, now: false };

/// Returns the number of the retry that is due for a node, from 1. `boots` are those of the node,
/// `orders` are those to it with its records, both the newest first.
pub fn due_stall_retry<'a>(
    policy: StallRetryPolicy,
    node: &Node,
    boots: &[&BootSession],
    orders: impl Iterator<Item = (&'a Operation, &'a NodeOperation)>,
    now: Timestamp,
) -> Option<u32> {
    // An unapproved machine may be anything, and others are held by an operator or by meshd.
    let is_booting =
        matches!(node.phase, Phase::Approved | Phase::Booting | Phase::Enrolling | Phase::Offline);
    boots.first().filter(|_| is_booting)?.stalled()?;
    let online = boots.iter().find_map(|boot| boot.reached(Stage::Online));
    let mut retries = 0;
    let mut last = None;
    for (head, record) in orders {
        if online.is_some_and(|online| head.accepted_at <= online) {
            break;
        }
        if record.state.is_open() {
            return None;
        }
        if !matches!(head.order, NodeOrder::Power { .. }) && !head.order.is_reboot() {
            continue;
        }
        if head.by.principal != Principal::Meshd {
            break;
        }
        retries += 1;
        last.get_or_insert(head.accepted_at);
    }
    let is_due = last.is_none_or(|last| now.distance(last) >= policy.interval);
    (is_due && retries < policy.count).then_some(retries + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fleet::{AuditContext, Fingerprint, Stall, Verb},
        operations::{NodeOperationState, OperationStage},
    };
    use meshd_types::{Basis, BootSessionId, CorrelationId, MacAddr, OperationId};
    use std::time::Duration;

    const POLICY: StallRetryPolicy =
        StallRetryPolicy { count: 2, interval: Duration::from_secs(600) };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn node(phase: Phase) -> Node {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        Node { phase, ..Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at(0)) }
    }

    fn boot(number: u8, begun: i64, is_online: bool) -> BootSession {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let id = BootSessionId([number; 12]);
        let mut boot = BootSession::open(id, mac, Stage::Dhcp, at(begun));
        if is_online {
            boot.mark(Stage::Online, at(begun));
        } else {
            let after = Stage::Dhcp;
            let missing = Stage::Loader;
            let cause = String::new();
            boot.stalls.push(Stall { after, missing, since: at(begun), cause, ended: None });
        }
        boot
    }

    fn order(principal: Principal, seconds: i64, is_open: bool) -> (Operation, NodeOperation) {
        let id = OperationId([1; 4]);
        let head = Operation {
            id,
            order: STALL_RETRY,
            by: AuditContext::new(principal, Verb::Power, CorrelationId([0; 8])),
            accepted_at: at(seconds),
            targets: 1,
            stage: OperationStage::Accepted,
        };
        let mut record = NodeOperation::pending(id, node(Phase::Booting).id, String::new());
        if !is_open {
            record.state = NodeOperationState::Done;
        }
        (head, record)
    }

    fn next(boots: &[BootSession], orders: &[(Operation, NodeOperation)], now: i64) -> Option<u32> {
        let boots: Vec<_> = boots.iter().collect();
        let orders = orders.iter().map(|(head, record)| (head, record));
        due_stall_retry(POLICY, &node(Phase::Booting), &boots, orders, at(now))
    }

    #[test]
    fn stalled_boot_is_retried_as_often_as_allowed_with_the_interval() {
        let stalled = [boot(1, 1000, false)];
        let meshd = |seconds| order(Principal::Meshd, seconds, false);
        assert_eq!(next(&stalled, &[], 1200), Some(1));
        assert_eq!(next(&stalled, &[meshd(1200)], 1700), None, "within the interval");
        assert_eq!(next(&stalled, &[meshd(1200)], 1800), Some(2));
        assert_eq!(next(&stalled, &[meshd(1800), meshd(1200)], 9000), None, "as often as allowed");
        let by_hand = order(Principal::Operator(0), 5000, false);
        assert_eq!(next(&stalled, &[by_hand, meshd(1800), meshd(1200)], 9000), Some(1));
        let online = [boot(2, 7000, false), boot(1, 3000, true)];
        assert_eq!(next(&online, &[meshd(1800), meshd(1200)], 9000), Some(1), "online since");
        let running = order(Principal::Operator(0), 1100, true);
        assert_eq!(next(&stalled, &[running], 9000), None, "another order runs");
    }

    #[test]
    fn boot_that_proceeds_or_a_held_node_is_not_retried() {
        let mut proceeds = boot(1, 1000, false);
        proceeds.mark(Stage::Loader, at(1100));
        assert_eq!(next(&[proceeds], &[], 1200), None);
        assert_eq!(next(&[boot(2, 1000, false), boot(1, 0, false)], &[], 1200), Some(1));
        for phase in [Phase::Discovered, Phase::Maintenance, Phase::Quarantined, Phase::Online] {
            let stalled = boot(1, 1000, false);
            let next = due_stall_retry(POLICY, &node(phase), &[&stalled], [].into_iter(), at(1200));
            assert_eq!(next, None, "{phase:?}");
        }
    }
}
