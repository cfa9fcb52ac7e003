//! Automatic approval of nodes, by a rule or by the site's policy.

use super::Enrolment;
use crate::environment::{alarms::report, records::phase_event, site_snapshot::SiteSnapshot};
use meshd_model::fleet::{AuditContext, Event, EventKind, Node, Phase, PhaseChange, Principal, Verb};
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
