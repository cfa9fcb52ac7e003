//! Opening: folder, journal, every record back into memory.

use super::{
    Flusher, Model, SUBSCRIBER_BACKLOG, Store, StoreError,
    journal::{AUDIT, EVENTS, Journal, Records},
};
use crate::fleet::{AuditSeq, EventSeq};
use serde::de::DeserializeOwned;
use std::{
    path::Path,
    sync::{Arc, Mutex, RwLock},
};
use tokio::sync::broadcast;

/// Folder of the store within the state folder.
pub const FOLDER: &str = "store";

impl Store {
    /// Opens the store below a state folder, making it if it is not there. Blocks.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let (journal, records) = Journal::open(&state_dir.join(FOLDER))?;
        let mut model = load(&records)?;
        model.next_event = EventSeq(journal.next(EVENTS));
        model.next_audit = AuditSeq(journal.next(AUDIT));
        let journal = Arc::new(journal);
        let flusher = Flusher::new(Arc::clone(&journal));
        let (subscribers, _) = broadcast::channel(SUBSCRIBER_BACKLOG);
        Ok(Store { journal, model: RwLock::new(model), flusher, subscribers, unsent: Mutex::default() })
    }
}

fn load(records: &Records) -> Result<Model, StoreError> {
    let mut model = Model::default();
    for (key, value) in records {
        let key = String::from_utf8_lossy(key).into_owned();
        match key.split_once('/').map_or(key.as_str(), |(kind, _)| kind) {
            "node" => model.put_node(decode(&key, value)?),
            "session" => model.put_session(decode(&key, value)?),
            "lease" => model.put_lease(decode(&key, value)?),
            "history" => {
                let node = key.strip_prefix("history/").and_then(|id| id.parse().ok());
                let node = node.ok_or_else(|| StoreError::UnknownKey { key: key.clone() })?;
                model.histories.insert(node, decode(&key, value)?);
            }
            "profile" => {
                let name = key.strip_prefix("profile/").and_then(|name| name.parse().ok());
                let name = name.ok_or_else(|| StoreError::UnknownKey { key: key.clone() })?;
                model.revisions.insert(name, decode(&key, value)?);
            }
            "api-token" => {
                let token: crate::trust::ApiToken = decode(&key, value)?;
                model.api_tokens.insert(token.hash, token);
            }
            "asked" => {
                let digest = key.strip_prefix("asked/").and_then(|digest| digest.parse().ok());
                let digest = digest.ok_or_else(|| StoreError::UnknownKey { key: key.clone() })?;
                model.asked.insert(digest, decode(&key, value)?);
            }
            "job" => model.jobs.put(decode(&key, value)?),
            "token" => model.put_token(decode(&key, value)?),
            "slot" => model.work.put_slot(decode(&key, value)?),
            "vm" => model.work.put_vm(decode(&key, value)?),
            _ => return Err(StoreError::UnknownKey { key }),
        }
    }
    Ok(model)
}

fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|source| StoreError::Damaged { key: key.to_owned(), source })
}
