//! Findings about boots and nodes.

use super::NAMED;
use meshd_api::Finding;
use meshd_central::Fleet;
use meshd_model::fleet::{
    BootDelay, BootSession, BootStatus, ConditionKind, DelayKind, Node, Phase,
};
use meshd_store::MAX_UNKNOWN_NODES;
use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

/// Minimum cost of a delay that is reported.
const LONG_DELAY: Duration = Duration::from_secs(60);

/// Returns the findings. `is_own_address` determines whether this host has an address.
pub(super) fn findings(
    fleet: Fleet<'_>,
    is_own_address: impl Fn(Ipv4Addr) -> bool,
) -> Vec<Finding> {
    let named = |names: Vec<String>| {
        let more = names.len().saturating_sub(NAMED);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{rest}", names.into_iter().take(NAMED).collect::<Vec<_>>().join(", "))
    };
    let mut findings = Vec::new();
    let boots = fleet.newest_boots();
    let stalled = boots
        .filter(|boot| is_stopped(fleet, boot))
        .map(|boot| (name(fleet, boot), describe_stop(fleet, boot)));
    // A machine with several NICs has several newest boots.
    let stalled: Vec<String> = stalled.collect::<BTreeMap<_, _>>().into_values().collect();
    let looping: Vec<String> = fleet
        .newest_boots()
        .filter(|boot| boot.looping && boot.standing(false) != BootStatus::Online)
        .map(|boot| name(fleet, boot))
        .collect();
    let nodes = || fleet.nodes().map(|records| records.node);
    let of_phase = |phase| nodes().filter(move |node| node.phase == phase).map(named_node);
    let quarantined: Vec<String> = of_phase(Phase::Quarantined).collect();
    let offline: Vec<String> = of_phase(Phase::Offline).collect();
    let failing = |node: &Node| {
        let failed =
            node.conditions.iter().find(|condition| condition.kind == ConditionKind::CheckFailed);
        let why = failed.map(|condition| format!(": {}", condition.detail)).unwrap_or_default();
        format!("{}{why}", named_node(node))
    };
    let degraded: Vec<String> =
        nodes().filter(|node| node.phase == Phase::Degraded).map(failing).collect();
    let mut report = |check: &str, [noun, state]: [&str; 2], names: Vec<String>, next: &str| {
        findings.push(match names.len() {
            0 => Finding::ok(check, format!("no {noun}s are {state}")),
            1 => Finding::warn(check, format!("1 {noun} is {state}: {}", named(names)), next),
            count => {
                Finding::warn(check, format!("{count} {noun}s are {state}: {}", named(names)), next)
            }
        });
    };
    report(
        "stalled boots",
        ["boot", "stalled"],
        stalled,
        "`meshd node timeline NODE` has the stage and the cause",
    );
    let each_stage = "`meshd node timeline NODE` shows where each boot stopped";
    report("boot loops", ["machine", "in a boot loop"], looping, each_stage);
    report("degraded", ["node", "degraded"], degraded, "`meshd node doctor NODE` shows the repair");
    report(
        "quarantine",
        ["node", "held"],
        quarantined,
        "repair the cause, then run `meshd node release NODE`",
    );
    report("offline", ["node", "offline"], offline, "check their power and cables");
    let former = former_address(fleet, is_own_address);
    let next = "reboot the nodes, or give this server the address again and set it as `address` in site.toml";
    report("server address", ["node", "set to a former address of this server"], former, next);
    let boots_nothing = |node: &Node| {
        let kinds = [ConditionKind::RenderFailed, ConditionKind::ImageMissing];
        let condition = node.conditions.iter().find(|condition| kinds.contains(&condition.kind))?;
        Some(format!("{} ({})", node.id, condition.detail))
    };
    let refused: Vec<String> = nodes().filter_map(boots_nothing).collect();
    report(
        "next boot",
        ["node", "refused at the next boot"],
        refused,
        "`meshd node show NODE` has the reason",
    );
    let unknown = fleet.unknown_count();
    if unknown * 10 >= MAX_UNKNOWN_NODES * 9 {
        let found =
            format!("{unknown} unknown machines are on record, at most {MAX_UNKNOWN_NODES}");
        findings.push(Finding::warn(
            "unknown machines",
            found,
            "check for forged machines with `meshd events`",
        ));
    }
    findings
}

