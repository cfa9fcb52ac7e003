//! Readiness checks: requested by an operator or reported by the node.

use crate::{
    environment::records::{clear_condition, phase_event, raise_if_new, record_stage},
    links::{LinkCommand, LinkError, LinkId, LinkOrder, Links, SpecPart},
};
use meshd_model::fleet::{
    Actor, AuditContext, Condition, ConditionKind, Event, EventKind, Node, PhaseChange, Stage,
};
use meshd_proto::{Check, CheckReport, CheckStatus, DoctorReport, FromCentral};
use meshd_store::{StoreError, Tx};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum number of stored checks of a node.
const MAX_CHECKS: usize = 64;
/// Maximum length of the name of a stored check, in characters.
const MAX_CHECK_NAME: usize = 64;
/// Maximum length of the detail and of the hint of a stored check, in characters.
const MAX_CHECK_TEXT: usize = 2000;
/// Timeout of requested checks; the probe of a silent gateway takes four seconds.
const DOCTOR_TIMEOUT: Duration = Duration::from_secs(25);

/// An unanswered request for the checks of a node.
pub(crate) struct PendingCheck {
    node: NodeId,
    request_id: u64,
    done: oneshot::Sender<()>,
}

impl Links {
    /// Requests the checks of a node over its link, and waits for their results.
    pub async fn node_doctor(
        &self,
        id: NodeId,
        audit: &AuditContext,
    ) -> Result<DoctorReport, LinkError> {
        let (done, completed) = oneshot::channel();
        let (commands, request_id) = {
            let mut links = self.inner.lock();
            let commands = links.entries.get(&id).map(|entry| entry.commands.clone());
            let commands =
                commands.ok_or(LinkError::NotLinked { node: id, order: LinkOrder::RunChecks })?;
            links.last_check_request += 1;
            let request_id = links.last_check_request;
            links.pending_checks.retain(|pending| !pending.done.is_closed());
            links.pending_checks.push(PendingCheck { node: id, request_id, done });
            (commands, request_id)
        };
        let event =
            Event::new(self.env.now(), audit, EventKind::NodeAction, "run the readiness checks");
        self.env.record(event.of_node(id)).await;
        let sent = commands.send(LinkCommand::Send(FromCentral::Check { request_id })).await;
        let answered = sent.is_ok()
            && matches!(tokio::time::timeout(DOCTOR_TIMEOUT, completed).await, Ok(Ok(())));
        let report = self.env.store.read(|model| model.node(id).and_then(doctor_report));
        let late = LinkError::NoAnswer {
            node: id,
            order: LinkOrder::RunChecks,
            seconds: DOCTOR_TIMEOUT.as_secs(),
        };
        report.filter(|_| answered).ok_or(late)
    }

    /// Requests a report of resources without waiting for it. A node without link reports at its
    /// next connection.
    pub(crate) fn request_checks(&self, node: NodeId) {
        let request_id = {
            let mut links = self.inner.lock();
            links.last_check_request += 1;
            links.last_check_request
        };
        self.try_send(node, LinkCommand::Send(FromCentral::Check { request_id }));
    }

    /// Processes reported checks. Results of another boot are ignored.
    pub(crate) async fn record_checks(
        &self,
        link: LinkId,
        session: BootSessionId,
        mut report: CheckReport,
    ) -> Result<(), StoreError> {
        let id = link.node();
        bound_checks(&mut report.checks);
        let now = self.env.now();
        let request_id = report.request_id;
        let failures: Vec<String> = report
            .checks
            .iter()
            .filter(|check| check.status == CheckStatus::Fail)
            .map(|check| format!("{}: {}", check.name, check.detail))
            .collect();
        let passes = failures.is_empty();
        let mut passed = false;
        let accepted = self.env.store.commit(|tx| {
            let edited = tx.edit_node(id, |node| {
                passed = node.passes();
                if !node.take_checks(report, session, now) {
                    return None;
                }
                if passes {
                    node.clear(ConditionKind::CheckFailed);
                }
                let phase_change =
                    if passes { PhaseChange::ChecksPass } else { PhaseChange::ChecksFail };
                Some(node.change(phase_change).ok().flatten())
            });
            let Some(Some(change)) = edited else { return Ok(false) };
            if !passes {
                let detail = failures.join("; ");
                raise_if_new(
                    tx,
                    id,
                    session,
                    Condition { kind: ConditionKind::CheckFailed, since: now, detail },
                    Actor::Node,
                );
            }
            compare_units(tx, id, session, now);
            if passes {
                record_stage(tx, session, Stage::Online, now);
                clear_condition(tx, id, ConditionKind::BootLoop, Actor::Node, now);
            }
            phase_event(tx, id, session, change, Actor::Node, now);
            Ok::<_, StoreError>(true)
        });
        if !accepted.await? {
            tracing::debug!(node = %id, "checks of another boot");
            return Ok(());
        }
        self.record_check_time(id);
        if !passed && passes {
            // Orders to run VMs waited for these checks.
            self.notify_node(id, SpecPart::All);
        }
        if let Some(request_id) = request_id {
            let mut links = self.inner.lock();
            for pending in links
                .pending_checks
                .extract_if(.., |it| it.node == id && it.request_id <= request_id)
            {
                // The requester may have stopped waiting.
                let _ = pending.done.send(());
            }
        }
        Ok(())
    }
}

/// Truncates reported checks: every list of nodes and every page of a node shows them.
fn bound_checks(checks: &mut Vec<Check>) {
    checks.truncate(MAX_CHECKS);
    for check in checks {
        for (text, limit) in [
            (&mut check.name, MAX_CHECK_NAME),
            (&mut check.detail, MAX_CHECK_TEXT),
            (&mut check.remediation, MAX_CHECK_TEXT),
        ] {
            if let Some((end, _)) = text.char_indices().nth(limit) {
                text.truncate(end);
            }
        }
    }
}

/// Summarizes the checks of this boot for `doctor`; `None` if there are none.
pub fn doctor_report(node: &Node) -> Option<DoctorReport> {
    let checks = node.valid_checks()?;
    let evidence = node.evidence.as_ref()?;
    let units = node.facts.as_ref().map(|facts| facts.units.as_slice()).unwrap_or_default();
    Some(DoctorReport::new(evidence.at, Some(evidence.session), checks.to_vec(), units))
}

/// Raises a condition if the units differ from the approved ones (GP-16).
pub(crate) fn compare_units(tx: &mut Tx<'_>, id: NodeId, session: BootSessionId, now: Timestamp) {
    match tx.edit_node(id, |node| node.compare_units()).flatten() {
        Some(detail) => {
            let condition = Condition { kind: ConditionKind::UnitDrift, since: now, detail };
            raise_if_new(tx, id, session, condition, Actor::Node);
        }
        None => clear_condition(tx, id, ConditionKind::UnitDrift, Actor::Node, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_checks_are_bounded_in_number_and_length() {
        let long = "é".repeat(MAX_CHECK_TEXT + 1);
        let name = long.clone();
        let detail = long.clone();
        let remediation = long;
        let check = Check { name, status: CheckStatus::Fail, detail, remediation, unproven: false };
        let mut checks = vec![check; MAX_CHECKS + 1];
        bound_checks(&mut checks);
        assert_eq!(checks.len(), MAX_CHECKS);
        let lengths = |check: &Check| {
            [&check.name, &check.detail, &check.remediation].map(|text| text.chars().count())
        };
        assert!(
            checks
                .iter()
                .all(|check| lengths(check) == [MAX_CHECK_NAME, MAX_CHECK_TEXT, MAX_CHECK_TEXT])
        );
    }
}
