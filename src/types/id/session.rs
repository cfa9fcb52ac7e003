//! The ID of a boot session.

use std::{fmt, str::FromStr};

/// 96 random bits, written as 24 hexadecimal characters. An identifier, not a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootSessionId(pub [u8; 12]);

/// The text is not 24 hexadecimal characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a boot session ID (24 hexadecimal characters)")]
pub struct ParseBootSessionIdError(pub String);

impl fmt::Display for BootSessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::hex(&self.0))
    }
}

impl fmt::Debug for BootSessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BootSessionId {
    type Err = ParseBootSessionIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::unhex(text).map(BootSessionId).ok_or_else(|| ParseBootSessionIdError(text.chars().take(40).collect()))
    }
}

crate::serde_as_text!(BootSessionId);