/// Returns the finding about nodes whose last boot lost time in the firmware, at a switch port or in
/// a relay.
pub(super) fn slow_boots(fleet: Fleet<'_>) -> Finding {
    let is_avoidable = |delay: &BootDelay| {
        let kinds = [
            DelayKind::OtherNic,
            DelayKind::OtherProtocol,
            DelayKind::LostDiscovers,
            DelayKind::SlowRelay,
            DelayKind::RepeatedDiscovers,
        ];
        kinds.contains(&delay.kind) && delay.cost >= LONG_DELAY
    };
    let slow = fleet.observed_delays().filter(|(_, delay)| is_avoidable(delay));
    let names: Vec<String> = slow
        .map(|(node, delay)| {
            format!("{}: {}, {} s", named_node(node), delay.kind.as_str(), delay.cost.as_secs())
        })
        .collect();
    if names.is_empty() {
        return Finding::ok("boot times", "no node lost a minute before its loader");
    }
    let more = names.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = names.into_iter().take(NAMED).collect::<Vec<_>>().join("; ");
    let found = format!("lost time at the last boot: {named}{rest}");
    Finding::warn("boot times", found, "`meshd boot-times NODE` names what to change")
}

/// Returns the nodes whose agent calls an address that this host does not have. The address is
/// fixed at boot.
fn former_address(fleet: Fleet<'_>, is_own_address: impl Fn(Ipv4Addr) -> bool) -> Vec<String> {
    use Phase::{Degraded, Draining, Enrolling, Maintenance, Offline, Online};
    let runs = |node: &&Node| {
        matches!(node.phase, Enrolling | Degraded | Online | Draining | Maintenance | Offline)
    };
    let mut known = BTreeMap::new();
    let mut is_former =
        |address: Ipv4Addr| !*known.entry(address).or_insert_with(|| is_own_address(address));
    let nodes = fleet.nodes().map(|records| records.node).filter(runs);
    let nodes = nodes.filter_map(|node| Some((node, node.central_address?)));
    let former = nodes.filter(|(_, address)| is_former(*address));
    former.map(|(node, address)| format!("{}: {address}", named_node(node))).collect()
}

pub(super) fn named_node(node: &Node) -> String {
    format!("{} ({})", node.name, node.id)
}

fn name(fleet: Fleet<'_>, boot: &BootSession) -> String {
    fleet.node_of_boot(boot).map_or_else(|| format!("MAC {}", boot.mac), named_node)
}

/// Returns whether a boot stopped. A stalled boot of a known node counts while the node has the
/// condition, as in the status and in the node list: an operator may have acknowledged the stall.
fn is_stopped(fleet: Fleet<'_>, boot: &BootSession) -> bool {
    let node = fleet.node_of_boot(boot);
    let is_marked = |node: &Node| {
        node.conditions.iter().any(|condition| condition.kind == ConditionKind::BootStalled)
    };
    match boot.standing(false) {
        BootStatus::Failed => true,
        BootStatus::Stalled => node.is_none_or(is_marked),
        _ => false,
    }
}

