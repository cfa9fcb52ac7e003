//! Enrolment tokens: a secret that buys one certificate for one node. Each overlay carries one;
//! operators create tickets for machines that do not netboot.
//!
//! The store keeps only the hash, so a reader of the store cannot enrol.

use meshd_types::{Basis, BootSessionId, Digest, MacAddr, NodeId, Secret, Timestamp, hex};
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, time::Duration};
use subtle::ConstantTimeEq as _;

/// Creates a token from 32 random bytes; returns its text and its hash.
pub fn mint(random: [u8; 32]) -> (Secret<String>, Digest) {
    let text = hex(&random);
    let hash = hash(&text);
    (Secret::new(text), hash)
}

/// Returns the hash that a token is stored under. Accepts any text.
pub fn hash(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

/// Longest time for which a token may be valid.
pub const MAX_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// Stored part of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Hash of the token.
    pub hash: Digest,
    /// The node that may use it.
    pub node: NodeId,
    /// The boot session in which it may be used.
    pub session: BootSessionId,
    /// Time of expiry.
    pub expires_at: Timestamp,
    /// First use. A token is used once; the same key may repeat the request, because the response
    /// may be lost. A repetition gains nothing.
    pub used: Option<Use>,
    /// Basis of the node ID, if an operator created the token: it admits a machine that may be
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
    /// Time of creation, if an operator ordered the enrolment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
}

/// Use of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Time of the first use.
    pub at: Timestamp,
    /// Digest of the certified public key.
    pub key: Digest,
    /// Address of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
    /// Ethernet address of the node, if it is on a local segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
}

/// Why a token is refused. The node never learns the reason (EN-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefused {
    /// The token belongs to another node or boot session.
    #[error("the token belongs to another node or boot session")]
    Foreign,
    #[error("the token was used before")]
    Used,
    #[error("the token has expired")]
    Expired,
}

impl TokenRecord {
    /// Creates the record of an overlay's token.
    pub fn new(hash: Digest, node: NodeId, session: BootSessionId, expires_at: Timestamp) -> Self {
        TokenRecord { hash, node, session, expires_at, used: None, basis: None, created_at: None }
    }

    /// Creates the record of a token by which an operator ordered a running node to enrol again.
    pub fn of_order(
        hash: Digest,
        node: NodeId,
        session: BootSessionId,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Self {
        TokenRecord { created_at: Some(now), ..Self::new(hash, node, session, expires_at) }
    }

    /// Creates the record of a ticket.
    pub fn of_ticket(
        hash: Digest,
        basis: Basis,
        session: BootSessionId,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Self {
        let node = basis.node_id();
        TokenRecord { basis: Some(basis), ..Self::of_order(hash, node, session, now, expires_at) }
    }

    /// Returns whether it is a ticket.
    pub fn is_ticket(&self) -> bool {
        self.basis.is_some()
    }

    /// Returns whether the text is this token, in constant time.
    pub fn matches(&self, text: &str) -> bool {
        self.hash.0.ct_eq(&hash(text).0).into()
    }

    /// Uses the token. Call it in the transaction that stores the certificate: of two callers one
    /// wins (EN-2).
    ///
    /// # Errors
    /// A refusal changes nothing, so a stranger cannot use up a token.
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
        // A later end was computed with a clock that was wrong.
        if now > self.expires_at || self.expires_at > now.after(MAX_LIFE) {
            return Err(TokenRefused::Expired);
        }
        self.used.get_or_insert(Use { at: now, key, from: None, mac: None });
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
    fn enrol_token_is_redeemed_once_by_its_node_and_session() {
        let (_, mut record) = record();
        let ours = node("00000001");
        let session = BootSessionId([1; 12]);
        assert_eq!(
            record.redeem(node("00000002"), session, KEY, at(1)),
            Err(TokenRefused::Foreign)
        );
        assert_eq!(
            record.redeem(ours, BootSessionId([2; 12]), KEY, at(1)),
            Err(TokenRefused::Foreign)
        );
        assert_eq!(
            record.redeem(ours, session, KEY, at(1000)),
            Ok(()),
            "a stranger has not used it up"
        );
        assert_eq!(
            record.redeem(ours, session, Digest([9; 32]), at(1000)),
            Err(TokenRefused::Used)
        );
        assert_eq!(
            record.redeem(ours, session, KEY, at(1000)),
            Ok(()),
            "the answer to the first may have been lost"
        );
        assert_eq!(record.used, Some(Use { at: at(1000), key: KEY, from: None, mac: None }));
    }

    #[test]
    fn enrol_token_of_a_clock_in_the_future_is_expired() {
        let (_, mut record) = record();
        let ours = node("00000001");
        let session = BootSessionId([1; 12]);
        let made = at(4_296_000_000_000);
        record.expires_at = made.after(Duration::from_secs(900));
        let back = at(1_700_000_000_000);
        assert_eq!(record.redeem(ours, session, KEY, back), Err(TokenRefused::Expired));
        assert_eq!(record.redeem(ours, session, KEY, made), Ok(()));
    }

    #[test]
    fn enrol_token_expires_and_its_text_is_not_stored() {
        let (text, mut record) = record();
        assert_eq!(
            record.redeem(node("00000001"), BootSessionId([1; 12]), KEY, at(1001)),
            Err(TokenRefused::Expired)
        );
        assert_eq!(record.used, None);
        assert!(record.matches(&text));
        let stored = serde_json::to_string(&record).expect("plain");
        assert!(!stored.contains(&text));
        assert_eq!(serde_json::from_str::<TokenRecord>(&stored).ok(), Some(record));
    }

    proptest! {
        #[test]
        fn enrol_token_matches_no_other_text(text in "\\PC{0,80}|[0-9a-f]{64}") {
            let (ours, record) = record();
            prop_assert_eq!(record.matches(&text), text == ours);
        }
    }
}
