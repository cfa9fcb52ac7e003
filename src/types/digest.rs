//! SHA-256 digests, which identify blobs, overlays and generations.

use crate::ParseError;
use sha2::Digest as _;
use std::{fmt, str::FromStr};

/// A SHA-256 digest, written as 64 lower-case hexadecimal characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Computes the digest of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(sha2::Sha256::digest(bytes).into())
    }

    /// Computes the digest of several fields, each preceded by its length, so that different lists
    /// of fields do not collide.
    pub fn of_fields<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = sha2::Sha256::new();
        for field in fields {
            hasher.update((field.len() as u64).to_be_bytes());
            hasher.update(field);
        }
        Digest(hasher.finalize().into())
    }

    /// Returns the first 12 characters, enough for people to distinguish digests.
    pub fn short(&self) -> String {
        super::hex(&self.0[..6])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.short())
    }
}

impl FromStr for Digest {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error =
            || ParseError::of_text(text, "is not a SHA-256 digest", "it has 64 of 0-9 and a-f");
        super::unhex(text).map(Digest).ok_or_else(error)
    }
}

super::serde_as_text!(Digest);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_moved_between_fields_changes_the_digest() {
        let left = Digest::of_fields([b"ab".as_slice(), b"c"]);
        let right = Digest::of_fields([b"a".as_slice(), b"bc"]);
        assert_ne!(left, right);
    }

    #[test]
    fn digest_of_empty_input_is_sha256_and_round_trips() {
        let digest = Digest::of(b"");
        assert_eq!(
            digest.to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert!("e3b0".parse::<Digest>().is_err());
    }
}
