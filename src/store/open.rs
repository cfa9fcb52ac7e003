//! Opens the store: folder, journal, and all records into the model.

use super::{
    Flusher, Model, SUBSCRIBER_BACKLOG, Store, StoreError,
    journal::{AUDIT, EVENTS, Journal, Log, Records},
    records,
    retention::{Record, Retained},
};
use meshd_types::failpoint;
use serde::de::DeserializeOwned;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, RwLock},
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
        let opened = Self::from_journal(Journal::open(&state_dir.join(FOLDER))?)?;
        if let Some(confirmation) = confirmation {
            fs::remove_file(&confirmation).map_err(|source| StoreError::Open { path: confirmation, source })?;
        }
        Ok(opened)
    }

    /// Opens a store that was restored from a backup: its files are complete and have no commit marker. Blocks.
    pub fn open_restored(state_dir: &Path) -> Result<Self, StoreError> {
        Self::from_journal(Journal::open_whole(&state_dir.join(FOLDER))?)
    }

    fn from_journal((journal, stored): (Journal, Records)) -> Result<Self, StoreError> {
        let mut model = Model::default();
        for (key, value) in &stored {
            records::load(&mut model, &String::from_utf8_lossy(key), value)?;
        }
        load_log(&journal, EVENTS, "event", &mut model.event_log)?;
        load_log(&journal, AUDIT, "audit", &mut model.audit_log)?;
        let journal = Arc::new(journal);
        let flusher = Flusher::new(Arc::clone(&journal));
        let (subscribers, _) = broadcast::channel(SUBSCRIBER_BACKLOG);
        Ok(Store { journal, model: RwLock::new(model), flusher, subscribers, unsent: Mutex::default() })
    }
}

/// Refuses a missing store if the site has a certificate authority: then the site is not new. Returns the file with which an operator
/// confirmed an empty store.
fn check_new(state_dir: &Path) -> Result<Option<PathBuf>, StoreError> {
    let (path, authority, confirm) = (state_dir.join(FOLDER), state_dir.join(AUTHORITY), state_dir.join(CONFIRM));
    let is_empty = |dir: &Path| fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
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
fn load_log<T: Record + DeserializeOwned>(
    journal: &Journal,
    log: Log,
    kind: &str,
    retained: &mut Retained<T>,
) -> Result<(), StoreError> {
    let mut evicted = Vec::new();
    for record in journal.all(log) {
        let (number, value) = record.map_err(StoreError::Read)?;
        let record: T = decode(&format!("{kind}/{number}"), &value)?;
        evicted.extend(retained.load(number, &record));
    }
    retained.advance_to(journal.next(log));
    journal.forget(log, evicted);
    Ok(())
}

pub(super) fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|source| StoreError::Damaged { key: key.to_owned(), source })
}
