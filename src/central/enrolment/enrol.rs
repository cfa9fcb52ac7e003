//! Exchanges a token for a certificate, and a certificate for a newer one.

use super::tokens;
use crate::{
    enrolment::Enrolment,
    environment::{
        alarms::{Alarm, raise},
        records::{phase_event, reach},
    },
};
use meshd_model::fleet::{
    Actor, AuditContext, Certificate, ConditionKind, Event, EventKind, Node, PhaseChange, Stage, Verb,
};
use meshd_proto::{EnrolRequest, EnrolResponse, OLDEST, RenewRequest, VERSION, is_supported_version};
use meshd_store::{StoreError, Tx};
use meshd_trust::{
    Issued, Peer, TokenRecord, TokenRefused, TrustError,
    enrol_token::{self as token, Use},
};
use meshd_types::{BootSessionId, Digest, NodeId, Timestamp, fail};
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

/// The version of a first message must be one that is spoken here.
pub(crate) fn check_version(version: u16) -> Result<(), PlaneError> {
    if is_supported_version(version) {
        return Ok(());
    }
    Err(PlaneError::BadRequest(format!(
        "this central node supports protocol versions {OLDEST} to {VERSION}, not {version}; boot the node again"
    )))
}

impl Enrolment {
    /// A token for a certificate.
    pub async fn enrol(&self, request: EnrolRequest, from: IpAddr) -> Result<EnrolResponse, PlaneError> {
        check_version(request.version)?;
        let now = self.env.now();
        // Used here and nowhere else: only its hash is compared.
        let hash = token::hash(request.token.expose());
        // A stranger without a token costs a look-up, not a signature.
        let Some(known) = self.env.store.read(|model| model.token(&hash).cloned()) else {
            return Err(self.enrol_refused(&request, from, None, TokenRejection::NoToken).await);
        };
        let node = self.env.store.read(|model| model.node(request.node).cloned());
        // A token that was used, or is another node's, is an alarm that says more.
        let is_first_use = !known.is_manual() && known.used.is_none() && known.node == request.node;
        if let Some(node) = node.as_ref().filter(|_| is_first_use && fail::defends("enrol-neighbour"))
            && let Err(wire) = self.env.check_node_neighbour(from, node).await
        {
            return Err(self.enrol_refused(&request, from, None, TokenRejection::OtherMachine(wire)).await);
        }
        let takes_over = self.takes_over(node.as_ref(), &request);
        // Whoever holds an operator's token must not take the place of a node that is there.
        if known.is_manual() && known.used.is_none() && self.links.probe(known.node).await {
            return Err(self.enrol_refused(&request, from, None, TokenRejection::LinkAnswers).await);
        }
        let issued = self.authority().issue_node(&request.csr_pem, request.node, now)?;
        fail::point("enrol-issued");
        let (by, live) = (self.env.node_order(Verb::Enrol), self.env.live());
        let redeemed = self.env.store.commit(|tx| {
            // Found by a hash that nobody can steer, and then compared in constant time.
            let found = tx.token(&hash).filter(|token| token.is(request.token.expose())).cloned();
            let mut token = found.ok_or(TokenRejection::NoToken)?;
            let earlier = token.used;
            let redeemed = token.redeem(request.node, request.session, issued.key, now);
            redeemed.map_err(|refused| TokenRejection::Token(refused, Box::new(token.clone())))?;
            token.used = token.used.map(|used| Use { from: used.from.or(Some(from)), ..used });
            if let Some(basis) = token.basis.clone().filter(|_| earlier.is_none()) {
                tokens::let_in(tx, &token, &basis, &live, now);
            }
            let node = tx.node(request.node).ok_or(TokenRejection::NoNode)?;
            if !node.phase.is_admitted() || node.boot != Some(request.session) {
                return Err(TokenRejection::NotAdmitted.into());
            }
            if earlier.is_some_and(|used| has_linked_since(tx, request.session, used)) {
                let used = TokenRejection::Token(TokenRefused::Used, Box::new(token.clone()));
                return Err(used.into());
            }
            tx.put_token(token);
            certify(tx, request.node, request.session, &issued, &by, now);
            if let Some(detail) = takes_over.as_ref().filter(|_| earlier.is_none()) {
                raise(tx, request.node, request.session, ConditionKind::CertificateReplaced, detail, now);
            }
            Ok(())
        });
        match redeemed.await {
            Ok(()) => {
                fail::point("enrol-committed");
                self.links.touch(request.node);
                self.links.close_link(request.node, "the node has enrolled anew");
                Ok(issued.response(now))
            }
            Err(RedeemError::Rejected(why)) => Err(self.enrol_refused(&request, from, Some(issued.key), why).await),
            Err(RedeemError::Store(error)) => Err(error.into()),
        }
    }

