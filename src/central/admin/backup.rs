//! Backups: a consistent copy of store and authority, encrypted with a key.

use crate::admin::Admin;
use meshd_backup::{AUTHORITY, AuthorityFiles, BackupError, BackupSource, Manifest};
use meshd_model::fleet::{AuditContext, Event, EventKind};
use meshd_types::{Secret, Timestamp};
use std::{fs::File, io::Write, sync::Arc};

/// A consistent copy of store and authority.
pub struct Snapshot {
    files: Vec<(String, File, u64)>,
    authority: AuthorityFiles,
    taken_at: Timestamp,
}

impl Admin {
    /// Records the backup, and copies store and authority. The record is part of the backup.
    pub async fn snapshot(self: &Arc<Self>, audit: &AuditContext) -> Result<Snapshot, BackupError> {
        let taken_at = self.env.now();
        // Prevents a rotation: the backup must not mix two authorities.
        let _one = self.enrolment.lock_authority().await;
        self.env.store_event(Event::new(taken_at, audit, EventKind::BackedUp, "")).await?;
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let authority = AuthorityFiles::read(&this.env.site().state_dir.join(AUTHORITY))?;
            Ok::<_, BackupError>((this.env.store.snapshot()?.files, authority))
        });
        let (files, authority) =
            read.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        Ok(Snapshot { files, authority, taken_at })
    }

    /// Writes an encrypted backup. Blocks. After an error, the content of `out` is incomplete.
    pub fn back_up(
        &self,
        snapshot: Snapshot,
        blobs: bool,
        key: &Secret<String>,
        out: impl Write,
    ) -> Result<Manifest, BackupError> {
        let Snapshot { files, authority, taken_at } = snapshot;
        let site = self.env.site();
        let source =
            BackupSource { site: &site, store: files, authority, created_at: taken_at, blobs };
        meshd_backup::create(source, key, out)
    }
}
