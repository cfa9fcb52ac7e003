//! The certificate authority, and its rotation while meshd runs.
//!
//! Linked nodes receive the new roots at once and renew. The old root stays trusted until its grace
//! time is over. A node that returns later is refused and gets the condition `stale_ca`.

use crate::{
    enrolment::Enrolment,
    environment::{
        alarms::{Alarm, log_failure},
        lan_client::LanClient,
    },
    links::{LinkCommand, LinkedNode},
};
use meshd_model::fleet::{AuditContext, ConditionKind, Event, EventKind, Node, Stage, Verb};
use meshd_proto::FromCentral;
use meshd_store::{StoreError, Tx};
use meshd_trust::{
    CertificateAuthority, RootState, TokenRecord, TrustError, enrol_token as token, signed_under,
};
use meshd_types::{Digest, NodeId, Secret, Timestamp, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

/// Maximum grace time of a replaced root.
pub const MAX_GRACE: Duration = meshd_trust::MAX_GRACE;

/// The present authority.
pub(crate) struct Authority {
    current: RwLock<Arc<CertificateAuthority>>,
    /// Serializes changes; holds the time of the last check.
    changing: tokio::sync::Mutex<Timestamp>,
}

/// Why the authority was not replaced. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    #[error("grace time is out of range")]
    Grace,
    /// With a grace time, no node has to enrol again.
    #[error("linked nodes renew within the grace time")]
    NeedsNoEnrolment,
    /// Files and keys.
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("the tokens of linked nodes could not be stored")]
    Store(#[from] StoreError),
    #[error("the rotation was interrupted because meshd stops")]
    Interrupted,
}

meshd_types::hints!(RotateError {
    RotateError::Grace => "use at most 366 days. Without it every node has to boot again";
    RotateError::NeedsNoEnrolment => "to let them enrol again, use a grace time of 0s";
    RotateError::Interrupted => "repeat it after the start";
    @source RotateError::Trust(source) => source;
    @source RotateError::Store(source) => source;
});