    /// Why the certificate that is asked for would replace that of a node which was online a moment ago, though nobody told it to
    /// reboot. A power cycle looks the same, and so does somebody who takes the node over: an operator has to look.
    fn takes_over(&self, node: Option<&Node>, request: &EnrolRequest) -> Option<String> {
        let node = node.filter(|node| !node.certificates.is_empty() && fail::defends("enrol-replaced-alarm"))?;
        let silence = self.links.silence(node.id);
        let ordered = self.env.store.read(|model| {
            // A boot that began anew has sessions between the one that ran and this one.
            let mut ran = model.boots_of(node).into_iter().filter(|boot| boot.reached(Stage::Link).is_some());
            ran.find(|boot| boot.id != request.session).is_none_or(|boot| boot.reboot_ordered)
        });
        (silence <= self.env.site().agent.offline_after && !ordered && self.links.was_linked(node.id)).then(|| {
            let serial = node.certificates.last().map(|certificate| certificate.serial.clone()).unwrap_or_default();
            format!("certificate {serial} was in use {} s before another one was issued", silence.as_secs())
        })
    }

    /// A certificate for another one, over its mutual TLS; it may have expired.
    pub async fn renew(&self, peer: &Peer, request: RenewRequest) -> Result<EnrolResponse, PlaneError> {
        check_version(request.version)?;
        self.renew_for(peer.node, &shown(peer), &request.csr_pem).await
    }

    pub(crate) async fn renew_for(
        &self,
        id: NodeId,
        shown: &Certificate,
        csr_pem: &str,
    ) -> Result<EnrolResponse, PlaneError> {
        self.honoured(id, shown)?;
        let now = self.env.now();
        let issued = self.authority().issue_node(csr_pem, id, now)?;
        let by = self.env.node_order(Verb::Renew);
        self.env
            .store
            .commit(|tx| {
                if !tx.node(id).is_some_and(|node| honours(node, shown)) {
                    return Err(PlaneError::Unauthorized);
                }
                // The old one is honoured until the new one is used: the answer may be lost.
                tx.edit_node(id, |node| node.certificates = vec![shown.clone(), listed(&issued)]);
                let event = Event::new(now, &by, EventKind::CertificateIssued, "renewed");
                tx.event(event.of_node(id));
                Ok(())
            })
            .await?;
        Ok(issued.response(now))
    }

    /// The node has put the certificate away that it was given over its link: from now on the link stands on it, and the one
    /// before is over.
    pub(crate) async fn renewed(&self, id: NodeId, shown: &Certificate) -> Result<(), PlaneError> {
        let newest = self.env.store.commit(|tx| {
            let node = tx.node(id).filter(|node| honours(node, shown)).ok_or(PlaneError::Unauthorized)?;
            let newest = node.certificates.last().unwrap_or(shown).clone();
            tx.edit_node(id, |node| node.certificates = vec![newest.clone()]);
            Ok::<_, PlaneError>(newest)
        });
        let newest = newest.await?;
        self.links.renewed(id, shown, newest);
        Ok(())
    }

    /// A certificate counts only while the node is admitted and lists it, with its key. Revoked means: not listed.
    pub fn honoured(&self, id: NodeId, shown: &Certificate) -> Result<Node, PlaneError> {
        let node = self.env.store.read(|model| model.node(id).cloned()).ok_or(PlaneError::Unauthorized)?;
        if honours(&node, shown) { Ok(node) } else { Err(PlaneError::Unauthorized) }
    }

    /// The answer is the same whatever the reason. A token in the wrong hands is shown with both sides.
    async fn enrol_refused(
        &self,
        request: &EnrolRequest,
        from: IpAddr,
        key: Option<Digest>,
        why: TokenRejection,
    ) -> PlaneError {
        let cause = format!("enrol from {from}");
        if let TokenRejection::Token(refused @ (TokenRefused::Used | TokenRefused::Foreign), token) = &why {
            let known = self.env.store.read(|model| model.node(token.node).is_some());
            let detail = replay(*refused, token, request, from, key);
            let (node, session) = (known.then_some(token.node), Some(token.session));
            self.env.alarm(Alarm { kind: ConditionKind::CapabilityReplayed, node, session, cause, detail }).await;
        } else if let TokenRejection::OtherMachine(wire) = &why {
            let (kind, session) = (ConditionKind::BootImpersonated, Some(request.session));
            let detail = format!("a token of {} came from {from}: {wire}", request.node);
            self.env.alarm(Alarm { kind, node: Some(request.node), session, cause, detail }).await;
        } else if self.env.allows(&cause) {
            tracing::warn!(node = %request.node, %from, %why, "enrolment refused");
            let detail = format!("token from {from} refused: {why}");
            let known = self.env.store.read(|model| model.node(request.node).is_some());
            let event = Event::new(self.env.now(), Actor::Stranger, EventKind::EnrolRefused, detail);
            self.env.record(event.of_node(known.then_some(request.node)).in_session(request.session)).await;
        }
        PlaneError::Unauthorized
    }
}

