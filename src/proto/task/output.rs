//! Output of a task in pieces with offsets. A repeated piece is stored once, and a stream sends its
//! next piece after the previous one is stored. Neither side buffers more than one piece of each
//! stream.

use meshd_types::{TaskId, hex};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes of a piece. In hexadecimal it is the longest text of a message.
pub const MAX_PIECE: usize = 8 * 1024;

/// One piece of a task's output on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    pub task: TaskId,
    pub stream: Stream,
    /// Offset in the stream, bytes.
    pub at: u64,
    pub data: Piece,
}

/// Output up to an offset is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputStored {
    pub task: TaskId,
    pub stream: Stream,
    /// Offset in the stream, bytes.
    pub end: u64,
}

/// The stream that a program writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Bytes, sent as text if they are UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Piece {
    Text(String),
    /// Other bytes, in hexadecimal.
    Bytes {
        hex: String,
    },
}

impl Piece {
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes)
            .map_or_else(|error| Piece::Bytes { hex: hex(error.as_bytes()) }, Piece::Text)
    }

    /// Returns the bytes; `None` if they are not hexadecimal, or more than [`MAX_PIECE`].
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        let bytes = match self {
            Piece::Text(text) => text.into_bytes(),
            Piece::Bytes { hex } => {
                let pair =
                    |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
                let even = hex.len() % 2 == 0 && hex.bytes().all(|c| c.is_ascii_hexdigit());
                hex.as_bytes().chunks(2).map(pair).collect::<Option<Vec<u8>>>().filter(|_| even)?
            }
        };
        (bytes.len() <= MAX_PIECE).then_some(bytes)
    }
}
