//! A VM console between node and operator. The node opens a separate WebSocket on request, so that guest output cannot
//! block the link. Binary frames are bytes; text frames are a [`ConsoleNote`].

use meshd_types::SystemUuid;
use serde::{Deserialize, Serialize};

/// Largest binary frame, in bytes.
pub const MAX_PIECE: usize = 16 * 1024;

/// Names one sitting at a console, for as long as this central node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConsoleId(pub u64);

/// Open a console, at [`crate::CONSOLE_PATH`] with the ID behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleOrder {
    pub console: ConsoleId,
    pub uuid: SystemUuid,
    /// Most bytes of what is kept that are told first, the newest.
    pub history: u64,
    /// Go on with what comes; else the node hangs up after what is kept.
    pub follow: bool,
}

/// What is said beside the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum ConsoleNote {
    /// Who listens was too slow: some of what the guest wrote is not kept any more.
    Lost {
        /// So many bytes.
        bytes: u64,
    },
    /// The guest does not read: what is typed waits for it.
    Unheard,
    /// It is over, for this reason.
    Ended {
        /// In words.
        reason: String,
    },
}