/// True if the boot had a link after this use of its token: then the answer arrived. A link before it is possible where an operator
/// ordered the node to enrol again.
fn has_linked_since(tx: &Tx<'_>, session: BootSessionId, used: Use) -> bool {
    tx.session(session).and_then(|session| session.reached(Stage::Link)).is_some_and(|at| at >= used.at)
}

/// Who had a token, and who tries it now.
fn replay(
    refused: TokenRefused,
    token: &TokenRecord,
    request: &EnrolRequest,
    from: IpAddr,
    key: Option<Digest>,
) -> String {
    let shown = |key: Option<Digest>| key.map_or_else(|| "?".to_owned(), |key| key.short());
    let before = match token.used {
        Some(used) => {
            let by =
                used.from.map_or_else(|| "an address that was not written down".to_owned(), |from| from.to_string());
            format!("used by {by} with key {} at {}", shown(Some(used.key)), used.at)
        }
        None => "not used yet".to_owned(),
    };
    let (of, session) = (token.node, token.session);
    format!(
        "{refused}: of {of} in boot {session}, {before}; now shown by {from} as {} with key {}",
        request.node,
        shown(key)
    )
}

/// True if this certificate of the node counts.
pub(crate) fn honours(node: &Node, shown: &Certificate) -> bool {
    node.phase.is_admitted() && node.certificates.iter().any(|known| known.is(shown))
}

/// What a node shows.
pub(crate) fn shown(peer: &Peer) -> Certificate {
    Certificate::new(&peer.serial, peer.key)
}

fn listed(issued: &Issued) -> Certificate {
    Certificate::new(&issued.serial, issued.key)
}

/// Why a token is rejected.
#[derive(Debug, thiserror::Error)]
enum TokenRejection {
    #[error("no such token")]
    NoToken,
    #[error("no such node")]
    NoNode,
    #[error("the node is not admitted, or has booted again")]
    NotAdmitted,
    #[error("another machine sent it: {0}")]
    OtherMachine(String),
    #[error("the link of the node answers")]
    LinkAnswers,
    #[error("{0}")]
    Token(TokenRefused, Box<TokenRecord>),
}

/// Inside the transaction of an enrolment.
enum RedeemError {
    Rejected(TokenRejection),
    Store(StoreError),
}

impl From<TokenRejection> for RedeemError {
    fn from(why: TokenRejection) -> Self {
        RedeemError::Rejected(why)
    }
}

impl From<StoreError> for RedeemError {
    fn from(error: StoreError) -> Self {
        RedeemError::Store(error)
    }
}

/// Writes a certificate down: it is the only one that is honoured from now on.
pub(crate) fn certify(
    tx: &mut Tx<'_>,
    id: NodeId,
    session: BootSessionId,
    issued: &Issued,
    by: &AuditContext,
    now: Timestamp,
) {
    let mut change = None;
    let boot = tx.session(session).cloned();
    let is_local = boot.as_ref().is_some_and(|boot| boot.address.is_some() && !boot.is_relayed);
    let port = boot.and_then(|boot| boot.relay_port);
    tx.edit_node(id, |node| {
        node.certificates = vec![listed(issued)];
        // The first one counts until an operator says otherwise: whoever comes later may be somebody else.
        node.is_local |= is_local && node.relay_port.is_none();
        node.relay_port = node.relay_port.take().or(port);
        node.clear(ConditionKind::OverlayMissing);
        change = node.change(PhaseChange::Enrol).ok().flatten();
    });
    phase_event(tx, id, session, change, Actor::Node, now);
    let issued = Event::new(now, by, EventKind::CertificateIssued, format!("serial {}", issued.serial));
    tx.event(issued.of_node(id).in_session(session));
    reach(tx, session, Stage::Enrolled, now);
}
