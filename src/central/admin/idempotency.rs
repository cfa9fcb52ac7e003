//! Orders with an idempotency key run once. The key is stored first, so that a crash never leads to
//! a second execution.

use super::Admin;
use crate::locks::Leaf;
use meshd_model::fleet::{IdempotencyRecord, StoredResponse};
use meshd_store::{IDEMPOTENCY_KEY_LIFETIME, StoreError};
use meshd_types::Digest;
use std::{collections::BTreeSet, sync::Arc};

/// Keys of orders in progress.
#[derive(Clone, Default)]
pub(crate) struct RunningOrders(Arc<Leaf<BTreeSet<Digest>>>);

/// Marks its key as in progress until it is dropped.
pub struct RunningOrder {
    all: RunningOrders,
    key: Digest,
}

impl Drop for RunningOrder {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.key);
    }
}

/// What is known of an idempotency key.
pub enum KeyUse {
    /// The key is new, and reserved for this order.
    New(RunningOrder),
    /// An earlier order used the key.
    Repeated { record: IdempotencyRecord, is_running: bool },
}

impl Admin {
    /// Reserves a key. `key` is the digest of caller and key, `request` that of the whole request.
    pub async fn reserve_idempotency_key(
        &self,
        key: Digest,
        request: Digest,
    ) -> Result<KeyUse, StoreError> {
        let now = self.env.now();
        let reserved = self.env.store.commit(|tx| {
            let before = tx.before().idempotency_record(&key);
            if let Some(record) =
                before.filter(|record| now.distance(record.at) <= IDEMPOTENCY_KEY_LIFETIME)
            {
                let is_running = self.running_orders.0.lock().contains(&key);
                return Ok(KeyUse::Repeated { record: record.clone(), is_running });
            }
            tx.put_idempotency_record(key, IdempotencyRecord { request, at: now, answer: None });
            // Marked within the transaction, so a reader that finds the key also finds the mark.
            self.running_orders.0.lock().insert(key);
            Ok(KeyUse::New(RunningOrder { all: self.running_orders.clone(), key }))
        });
        reserved.await
    }

    /// Stores the answer of an order, for repeats of its key.
    pub async fn store_answer(
        &self,
        key: Digest,
        request: Digest,
        answer: StoredResponse,
    ) -> Result<(), StoreError> {
        let record = IdempotencyRecord { request, at: self.env.now(), answer: Some(answer) };
        let stored = self.env.store.commit(|tx| {
            tx.put_idempotency_record(key, record);
            Ok(())
        });
        stored.await
    }
}
