//! What a drain means for the hooks of a node, and what their report means for the drain. Pure.

use super::{DrainPolicy, NodeOrder, Operation};
use crate::fleet::Node;
use meshd_proto::{
    DrainEntry, DrainOrder, DrainReport, HookName, HookState, MAX_DRAIN_HOOKS, MAX_DRAIN_REASON,
    MAX_HOOK_DETAIL,
};

/// The hooks of a node, as its last hello names them.
fn hooks(node: &Node) -> &[HookName] {
    let hooks = node.facts.as_ref().map_or(&[][..], |facts| &facts.drain_hooks);
    hooks.get(..MAX_DRAIN_HOOKS).unwrap_or(hooks)
}

/// Returns true if a drain of the node waits for hooks.
pub fn has_drain_hooks(node: &Node) -> bool {
    !hooks(node).is_empty()
}

/// Returns the desired state of the hooks of a node; `None` if it has none. `drain` is the running
/// drain of the node.
pub fn drain_entry(node: &Node, drain: Option<&Operation>) -> Option<DrainEntry> {
    if !has_drain_hooks(node) {
        return None;
    }
    if node.serves() {
        return Some(DrainEntry::default());
    }
    let cause = drain.map_or_else(
        || node.phase.to_string(),
        |head| match &head.by.reason {
            Some(reason) => format!("{}: {reason}", head.by.principal),
            None => head.by.principal.to_string(),
        },
    );
    let (stop_work, grace_s) = match drain.map(|head| &head.order) {
        Some(NodeOrder::Drain { workloads, grace_s }) => {
            (*workloads == DrainPolicy::Stop, *grace_s)
        }
        _ => (false, None),
    };
    let reason = one_line(&format!("meshd: {cause}"), MAX_DRAIN_REASON);
    Some(DrainEntry { drain: Some(DrainOrder { reason, stop_work, grace_s }) })
}

/// Names the hooks for which the drain of a node waits. `report` is the last report of its link;
/// `None` if the node has not taken the last entry.
pub fn waiting_hooks(node: &Node, report: Option<&DrainReport>) -> Vec<String> {
    if node.serves() {
        return Vec::new();
    }
    let report = report.filter(|report| report.drains);
    let waiting = |name: &HookName| {
        let found = report?.hooks.iter().find(|hook| hook.name == *name);
        let Some(hook) = found.filter(|hook| hook.state != HookState::Pending) else {
            return Some(format!("{name}: has not run"));
        };
        let detail = one_line(&hook.detail, MAX_HOOK_DETAIL);
        match hook.state {
            HookState::Done => None,
            HookState::Failed => Some(format!("{name} failed: {detail}")),
            HookState::Waiting | HookState::Pending => Some(format!("{name}: {detail}")),
        }
    };
    let hooks = hooks(node).iter();
    match report {
        Some(_) => hooks.filter_map(waiting).collect(),
        None => hooks.map(|name| format!("{name}: no report")).collect(),
    }
}

