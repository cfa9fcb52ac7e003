//! Identity of a replica.

use super::MAX_REPLICAS;
use meshd_types::{ContainerName, ParseError, serde_as_text};
use std::{fmt, str::FromStr};

/// One replica of a container, written `web.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    pub container: ContainerName,
    /// From 0; less than [`MAX_REPLICAS`].
    pub index: u16,
}

impl FromStr for ReplicaId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        // `00` and `+0` would be other texts of the same replica.
        let is_plain = |index: &str| {
            index == "0" || !index.starts_with('0') && index.bytes().all(|c| c.is_ascii_digit())
        };
        let parts = text.rsplit_once('.').filter(|(_, index)| is_plain(index));
        let parsed = parts.and_then(|(name, index)| {
            let index = index.parse().ok().filter(|index| *index < MAX_REPLICAS)?;
            Some(ReplicaId { container: name.parse().ok()?, index })
        });
        let hint = "write CONTAINER.INDEX, such as web.0";
        parsed.ok_or_else(|| ParseError::of_text(text, "is not a replica of a container", hint))
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.container, self.index)
    }
}

serde_as_text!(ReplicaId);
