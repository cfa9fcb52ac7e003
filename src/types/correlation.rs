//! What ties one request to its answer, its log lines, its events and its line in the audit log.

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
        f.write_str(&super::hex(&self.0))
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
        super::unhex(text).map(CorrelationId).ok_or_else(|| ParseCorrelationIdError(text.chars().take(40).collect()))
    }
}

super::serde_as_text!(CorrelationId);
