//! The certificate authority, and its rotation while meshd runs.
//!
//! Linked nodes receive the new roots at once and renew. The old root stays trusted until its grace time is over. A node that comes back
//! later is refused, and gets the condition `stale_ca`.

use crate::serve::central::{
    enrolment::Enrolment,
    environment::alarms::{Alarm, report},
    links::{LinkCommand, LinkedNode},
};
use meshd_model::fleet::{AuditContext, ConditionKind, Event, EventKind, Node, Stage, Verb};
use meshd_proto::FromCentral;
use meshd_store::{StoreError, Tx};
use meshd_trust::{CertificateAuthority, RootState, TokenRecord, TrustError, enrol_token as token, signed_under};
use meshd_types::{Digest, NodeId, Secret, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

/// Longest grace time of a root that was replaced.
pub const MAX_GRACE: Duration = Duration::from_secs(366 * 86_400);

/// The authority of now.
pub(crate) struct Authority {
    current: RwLock<Arc<CertificateAuthority>>,
    /// One change at a time; the time as of which it was looked at last.
    changing: tokio::sync::Mutex<Timestamp>,
}

/// Why the authority was not replaced. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The grace time is longer than anybody needs.
    #[error("a grace time is at most 366 days; without one every node has to boot again")]
    Grace,
    /// Within a grace time nobody has to enrol again.
    #[error("linked nodes renew by themselves within a grace time; enrol again only with a grace time of 0s")]
    NeedsNoEnrolment,
    /// Files and keys.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The tokens of nodes that enrol again could not be stored.
    #[error("the tokens of linked nodes could not be stored")]
    Store(#[from] StoreError),
    /// The work was interrupted: meshd stops.
    #[error("meshd stops; rotate again when it runs")]
    Interrupted,
}

/// One root of the site, and who stands on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityState {
    pub root: RootState,
    /// Nodes whose newest certificate is under it.
    pub nodes: usize,
}

impl Authority {
    pub(crate) fn new(first: CertificateAuthority, now: Timestamp) -> Self {
        Authority { current: RwLock::new(Arc::new(first)), changing: tokio::sync::Mutex::new(now) }
    }

    fn replace(&self, next: CertificateAuthority) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }
}

impl Enrolment {
    /// The site's certificate authority; hold it for one request only.
    pub fn authority(&self) -> Arc<CertificateAuthority> {
        self.authority.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a new root and issuer. The old root is trusted for `grace` more. Without a grace time every link ends now, and every
    /// node has to boot again; with `enrol_again`, each linked node first receives the new roots and a one-time token by its link,
    /// and enrols by itself (EN-9).
    ///
    /// # Errors
    /// [`RotateError`]; the old authority stays.
    pub async fn rotate_authority(
        &self,
        grace: Duration,
        enrol_again: bool,
        by: &AuditContext,
    ) -> Result<Vec<AuthorityState>, RotateError> {
        if grace > MAX_GRACE {
            return Err(RotateError::Grace);
        }
        if enrol_again && !grace.is_zero() {
            return Err(RotateError::NeedsNoEnrolment);
        }
        let _one = self.authority.changing.lock().await;
        let (current, now) = (self.authority(), self.env.now());
        let orders = if enrol_again { self.enrolment_orders(now).await? } else { Vec::new() };
        let old = current.active().to_owned();
        let made = tokio::task::spawn_blocking(move || current.rotated(grace, now)).await;
        let next = made.map_err(|_| RotateError::Interrupted)??;
        let new: BTreeSet<Digest> = orders.iter().map(|order| order.record.hash).collect();
        let told = send_orders(orders, next.roots_pem());
        self.authority.replace(next);
        let detail = match grace.as_secs() {
            0 => format!(
                "root {old} is replaced by {}, and trusted no more; {} nodes enrol again",
                self.authority().active(),
                told.len()
            ),
            s => format!("root {old} is replaced by {}, and trusted for {s} s more", self.authority().active()),
        };
        let heard = self.links.last_heard();
        let changed = self.env.store.commit(|tx| {
            if grace.is_zero() {
                forget_certificates(tx, &heard);
                forget_tokens(tx, &new);
            }
            tx.event(Event::new(now, by, EventKind::AuthorityChanged, detail));
            Ok::<_, StoreError>(())
        });
        report(changed.await);
        self.tell_roots();
        if grace.is_zero() {
            for node in self.links.linked().into_iter().map(|linked| linked.node) {
                match told.contains(&node) {
                    // It is not silent: it comes back in seconds.
                    true => self.links.close_link(node, "the certificate authority was replaced; enrol again"),
                    false => self.links.sever_link(node, "the certificate authority was replaced; boot the node again"),
                }
            }
        }
        Ok(self.authority_state())
    }

    /// Makes and stores a one-time token for the present boot of each linked node. Stored before it is sent: a crash in between leaves
    /// tokens that nobody knows, and no node without a way back.
    async fn enrolment_orders(&self, now: Timestamp) -> Result<Vec<EnrolmentOrder>, StoreError> {
        let expires_at = now.after(self.env.site().enroll.token_ttl);
        let order = |linked: LinkedNode| {
            let LinkedNode { node, session, commands, .. } = linked;
            let (token, hash) = token::mint(self.env.random());
            EnrolmentOrder { token, commands, record: TokenRecord::new(hash, node, session, expires_at) }
        };
        let mut orders: Vec<EnrolmentOrder> = self.links.linked().into_iter().map(order).collect();
        self.env
            .store
            .commit(|tx| {
                // An operator may have taken a node out of service, or the node may have booted, since its link was looked at.
                let is_current = |order: &EnrolmentOrder| {
                    tx.node(order.record.node)
                        .is_some_and(|node| node.phase.is_admitted() && node.boot == Some(order.record.session))
                };
                orders.retain(is_current);
                for order in &orders {
                    tx.put_token(order.record.clone());
                }
                Ok::<_, StoreError>(orders)
            })
            .await
    }

    /// As long as this is held, no other authority takes its place.
    pub(crate) async fn authority_stays(&self) -> tokio::sync::MutexGuard<'_, Timestamp> {
        self.authority.changing.lock().await
    }

