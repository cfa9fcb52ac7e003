//! Pending connections: a node without a token waits for an operator's approval.
//!
//! Only the machine of a boot session may wait, from its own address. The approval is for one key:
//! while two keys wait for one node, neither gets a certificate.

use crate::{
    enrolment::{
        Enrolment,
        enrol::{check_version, record_takeover, store_certificate},
        error::AgentApiError,
    },
    environment::{alarms::Alarm, lan_client::LanClient},
    locks::Leaf,
};
use meshd_model::fleet::{
    Actor, BootSession, ConditionKind, Event, EventKind, Node, Phase, Stage, Verb, Wait,
};
use meshd_proto::{Facts, PendingHello, PendingReply};
use meshd_store::{StoreError, Tx};
use meshd_types::{BootSessionId, Digest, NodeId};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};
use tokio::sync::watch;

/// Maximum number of pending connections.
const MAX_WAITING: usize = 20_000;

/// Maximum size of the facts of an unapproved machine, in bytes of JSON: twice the facts of a
/// machine with 16 GPUs.
const MAX_FACTS: usize = 128 * 1024;

/// Interval at which a pending connection is checked without a notification.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct PendingConnections {
    entries: Leaf<BTreeMap<u64, PendingKey>>,
    next: std::sync::atomic::AtomicU64,
    /// Incremented when an operator or the site decides about a node.
    decided: watch::Sender<u64>,
}

struct PendingKey {
    node: NodeId,
    key: Digest,
}

/// A node that waits for approval; dropped when its connection ends.
pub struct PendingConnection {
    enrolment: Arc<Enrolment>,
    id: u64,
    node: NodeId,
    session: BootSessionId,
    csr_pem: String,
    key: Digest,
    decided: watch::Receiver<u64>,
    waiting_reported: bool,
}

impl Enrolment {
    /// Registers a node without token or certificate.
    pub async fn pending(
        self: &Arc<Self>,
        hello: PendingHello,
        client: LanClient,
    ) -> Result<PendingConnection, AgentApiError> {
        check_version(hello.version)?;
        let from = client.address;
        let now = self.env.now();
        let (has_session, is_own, node) = self.env.store.read(|model| {
            let is_own = |session: &BootSession| {
                session.node == Some(hello.node)
                    && session.address.is_some_and(|address| IpAddr::V4(address) == from)
            };
            let node = model.node(hello.node).cloned();
            let named = model.session(hello.session);
            let current = node.as_ref().and_then(|node| model.session(node.boot?));
            (named.or(current).is_some(), named.is_some_and(is_own), node)
        });
        if !has_session {
            return Err(self.refuse_without_session(&hello, from, node.is_some()).await);
        }
        let boot = node.as_ref().map(|node| node.boot);
        // The credentials of this machine were revoked in this boot: it raises no alarm, and must
        // boot again.
        if is_own && boot == Some(None) {
            return Err(AgentApiError::Unauthorized);
        }
        let wire = match &node {
            Some(node) => self.env.check_node_neighbour(&client, node).await,
            None => Ok(()),
        };
        if !is_own || boot != Some(Some(hello.session)) || wire.is_err() {
            if wire.is_ok() || client.claim_alarm(node.as_ref().map(|node| node.id)) {
                self.pending_alarm(&hello, from, wire.err()).await;
            }
            return Err(AgentApiError::Unauthorized);
        }
        // Validates the request and yields its key. This certificate is never sent.
        let key = self.authority().issue_node(&hello.csr_pem, hello.node, now)?.key;
        let id = self.pending.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let has_conflict = {
            let mut entries = self.pending.entries.lock();
            if entries.len() >= MAX_WAITING {
                return Err(AgentApiError::Busy);
            }
            entries.insert(id, PendingKey { node: hello.node, key });
            entries.values().any(|entry| entry.node == hello.node && entry.key != key)
        };
        let connection = PendingConnection {
            enrolment: self.clone(),
            id,
            node: hello.node,
            session: hello.session,
            csr_pem: hello.csr_pem,
            key,
            decided: self.pending.decided.subscribe(),
            waiting_reported: false,
        };
        let facts = bounded_facts(hello.facts);
        let stored = self.env.store.commit(|tx| {
            // A connection that gets no certificate is no sign of life, and its facts are not
            // those of the machine that the operator knows.
            if has_conflict || !may_wait(tx, connection.node, connection.session) {
                return Ok(());
            }
            tx.edit_node(connection.node, |node| {
                node.facts = Some(facts);
                node.last_seen = now;
            });
            if tx.node(connection.node).is_some_and(|node| !node.phase.is_admitted()) {
                tx.edit_session(connection.session, |session| {
                    session.record_wait(Wait::APPROVAL, now)
                });
            }
            Ok::<_, StoreError>(())
        });
        stored.await?;
        Ok(connection)
    }