fn describe_stop(fleet: Fleet<'_>, boot: &BootSession) -> String {
    if let Some(reason) = &boot.failure {
        return format!("{}: failed, {reason}", name(fleet, boot));
    }
    let missing = boot.stalled().map_or("a stage", |stall| stall.missing.as_str());
    format!("{}: {missing} is missing", name(fleet, boot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_api::Status;
    use meshd_model::fleet::{DhcpClient, DhcpRequest, Fingerprint, Stage, Stall};
    use meshd_store::{Store, StoreError};
    use meshd_types::{Basis, BootSessionId, MacAddr, Timestamp};

    #[tokio::test]
    async fn degraded_nodes_are_named_with_what_fails() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = Timestamp::EPOCH;
        let store = Store::open(dir.path()).expect("a store");
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at);
        node.phase = Phase::Degraded;
        node.raise(ConditionKind::CheckFailed, "kvm: /dev/kvm is missing", at);
        let id = node.id;
        let put = store.commit(|tx| {
            tx.put_node(node);
            Ok::<_, StoreError>(())
        });
        put.await.expect("stored");
        let found = store.read(|model| findings(Fleet::new(model), |_| true));
        let degraded =
            found.iter().find(|finding| finding.check == "degraded").expect("it is looked at");
        assert_eq!(degraded.status, Status::Warn);
        assert!(
            degraded.found.contains(&format!("node-{id} ({id}): kvm: /dev/kvm is missing")),
            "{}",
            degraded.found
        );
    }

    #[tokio::test]
    async fn stalled_machines_are_counted_as_in_the_status() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = Timestamp::EPOCH;
        let store = Store::open(dir.path()).expect("a store");
        let put = store.commit(|tx| {
            // Two NICs of the first node; the stall of the second node was acknowledged; nobody
            // knows the last machine.
            for (number, nics, is_marked) in [(1, 2, Some(true)), (2, 1, Some(false)), (3, 1, None)]
            {
                let mac = |nic: u8| MacAddr([2, 0, 0, 0, number, nic]);
                let mut node =
                    Node::discovered(Basis::Mac(mac(0)), Fingerprint::default(), mac(0), at);
                for nic in 0..nics {
                    let mut boot = BootSession::open(
                        BootSessionId([number * 16 + nic; 12]),
                        mac(nic),
                        Stage::Dhcp,
                        at,
                    );
                    boot.node = is_marked.map(|_| node.id);
                    let after = Stage::Dhcp;
                    let missing = Stage::Script;
                    let cause = "unknown".to_owned();
                    boot.stalls.push(Stall { after, missing, since: at, cause, ended: None });
                    tx.put_session(boot);
                }
                if is_marked == Some(true) {
                    node.raise(ConditionKind::BootStalled, "script is missing", at);
                }
                if is_marked.is_some() {
                    tx.put_node(node);
                }
            }
            Ok::<_, StoreError>(())
        });
        put.await.expect("stored");
        let found = store.read(|model| findings(Fleet::new(model), |_| true));
        let stalled =
            found.iter().find(|finding| finding.check == "stalled boots").expect("it is looked at");
        assert!(stalled.found.starts_with("2 boots are stalled: "), "{}", stalled.found);
        assert!(stalled.found.contains("MAC 02:00:00:00:03:00"), "{}", stalled.found);
    }

    #[tokio::test]
    async fn node_that_lost_a_minute_at_its_switch_port_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = Timestamp::EPOCH;
        let store = Store::open(dir.path()).expect("a store");
        let put = store.commit(|tx| {
            for (number, secs) in [(1, 59), (2, 61)] {
                let mac = MacAddr([2, 0, 0, 0, 0, number]);
                tx.put_node(Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at));
                let session = BootSessionId([number; 12]);
                let mut boot = BootSession::open(session, mac, Stage::Dhcp, at);
                let client = DhcpClient::Firmware;
                let is_discover = true;
                boot.record_dhcp(DhcpRequest { client, arch: None, is_discover, secs }, at);
                boot.mark(Stage::Online, at);
                tx.put_session(boot);
            }
            Ok::<_, StoreError>(())
        });
        put.await.expect("stored");
        let finding = store.read(|model| slow_boots(Fleet::new(model)));
        assert_eq!(finding.status, Status::Warn);
        let text = &finding.found;
        assert!(text.contains("): lost_discovers, 61 s") && !text.contains("59 s"), "{text}");
    }

    #[tokio::test]
    async fn node_that_calls_a_former_address_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = Timestamp::EPOCH;
        let store = Store::open(dir.path()).expect("a store");
        let former = Ipv4Addr::new(10, 77, 0, 1);
        let present = Ipv4Addr::new(10, 77, 0, 2);
        let put = store.commit(|tx| {
            for (number, phase, address) in [
                (1, Phase::Offline, former),
                (2, Phase::Online, present),
                (3, Phase::Booting, former),
            ] {
                let mac = MacAddr([2, 0, 0, 0, 0, number]);
                let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at);
                tx.put_node(Node { phase, central_address: Some(address), ..node });
            }
            Ok::<_, StoreError>(())
        });
        put.await.expect("stored");
        let found = store.read(|model| findings(Fleet::new(model), |address| address == present));
        let finding =
            found.iter().find(|finding| finding.check == "server address").expect("it is checked");
        assert_eq!(finding.status, Status::Warn);
        assert!(
            finding.found.starts_with("1 node is set to a former address"),
            "{}",
            finding.found
        );
        assert!(finding.found.ends_with(": 10.77.0.1"), "{}", finding.found);
    }
}
