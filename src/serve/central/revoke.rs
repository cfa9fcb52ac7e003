//! A node loses what lets it in: certificates, tokens and capability, and the link that stands on them, all at once.
//!
//! There is no list of what is revoked: a node's record names the serial numbers that are honoured, and every connection
//! and every request is held against it. What is not named there is refused, also after a restart.

use super::{Central, OperateError, lock};
use meshd_model::fleet::{AuditContext, Cause, Event, EventKind, LinkState, Node};
use meshd_store::Tx;
use meshd_types::{Digest, NodeId, Timestamp, fail};
use std::time::Duration;

/// How often a credential is looked at though nothing was revoked: its life may have ended.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Central {
    /// Takes back every credential of a node and cuts its link. The boot that it is in is over: it gets new ones when it
    /// boots again, as far as its phase allows.
    pub async fn revoke(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let (now, why) = (self.now(), by.reason.as_deref().unwrap_or("an operator took them back"));
        let node = self
            .store
            .commit(|tx| {
                disown(tx, id, &self.link_state(id), by, why, now);
                tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })
            })
            .await;
        self.cut_off_after(&node, id, why);
        node
    }

    /// What follows an order that takes credentials. One that could not be flushed is in memory all the same, and given again it
    /// changes nothing: nothing else would end the link.
    pub(super) fn cut_off_after<T>(&self, done: &Result<T, OperateError>, id: NodeId, why: &str) {
        let may_be_done = matches!(done, Ok(_) | Err(OperateError::Store(_)));
        if may_be_done && !self.store.read(|model| model.node(id).is_some_and(is_let_in)) {
            self.cut_off(id, why);
        }
    }

    /// What follows once [`disown`] is stored: the capability is void, and the link is gone before this returns.
    pub(super) fn cut_off(&self, id: NodeId, why: &str) {
        lock(&self.capabilities).void_node(id);
        self.sever_link(id, why);
        self.decided();
        self.revoked();
    }

    /// Something was revoked: everything that stands on a credential looks at it again.
    pub(super) fn revoked(&self) {
        self.revocations.send_modify(|count| *count += 1);
    }

    /// Resolves once `is_honoured` is false: at once when it is revoked, and some seconds after its life ended.
    pub async fn until_revoked(&self, is_honoured: impl Fn() -> bool) {
        let mut revocations = self.revocations.subscribe();
        while is_honoured() || !fail::defends("revocation-ends-streams") {
            let _ = tokio::time::timeout(LOOK_AGAIN, revocations.changed()).await;
        }
    }

    /// True while a node has a certificate that is honoured.
    pub fn is_let_in(&self, id: NodeId) -> bool {
        self.store.read(|model| model.node(id).is_some_and(is_let_in))
    }
}

fn is_let_in(node: &Node) -> bool {
    node.phase.is_admitted() && !node.certificates.is_empty()
}

/// Takes back the credentials of a node, inside a transaction; [`Central::cut_off_after`] has to follow it. `link` is the state of the
/// link that is cut: when it was last heard of is written down, because nothing else remembers it.
pub(super) fn disown(
    tx: &mut Tx<'_>,
    id: NodeId,
    link: &LinkState,
    cause: impl Into<Cause>,
    why: &str,
    now: Timestamp,
) {
    let tokens: Vec<Digest> = tx.before().tokens_of(id).map(|token| token.hash).collect();
    for hash in &tokens {
        tx.remove_token(*hash);
    }
    let certificates = tx.edit_node(id, |node| {
        node.boot = None;
        node.last_seen = link.heard.map_or(node.last_seen, |heard| heard.max(node.last_seen));
        std::mem::take(&mut node.certificates).len()
    });
    let Some(certificates) = certificates else { return };
    let detail = format!("{certificates} certificates and {} tokens: {why}", tokens.len());
    tx.event(Event::new(now, cause, EventKind::CredentialsRevoked, detail).of_node(id));
}
