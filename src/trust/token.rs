//! Provisional.
use crate::id::{BootSessionId, Digest, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// A token as it is stored: never the token itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// SHA-256 of the token.
    pub hash: Digest,
    /// Only this node may use it.
    pub node: NodeId,
    /// Only in this boot session.
    pub session: BootSessionId,
    /// Not after this.
    pub expires_at: Timestamp,
    /// When it was used.
    pub used_at: Option<Timestamp>,
}
