//! Tickets: tokens for machines that are not netbooted, for one node, for one use, for an hour by
//! default. The tokens of boots are in `boot/overlay_delivery.rs`.
//!
//! A ticket contains the data that an overlay would give to the agent. Its boot session exists for
//! this one use, so that the rules for boot tokens hold for it too. Creating a ticket approves the
//! node, which is recorded when the token is used.

use crate::{
    enrolment::{Enrolment, site_rules::name_by_site},
    environment::{records::phase_event, site_snapshot::SiteSnapshot},
};
use meshd_model::fleet::{
    Actor, AuditContext, Event, EventKind, Fingerprint, Node, Phase, PhaseChange,
};
use meshd_proto::{AgentConfig, BootPart, Ticket};
use meshd_store::{StoreError, Tx};
use meshd_trust::{TokenRecord, enrol_token as token};
use meshd_types::{Basis, BootSessionId, MacAddr, NodeId, SystemUuid, Timestamp};
use std::{net::Ipv4Addr, time::Duration};

/// Default lifetime of a token.
pub const TOKEN_LIFE: Duration = Duration::from_secs(60 * 60);
/// Maximum lifetime of a token.
pub const MAX_TOKEN_LIFE: Duration = token::MAX_LIFE;
/// Maximum number of stored tickets; the oldest are removed first.
const MAX_TICKETS: usize = 4096;
/// Retention of expired tokens, so that their use differs from a guessed token.
const EXPIRED_RETENTION: Duration = Duration::from_secs(7 * 86_400);

/// Why a token is not created or not revoked.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("lifetime of the token is out of range")]
    Life,
    #[error("cannot create a token: the site denies the UUID {0}")]
    DeniedUuid(SystemUuid),
    #[error("cannot create a token for node {node}: it is {phase}")]
    NotAllowed { node: NodeId, phase: Phase },
    #[error("there is no token `{0}`")]
    None(String),
    #[error("several tokens begin with `{0}`")]
    Ambiguous(String),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(TokenError {
    TokenError::Life => "use 1 second to 7 days";
    TokenError::DeniedUuid(_) => "identify the machine by serial number or MAC address";
    TokenError::NotAllowed { .. } => "approve or release it first";
    TokenError::None(_) => "`meshd token list` lists all tokens";
    TokenError::Ambiguous(_) => "use a longer prefix";
    @source TokenError::Store(source) => source;
});

impl Enrolment {
    /// Creates a ticket for a machine. Its text is only in the answer.
    ///
    /// # Errors
    /// [`TokenError`]; nothing was changed.
    pub async fn create_token(
        &self,
        basis: Basis,
        life: Duration,
        central_address: Ipv4Addr,
        audit: &AuditContext,
    ) -> Result<(Ticket, TokenRecord), TokenError> {
        if life < Duration::from_secs(1) || life > MAX_TOKEN_LIFE {
            return Err(TokenError::Life);
        }
        if let Basis::Uuid(uuid) = &basis
            && self.env.site().identity.deny.contains(uuid)
        {
            return Err(TokenError::DeniedUuid(*uuid));
        }
        let now = self.env.now();
        let node = basis.node_id();
        let (text, hash) = token::mint(self.env.random());
        let session = BootSessionId(self.env.random());
        let record = TokenRecord::of_ticket(hash, basis, session, now, now.after(life));
        let stored_token = record.clone();
        let committed = self.env.store.commit(|tx| {
            if let Some(Node { phase, .. }) = tx.node(node)
                && matches!(phase, Phase::Rejected | Phase::Quarantined)
            {
                return Err(TokenError::NotAllowed { node, phase: *phase });
            }
            remove_expired(tx, now);
            tx.put_token(stored_token);
            let detail = format!("token {} for {node}, until {}", hash.short(), now.after(life));
            tx.event(
                Event::new(now, audit, EventKind::Token, detail)
                    .of_node(tx.node(node).map(|node| node.id)),
            );
            Ok(())
        });
        committed.await?;
        let site = self.env.site();
        let config = AgentConfig {
            version: meshd_proto::VERSION,
            node,
            central: central_address,
            port: site.agent.port,
            ca_file: "/etc/meshd/ca.pem".to_owned(),
            heartbeat_s: u32::try_from(site.agent.heartbeat.as_secs()).unwrap_or(u32::MAX),
            profile: String::new(),
            services: Vec::new(),
            units: Vec::new(),
            checks: meshd_proto::CheckPolicy::default(),
            vfio: Vec::new(),
            data_disks: Vec::new(),
            kvm: false,
        };
        let boot = BootPart {
            version: meshd_proto::VERSION,
            node,
            session,
            generation: String::new(),
            issued_at: now,
            roots_pem: Some(self.authority().roots_pem().to_owned()),
            http_port: site.http.port,
            token: Some(text),
        };
        Ok((Ticket { config, boot }, record))
    }

