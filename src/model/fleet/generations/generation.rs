//! A generation: the digest of all public data that determines a node's boot.

use meshd_types::{Digest, ParseError};
use std::{fmt, str::FromStr};

/// Digest that identifies a generation. Two boots of one generation differ only in per-boot
/// secrets.
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
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Generation)
    }
}

meshd_types::serde_as_text!(Generation);
