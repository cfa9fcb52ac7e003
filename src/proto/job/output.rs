//! Output of a task in pieces with offsets. A repeated piece is stored once, and a stream sends its next piece after
//! the previous one is stored. Neither side buffers more than one piece of each stream.

use meshd_types::{JobId, hex};
use serde::{Deserialize, Serialize};

/// Most bytes of one piece. In hexadecimal it is the longest text that a message may have.
pub const MAX_PIECE: usize = 8 * 1024;

/// One piece of what a job wrote on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    pub job: JobId,
    pub stream: Stream,
    /// Bytes of this stream before it.
    pub at: u64,
    pub data: Piece,
}

/// Everything up to here is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputKept {
    /// Of which job.
    pub job: JobId,
    /// Of which stream.
    pub stream: Stream,
    /// Bytes of the stream from its beginning.
    pub upto: u64,
}

/// Where a program writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Bytes, readable where they are text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Piece {
    Text(String),
    /// Anything else.
    Bytes {
        hex: String,
    },
}

impl Piece {
    /// Of these bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Piece::Bytes { hex: hex(error.as_bytes()) }, Piece::Text)
    }

    /// The bytes; `None` if they are not hexadecimal, or more than [`MAX_PIECE`].
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        let bytes = match self {
            Piece::Text(text) => text.into_bytes(),
            Piece::Bytes { hex } => {
                let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
                let even = hex.len() % 2 == 0 && hex.bytes().all(|c| c.is_ascii_hexdigit());
                hex.as_bytes().chunks(2).map(pair).collect::<Option<Vec<u8>>>().filter(|_| even)?
            }
        };
        (bytes.len() <= MAX_PIECE).then_some(bytes)
    }
}
