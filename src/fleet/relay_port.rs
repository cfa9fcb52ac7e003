//! Where a machine is plugged in behind a relay.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a relay says of the port that a client's packet came in on: sub-options 1 and 2 of option 82 (RFC 3046), in hexadecimal. Other
/// sub-options differ between packets of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayPort {
    /// Agent circuit ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit_id: Option<String>,
    /// Agent remote ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_id: Option<String>,
}

impl fmt::Display for RelayPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |id: &Option<String>| id.clone().unwrap_or_else(|| "none".to_owned());
        write!(f, "circuit ID {}, remote ID {}", shown(&self.circuit_id), shown(&self.remote_id))
    }
}