/// A root of the site and its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityState {
    pub root: RootState,
    /// Number of nodes whose newest certificate it signed.
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

    /// Creates a new root and issuer. The old root stays trusted for `grace`. Without a grace time
    /// every link ends now, and every node has to boot again; with `enrol_again`, each linked node
    /// first receives the new roots and a one-time token by its link, and enrols by itself (EN-9).
    ///
    /// # Errors
    /// [`RotateError`]; the old authority stays.
    pub async fn rotate_authority(
        &self,
        grace: Duration,
        enrol_again: bool,
        audit: &AuditContext,
    ) -> Result<Vec<AuthorityState>, RotateError> {
        if grace > MAX_GRACE {
            return Err(RotateError::Grace);
        }
        if enrol_again && !grace.is_zero() {
            return Err(RotateError::NeedsNoEnrolment);
        }
        let _guard = self.authority.changing.lock().await;
        let current = self.authority();
        let now = self.env.now();
        let orders = if enrol_again { self.enrolment_orders(now).await? } else { Vec::new() };
        let old = current.active().to_owned();
        let rotated = tokio::task::spawn_blocking(move || current.rotated(grace, now)).await;
        let next = rotated.map_err(|_| RotateError::Interrupted)??;
        let new: BTreeSet<Digest> = orders.iter().map(|order| order.record.hash).collect();
        let notified = send_orders(orders, next.roots_pem());
        self.authority.replace(next);
        let detail = match grace.as_secs() {
            0 => format!(
                "root {old} is replaced by {}, and no longer trusted; {} nodes enrol again",
                self.authority().active(),
                notified.len()
            ),
            s => format!(
                "root {old} is replaced by {}, and stays trusted for {s} s",
                self.authority().active()
            ),
        };
        let last_messages = self.links.last_message_times();
        let changed = self.env.store.commit(|tx| {
            if grace.is_zero() {
                clear_certificates(tx, &last_messages);
                remove_enrolment_orders(tx, &new);
            }
            tx.event(Event::new(now, audit, EventKind::AuthorityChanged, detail));
            Ok::<_, StoreError>(())
        });
        log_failure(changed.await, "cannot record the rotation of the authority");
        self.send_roots();
        if grace.is_zero() {
            for node in self.links.linked_nodes().into_iter().map(|linked| linked.node) {
                match notified.contains(&node) {
                    // The node reconnects within seconds, so it is not silent.
                    true => self
                        .links
                        .close_link(node, "the certificate authority was replaced; enrol again"),
                    false => self.links.sever_link(
                        node,
                        "the certificate authority was replaced; boot the node again",
                    ),
                }
            }
        }
        Ok(self.authority_state())
    }

    /// Makes and stores a one-time token for the present boot of each linked node. Stored before it
    /// is sent: a crash in between leaves unused tokens, but no node that cannot enrol.
    async fn enrolment_orders(&self, now: Timestamp) -> Result<Vec<EnrolmentOrder>, StoreError> {
        let expires_at = now.after(self.env.site().enroll.token_ttl);
        let order = |linked: LinkedNode| {
            let LinkedNode { node, session, commands, .. } = linked;
            let (token, hash) = token::mint(self.env.random());
            EnrolmentOrder {
                token,
                commands,
                record: TokenRecord::of_order(hash, node, session, now, expires_at),
            }
        };
        let mut orders: Vec<EnrolmentOrder> =
            self.links.linked_nodes().into_iter().map(order).collect();
        let stored = self.env.store.commit(|tx| {
            // Since its link was read, the node may have booted, or an operator may have taken it
            // out of service.
            let is_current = |order: &EnrolmentOrder| {
                tx.node(order.record.node).is_some_and(|node| {
                    node.phase.is_admitted() && node.boot == Some(order.record.session)
                })
            };
            orders.retain(is_current);
            for order in &orders {
                tx.put_token(order.record.clone());
            }
            Ok::<_, StoreError>(orders)
        });
        stored.await
    }

    /// Returns a guard that blocks a rotation.
    pub(crate) async fn lock_authority(&self) -> tokio::sync::MutexGuard<'_, Timestamp> {
        self.authority.changing.lock().await
    }

    /// The roots, the active one first, with the number of nodes of each.
    pub fn authority_state(&self) -> Vec<AuthorityState> {
        let authority = self.authority();
        let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
        self.env.store.read(|model| {
            for newest in model.nodes().filter_map(|node| node.certificates.last()) {
                *nodes
                    .entry(signed_under(&newest.serial).unwrap_or_default().to_owned())
                    .or_default() += 1;
            }
        });
        let state = |root: RootState| AuthorityState {
            nodes: nodes.get(&root.root).copied().unwrap_or(0),
            root,
        };
        authority.roots(self.env.now()).into_iter().map(state).collect()
    }

    /// Removes roots whose grace time is over.
    pub(crate) async fn remove_expired_roots(&self) {
        let Ok(mut last_check) = self.authority.changing.try_lock() else { return };
        let current = self.authority();
        let previous = *last_check;
        let now = self.env.now();
        let aged = tokio::task::spawn_blocking(move || current.aged(previous, now)).await;
        match aged {
            Ok(Ok(Some(aged))) => {
                let detail = format!(
                    "the grace of an older root is over; trusted: {}",
                    root_names(&aged, now)
                );
                self.authority.replace(aged);
                let audit = self.env.own_audit_context(Verb::CaRotate);
                self.env.record(Event::new(now, &audit, EventKind::AuthorityChanged, detail)).await;
                self.send_roots();
            }
            Ok(Ok(None)) | Err(_) => {}
            Ok(Err(error)) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot remove an expired root"
                );
                return;
            }
        }
        *last_check = now;
    }

    /// The roots that a node must trust, and whether it must renew its certificate.
    pub(crate) fn roots_for(&self, serial: &str) -> FromCentral {
        let authority = self.authority();
        FromCentral::Roots {
            roots_pem: authority.roots_pem().to_owned(),
            renew: !authority.is_current(serial),
        }
    }

    /// Processes a failed TLS handshake: the client at this address trusts another authority,
    /// probably because its overlay is older than the authority. The connection must come from a
    /// NIC of the node: another machine with the address raises no alarm about the node.
    pub async fn record_failed_handshake(&self, client: &LanClient) {
        let from = client.address;
        let node = self.env.store.read(|model| {
            let boots = match from {
                IpAddr::V4(from) => model.session_at(from).and_then(|session| session.node),
                IpAddr::V6(_) => None,
            };
            let node = boots.and_then(|node| model.node(node));
            node.or_else(|| model.nodes().find(|node| node.address == Some(from))).cloned()
        });
        let Some(node) = node else { return };
        if let Err(problem) = self.env.check_node_neighbour(client, &node).await
            && failpoint::defends("stale-ca-neighbour")
        {
            tracing::debug!(%client, node = %node.id, problem, "a failed handshake came from another machine");
            return;
        }
        self.stale_certificate(node.id, from, "does not trust this central node's authority").await;
    }

    /// Processes a certificate of a replaced authority.
    pub async fn stale_certificate(&self, node: NodeId, from: IpAddr, problem: &str) {
        let known = self.env.store.read(|model| model.node(node).is_some());
        let detail = format!(
            "{from} {problem}; boot the node again, or give it a token: meshd token create {node}"
        );
        let kind = ConditionKind::StaleCa;
        let cause = format!("stale_ca {from}");
        self.env
            .alarm(Alarm { kind, node: known.then_some(node), session: None, cause, detail })
            .await;
    }

    fn send_roots(&self) {
        for linked in self.links.linked_nodes() {
            // A node with a full queue receives it at its next link.
            let _ = linked
                .commands
                .try_send(LinkCommand::Send(self.roots_for(&linked.certificate.serial)));
        }
    }
}

