//! The audit log: append-only and bounded, written in the transaction of the change.

use super::{Store, StoreError, events::is_before, journal::AUDIT};
use meshd_model::fleet::{Audit, AuditSeq, Principal};
use meshd_types::{CorrelationId, NodeId};

/// Which lines to read.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Only those from this one on.
    pub from: AuditSeq,
    /// Only those about this node.
    pub node: Option<NodeId>,
    /// Only those of this actor.
    pub who: Option<Principal>,
    /// Only those of this request.
    pub correlation: Option<CorrelationId>,
    /// At most so many, the newest.
    pub limit: usize,
    /// Only those before this one.
    pub before: Option<AuditSeq>,
    /// The oldest `limit` in place of the newest.
    pub oldest: bool,
    /// Only those whose operation, target, detail or reason contains this text in lower case.
    pub text: Option<String>,
}

impl AuditFilter {
    fn fits(&self, audit: &Audit) -> bool {
        self.node.is_none_or(|node| audit.node == Some(node))
            && self.who.as_ref().is_none_or(|who| audit.by.who == *who)
            && self.correlation.is_none_or(|correlation| audit.by.correlation == correlation)
            && self.has_text(audit)
    }

    fn has_text(&self, audit: &Audit) -> bool {
        let Some(text) = &self.text else { return true };
        let verb = audit.by.verb.to_string();
        let texts = [Some(verb.as_str()), Some(&audit.detail), audit.target.as_deref(), audit.by.reason.as_deref()];
        texts.into_iter().flatten().any(|part| part.to_lowercase().contains(text.as_str()))
    }
}

impl Store {
    /// The place of the next line of the audit log.
    pub fn next_audit(&self) -> AuditSeq {
        self.read(|model| AuditSeq(model.audit_log.next()))
    }

    /// Lines of the audit log in their order, the newest `limit` of those that fit, or the oldest.
    ///
    /// # Errors
    /// When the disk cannot be read, or a line is damaged.
    pub fn audit(&self, filter: &AuditFilter) -> Result<Vec<(AuditSeq, Audit)>, StoreError> {
        let (first, end) = (filter.from.0, filter.before.map_or(u64::MAX, |before| before.0));
        let mut found = Vec::new();
        let (newest, oldest) = if filter.oldest {
            (None, Some(self.journal.oldest(AUDIT, first).take_while(is_before(end))))
        } else {
            (Some(self.journal.newest(AUDIT, first, end)), None)
        };
        for record in newest.into_iter().flatten().chain(oldest.into_iter().flatten()) {
            let (seq, value) = record.map_err(StoreError::Read)?;
            let damaged = |source| StoreError::Damaged { key: format!("audit/{seq}"), source };
            let audit: Audit = serde_json::from_slice(&value).map_err(damaged)?;
            if filter.fits(&audit) {
                found.push((AuditSeq(seq), audit));
            }
            if found.len() >= filter.limit {
                break;
            }
        }
        if !filter.oldest {
            found.reverse();
        }
        Ok(found)
    }
}
