//! The correlation ID: links a request to its answer, log lines, events and audit line.

use std::{fmt, str::FromStr};

/// 64 random bits, written as 16 hexadecimal characters. An identifier, not a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CorrelationId(pub [u8; 8]);

/// The text is not 16 hexadecimal characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a correlation ID (16 hexadecimal characters)")]
pub struct ParseCorrelationIdError(pub String);

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::hex(&self.0))
    }
}

impl fmt::Debug for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CorrelationId {
    type Err = ParseCorrelationIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::unhex(text).map(CorrelationId).ok_or_else(|| ParseCorrelationIdError(text.chars().take(40).collect()))
    }
}

crate::serde_as_text!(CorrelationId);