    /// Tickets, newest first.
    pub fn tickets(&self) -> Vec<TokenRecord> {
        let mut all: Vec<_> = self
            .env
            .store
            .read(|model| model.tokens().filter(|token| token.is_ticket()).cloned().collect());
        all.sort_by_key(|token: &TokenRecord| std::cmp::Reverse((token.expires_at, token.hash)));
        all
    }

    /// Revokes a token of an operator, by a prefix of its hash. A certificate that was issued for
    /// it stays valid until [`Enrolment::revoke`].
    ///
    /// # Errors
    /// [`TokenError`]; nothing was changed.
    pub async fn revoke_token(
        &self,
        prefix: &str,
        audit: &AuditContext,
    ) -> Result<TokenRecord, TokenError> {
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let matches_prefix = |token: &&TokenRecord| {
                token.is_ticket() && token.hash.to_string().starts_with(prefix)
            };
            let mut matching = tx.before().tokens().filter(matches_prefix);
            let found = matching.next().filter(|_| prefix.len() >= 4);
            let token = found.cloned().ok_or_else(|| TokenError::None(prefix.to_owned()))?;
            if matching.next().is_some() {
                return Err(TokenError::Ambiguous(prefix.to_owned()));
            }
            tx.remove_token(token.hash);
            let detail = format!("token {} is revoked", token.hash.short());
            let node = tx.node(token.node).map(|node| node.id);
            tx.event(Event::new(now, audit, EventKind::Token, detail).of_node(node));
            Ok(token)
        });
        stored.await
    }
}

/// Approves the machine of a ticket, in its boot session.
pub(crate) fn approve_by_ticket(
    tx: &mut Tx<'_>,
    token: &TokenRecord,
    basis: &Basis,
    snapshot: &SiteSnapshot,
    now: Timestamp,
) {
    let id = token.node;
    let mut node = tx.node(id).cloned().unwrap_or_else(|| {
        tx.event(
            Event::new(now, Actor::Node, EventKind::Discovered, format!("{basis}, by a token"))
                .of_node(id),
        );
        unknown_node(basis, now)
    });
    name_by_site(tx, &mut node, snapshot, now);
    for change in [PhaseChange::Rediscover, PhaseChange::Approve] {
        let changed = node.change(change).ok().flatten();
        phase_event(tx, id, token.session, changed, Actor::Operator, now);
    }
    node.boot = Some(token.session);
    node.generation = None;
    node.last_seen = now;
    tx.put_node(node);
}

/// Creates a node from the basis of its ID; its agent reports the rest.
fn unknown_node(basis: &Basis, now: Timestamp) -> Node {
    let uuid = if let Basis::Uuid(uuid) = basis { Some(*uuid) } else { None };
    let mac = if let Basis::Mac(mac) = basis { Some(*mac) } else { None };
    let fingerprint = Fingerprint { uuid, ..Fingerprint::default() };
    let mut node = Node::discovered(basis.clone(), fingerprint, mac.unwrap_or(NO_MAC), now);
    node.fingerprint.macs = mac.into_iter().collect();
    node
}

/// Placeholder for the MAC address of a node with unknown NICs.
pub(crate) const NO_MAC: MacAddr = MacAddr([0; 6]);

/// Removes long expired tokens, and the oldest if there are too many.
fn remove_expired(tx: &mut Tx<'_>, now: Timestamp) {
    let mut tickets: Vec<_> =
        tx.before().tokens().filter(|token| token.is_ticket()).cloned().collect();
    tickets.sort_by_key(|token| token.expires_at);
    let surplus = (tickets.len() + 1).saturating_sub(MAX_TICKETS);
    for (index, token) in tickets.iter().enumerate() {
        if index < surplus || now.since(token.expires_at) > EXPIRED_RETENTION {
            tx.remove_token(token.hash);
        }
    }
}
