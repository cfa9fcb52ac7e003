//! Automatic approval of nodes by a rule or the site's policy, and their names by the site.

use super::{
    Enrolment,
    rule_names::{RuleNames, apply_rule},
};
use crate::environment::{
    alarms::log_failure,
    records::{name_holder, phase_event},
    site_snapshot::SiteSnapshot,
};
use meshd_model::fleet::{
    Actor, AuditContext, Event, EventKind, Node, Phase, PhaseChange, Principal, Verb,
};
use meshd_store::{StoreError, Tx};
use meshd_types::{NodeId, Timestamp};

/// Maximum number of approved nodes for automatic approval: twice the largest rack. Invented
/// machines that match a rule cannot fill the store or the audit log.
const MAX_AUTO_APPROVED: usize = 20_000;

impl Enrolment {
    /// Approves waiting nodes that match changed rules of the site.
    pub(crate) async fn approve_waiting(&self) {
        let snapshot = self.env.snapshot();
        let now = self.env.now();
        let waiting: Vec<NodeId> = self.env.store.read(|model| {
            let automatic_approval = |node: &&Node| {
                node.phase == Phase::Discovered
                    && snapshot.automatic_approval(model, node).is_some()
            };
            let limit = MAX_AUTO_APPROVED.saturating_sub(model.approved_count());
            model.nodes().filter(automatic_approval).map(|node| node.id).take(limit).collect()
        });
        if waiting.is_empty() {
            return;
        }
        let audit_for =
            |principal| AuditContext::new(principal, Verb::Approve, self.env.new_correlation());
        let admitted = self.env.store.commit(|tx| {
            let mut names = RuleNames::new(&snapshot);
            for id in &waiting {
                let Some(mut node) = tx.node(*id).cloned() else { continue };
                approve_automatically(tx, &mut node, &snapshot, &audit_for, &mut names, now);
                tx.put_node(node);
            }
            Ok::<_, StoreError>(())
        });
        log_failure(admitted.await, "cannot record automatic approvals");
        self.notify_decision();
    }
}

/// Returns whether meshd may approve a waiting node without an operator.
pub(crate) fn may_approve(tx: &Tx<'_>, node: &Node) -> bool {
    node.phase == Phase::Discovered && tx.before().approved_count() < MAX_AUTO_APPROVED
}

/// Approves an unknown node by policy or rule, and assigns profile, labels and name of the rule.
pub(crate) fn approve_automatically(
    tx: &mut Tx<'_>,
    node: &mut Node,
    snapshot: &SiteSnapshot,
    audit_for: &(dyn Fn(Principal) -> AuditContext + Sync),
    names: &mut RuleNames<'_>,
    now: Timestamp,
) {
    let is_allowed = may_approve(tx, node);
    let approval = snapshot.automatic_approval(tx.before(), node);
    let Some(approval) = approval.filter(|_| is_allowed) else { return };
    let audit =
        audit_for(approval.map_or(Principal::Meshd, |rule| Principal::Rule(rule.name.clone())));
    let change = node.change(PhaseChange::Approve).ok().flatten();
    phase_event(tx, node.id, node.boot, change, &audit, now);
    if let Some(profile) =
        approval.and_then(|rule| rule.profile.clone()).filter(|_| node.profile.is_none())
    {
        tx.event(
            Event::new(now, &audit, EventKind::ProfileAssigned, profile.to_string())
                .of_node(node.id),
        );
        node.profile = Some(profile);
    }
    if let Some(rule) = approval {
        apply_rule(tx, node, rule, names, &audit, now);
    }
}

/// Returns the name of a `[[reservation]]` for a node that still has its generated name. A name
/// that an operator chose stays.
pub(crate) fn pending_name<'l>(node: &Node, snapshot: &'l SiteSnapshot) -> Option<&'l str> {
    snapshot
        .node_name(node.known_as(), node.seen_nics())
        .filter(|name| node.has_generated_name() && node.name != *name)
}

/// Gives a node the name of its `[[reservation]]`, unless another node has it.
pub(crate) fn name_by_site(
    tx: &mut Tx<'_>,
    node: &mut Node,
    snapshot: &SiteSnapshot,
    now: Timestamp,
) {
    let Some(name) = pending_name(node, snapshot) else { return };
    if let Some(holder) = name_holder(tx.before(), node.id, name) {
        tracing::warn!(node = %node.id, name, %holder, "name of a [[reservation]] is taken by another node");
        return;
    }
    let detail = format!("{} -> {name}", node.name);
    name.clone_into(&mut node.name);
    tx.event(Event::new(now, Actor::Central, EventKind::Renamed, detail).of_node(node.id));
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_image::{catalog::Catalog, catalog::Overlays, overlay::NodePrograms};
    use meshd_model::fleet::Fingerprint;
    use meshd_store::Store;
    use meshd_types::{Basis, MacAddr};
    use std::{collections::BTreeMap, path::Path, sync::Arc};

    fn node(number: u8) -> Node {
        let mac = MacAddr([2, 0, 0, 0, 0, number]);
        Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH)
    }

    #[tokio::test]
    async fn reserved_name_is_assigned_unless_taken_or_node_was_renamed() {
        let by_id = node(1);
        let by_nic = node(2);
        let replaced = node(3);
        let renamed = node(4);
        let late = node(5);
        let reservations = [
            format!("node = \"{}\"\nname = \"one\"", by_id.id),
            format!("mac = \"{}\"\nname = \"two\"", by_nic.mac),
            format!("node = \"{}\"\nname = \"old\"", node(6).id),
            format!("mac = \"{}\"\nname = \"four\"", renamed.mac),
            format!("mac = \"{}\"\nname = \"taken\"", late.mac),
        ];
        let text = format!(
            "{}\n[[reservation]]\n{}",
            include_str!("../../../site.toml"),
            reservations.join("\n[[reservation]]\n")
        );
        let site = meshd_config::parse(&text, Path::new("site.toml"))
            .unwrap_or_else(|faults| panic!("{faults}"));
        let catalog = Catalog::new(Vec::new(), Overlays::default());
        let snapshot = SiteSnapshot::new(
            Arc::new(site),
            catalog,
            Arc::new(NodePrograms::new(bytes::Bytes::new(), None)),
            BTreeMap::new(),
        );
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::open(dir.path()).expect("a store");
        let holder = Node { name: "taken".to_owned(), ..node(7) };
        let put = store.commit(|tx| {
            tx.put_node(holder.clone());
            Ok::<_, StoreError>(())
        });
        put.await.expect("stored");
        let generated = late.name.clone();
        let cases = [
            (by_id, "one"),
            (by_nic, "two"),
            (Node { former: vec![node(6).id], ..replaced }, "old"),
            (Node { name: "db-1".to_owned(), ..renamed }, "db-1"),
            (late, generated.as_str()),
        ];
        for (mut node, name) in cases {
            let named = store.commit(|tx| {
                name_by_site(tx, &mut node, &snapshot, Timestamp::EPOCH);
                Ok::<_, StoreError>(node.name.clone())
            });
            assert_eq!(named.await.expect("stored"), name);
        }
    }
}
