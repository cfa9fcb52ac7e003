//! Automatic approval of nodes by a rule or the site's policy, and their names by the site.

use super::Enrolment;
use crate::environment::{
    alarms::report,
    records::{name_holder, phase_event},
    site_snapshot::SiteSnapshot,
};
use meshd_model::fleet::{Actor, AuditContext, Event, EventKind, Node, Phase, PhaseChange, Principal, Verb};
use meshd_store::{StoreError, Tx};
use meshd_types::{NodeId, Timestamp};

/// Number of approved nodes beyond which only operators approve: twice the largest rack. Invented machines that match a rule
/// cannot fill the store or the audit log.
const MAX_LET_IN_BY_SITE: usize = 20_000;

impl Enrolment {
    /// Approves waiting nodes that match changed rules of the site.
    pub(crate) async fn admit_waiting(&self) {
        let (live, now) = (self.env.live(), self.env.now());
        let lets_in = |node: &&Node| node.phase == Phase::Discovered && live.lets_in(node).is_some();
        let waiting: Vec<NodeId> = self.env.store.read(|model| {
            let room = MAX_LET_IN_BY_SITE.saturating_sub(model.let_in_count());
            model.nodes().filter(lets_in).map(|node| node.id).take(room).collect()
        });
        if waiting.is_empty() {
            return;
        }
        let order = |who| AuditContext::new(who, Verb::Approve, self.env.new_correlation());
        let admitted = self.env.store.commit(|tx| {
            for id in &waiting {
                let Some(mut node) = tx.node(*id).cloned() else { continue };
                approve_by_site(tx, &mut node, &live, &order, now);
                tx.put_node(node);
            }
            Ok::<_, StoreError>(())
        });
        report(admitted.await);
        self.decided();
    }
}

/// Approves an unknown node by policy or rule, and assigns the profile of the rule.
pub(crate) fn approve_by_site(
    tx: &mut Tx<'_>,
    node: &mut Node,
    live: &SiteSnapshot,
    order: &(dyn Fn(Principal) -> AuditContext + Sync),
    now: Timestamp,
) {
    let may = node.phase == Phase::Discovered && tx.before().let_in_count() < MAX_LET_IN_BY_SITE;
    let Some(let_in) = live.lets_in(node).filter(|_| may) else { return };
    let by = order(let_in.map_or(Principal::Meshd, |rule| Principal::Rule(rule.name.clone())));
    let change = node.change(PhaseChange::Approve).ok().flatten();
    phase_event(tx, node.id, node.boot, change, &by, now);
    if let Some(profile) = let_in.and_then(|rule| rule.profile.clone()).filter(|_| node.profile.is_none()) {
        tx.event(Event::new(now, &by, EventKind::ProfileAssigned, profile.to_string()).of_node(node.id));
        node.profile = Some(profile);
    }
}

/// Returns the name of a `[[reservation]]` for a node that still has its generated name. A name that an operator chose stays.
pub(crate) fn pending_name<'l>(node: &Node, live: &'l SiteSnapshot) -> Option<&'l str> {
    live.node_name(node.known_as(), &node.fingerprint.macs)
        .filter(|name| node.has_generated_name() && node.name != *name)
}

/// Gives a node the name of its `[[reservation]]`, unless another node has it.
pub(crate) fn name_by_site(tx: &mut Tx<'_>, node: &mut Node, live: &SiteSnapshot, now: Timestamp) {
    let Some(name) = pending_name(node, live) else { return };
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
    use meshd_image::{catalog::Catalog, catalog::Overlays, overlay::AgentBinary};
    use meshd_model::fleet::Fingerprint;
    use meshd_store::Store;
    use meshd_types::{Basis, MacAddr};
    use std::{collections::BTreeMap, path::Path, sync::Arc};

    fn node(number: u8) -> Node {
        let mac = MacAddr([2, 0, 0, 0, 0, number]);
        Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH)
    }

    #[tokio::test]
    async fn reserved_name_is_given_unless_it_is_taken_or_the_node_was_renamed() {
        let (by_id, by_nic, replaced, renamed, late) = (node(1), node(2), node(3), node(4), node(5));
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
        let site = meshd_config::parse(&text, Path::new("site.toml")).unwrap_or_else(|faults| panic!("{faults}"));
        let catalog = Catalog::new(Vec::new(), Overlays::default());
        let live = SiteSnapshot::new(Arc::new(site), catalog, Arc::new(AgentBinary::new(b"")), BTreeMap::new());
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
                name_by_site(tx, &mut node, &live, Timestamp::EPOCH);
                Ok::<_, StoreError>(node.name.clone())
            });
            assert_eq!(named.await.expect("stored"), name);
        }
    }
}
