//! The ID of a task.

use std::{fmt, str::FromStr};

/// 32 random bits, written as 8 hexadecimal characters. An identifier, not a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub [u8; 4]);

/// The text is not 8 hexadecimal characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a task ID (8 hexadecimal characters); `meshd task list` shows them")]
pub struct ParseJobIdError(pub String);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&crate::hex(&self.0))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for JobId {
    type Err = ParseJobIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::unhex(text).map(JobId).ok_or_else(|| ParseJobIdError(text.chars().take(40).collect()))
    }
}

crate::serde_as_text!(JobId);
