//! Stored answers by idempotency key: a repeated order returns the answer and is not executed again.

use meshd_types::{Digest, Timestamp};
use serde::{Deserialize, Serialize};

/// One such order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRecord {
    /// Digest of what was asked: another request with the same key is refused.
    pub request: Digest,
    /// When it came first.
    pub at: Timestamp,
    /// What was answered; `None` while it is being followed, or if the program ended meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answered>,
}

impl IdempotencyRecord {
    /// That it was followed, and not what was answered.
    #[must_use]
    pub fn without_body(mut self) -> Self {
        if let Some(answered) = &mut self.answer {
            answered.body = None;
        }
        self
    }
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Status of HTTP.
    pub status: u16,
    /// The body, JSON; `None` if it was too long to be kept, or is kept no longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}
