//! Revocation of a node's certificates, tokens, capability and link at once.
//!
//! There is no revocation list. A node's record lists its valid certificates, and every connection
//! and request is checked against it. An unlisted certificate is refused, also after a restart.

use crate::{enrolment::Enrolment, environment::records::phase_event};
use meshd_model::fleet::{Cause, Event, EventKind, LinkState, Node};
use meshd_store::Tx;
use meshd_types::{Digest, NodeId, Timestamp, failpoint};
use std::time::Duration;

/// Interval at which credentials are checked for expiry.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

impl Enrolment {
    /// Completes [`revoke_credentials`] after its commit: voids the capability and closes the link
    /// before it returns.
    pub(crate) fn disconnect(&self, id: NodeId, why: &str) {
        self.capabilities.lock().void_node(id);
        self.links.sever_link(id, why);
        self.notify_decision();
        self.notify_revocation();
    }

    /// Wakes every connection and stream that depends on a credential.
    pub(crate) fn notify_revocation(&self) {
        self.revocations.send_modify(|count| *count += 1);
    }

    /// Resolves when `is_valid` is false: at once after a revocation, within seconds after an
    /// expiry.
    pub async fn until_revoked(&self, is_valid: impl Fn() -> bool) {
        let mut revocations = self.revocations.subscribe();
        while is_valid() || !failpoint::defends("revocation-ends-streams") {
            let _ = tokio::time::timeout(RECHECK_INTERVAL, revocations.changed()).await;
        }
    }

    /// True while a node has a valid certificate.
    pub fn has_valid_certificate(&self, id: NodeId) -> bool {
        self.env.store.read(|model| model.node(id).is_some_and(has_valid_certificate))
    }

    /// Number of stored capabilities, open and spent.
    pub fn capability_count(&self) -> usize {
        self.capabilities.lock().len()
    }
}

pub(crate) fn has_valid_certificate(node: &Node) -> bool {
    node.phase.is_admitted() && !node.certificates.is_empty()
}

/// Revokes the credentials of a node inside a transaction; [`Enrolment::disconnect`] must follow.
/// `link` is the state of the closed link: its last sign of life is recorded.
pub(crate) fn revoke_credentials(
    tx: &mut Tx<'_>,
    id: NodeId,
    link: &LinkState,
    cause: impl Into<Cause>,
    why: &str,
    now: Timestamp,
) {
    let tokens = remove_tokens(tx, id);
    forget_reported_nics(tx, id);
    let certificates = tx.edit_node(id, |node| {
        node.boot = None;
        node.last_seen = link.last_message_at.map_or(node.last_seen, |at| at.max(node.last_seen));
        std::mem::take(&mut node.certificates).len()
    });
    let Some(certificates) = certificates else { return };
    let detail = format!("certificates: {certificates}, tokens: {tokens}; {why}");
    tx.event(Event::new(now, cause, EventKind::CredentialsRevoked, detail).of_node(id));
}

/// Forgets the NICs that a node without credentials reported: they hold no addresses any more.
fn forget_reported_nics(tx: &mut Tx<'_>, id: NodeId) {
    if failpoint::defends("nics-forgotten") {
        tx.edit_node(id, Node::forget_reported_nics);
    }
}

/// Removes the tokens of a node, and returns their number.
pub(crate) fn remove_tokens(tx: &mut Tx<'_>, id: NodeId) -> usize {
    let hashes: Vec<Digest> = tx.before().tokens_of(id).map(|token| token.hash).collect();
    hashes.iter().for_each(|hash| tx.remove_token(*hash));
    hashes.len()
}

/// Removes a node with all its credentials.
pub(crate) fn delete_node(
    tx: &mut Tx<'_>,
    id: NodeId,
    cause: impl Into<Cause>,
    now: Timestamp,
) -> Option<Node> {
    let mut node = tx.node(id).cloned()?;
    let change = node.remove(now).ok().flatten();
    remove_tokens(tx, id);
    tx.remove_history(id);
    tx.put_node(node.clone());
    phase_event(tx, id, None, change, cause, now);
    Some(node)
}