fn one_line(text: &str, longest: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(longest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fleet::{AuditContext, Phase, Principal, Verb},
        operations::OperationStage,
    };
    use meshd_proto::{Facts, HookReport};
    use meshd_types::{CorrelationId, OperationId, Timestamp};

    fn node(phase: Phase, hooks: &[&str]) -> Node {
        let drain_hooks = hooks.iter().map(|name| name.parse().expect("a name")).collect();
        let facts = Some(Facts { drain_hooks, ..Facts::default() });
        Node { phase, facts, ..Node::fixture(1) }
    }

    fn drain(reason: Option<&str>, workloads: DrainPolicy) -> Operation {
        let mut by = AuditContext::new(Principal::Operator(0), Verb::Drain, CorrelationId([1; 8]));
        by.reason = reason.map(str::to_owned);
        Operation {
            id: OperationId([1; 4]),
            order: NodeOrder::Drain { workloads, grace_s: Some(60) },
            by,
            accepted_at: Timestamp::EPOCH,
            targets: 1,
            stage: OperationStage::Accepted,
        }
    }

    fn order(node: &Node, operation: Option<&Operation>) -> DrainOrder {
        drain_entry(node, operation).and_then(|entry| entry.drain).expect("out of service")
    }

    fn report(drains: bool, hooks: &[(&str, HookState, &str)]) -> DrainReport {
        let hook = |(name, state, detail): &(&str, HookState, &str)| HookReport {
            name: name.parse().expect("a name"),
            state: *state,
            detail: (*detail).to_owned(),
        };
        DrainReport { drains, hooks: hooks.iter().map(hook).collect() }
    }

    #[test]
    fn node_without_hooks_gets_no_entry_and_waits_for_none() {
        for node in [node(Phase::Draining, &[]), Node { facts: None, ..node(Phase::Online, &[]) }] {
            assert_eq!(drain_entry(&node, None), None);
            assert!(!has_drain_hooks(&node) && waiting_hooks(&node, None).is_empty());
        }
    }

    #[test]
    fn entry_follows_the_service_of_the_node() {
        use Phase::{Degraded, Draining, Maintenance, Offline, Online};
        let waits = drain(None, DrainPolicy::Wait);
        for phase in [Online, Degraded, Offline] {
            let entry = drain_entry(&node(phase, &["slurm"]), None);
            assert_eq!(entry, Some(DrainEntry::default()), "{phase}");
        }
        for phase in [Draining, Maintenance] {
            let entry = drain_entry(&node(phase, &["slurm"]), Some(&waits));
            assert!(entry.is_some_and(|entry| entry.drain.is_some()), "{phase}");
        }
        let returns = Node { drains: true, ..node(Offline, &["slurm"]) };
        assert_eq!(order(&returns, Some(&waits)).reason, "meshd: uid:0");
        assert_eq!(order(&node(Maintenance, &["slurm"]), None).reason, "meshd: maintenance");
    }

    #[test]
    fn order_has_reason_and_policy_of_the_running_drain() {
        let draining = node(Phase::Draining, &["slurm"]);
        let stops = drain(Some("new\nfirmware"), DrainPolicy::Stop);
        let wanted = DrainOrder {
            reason: "meshd: uid:0: new firmware".to_owned(),
            stop_work: true,
            grace_s: Some(60),
        };
        assert_eq!(order(&draining, Some(&stops)), wanted);
        let long = drain(Some(&"ä".repeat(500)), DrainPolicy::Wait);
        let long = order(&draining, Some(&long));
        assert_eq!((long.reason.chars().count(), long.stop_work), (MAX_DRAIN_REASON, false));
    }

    #[test]
    fn drain_waits_for_each_hook_that_is_not_done() {
        use HookState::{Done, Failed, Pending, Waiting};
        let draining = node(Phase::Draining, &["lsf", "slurm"]);
        let waiting = |report: Option<&DrainReport>| waiting_hooks(&draining, report);
        assert_eq!(waiting(None), ["lsf: no report", "slurm: no report"]);
        let of_service = report(false, &[("lsf", Done, ""), ("slurm", Done, "")]);
        assert_eq!(waiting(Some(&of_service)).len(), 2, "it has not heard of the drain");
        let partly = report(true, &[("slurm", Pending, "")]);
        assert_eq!(waiting(Some(&partly)), ["lsf: has not run", "slurm: has not run"]);
        let work = report(true, &[("lsf", Failed, "no\tserver"), ("slurm", Waiting, "job 7")]);
        assert_eq!(waiting(Some(&work)), ["lsf failed: no server", "slurm: job 7"]);
        let last = report(true, &[("other", Waiting, ""), ("lsf", Done, ""), ("slurm", Done, "")]);
        assert!(waiting(Some(&last)).is_empty(), "a hook that the node does not have counts not");
        assert!(waiting_hooks(&node(Phase::Online, &["slurm"]), None).is_empty());
    }

    #[test]
    fn hooks_of_a_lying_node_are_bounded() {
        let names: Vec<String> = (0..500).map(|number| format!("hook-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let draining = node(Phase::Draining, &names);
        assert_eq!(waiting_hooks(&draining, None).len(), MAX_DRAIN_HOOKS);
        let detail = "x".repeat(100_000);
        let long = report(true, &[("hook-0", HookState::Waiting, &detail)]);
        let texts = waiting_hooks(&draining, Some(&long));
        assert!(texts.iter().all(|text| text.len() < 400));
    }
}
