//! A VM console between node and operator. The node opens a separate WebSocket on request, so that
//! guest output cannot block the link. Binary frames are bytes; text frames are a [`ConsoleNote`].
//! Shells and the input of tasks use such a connection, too.

use meshd_types::SystemUuid;
use serde::{Deserialize, Serialize};

/// Maximum size of a binary frame in bytes.
pub const MAX_PIECE: usize = 16 * 1024;

/// Identifies a console session; unique until the central node restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConsoleId(pub u64);

/// Requests that the node opens a console connection at [`crate::CONSOLE_PATH`]/ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleOrder {
    pub console: ConsoleId,
    pub uuid: SystemUuid,
    /// Maximum bytes of recorded output to send first; the newest are sent.
    pub history: u64,
    /// Continue with live output; otherwise the node closes the connection after the recorded
    /// output.
    pub follow: bool,
}

/// A control message of a console connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum ConsoleNote {
    /// The reader was too slow: this many bytes of output are lost.
    Lost { bytes: u64 },
    /// The guest does not read; input is queued.
    InputQueued,
    Ended {
        reason: String,
        /// What the user can do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
    /// The program ended, with this exit code.
    Exited { code: u8 },
    /// The connection ends soon.
    EndsSoon { seconds: u64, reason: String },
}

impl ConsoleNote {
    /// Returns an end without a hint.
    pub fn ended(reason: impl Into<String>) -> Self {
        ConsoleNote::Ended { reason: reason.into(), hint: None }
    }
}
