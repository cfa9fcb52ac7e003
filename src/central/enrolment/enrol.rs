//! Exchanges a token for a certificate, and a certificate for a newer one.

use super::{error::AgentApiError, tickets};
use crate::{
    enrolment::Enrolment,
    environment::{
        alarms::{Alarm, raise_condition},
        lan_client::LanClient,
        records::{phase_event, record_stage},
    },
};
use meshd_model::fleet::{
    Actor, AuditContext, BootSession, Certificate, ConditionKind, Event, EventKind, Node,
    PhaseChange, Stage, Verb,
};
use meshd_proto::{
    EnrolRequest, EnrolResponse, OLDEST, RenewRequest, VERSION, is_supported_version,
};
use meshd_store::{StoreError, Tx};
use meshd_trust::{
    Issued, Peer, TokenRecord, TokenRefused,
    enrol_token::{self as token, Use},
};
use meshd_types::{BootSessionId, Digest, NodeId, Timestamp, failpoint};
use std::net::IpAddr;

/// Maximum number of valid certificates of a node that repeats a renewal.
const MAX_CERTIFICATES: usize = 4;

/// Refuses an unsupported protocol version.
pub(crate) fn check_version(version: u16) -> Result<(), AgentApiError> {
    if is_supported_version(version) {
        return Ok(());
    }
    Err(AgentApiError::BadRequest(format!(
        "this central node supports protocol versions {OLDEST} to {VERSION}, not {version}; boot the node again"
    )))
}

impl Enrolment {
    /// Exchanges a token for a certificate.
    pub async fn enrol(
        &self,
        request: EnrolRequest,
        client: LanClient,
    ) -> Result<EnrolResponse, AgentApiError> {
        check_version(request.version)?;
        let from = client.address;
        let now = self.env.now();
        let hash = token::hash(request.token.expose());
        // Without a token, a request costs a look-up and no signature.
        let Some(stored) = self.env.store.read(|model| model.token(&hash).cloned()) else {
            return Err(self.reject_enrolment(&request, from, None, TokenRejection::NoToken).await);
        };
        let node = self.env.store.read(|model| model.node(request.node).cloned());
        if let Err(wire) =
            self.check_token_machine(&client, &stored, node.as_ref(), request.node).await
        {
            return Err(self.reject_other_machine(&request, &client, stored, wire).await);
        }
        // A ticket must not replace a node that is present.
        if stored.is_ticket() && stored.used.is_none() && self.links.probe(stored.node).await {
            return Err(self
                .reject_enrolment(&request, from, None, TokenRejection::LinkAnswers)
                .await);
        }
        let issued = self.authority().issue_node(&request.csr_pem, request.node, now)?;
        failpoint::point("enrol-issued");
        let takeover = node.filter(|_| !self.is_enrolment_ordered(&stored));
        let takeover =
            takeover.and_then(|node| self.describe_takeover(&node, request.session, issued.key));
        let audit = self.env.node_audit_context(Verb::Enrol);
        let snapshot = self.env.snapshot();
        let mac = client.local_mac();
        let redeemed = self.env.store.commit(|tx| {
            // Found by its hash, then compared in constant time.
            let found =
                tx.token(&hash).filter(|token| token.matches(request.token.expose())).cloned();
            let mut token = found.ok_or(TokenRejection::NoToken)?;
            let earlier = token.used;
            let redeemed = token.redeem(request.node, request.session, issued.key, now);
            redeemed.map_err(|refused| TokenRejection::Token(refused, Box::new(token.clone())))?;
            token.used = token.used.map(|used| Use {
                from: used.from.or(Some(from)),
                mac: used.mac.or(mac),
                ..used
            });
            if let Some(basis) = token.basis.clone().filter(|_| earlier.is_none()) {
                tickets::approve_by_ticket(tx, &token, &basis, &snapshot, now);
            }
            let node = tx.node(request.node).ok_or(TokenRejection::NoNode)?;
            if !node.phase.is_admitted() || node.boot != Some(request.session) {
                return Err(TokenRejection::NotAdmitted);
            }
            if earlier.is_some_and(|used| linked_after_use(tx, request.session, used)) {
                return Err(TokenRejection::Token(TokenRefused::Used, Box::new(token)));
            }
            tx.put_token(token);
            store_certificate(tx, request.node, request.session, &issued, &audit, now);
            record_takeover(tx, request.node, request.session, takeover.as_deref(), now);
            Ok(())
        });
        match redeemed.await {
            Ok(()) => {
                failpoint::point("enrol-committed");
                self.links.touch(request.node);
                self.links.close_link(request.node, "the node has enrolled again");
                Ok(issued.response(now))
            }
            Err(TokenRejection::Store(error)) => Err(error.into()),
            Err(why) => Err(self.reject_enrolment(&request, from, Some(issued.key), why).await),
        }
    }

