//! The audit log: append-only and bounded, written in the transaction of the change.

use super::{Store, StoreError, journal::AUDIT};
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
}

impl AuditFilter {
    fn fits(&self, audit: &Audit) -> bool {
        self.node.is_none_or(|node| audit.node == Some(node))
            && self.who.as_ref().is_none_or(|who| audit.by.who == *who)
            && self.correlation.is_none_or(|correlation| audit.by.correlation == correlation)
    }
}

impl Store {
    /// The place of the next line of the audit log.
    pub fn next_audit(&self) -> AuditSeq {
        self.read(|model| AuditSeq(model.audit_log.next()))
    }

    /// Lines of the audit log in their order, the newest `limit` of those that fit.
    ///
    /// # Errors
    /// When the disk cannot be read, or a line is damaged.
    pub fn audit(&self, filter: &AuditFilter) -> Result<Vec<(AuditSeq, Audit)>, StoreError> {
        let mut found = Vec::new();
        for record in self.journal.newest(AUDIT, filter.from.0) {
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
        found.reverse();
        Ok(found)
    }
}
