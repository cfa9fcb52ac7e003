//! The event log and the audit log, for readers outside the central node.

use super::Environment;
use meshd_model::fleet::{Audit, AuditSeq, Event, EventSeq};
use meshd_store::{AuditFilter, EventFilter, StoreError};
use tokio::sync::broadcast::Receiver;

impl Environment {
    /// Returns matching events in their order: the newest ones up to the limit, or the oldest.
    /// Blocks.
    pub fn events(&self, filter: EventFilter) -> Result<Vec<(EventSeq, Event)>, StoreError> {
        self.store.events(filter)
    }

    /// Subscribes to new events. An event is sent after it is on the disk.
    pub fn subscribe_to_events(&self) -> Receiver<(EventSeq, Event)> {
        self.store.subscribe()
    }

    /// Returns matching lines of the audit log in their order: the newest ones up to the limit, or
    /// the oldest. Blocks.
    pub fn audit_lines(&self, filter: &AuditFilter) -> Result<Vec<(AuditSeq, Audit)>, StoreError> {
        self.store.audit(filter)
    }

    /// Writes audit lines of orders that changed nothing, in one transaction.
    pub async fn write_audit(&self, lines: Vec<Audit>) -> Result<(), StoreError> {
        let written = self.store.commit(|tx| {
            lines.into_iter().for_each(|line| tx.audit(line));
            Ok(())
        });
        written.await
    }

    /// Checks that a change could be stored now.
    ///
    /// # Errors
    /// The disk is full, read-only or broken.
    pub async fn storage_ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }
}
