//! Backups: store and authority as of one moment, sealed with a key.

use crate::admin::Admin;
use meshd_backup::{AUTHORITY, BackupError, BackupSource, FileGroup, Manifest};
use meshd_model::fleet::{AuditContext, Event, EventKind};
use meshd_store::StoreError;
use meshd_types::{Secret, Timestamp};
use std::{fs::File, io::Write, sync::Arc};

/// The store as of one moment.
pub struct Snapshot {
    files: Vec<(String, File, u64)>,
    authority: FileGroup,
    taken_at: Timestamp,
}

impl Admin {
    /// Records who makes the backup, and copies store and authority as of now. The record is part of the backup.
    pub async fn snapshot(self: &Arc<Self>, by: &AuditContext) -> Result<Snapshot, BackupError> {
        let taken_at = self.env.now();
        // No rotation meanwhile: the backup must not mix two authorities.
        let _one = self.enrolment.authority_stays().await;
        self.env
            .store
            .commit(|tx| {
                tx.event(Event::new(taken_at, by, EventKind::BackedUp, ""));
                Ok::<_, StoreError>(())
            })
            .await?;
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let authority = FileGroup::read(&this.env.site().state_dir.join(AUTHORITY))?;
            Ok::<_, BackupError>((this.env.store.snapshot()?, authority))
        });
        let (files, authority) = read.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        Ok(Snapshot { files, authority, taken_at })
    }

    /// Writes a backup with that store in it, encrypted with a key. Blocks.
    ///
    /// # Errors
    /// A file cannot be read, or `out` cannot be written; its content is then incomplete.
    pub fn back_up(
        &self,
        snapshot: Snapshot,
        blobs: bool,
        key: &Secret<String>,
        out: impl Write,
    ) -> Result<Manifest, BackupError> {
        let Snapshot { files, authority, taken_at } = snapshot;
        let site = self.env.site();
        let source = BackupSource { site: &site, store: files, authority, made_at: taken_at, blobs };
        meshd_backup::create(source, key, out)
    }
}
