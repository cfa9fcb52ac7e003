//! The log of one boot of a node: kernel messages and the system log, in pieces with offsets, and
//! what the central node adds.
//!
//! ```text
//! agent    LogPiece ───▶ central     the next piece of a source, repeated until it is stored
//!          ◀── LogStored
//! ```
//! An agent sends nothing unless [`super::Welcome::logs`] is true: earlier central nodes do not
//! know these messages.

use super::task::Piece;
use serde::{Deserialize, Serialize};

/// The source of a log line.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum LogSource {
    /// `/dev/kmsg`: kernel messages, with the seconds since the start of the kernel.
    Kernel,
    /// `/var/log/messages`: syslog messages of services, including the agent.
    System,
    /// Why `mesh-init` or stage 1 stopped the boot.
    BootFailure,
    /// Text of the machine's serial port, by its BMC.
    Console,
    /// Kernel messages that the machine sends by UDP.
    Netconsole,
}

impl LogSource {
    /// Returns true for a source that the agent of a node sends.
    pub fn is_of_agent(self) -> bool {
        matches!(self, LogSource::Kernel | LogSource::System)
    }
}

serialised_name!(LogSource);

/// One piece of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPiece {
    pub source: LogSource,
    /// Offset in the source since the agent's start, bytes.
    pub at: u64,
    pub data: Piece,
}

/// A source is stored up to an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStored {
    pub source: LogSource,
    /// Offset in the source, bytes.
    pub end: u64,
}
