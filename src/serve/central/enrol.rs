//! An agent asked for a certificate, by the token of its overlay or by the certificate that it has.

use super::{Central, lock, script::phase_event, stages::reach};
use crate::fleet::{Actor, ConditionKind, Event, EventKind, Node, PhaseChange, Stage};
use crate::id::{BootSessionId, NodeId, Timestamp};
use crate::store::{StoreError, Tx};
use crate::trust::{Issued, Peer, TrustError, token};
use crate::wire::{EnrolRequest, EnrolResponse, RenewRequest, VERSION};
use std::net::IpAddr;

/// Why the agent plane refuses.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// No such token, or it is used, expired or somebody else's. All of these look the same from outside (EN-4).
    #[error("not authorised")]
    Unauthorized,
    /// The certificate must be renewed first.
    #[error("the certificate has expired; renew it")]
    StaleCertificate,
    /// What was sent makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// Too much at once; later.
    #[error("the central node is busy; try again in some seconds")]
    Busy,
    /// Our own fault. The text is for our log and is not sent.
    #[error("{0}")]
    Internal(String),
}

impl From<StoreError> for PlaneError {
    fn from(error: StoreError) -> Self {
        tracing::error!(error = &error as &dyn std::error::Error, "cannot write the store for an agent");
        PlaneError::Internal("the store cannot be written".to_owned())
    }
}

impl From<TrustError> for PlaneError {
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::Request(why) => PlaneError::BadRequest(format!("the certificate request is refused: {why}")),
            other => PlaneError::Internal(other.to_string()),
        }
    }
}

/// The version of a first message must be ours.
pub(super) fn check_version(version: u16) -> Result<(), PlaneError> {
    if version == VERSION {
        return Ok(());
    }
    Err(PlaneError::BadRequest(format!(
        "this central node speaks version {VERSION}, not {version}; boot the node again"
    )))
}

impl Central {
    /// A token for a certificate.
    pub async fn enrol(&self, request: EnrolRequest, from: IpAddr) -> Result<EnrolResponse, PlaneError> {
        check_version(request.version)?;
        let now = self.now();
        // Used here and nowhere else: only its hash is compared.
        let hash = token::hash(request.token.expose());
        // A stranger without a token costs a look-up, not a signature.
        if self.store.read(|model| model.token(&hash).is_none()) {
            return Err(self.enrol_refused(&request, from, "no such token").await);
        }
        let issued = self.authority().issue_node(&request.csr_pem, request.node, now)?;
        let redeemed = self.store.commit(|tx| {
            let mut token = tx.token(&hash).cloned().ok_or_else(|| Refused::because("no such token"))?;
            let earlier = token.used;
            token.redeem(request.node, request.session, issued.key, now).map_err(Refused::because)?;
            let node = tx.node(request.node).ok_or_else(|| Refused::because("no such node"))?;
            if !node.phase.is_admitted() || node.boot != Some(request.session) {
                return Err(Refused::because("the node is not admitted, or has booted again"));
            }
            if earlier.is_some()
                && tx.session(request.session).is_some_and(|session| session.reached(Stage::Link).is_some())
            {
                return Err(Refused::because("the token was used, and its certificate too"));
            }
            tx.put_token(token);
            certify(tx, request.node, request.session, &issued, now);
            Ok(())
        });
        match redeemed.await {
            Ok(()) => {
                self.touch(request.node);
                Ok(issued.response(now))
            }
            Err(Refused::Because(why)) => Err(self.enrol_refused(&request, from, &why).await),
            Err(Refused::Store(error)) => Err(error.into()),
        }
    }

    /// A certificate for another one, over its mutual TLS; it may have expired.
    pub async fn renew(&self, peer: &Peer, request: RenewRequest) -> Result<EnrolResponse, PlaneError> {
        check_version(request.version)?;
        self.renew_for(peer.node, &peer.serial, &request.csr_pem).await
    }

