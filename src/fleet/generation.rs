//! A generation: the digest of everything public that determines a node's boot.

use crate::id::{Digest, ParseDigestError};
use std::{fmt, str::FromStr};

/// Two boots of one generation are the same boot, but for the per-boot secrets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub Digest);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.short())
    }
}

impl FromStr for Generation {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Generation)
    }
}

crate::id::serde_as_text!(Generation);
