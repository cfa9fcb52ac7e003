//! Opening: folder, version, every record back into memory.

use super::{Flusher, Model, SUBSCRIBER_BACKLOG, Store, StoreError, VERSION, events};
use crate::fleet::EventSeq;
use serde::de::DeserializeOwned;
use std::{
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::{Mutex, RwLock},
};
use tokio::sync::broadcast;

/// sled's own page cache, in bytes; the model holds what is read often.
const CACHE_BYTES: u64 = 32 * 1024 * 1024;

impl Store {
    /// Opens the store below a state folder, making it if it is not there.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join("store");
        let folder = |source| StoreError::Folder { path: state_dir.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(folder)?;
        // No timed flush: every commit flushes for itself, and what was not committed need not survive.
        let config = sled::Config::new().path(&path).cache_capacity(CACHE_BYTES).flush_every_ms(None);
        let db = config.open().map_err(|source| StoreError::Open { path: path.clone(), source })?;
        let tree = db.open_tree("meshd").map_err(|source| StoreError::Open { path, source })?;
        check_version(&tree)?;
        let model = load(&tree)?;
        let flusher = Flusher::new(db);
        let (subscribers, _) = broadcast::channel(SUBSCRIBER_BACKLOG);
        Ok(Store { tree, model: RwLock::new(model), flusher, subscribers, unsent: Mutex::default() })
    }
}

fn check_version(tree: &sled::Tree) -> Result<(), StoreError> {
    match tree.get("version").map_err(StoreError::Write)? {
        Some(found) if found == VERSION => Ok(()),
        Some(found) => Err(StoreError::Version { found: String::from_utf8_lossy(&found).into_owned() }),
        None if tree.is_empty() => {
            tree.insert("version", VERSION).map_err(StoreError::Write)?;
            tree.flush().map_err(StoreError::Write)?;
            Ok(())
        }
        None => Err(StoreError::Version { found: "unknown".to_owned() }),
    }
}

fn load(tree: &sled::Tree) -> Result<Model, StoreError> {
    let mut model = Model::default();
    let (mut oldest_event, mut by_mac) = (None, Vec::new());
    for record in tree {
        let (key, value) = record.map_err(StoreError::Write)?;
        if let Some(seq) = events::seq_of(&key) {
            oldest_event.get_or_insert(seq);
            model.next_event = EventSeq(seq.0 + 1);
            continue;
        }
        let key = String::from_utf8_lossy(&key).into_owned();
        match key.split_once('/').map_or(key.as_str(), |(kind, _)| kind) {
            "version" => {}
            "node" => model.put_node(decode(&key, &value)?),
            "session" => model.put_session(decode(&key, &value)?),
            "lease" => {
                let lease: crate::fleet::Lease = decode(&key, &value)?;
                if key != lease_key(&lease) {
                    by_mac.push((key, lease));
                } else {
                    model.leases.insert(lease.address, lease);
                }
            }
            "history" => {
                let node = key.strip_prefix("history/").and_then(|id| id.parse().ok());
                let node = node.ok_or_else(|| StoreError::UnknownKey { key: key.clone() })?;
                model.histories.insert(node, decode(&key, &value)?);
            }
            "profile" => {
                let name = key.strip_prefix("profile/").and_then(|name| name.parse().ok());
                let name = name.ok_or_else(|| StoreError::UnknownKey { key: key.clone() })?;
                model.revisions.insert(name, decode(&key, &value)?);
            }
            "token" => model.put_token(decode(&key, &value)?),
            _ => return Err(StoreError::UnknownKey { key }),
        }
    }
    model.oldest_event = oldest_event.unwrap_or_default();
    rename_leases(tree, &mut model, by_mac)?;
    Ok(model)
}

fn lease_key(lease: &crate::fleet::Lease) -> String {
    format!("lease/{}", lease.address)
}

/// Leases were kept by MAC address once; of two for one address the later one stays.
fn rename_leases(
    tree: &sled::Tree,
    model: &mut Model,
    old: Vec<(String, crate::fleet::Lease)>,
) -> Result<(), StoreError> {
    let mut batch = sled::Batch::default();
    for (key, lease) in old {
        batch.remove(key.into_bytes());
        if model.lease(lease.address).is_some_and(|other| other.expires_at > lease.expires_at) {
            continue;
        }
        let value = serde_json::to_vec(&lease).map_err(StoreError::Encode)?;
        batch.insert(lease_key(&lease).into_bytes(), value);
        model.leases.insert(lease.address, lease);
    }
    tree.apply_batch(batch).map_err(StoreError::Write)
}

fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|source| StoreError::Damaged { key: key.to_owned(), source })
}