/// Voids the enrolment orders of an earlier rotation.
fn remove_enrolment_orders(tx: &mut Tx<'_>, new: &BTreeSet<Digest>) {
    let is_old = |token: &&TokenRecord| {
        let has_linked = tx
            .before()
            .session(token.session)
            .is_some_and(|boot| boot.reached(Stage::Link).is_some());
        has_linked && token.used.is_none() && !token.is_ticket() && !new.contains(&token.hash)
    };
    let old: Vec<Digest> = tx.before().tokens().filter(is_old).map(|token| token.hash).collect();
    for hash in old {
        tx.remove_token(hash);
    }
}

/// The enrolment order of a linked node.
struct EnrolmentOrder {
    token: Secret<String>,
    commands: tokio::sync::mpsc::Sender<LinkCommand>,
    record: TokenRecord,
}

/// Sends the orders with the new roots. Returns the nodes that accepted them; a node with a full
/// queue has to boot.
fn send_orders(orders: Vec<EnrolmentOrder>, roots_pem: &str) -> BTreeSet<NodeId> {
    let send = |order: EnrolmentOrder| {
        let message =
            FromCentral::EnrolAgain { roots_pem: roots_pem.to_owned(), token: order.token };
        order.commands.try_send(LinkCommand::Send(message)).is_ok().then_some(order.record.node)
    };
    orders.into_iter().filter_map(send).collect()
}

/// Voids all earlier certificates, also one that is being renewed.
fn clear_certificates(tx: &mut Tx<'_>, last_messages: &BTreeMap<NodeId, Timestamp>) {
    let has_certificate = |node: &&Node| !node.certificates.is_empty();
    let nodes: Vec<NodeId> =
        tx.before().nodes().filter(has_certificate).map(|node| node.id).collect();
    for id in nodes {
        tx.edit_node(id, |node| {
            node.certificates.clear();
            node.last_seen =
                last_messages.get(&id).map_or(node.last_seen, |at| node.last_seen.max(*at));
        });
    }
}

fn root_names(authority: &CertificateAuthority, now: Timestamp) -> String {
    authority.roots(now).into_iter().map(|root| root.root).collect::<Vec<_>>().join(", ")
}