    /// Refuses a machine that was not netbooted, such as one whose ticket is void or whose
    /// certificate was revoked. It impersonates no boot, so this is no alarm.
    async fn refuse_without_session(
        &self,
        hello: &PendingHello,
        from: IpAddr,
        is_known: bool,
    ) -> AgentApiError {
        if self.env.allows(&format!("pending from {from}")) {
            let node = hello.node;
            let detail = format!("{from} waits as {node}, which has no boot session");
            tracing::warn!(%node, %from, "a machine without boot session waits for approval");
            let now = self.env.now();
            let kind = EventKind::EnrolRefused;
            let event = Event::new(now, Actor::Stranger, kind, detail);
            self.env.record(event.of_node(is_known.then_some(node))).await;
        }
        AgentApiError::Unauthorized
    }

    async fn pending_alarm(&self, hello: &PendingHello, from: IpAddr, wire: Option<String>) {
        let why = wire.unwrap_or_else(|| "not the address of that boot session".to_owned());
        let detail = format!("{from} waits as {} of boot {}: {why}", hello.node, hello.session);
        let kind = ConditionKind::BootImpersonated;
        let cause = format!("pending from {from}");
        self.env.alarm(Alarm { kind, node: Some(hello.node), session: None, cause, detail }).await;
    }

    /// Wakes all pending connections: an operator or the site decided about a node.
    pub(crate) fn notify_decision(&self) {
        self.pending.decided.send_modify(|count| *count += 1);
    }

    /// Returns the number of pending connections.
    pub fn pending_count(&self) -> usize {
        self.pending.entries.lock().len()
    }
}

impl PendingConnection {
    /// Returns the next reply. `Approved` and `Rejected` are final.
    pub async fn next(&mut self) -> PendingReply {
        loop {
            self.decided.mark_unchanged();
            match self.decide().await {
                PendingReply::Waiting { .. } if self.waiting_reported => {}
                reply => {
                    self.waiting_reported = true;
                    return reply;
                }
            }
            // An approved node may wait for another reason: a second key, or a full disk.
            let _ = tokio::time::timeout(RECHECK_INTERVAL, self.decided.changed()).await;
        }
    }

    async fn decide(&self) -> PendingReply {
        let enrolment = &self.enrolment;
        let rejected = |reason: &str| PendingReply::Rejected { reason: reason.to_owned() };
        let waiting = |reason: &str| PendingReply::Waiting { reason: reason.to_owned() };
        let Some(node) = enrolment.env.store.read(|model| model.node(self.node).cloned()) else {
            return rejected("the node was removed; boot again");
        };
        match node.phase {
            Phase::Removed => return rejected("an operator removed this node; boot again"),
            Phase::Rejected => return rejected("an operator rejected this node"),
            _ if node.boot != Some(self.session) => {
                return rejected("the node has booted again since");
            }
            phase if !phase.is_admitted() => {
                return waiting(&format!(
                    "an operator has to approve this node: meshd node approve {}",
                    self.node
                ));
            }
            _ => {}
        }
        let has_conflict = enrolment
            .pending
            .entries
            .lock()
            .values()
            .any(|entry| entry.node == self.node && entry.key != self.key);
        if has_conflict {
            let detail = format!("two keys wait for {}; neither receives a certificate", self.node);
            let kind = ConditionKind::IdCollision;
            let cause = format!("pending {}", self.node);
            let node = Some(self.node);
            let session = Some(self.session);
            enrolment.env.alarm(Alarm { kind, node, session, cause, detail }).await;
            return waiting("another machine claims to be this node");
        }
        match self.certificate(&node).await {
            Ok(Some(reply)) => reply,
            Ok(None) => rejected("this boot has its certificate already"),
            Err(error) => waiting(&format!("the central node cannot answer now: {error}")),
        }
    }