    /// Its roots, the active one first, and how many nodes stand on each.
    pub fn authority_state(&self) -> Vec<AuthorityState> {
        let authority = self.authority();
        let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
        self.env.store.read(|model| {
            for newest in model.nodes().filter_map(|node| node.certificates.last()) {
                *nodes.entry(signed_under(&newest.serial).unwrap_or_default().to_owned()).or_default() += 1;
            }
        });
        let state = |root: RootState| AuthorityState { nodes: nodes.get(&root.root).copied().unwrap_or(0), root };
        authority.roots(self.env.now()).into_iter().map(state).collect()
    }

    /// Lets go of roots whose grace is over.
    pub(crate) async fn watch_authority(&self) {
        let Ok(mut looked) = self.authority.changing.try_lock() else { return };
        let (current, then, now) = (self.authority(), *looked, self.env.now());
        let aged = tokio::task::spawn_blocking(move || current.aged(then, now)).await;
        match aged {
            Ok(Ok(Some(aged))) => {
                let detail = format!("the grace of an older root is over; trusted: {}", names(&aged, now));
                self.authority.replace(aged);
                let by = self.env.own_order(Verb::CaRotate);
                self.env.record(Event::new(now, &by, EventKind::AuthorityChanged, detail)).await;
                self.tell_roots();
            }
            Ok(Ok(None)) | Err(_) => {}
            Ok(Err(error)) => {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot let go of an older root");
                return;
            }
        }
        *looked = now;
    }

    /// What a node is told of the roots: those that it is to trust, and whether it needs another certificate.
    pub(crate) fn roots_for(&self, serial: &str) -> FromCentral {
        let authority = self.authority();
        FromCentral::Roots { roots_pem: authority.roots_pem().to_owned(), renew: !authority.is_current(serial) }
    }

    /// Somebody at an address does not take us for the central node of this site: most likely its overlay is older than the
    /// authority. An address is no proof of who it is, so nothing more than a condition comes of it.
    pub async fn distrusted(&self, from: IpAddr) {
        let node = self.env.store.read(|model| {
            let boots = match from {
                IpAddr::V4(from) => model.session_at(from).and_then(|session| session.node),
                IpAddr::V6(_) => None,
            };
            boots.or_else(|| model.nodes().find(|node| node.address == Some(from)).map(|node| node.id))
        });
        let Some(node) = node else { return };
        self.stale(node, from, "does not trust this central node's authority").await;
    }

    /// A node showed a certificate of an authority that was replaced.
    pub async fn stale(&self, node: NodeId, from: IpAddr, what: &str) {
        let known = self.env.store.read(|model| model.node(node).is_some());
        let detail = format!("{from} {what}; boot the node again, or give it a token: meshd token create {node}");
        let (kind, cause) = (ConditionKind::StaleCa, format!("stale_ca {from}"));
        self.env.alarm(Alarm { kind, node: known.then_some(node), session: None, cause, detail }).await;
    }

    fn tell_roots(&self) {
        for linked in self.links.linked() {
            // Whoever is too busy to hear it is told at its next link.
            let _ = linked.commands.try_send(LinkCommand::Send(self.roots_for(&linked.certificate.serial)));
        }
    }
}

/// Orders to enrol again of an earlier rotation end with the authority that they came by.
fn forget_tokens(tx: &mut Tx<'_>, new: &BTreeSet<Digest>) {
    let is_old = |token: &&TokenRecord| {
        let has_linked = tx.before().session(token.session).is_some_and(|boot| boot.reached(Stage::Link).is_some());
        has_linked && token.used.is_none() && !token.is_manual() && !new.contains(&token.hash)
    };
    let old: Vec<Digest> = tx.before().tokens().filter(is_old).map(|token| token.hash).collect();
    for hash in old {
        tx.remove_token(hash);
    }
}

/// The order to enrol again, of one linked node.
struct EnrolmentOrder {
    token: Secret<String>,
    commands: tokio::sync::mpsc::Sender<LinkCommand>,
    record: TokenRecord,
}

/// Sends the orders with the new roots. Returns the nodes that took theirs; one that is too busy has to boot.
fn send_orders(orders: Vec<EnrolmentOrder>, roots_pem: &str) -> BTreeSet<NodeId> {
    let send = |order: EnrolmentOrder| {
        let message = FromCentral::EnrolAgain { roots_pem: roots_pem.to_owned(), token: order.token };
        order.commands.try_send(LinkCommand::Send(message)).is_ok().then_some(order.record.node)
    };
    orders.into_iter().filter_map(send).collect()
}

/// No certificate of before counts, whoever signed it: one that is renewed at this moment is none either.
fn forget_certificates(tx: &mut Tx<'_>, heard: &BTreeMap<NodeId, Timestamp>) {
    let have = |node: &&Node| !node.certificates.is_empty();
    let nodes: Vec<NodeId> = tx.before().nodes().filter(have).map(|node| node.id).collect();
    for id in nodes {
        tx.edit_node(id, |node| {
            node.certificates.clear();
            node.last_seen = heard.get(&id).map_or(node.last_seen, |heard| node.last_seen.max(*heard));
        });
    }
}

fn names(authority: &CertificateAuthority, now: Timestamp) -> String {
    authority.roots(now).into_iter().map(|root| root.root).collect::<Vec<_>>().join(", ")
}
