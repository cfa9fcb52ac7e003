//! Opens the store: folder, journal, and all records into the model.

use super::{
    Model, SUBSCRIBER_BACKLOG, Store, StoreError,
    change_log::ChangeLog,
    flush::Shared,
    journal::{AUDIT, EVENTS, Journal, Log},
    records,
    retention::{Record, Retained},
};
use meshd_types::failpoint;
use serde::de::DeserializeOwned;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::broadcast;

/// Folder of the store within the state folder.
pub const FOLDER: &str = "store";
/// Folder of the certificate authority within the state folder.
const AUTHORITY: &str = "ca";
/// Created by an operator in the state folder to start without a lost store; removed after use.
const CONFIRM: &str = "confirm-new-store";

impl Store {
    /// Opens the store below a state folder. Creates it if the site is new. Blocks.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let confirmation = check_new(state_dir)?;
        let opened = Self::from_log(Box::new(Journal::open(&state_dir.join(FOLDER))?))?;
        if let Some(confirmation) = confirmation {
            fs::remove_file(&confirmation)
                .map_err(|source| StoreError::Open { path: confirmation, source })?;
        }
        Ok(opened)
    }

    /// Opens a store that was restored from a backup: its files are complete and have no commit
    /// marker. Blocks.
    pub fn open_restored(state_dir: &Path) -> Result<Self, StoreError> {
        Self::from_log(Box::new(Journal::open_whole(&state_dir.join(FOLDER))?))
    }

    /// Loads the model from a log.
    pub(super) fn from_log(log: Box<dyn ChangeLog>) -> Result<Self, StoreError> {
        let mut model = Model::default();
        for (key, value) in &log.load() {
            records::load(&mut model, &String::from_utf8_lossy(key), value)?;
        }
        load_numbered(&*log, EVENTS, &mut model.event_log)?;
        load_numbered(&*log, AUDIT, &mut model.audit_log)?;
        let (subscribers, _) = broadcast::channel(SUBSCRIBER_BACKLOG);
        Ok(Store { shared: Arc::new(Shared::new(log, model, subscribers)) })
    }
}

/// Refuses a missing store if the site has a certificate authority: then the site is not new.
/// Returns the file with which an operator confirmed an empty store.
fn check_new(state_dir: &Path) -> Result<Option<PathBuf>, StoreError> {
    let path = state_dir.join(FOLDER);
    let authority = state_dir.join(AUTHORITY);
    let confirm = state_dir.join(CONFIRM);
    let is_empty =
        |dir: &Path| fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty(&path) || is_empty(&authority) || !failpoint::defends("missing-store") {
        return Ok(None);
    }
    if !confirm.exists() {
        return Err(StoreError::Missing { path, authority, confirm });
    }
    tracing::warn!(store = %path.display(), "the store is missing; the site starts without it, as an operator confirmed");
    Ok(Some(confirm))
}

/// Loads the numbered records. Removes those beyond the present bounds.
fn load_numbered<T: Record + DeserializeOwned>(
    log: &dyn ChangeLog,
    kind: Log,
    retained: &mut Retained<T>,
) -> Result<(), StoreError> {
    let mut evicted = Vec::new();
    for record in log.oldest(kind, 0) {
        let (number, value) = record.map_err(StoreError::Read)?;
        evicted.extend(retained.load(number, &decode(kind, number, &value)?));
    }
    retained.advance_to(log.next_number(kind));
    log.forget(kind, &mut evicted.into_iter());
    Ok(())
}

/// Decodes a numbered record.
pub(super) fn decode<T: DeserializeOwned>(
    log: Log,
    number: u64,
    value: &[u8],
) -> Result<T, StoreError> {
    serde_json::from_slice(value)
        .map_err(|source| StoreError::Damaged { key: format!("{log}{number}"), source })
}