    /// Issues one certificate for each boot session. A second request is refused.
    async fn certificate(&self, node: &Node) -> Result<Option<PendingReply>, AgentApiError> {
        let now = self.enrolment.env.now();
        let issued = self.enrolment.authority().issue_node(&self.csr_pem, self.node, now)?;
        let takeover = self.enrolment.describe_takeover(node, self.session, issued.key);
        let audit = self.enrolment.env.node_audit_context(Verb::Enrol);
        let certified = self.enrolment.env.store.commit(|tx| {
            // An operator may have changed the node meanwhile.
            let is_current =
                |node: &Node| node.phase.is_admitted() && node.boot == Some(self.session);
            if !tx.node(self.node).is_some_and(is_current) {
                return Ok(false);
            }
            let linked = tx
                .session(self.session)
                .is_none_or(|session| session.reached(Stage::Link).is_some());
            // A valid token of this boot must be used first. Exceptions: it has expired, or this
            // key used it and the answer was lost.
            let token = tx.before().tokens_of(self.node).any(|token| {
                let spent = token.used.map_or(token.expires_at >= now, |used| used.key != self.key);
                token.session == self.session && spent
            });
            if linked || token {
                return Ok(false);
            }
            store_certificate(tx, self.node, self.session, &issued, &audit, now);
            record_takeover(tx, self.node, self.session, takeover.as_deref(), now);
            Ok::<_, StoreError>(true)
        });
        let certified = certified.await?;
        if certified {
            self.enrolment.links.touch(self.node);
        }
        Ok(certified.then(|| PendingReply::Approved(issued.response(now))))
    }
}

/// True unless a connection of this boot is refused whatever an operator approves.
fn may_wait(tx: &Tx<'_>, node: NodeId, session: BootSessionId) -> bool {
    let is_decided = |node: &Node| matches!(node.phase, Phase::Removed | Phase::Rejected);
    let has_link = |boot: &BootSession| boot.reached(Stage::Link).is_some();
    tx.node(node).is_some_and(|node| !is_decided(node) && node.boot == Some(session))
        && !tx.session(session).is_none_or(has_link)
}

/// Limits the facts that are stored for the operator: removes devices if they are too large, and
/// everything if that is not enough.
fn bounded_facts(facts: Facts) -> Facts {
    let fits = |facts: &Facts| serde_json::to_vec(facts).is_ok_and(|text| text.len() <= MAX_FACTS);
    let without_devices = |Facts { system, cpu, memory, versions, .. }| Facts {
        system,
        cpu,
        memory,
        versions,
        ..Facts::default()
    };
    Some(facts)
        .map(|facts| if fits(&facts) { facts } else { without_devices(facts) })
        .filter(fits)
        .unwrap_or_default()
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.enrolment.pending.entries.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_proto::PciFacts;

    #[test]
    fn oversized_facts_are_stored_without_devices_or_not_at_all() {
        let mut facts = Facts::default();
        facts.system.serial = "SN-1".to_owned();
        facts.pci = vec![PciFacts::default(); 300];
        assert_eq!(bounded_facts(facts.clone()), facts);
        facts.pci[0].address = "x".repeat(MAX_FACTS);
        let bounded = bounded_facts(facts.clone());
        assert_eq!((bounded.system.serial.as_str(), bounded.pci.len()), ("SN-1", 0));
        facts.system.serial = "x".repeat(MAX_FACTS);
        assert_eq!(bounded_facts(facts), Facts::default());
    }
}