    /// Refuses a token from another machine than its own: the node that boots, or the machine that
    /// used the token first. A token of another node is refused later, with a more specific alarm.
    async fn check_token_machine(
        &self,
        client: &LanClient,
        stored: &TokenRecord,
        node: Option<&Node>,
        presented_for: NodeId,
    ) -> Result<(), String> {
        let is_replay_checked = stored.used.is_none() || failpoint::defends("token-replay-machine");
        if stored.node != presented_for
            || !is_replay_checked
            || !failpoint::defends("enrol-neighbour")
        {
            return Ok(());
        }
        if let Some(node) = node.filter(|_| !stored.is_ticket()) {
            return self.env.check_node_neighbour(client, node).await;
        }
        match stored.used {
            Some(Use { mac: Some(mac), .. }) => {
                self.env.check_neighbour(client, |own| *own == mac).await
            }
            Some(Use { from: Some(from), .. }) if from != client.address => {
                Err(format!("{from} has used it"))
            }
            _ => Ok(()),
        }
    }

    /// Describes the replacement of the certificate of a node that was online within
    /// `offline_after`, at this enrolment or when its boot asked for the script, without an
    /// announced reboot. Both a power cycle and an attacker cause this, so an operator must check.
    pub(crate) fn describe_takeover(
        &self,
        node: &Node,
        session: BootSessionId,
        key: Digest,
    ) -> Option<String> {
        let serial = &node.certificates.last()?.serial;
        let is_same_key = node.certificates.iter().any(|certificate| certificate.key == key);
        if is_same_key || !failpoint::defends("enrol-replaced-alarm") {
            return None;
        }
        let replaced = "and no reboot was announced: certificate";
        self.env.store.read(|model| match self.links.unannounced_silence(model, node, session) {
            Some(silence) => Some(format!(
                "online {} s before another enrolment, {replaced} {serial} is replaced",
                silence.as_secs()
            )),
            None => {
                let waited = model.session(session).is_some_and(BootSession::was_unannounced);
                waited.then(|| {
                    format!("online shortly before its boot asked for the script, {replaced} {serial} is replaced")
                })
            }
        })
    }

    /// True for a token by which an operator ordered this enrolment: it was made after the last use
    /// of another one.
    fn is_enrolment_ordered(&self, token: &TokenRecord) -> bool {
        token.created_at.is_some_and(|created_at| {
            self.env.store.read(|model| {
                model
                    .tokens_of(token.node)
                    .all(|other| other.used.is_none_or(|used| used.at < created_at))
            })
        })
    }

    /// Renews a certificate over mutual TLS; the present one may have expired.
    pub async fn renew(
        &self,
        peer: &Peer,
        request: RenewRequest,
    ) -> Result<EnrolResponse, AgentApiError> {
        check_version(request.version)?;
        self.renew_for(peer.node, &peer_certificate(peer), &request.csr_pem).await
    }

    pub(crate) async fn renew_for(
        &self,
        id: NodeId,
        peer_certificate: &Certificate,
        csr_pem: &str,
    ) -> Result<EnrolResponse, AgentApiError> {
        self.check_certificate(id, peer_certificate)?;
        let now = self.env.now();
        let issued = self.authority().issue_node(csr_pem, id, now)?;
        let audit = self.env.node_audit_context(Verb::Renew);
        let recorded = self.env.store.commit(|tx| {
            if !tx.node(id).is_some_and(|node| is_accepted(node, peer_certificate)) {
                return Err(AgentApiError::Unauthorized);
            }
            // The old certificates stay valid until a new one is used: an answer may be lost, and a
            // node that repeats its request may receive the answer to either.
            tx.edit_node(id, |node| {
                node.certificates.push(issued_certificate(&issued));
                while node.certificates.len() > MAX_CERTIFICATES {
                    let is_oldest = |known: &Certificate| known != peer_certificate;
                    let oldest = node.certificates.iter().position(is_oldest);
                    node.certificates.remove(oldest.unwrap_or_default());
                }
            });
            let event = Event::new(now, &audit, EventKind::CertificateIssued, "renewed");
            tx.event(event.of_node(id));
            Ok(())
        });
        recorded.await?;
        Ok(issued.response(now))
    }

