//! Enrolment tokens: a secret that buys one certificate for one node. Each overlay carries one; operators create tickets
//! for machines that do not netboot.
//!
//! The store keeps only the hash, so a reader of the store cannot enrol.

use meshd_types::{Basis, BootSessionId, Digest, NodeId, Secret, Timestamp, hex};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use subtle::ConstantTimeEq as _;

/// Makes a token from 32 random bytes: the text that travels, and the hash that stays.
pub fn mint(random: [u8; 32]) -> (Secret<String>, Digest) {
    let text = hex(&random);
    let hash = hash(&text);
    (Secret::new(text), hash)
}

/// The name under which a token is stored. Total on any text.
pub fn hash(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Hash of its text.
    pub hash: Digest,
    /// The only node that may use it.
    pub node: NodeId,
    /// The only power-on in which it may be used.
    pub session: BootSessionId,
    /// Not to be used after this time.
    pub expires_at: Timestamp,
    /// When it was used, and for which key. A token is used once; the same key may ask again, because the answer to its
    /// first request can be lost, and gains nothing by it.
    pub used: Option<Use>,
    /// What the node's ID was derived from, if an operator made the token: it lets a machine in that may be unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
    /// When it was made; the time of an overlay's is that of the overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<Timestamp>,
}

/// How a token was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// First time.
    pub at: Timestamp,
    /// Digest of the public key that was certified.
    pub key: Digest,
    /// From where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
}

/// Why a token buys nothing. The node is never told which of these it was (EN-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefused {
    /// It belongs to another node or another power-on.
    #[error("the token belongs to another node or boot session")]
    Foreign,
    /// It was used before.
    #[error("the token was used before")]
    Used,
    /// Its life is over.
    #[error("the token has expired")]
    Expired,
}

impl TokenRecord {
    /// A fresh record.
    pub fn new(hash: Digest, node: NodeId, session: BootSessionId, expires_at: Timestamp) -> Self {
        TokenRecord { hash, node, session, expires_at, used: None, basis: None, made_at: None }
    }

    /// A fresh record of a token that an operator makes.
    pub fn manual(hash: Digest, basis: Basis, session: BootSessionId, now: Timestamp, expires_at: Timestamp) -> Self {
        let (node, made_at) = (basis.node_id(), Some(now));
        TokenRecord { basis: Some(basis), made_at, ..Self::new(hash, node, session, expires_at) }
    }

    /// True if an operator made it.
    pub fn is_manual(&self) -> bool {
        self.basis.is_some()
    }

    /// True if the text is this token. Takes the same time whatever the text.
    pub fn is(&self, text: &str) -> bool {
        self.hash.0.ct_eq(&hash(text).0).into()
    }

    /// Uses the token up. Call it inside the transaction that stores the certificate: of two callers one wins (EN-2).
    ///
    /// # Errors
    /// Nothing has changed then; a stranger cannot use up somebody else's token.
    pub fn redeem(
        &mut self,
        node: NodeId,
        session: BootSessionId,
        key: Digest,
        now: Timestamp,
    ) -> Result<(), TokenRefused> {
        if self.node != node || self.session != session {
            return Err(TokenRefused::Foreign);
        }
        if self.used.is_some_and(|earlier| earlier.key != key) {
            return Err(TokenRefused::Used);
        }
        if now > self.expires_at {
            return Err(TokenRefused::Expired);
        }
        self.used.get_or_insert(Use { at: now, key, from: None });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Digest = Digest([8; 32]);

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn node(text: &str) -> NodeId {
        text.parse().expect("a node ID")
    }

    fn record() -> (String, TokenRecord) {
        let (text, hash) = mint([7; 32]);
        let record = TokenRecord::new(hash, node("00000001"), BootSessionId([1; 12]), at(1000));
        (text.expose().clone(), record)
    }

    #[test]
    fn token_works_once_and_only_for_its_node_and_session() {
        let (_, mut record) = record();
        let (ours, session) = (node("00000001"), BootSessionId([1; 12]));
        assert_eq!(record.redeem(node("00000002"), session, KEY, at(1)), Err(TokenRefused::Foreign));
        assert_eq!(record.redeem(ours, BootSessionId([2; 12]), KEY, at(1)), Err(TokenRefused::Foreign));
        assert_eq!(record.redeem(ours, session, KEY, at(1000)), Ok(()), "a stranger has not used it up");
        assert_eq!(record.redeem(ours, session, Digest([9; 32]), at(1000)), Err(TokenRefused::Used));
        assert_eq!(record.redeem(ours, session, KEY, at(1000)), Ok(()), "the answer to the first may have been lost");
        assert_eq!(record.used, Some(Use { at: at(1000), key: KEY, from: None }));
    }

    #[test]
    fn token_expires_and_its_text_is_not_stored() {
        let (text, mut record) = record();
        assert_eq!(record.redeem(node("00000001"), BootSessionId([1; 12]), KEY, at(1001)), Err(TokenRefused::Expired));
        assert_eq!(record.used, None);
        assert!(record.is(&text));
        let stored = serde_json::to_string(&record).expect("plain");
        assert!(!stored.contains(&text));
        assert_eq!(serde_json::from_str::<TokenRecord>(&stored).ok(), Some(record));
    }

    proptest! {
        #[test]
        fn no_other_text_is_the_token(text in "\\PC{0,80}|[0-9a-f]{64}") {
            let (ours, record) = record();
            prop_assert_eq!(record.is(&text), text == ours);
        }
    }
}
