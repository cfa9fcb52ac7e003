//! A node loses what lets it in: certificates, tokens and capability, and the link that stands on them, all at once.
//!
//! There is no list of what is revoked: a node's record names the serial numbers that are honoured, and every connection
//! and every request is held against it. What is not named there is refused, also after a restart.

use super::{Central, OperateError, lock};
use crate::fleet::{By, Cause, Event, EventKind, Node};
use crate::id::{Digest, NodeId, Timestamp};
use crate::store::Tx;

impl Central {
    /// Takes back every credential of a node and cuts its link. The boot that it is in is over: it gets new ones when it
    /// boots again, as far as its phase allows.
    pub async fn revoke(&self, id: NodeId, by: &By) -> Result<Node, OperateError> {
        let (now, why) = (self.now(), by.reason.as_deref().unwrap_or("an operator took them back"));
        let node = self
            .store
            .commit(|tx| {
                disown(tx, id, by, why, now);
                tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })
            })
            .await;
        self.cut_off_after(&node, id, why);
        node
    }

    /// What follows an order that takes credentials. One that could not be flushed is in memory all the same, and given again it
    /// changes nothing: nothing else would end the link.
    pub(super) fn cut_off_after<T>(&self, done: &Result<T, OperateError>, id: NodeId, why: &str) {
        let is_in = |node: &Node| node.phase.is_admitted() && !node.certificates.is_empty();
        let may_be_done = matches!(done, Ok(_) | Err(OperateError::Store(_)));
        if may_be_done && !self.store.read(|model| model.node(id).is_some_and(is_in)) {
            self.cut_off(id, why);
        }
    }

    /// What follows once [`disown`] is stored: the capability is void, and the link is gone before this returns.
    pub(super) fn cut_off(&self, id: NodeId, why: &str) {
        lock(&self.capabilities).void_node(id);
        self.sever_link(id, why);
        self.decided();
    }
}

/// Takes back the credentials of a node, inside a transaction; [`Central::cut_off_after`] has to follow it.
pub(super) fn disown(tx: &mut Tx<'_>, id: NodeId, cause: impl Into<Cause>, why: &str, now: Timestamp) {
    let tokens: Vec<Digest> = tx.before().tokens_of(id).map(|token| token.hash).collect();
    for hash in &tokens {
        tx.remove_token(*hash);
    }
    let certificates = tx.edit_node(id, |node| {
        node.boot = None;
        std::mem::take(&mut node.certificates).len()
    });
    let Some(certificates) = certificates else { return };
    let detail = format!("{certificates} certificates and {} tokens: {why}", tokens.len());
    tx.event(Event::new(now, cause, EventKind::CredentialsRevoked, detail).of_node(id));
}