    /// Completes a renewal over the link: the node has stored a newer certificate, and the former
    /// ones become void. If the node has asked twice, either answer may be the stored one.
    pub(crate) async fn confirm_renewal(
        &self,
        id: NodeId,
        peer_certificate: &Certificate,
    ) -> Result<(), AgentApiError> {
        let newest = self.env.store.commit(|tx| {
            let node = tx
                .node(id)
                .filter(|node| is_accepted(node, peer_certificate))
                .ok_or(AgentApiError::Unauthorized)?;
            let used = node.certificates.iter().position(|known| known == peer_certificate);
            let mut valid = node.certificates.clone();
            let newer = valid.split_off(used.map_or(0, |used| used + 1));
            let valid = if newer.is_empty() { vec![peer_certificate.clone()] } else { newer };
            let newest = valid.last().unwrap_or(peer_certificate).clone();
            tx.edit_node(id, |node| node.certificates = valid);
            Ok::<_, AgentApiError>(newest)
        });
        let newest = newest.await?;
        self.links.replace_certificate(id, peer_certificate, newest);
        Ok(())
    }

    /// Returns the node if it is approved and its record lists the certificate with its key. A
    /// revoked certificate is not listed.
    pub fn check_certificate(
        &self,
        id: NodeId,
        peer_certificate: &Certificate,
    ) -> Result<Node, AgentApiError> {
        let node = self
            .env
            .store
            .read(|model| model.node(id).cloned())
            .ok_or(AgentApiError::Unauthorized)?;
        if is_accepted(&node, peer_certificate) {
            Ok(node)
        } else {
            Err(AgentApiError::Unauthorized)
        }
    }

    /// Refuses a token from another machine than its own. A used token raises the alarm that names
    /// both users.
    async fn reject_other_machine(
        &self,
        request: &EnrolRequest,
        client: &LanClient,
        stored: TokenRecord,
        wire: String,
    ) -> AgentApiError {
        if !client.claim_alarm(Some(request.node)) {
            return AgentApiError::Unauthorized;
        }
        if stored.used.is_none() {
            return self
                .reject_enrolment(request, client.address, None, TokenRejection::OtherMachine(wire))
                .await;
        }
        // Validates the request and yields its key. This certificate is never sent.
        let issued = self.authority().issue_node(&request.csr_pem, request.node, self.env.now());
        let key = issued.ok().map(|issued| issued.key);
        let why = TokenRejection::Token(TokenRefused::Used, Box::new(stored));
        self.reject_enrolment(request, client.address, key, why).await
    }

    /// Records the reason. The answer does not depend on it. A misused token raises an alarm with
    /// both users.
    async fn reject_enrolment(
        &self,
        request: &EnrolRequest,
        from: IpAddr,
        key: Option<Digest>,
        why: TokenRejection,
    ) -> AgentApiError {
        let cause = format!("enrol from {from}");
        if let TokenRejection::Token(
            refused @ (TokenRefused::Used | TokenRefused::Foreign),
            token,
        ) = &why
        {
            let known = self.env.store.read(|model| model.node(token.node).is_some());
            let detail = describe_replay(*refused, token, request, from, key);
            let node = known.then_some(token.node);
            let session = Some(token.session);
            self.env
                .alarm(Alarm {
                    kind: ConditionKind::CapabilityReplayed,
                    node,
                    session,
                    cause,
                    detail,
                })
                .await;
        } else if let TokenRejection::OtherMachine(wire) = &why {
            let kind = ConditionKind::BootImpersonated;
            let session = Some(request.session);
            let detail = format!("a token of {} came from {from}: {wire}", request.node);
            self.env.alarm(Alarm { kind, node: Some(request.node), session, cause, detail }).await;
        } else if self.env.allows(&cause) {
            tracing::warn!(node = %request.node, %from, %why, "enrolment refused");
            let detail = format!("token from {from} refused: {why}");
            let known = self.env.store.read(|model| model.node(request.node).is_some());
            let event =
                Event::new(self.env.now(), Actor::Stranger, EventKind::EnrolRefused, detail);
            self.env
                .record(event.of_node(known.then_some(request.node)).in_session(request.session))
                .await;
        }
        AgentApiError::Unauthorized
    }
}

