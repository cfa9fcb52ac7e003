//! Somebody takes a backup.

use super::{Central, Shared};
use crate::backup::{self, BackupError, Manifest, Source};
use crate::fleet::{By, Event, EventKind};
use crate::id::{Secret, Timestamp};
use crate::store::StoreError;
use std::{fs::File, io::Write};

/// The store as of one moment.
pub struct Snapshot {
    files: Vec<(String, File, u64)>,
    taken_at: Timestamp,
}

impl Central {
    /// Writes down who takes a backup, which is in the backup then, and takes the store as of now.
    pub async fn snapshot(self: &Shared, by: &By) -> Result<Snapshot, StoreError> {
        let taken_at = self.now();
        self.store
            .commit(|tx| {
                tx.event(Event::new(taken_at, by, EventKind::BackedUp, ""));
                Ok::<_, StoreError>(())
            })
            .await?;
        let central = self.clone();
        let files = tokio::task::spawn_blocking(move || central.store.snapshot()).await;
        let files = files.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        Ok(Snapshot { files, taken_at })
    }

    /// Writes a backup with that store in it, sealed with a key. Blocks.
    ///
    /// # Errors
    /// A file cannot be read, or `out` cannot be written; what was written is no backup then.
    pub fn back_up(
        &self,
        snapshot: Snapshot,
        blobs: bool,
        key: &Secret<String>,
        out: impl Write,
    ) -> Result<Manifest, BackupError> {
        let Snapshot { files, taken_at } = snapshot;
        let source = Source { site: &self.site(), store: files, made_at: taken_at, blobs, salt: self.random() };
        backup::create(source, key, out)
    }
}
