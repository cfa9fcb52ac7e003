//! Findings about nodes that booted cold although their profile allows warm reboots.

use super::{NAMED, machines::named_node};
use meshd_api::Finding;
use meshd_central::Fleet;
use meshd_config::{Site, WarmPolicy};
use meshd_model::{
    boot::effective_profile,
    fleet::{ColdBoot, cold_boot_remedy},
};
use meshd_proto::warm_boot::ColdBootCause;
use meshd_types::{ProfileName, Timestamp};
use std::{collections::BTreeMap, time::Duration};

const CHECK: &str = "warm reboots";
/// Time for which a finding reports a boot through the firmware.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Nodes with the same profile and cause, and the reason of the first of them.
struct ColdNodes {
    names: Vec<String>,
    reason: String,
}

/// Returns a finding for each profile and cause.
pub(super) fn findings(fleet: Fleet<'_>, site: &Site, now: Timestamp) -> Vec<Finding> {
    let mut cold: BTreeMap<(&ProfileName, ColdBootCause), ColdNodes> = BTreeMap::new();
    for records in fleet.nodes() {
        let profile = effective_profile(site, records.node);
        let reboot = records.node.warm_reboot.as_ref();
        let recent = reboot.filter(|reboot| now.distance(reboot.at) <= REMEMBERED);
        let (WarmPolicy::Allow, Some(reboot)) = (profile.warm, recent) else { continue };
        let Some(ColdBoot { cause, reason }) = reboot.cold_boot().cloned() else { continue };
        // The profile allows it by now.
        if cause == ColdBootCause::NotAllowed {
            continue;
        }
        let nodes = cold
            .entry((&profile.name, cause))
            .or_insert_with(|| ColdNodes { names: Vec::new(), reason });
        nodes.names.push(named_node(records.node));
    }
    if cold.is_empty() {
        return vec![Finding::ok(CHECK, "no node of a profile with warm = \"allow\" booted cold")];
    }
    cold.into_iter().map(|((profile, cause), nodes)| finding(profile, cause, &nodes)).collect()
}

fn finding(profile: &ProfileName, cause: ColdBootCause, nodes: &ColdNodes) -> Finding {
    let ColdNodes { names, reason } = nodes;
    let count = match names.len() {
        1 => "1 node".to_owned(),
        count => format!("{count} nodes"),
    };
    let more = names.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let listed = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let found = format!(
        "{count} of profile {profile} booted cold after a warm order: {listed}{rest}: {reason}"
    );
    Finding::warn(CHECK, found, cold_boot_remedy(cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_api::Status;
    use meshd_model::fleet::{Fingerprint, Node, WarmReboot, WarmRebootResult};
    use meshd_store::{Store, StoreError};
    use meshd_types::{Basis, MacAddr, OperationId};
    use std::path::Path;

    fn cold_node(number: u8, cause: ColdBootCause, at: Timestamp) -> Node {
        let mac = MacAddr([2, 0, 0, 0, 0, number]);
        let mut node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at);
        let reason = format!("reason of {number}");
        let result = WarmRebootResult::Cold(ColdBoot { cause, reason });
        node.warm_reboot = Some(WarmReboot { operation: OperationId([1; 4]), at, result });
        node
    }

    #[tokio::test]
    async fn nodes_that_booted_cold_are_named_by_cause_with_a_remedy() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::open(dir.path()).expect("a store");
        let long_ago = Timestamp::EPOCH;
        let now = long_ago.after(REMEMBERED + Duration::from_secs(1));
        let nodes = [
            cold_node(1, ColdBootCause::KernelLoad, now),
            cold_node(2, ColdBootCause::KernelLoad, now),
            cold_node(3, ColdBootCause::Memory, now),
            cold_node(4, ColdBootCause::NotAllowed, now),
            cold_node(5, ColdBootCause::BootQueue, long_ago),
        ];
        let put = store.commit(|tx| {
            nodes.into_iter().for_each(|node| tx.put_node(node));
            Ok::<_, StoreError>(())
        });
        put.await.expect("stored");
        let text = include_str!("../../../../site.toml");
        let mut site = meshd_config::parse(text, Path::new("site.toml")).expect("a valid site");
        let found = |site: &Site| store.read(|model| findings(Fleet::new(model), site, now));
        assert_eq!(found(&site)[0].status, Status::Ok, "the profile does not allow it");
        let default = site.default_profile.clone();
        site.profiles.get_mut(&default).expect("a profile").warm = WarmPolicy::Allow;
        let found = found(&site);
        let [memory, load] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(load.status, Status::Warn);
        assert!(load.found.starts_with("2 nodes of profile "), "{}", load.found);
        assert!(load.found.contains("reason of ") && load.next.contains("CONFIG_KEXEC_FILE"));
        assert!(memory.found.starts_with("1 node of profile "), "{}", memory.found);
    }
}