/// True if the boot had a link after this use of its token: then the answer arrived. A link before
/// it is possible where an operator ordered the node to enrol again.
fn linked_after_use(tx: &Tx<'_>, session: BootSessionId, used: Use) -> bool {
    tx.session(session)
        .and_then(|session| session.reached(Stage::Link))
        .is_some_and(|at| at >= used.at)
}

/// Describes the first user of a token and the present one.
fn describe_replay(
    refused: TokenRefused,
    token: &TokenRecord,
    request: &EnrolRequest,
    from: IpAddr,
    key: Option<Digest>,
) -> String {
    let short_key = |key: Option<Digest>| key.map_or_else(|| "?".to_owned(), |key| key.short());
    let before = match token.used {
        Some(used) => {
            let user = used
                .from
                .map_or_else(|| "an unrecorded address".to_owned(), |from| from.to_string());
            format!("used by {user} with key {} at {}", short_key(Some(used.key)), used.at)
        }
        None => "not used yet".to_owned(),
    };
    let of = token.node;
    let session = token.session;
    format!(
        "{refused}: of {of} in boot {session}, {before}; now presented by {from} as {} with key {}",
        request.node,
        short_key(key)
    )
}

/// True if the node is approved and its record lists this certificate.
pub(crate) fn is_accepted(node: &Node, peer_certificate: &Certificate) -> bool {
    node.phase.is_admitted() && node.certificates.contains(peer_certificate)
}

pub(crate) fn peer_certificate(peer: &Peer) -> Certificate {
    Certificate::new(&peer.serial, peer.key)
}

fn issued_certificate(issued: &Issued) -> Certificate {
    Certificate::new(&issued.serial, issued.key)
}

/// Why a token is not redeemed.
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
    #[error("the store cannot be written")]
    Store(#[from] StoreError),
}

/// Raises the alarm for a certificate that replaced one in use.
pub(crate) fn record_takeover(
    tx: &mut Tx<'_>,
    id: NodeId,
    session: BootSessionId,
    takeover: Option<&str>,
    now: Timestamp,
) {
    if let Some(detail) = takeover {
        raise_condition(tx, id, session, ConditionKind::CertificateReplaced, detail, now);
    }
}

/// Stores a new certificate as the only valid one of its node.
pub(crate) fn store_certificate(
    tx: &mut Tx<'_>,
    id: NodeId,
    session: BootSessionId,
    issued: &Issued,
    audit: &AuditContext,
    now: Timestamp,
) {
    let mut change = None;
    let boot = tx.session(session).cloned();
    let is_local = boot.as_ref().is_some_and(|boot| boot.address.is_some() && !boot.is_relayed);
    let port = boot.and_then(|boot| boot.relay_port);
    tx.edit_node(id, |node| {
        node.certificates = vec![issued_certificate(issued)];
        // The first attachment stays until an operator clears it: a later one may be another
        // machine.
        node.is_local |= is_local && node.relay_port.is_none();
        node.relay_port = match node.relay_port.take() {
            Some(known) => Some(known.with_relay_of(port.as_ref())),
            None => port,
        };
        node.clear(ConditionKind::OverlayMissing);
        change = node.change(PhaseChange::Enrol).ok().flatten();
    });
    phase_event(tx, id, session, change, Actor::Node, now);
    let issued =
        Event::new(now, audit, EventKind::CertificateIssued, format!("serial {}", issued.serial));
    tx.event(issued.of_node(id).in_session(session));
    record_stage(tx, session, Stage::Enrolled, now);
}
