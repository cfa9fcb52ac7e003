//! Stored answers by idempotency key: a repeated order returns the answer and is not executed
//! again.

use meshd_types::{Digest, Timestamp};
use serde::{Deserialize, Serialize};

/// A stored order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRecord {
    /// Digest of the request; a different request with the same key is refused.
    pub request: Digest,
    /// Time of the first request.
    pub at: Timestamp,
    /// Answer; `None` while the order is executed, or if meshd ended during its execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<StoredResponse>,
}

impl IdempotencyRecord {
    /// Records that the order was executed, without its answer.
    #[must_use]
    pub fn without_body(mut self) -> Self {
        if let Some(answered) = &mut self.answer {
            answered.body = None;
        }
        self
    }
}

/// A stored answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResponse {
    /// HTTP status.
    pub status: u16,
    /// JSON body; `None` if it was too long or is no longer stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}
