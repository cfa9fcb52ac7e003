//! The audit log: append-only and bounded, written in the transaction of the change.

use super::{Store, StoreError, events::Range, journal::AUDIT};
use meshd_model::fleet::{Audit, AuditSeq, Principal};
use meshd_types::{CorrelationId, NodeId};

/// Selects lines of the audit log.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Excludes earlier lines.
    pub from: AuditSeq,
    pub node: Option<NodeId>,
    /// Records of one actor.
    pub principal: Option<Principal>,
    pub correlation: Option<CorrelationId>,
    /// Maximum number of lines.
    pub limit: usize,
    /// Excludes this line and later ones.
    pub before: Option<AuditSeq>,
    /// Selects the oldest `limit` instead of the newest.
    pub oldest: bool,
    /// Text in operation, target, detail or reason, in lower case.
    pub text: Option<String>,
}

impl AuditFilter {
    fn matches(&self, audit: &Audit) -> bool {
        self.node.is_none_or(|node| audit.node == Some(node))
            && self.principal.as_ref().is_none_or(|principal| audit.by.principal == *principal)
            && self.correlation.is_none_or(|correlation| audit.by.correlation_id == correlation)
            && self.has_text(audit)
    }

    fn has_text(&self, audit: &Audit) -> bool {
        let Some(text) = &self.text else { return true };
        let verb = audit.by.verb.to_string();
        let texts = [
            Some(verb.as_str()),
            Some(&audit.detail),
            audit.target.as_deref(),
            audit.by.reason.as_deref(),
        ];
        texts.into_iter().flatten().any(|part| part.to_lowercase().contains(text.as_str()))
    }
}

impl Store {
    /// Returns matching lines of the audit log in their order: the newest `limit`, or the oldest.
    /// Blocks.
    pub fn audit(&self, filter: &AuditFilter) -> Result<Vec<(AuditSeq, Audit)>, StoreError> {
        let end = filter.before.map_or(u64::MAX, |before| before.0);
        let range = Range { first: filter.from.0, end, limit: filter.limit, oldest: filter.oldest };
        let found = self.numbered(AUDIT, range, |audit| filter.matches(audit))?;
        Ok(found.into_iter().map(|(seq, audit)| (AuditSeq(seq), audit)).collect())
    }
}
