//! Automatic approval of nodes, by a rule or by the site's policy.

use super::Enrolment;
use crate::environment::{alarms::log_failure, records::phase_event, site_snapshot::SiteSnapshot};
use meshd_model::fleet::{AuditContext, Event, EventKind, Node, Phase, PhaseChange, Principal, Verb};
use meshd_store::{StoreError, Tx};
use meshd_types::{NodeId, Timestamp};

/// Maximum number of approved nodes for automatic approval: twice the largest rack. Invented machines that match a rule cannot fill the
/// store or the audit log.
const MAX_AUTO_APPROVED: usize = 20_000;

impl Enrolment {
    /// Approves waiting nodes that match changed rules of the site.
    pub(crate) async fn approve_waiting(&self) {
        let (snapshot, now) = (self.env.snapshot(), self.env.now());
        let automatic_approval =
            |node: &&Node| node.phase == Phase::Discovered && snapshot.automatic_approval(node).is_some();
        let waiting: Vec<NodeId> = self.env.store.read(|model| {
            let limit = MAX_AUTO_APPROVED.saturating_sub(model.approved_count());
            model.nodes().filter(automatic_approval).map(|node| node.id).take(limit).collect()
        });
        if waiting.is_empty() {
            return;
        }
        let audit_for = |principal| AuditContext::new(principal, Verb::Approve, self.env.new_correlation());
        let admitted = self.env.store.commit(|tx| {
            for id in &waiting {
                let Some(mut node) = tx.node(*id).cloned() else { continue };
                approve_automatically(tx, &mut node, &snapshot, &audit_for, now);
                tx.put_node(node);
            }
            Ok::<_, StoreError>(())
        });
        log_failure(admitted.await, "cannot record automatic approvals");
        self.notify_decision();
    }
}

/// Approves an unknown node by policy or rule, and assigns the profile of the rule.
pub(crate) fn approve_automatically(
    tx: &mut Tx<'_>,
    node: &mut Node,
    snapshot: &SiteSnapshot,
    audit_for: &(dyn Fn(Principal) -> AuditContext + Sync),
    now: Timestamp,
) {
    let is_allowed = node.phase == Phase::Discovered && tx.before().approved_count() < MAX_AUTO_APPROVED;
    let Some(approval) = snapshot.automatic_approval(node).filter(|_| is_allowed) else { return };
    let audit = audit_for(approval.map_or(Principal::Meshd, |rule| Principal::Rule(rule.name.clone())));
    let change = node.change(PhaseChange::Approve).ok().flatten();
    phase_event(tx, node.id, node.boot, change, &audit, now);
    if let Some(profile) = approval.and_then(|rule| rule.profile.clone()).filter(|_| node.profile.is_none()) {
        tx.event(Event::new(now, &audit, EventKind::ProfileAssigned, profile.to_string()).of_node(node.id));
        node.profile = Some(profile);
    }
}