    pub(super) async fn renew_for(&self, id: NodeId, serial: &str, csr_pem: &str) -> Result<EnrolResponse, PlaneError> {
        self.honoured(id, serial)?;
        let now = self.now();
        let issued = self.authority().issue_node(csr_pem, id, now)?;
        self.store
            .commit(|tx| {
                if !tx.node(id).is_some_and(|node| honours(node, serial)) {
                    return Err(PlaneError::Unauthorized);
                }
                // The old one is honoured until the new one is used: the answer may be lost.
                tx.edit_node(id, |node| node.certificates = vec![serial.to_owned(), issued.serial.clone()]);
                let event = Event::new(now, Actor::Node, EventKind::CertificateIssued, "renewed");
                tx.event(event.of_node(id));
                Ok(())
            })
            .await?;
        Ok(issued.response(now))
    }

    /// The node has put the certificate away that it was given over its link: from now on the link stands on it, and the one
    /// before is over.
    pub(super) async fn renewed(&self, id: NodeId, serial: &str) -> Result<(), PlaneError> {
        let newest = self.store.commit(|tx| {
            let node = tx.node(id).filter(|node| honours(node, serial)).ok_or(PlaneError::Unauthorized)?;
            let newest = node.certificates.last().cloned().unwrap_or_default();
            tx.edit_node(id, |node| node.certificates = vec![newest.clone()]);
            Ok::<_, PlaneError>(newest)
        });
        let newest = newest.await?;
        // A link that came up meanwhile stands on a certificate of its own.
        if let Some(live) = lock(&self.links.0).live.get_mut(&id).filter(|live| live.serial == serial) {
            live.serial = newest;
        }
        Ok(())
    }

    /// A certificate counts only while the node is admitted and lists it. Revoked means: not listed.
    pub fn honoured(&self, id: NodeId, serial: &str) -> Result<Node, PlaneError> {
        let node = self.store.read(|model| model.node(id).cloned()).ok_or(PlaneError::Unauthorized)?;
        if honours(&node, serial) { Ok(node) } else { Err(PlaneError::Unauthorized) }
    }

    async fn enrol_refused(&self, request: &EnrolRequest, from: IpAddr, why: &str) -> PlaneError {
        if self.alarms.allow(self.clock.monotonic(), &format!("enrol from {from}")) {
            tracing::warn!(node = %request.node, %from, why, "enrolment refused");
            let detail = format!("token from {from} refused: {why}");
            let known = self.store.read(|model| model.node(request.node).is_some());
            let event = Event::new(self.now(), Actor::Stranger, EventKind::EnrolRefused, detail);
            self.record(event.of_node(known.then_some(request.node)).in_session(request.session)).await;
        }
        PlaneError::Unauthorized
    }
}

/// True if this certificate of the node counts.
pub(super) fn honours(node: &Node, serial: &str) -> bool {
    node.phase.is_admitted() && node.certificates.iter().any(|known| known == serial)
}

/// Inside the transaction of an enrolment.
enum Refused {
    Because(String),
    Store(StoreError),
}

impl Refused {
    fn because(why: impl std::fmt::Display) -> Self {
        Refused::Because(why.to_string())
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Refused::Store(error)
    }
}

/// Writes a certificate down: it is the only one that is honoured from now on.
pub(super) fn certify(tx: &mut Tx<'_>, id: NodeId, session: BootSessionId, issued: &Issued, now: Timestamp) {
    let mut change = None;
    tx.edit_node(id, |node| {
        node.certificates = vec![issued.serial.clone()];
        node.clear(ConditionKind::OverlayMissing);
        change = node.change(PhaseChange::Enrol).ok().flatten();
    });
    phase_event(tx, id, session, change, Actor::Node, now);
    let issued = Event::new(now, Actor::Central, EventKind::CertificateIssued, format!("serial {}", issued.serial));
    tx.event(issued.of_node(id).in_session(session));
    reach(tx, session, Stage::Enrolled, now);
}
