//! Delivers the overlay of a boot: a capability opens it, and is spent when the last byte is written.

use crate::{
    boot::{BootService, script_cache::CachedScript},
    environment::alarms::Alarm,
    generations::Rendered,
};
use bytes::Bytes;
use meshd_config::Delivery;
use meshd_image::overlay::{Delivered, deliver, deliver_targz, without_secrets};
use meshd_model::{
    boot::BootContents,
    fleet::{Actor, ConditionKind, DeliveredGeneration, Event, EventKind, Generation, Stage},
};
use meshd_proto::BootPart;
use meshd_store::StoreError;
use meshd_trust::{
    TokenRecord,
    capability::{CAPABILITY_LIFE, Denied, Grant, TransferId},
    enrol_token as token,
};
use meshd_types::{BootSessionId, Digest, Secret, Timestamp, fail};
use std::{net::Ipv4Addr, sync::Arc};

/// Maximum number of machines between script and overlay.
const MAX_PENDING: usize = 65_536;

/// An overlay that a delivered script names.
pub(crate) struct PendingOverlay {
    at: Timestamp,
    rendered: Rendered,
    /// The script for repeated requests.
    pub(crate) script: Option<Arc<CachedScript>>,
}

/// Why there is no overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverlayDenied {
    /// No such capability, or not for this address.
    #[error("no such overlay")]
    NotFound,
    /// It was used, or has expired.
    #[error("this overlay is gone; boot again")]
    Gone,
    /// A transfer is in progress, or the store cannot be written.
    #[error("try again")]
    Busy,
}

impl From<StoreError> for OverlayDenied {
    fn from(error: StoreError) -> Self {
        tracing::error!(error = &error as &dyn std::error::Error, "cannot deliver an overlay");
        OverlayDenied::Busy
    }
}

/// A transfer of an overlay. If it is dropped before [`OverlayTransfer::finished`], the capability stays usable.
pub struct OverlayTransfer {
    /// Bytes to send, in order. All boots share the large pieces.
    pub pieces: Vec<Bytes>,
    boot: Arc<BootService>,
    pending: Option<Rendered>,
    id: TransferId,
    grant: Grant,
    is_finished: bool,
}

impl BootService {
    /// Opens the overlay of a capability for the machine at an address.
    pub async fn open_overlay(
        self: &Arc<Self>,
        capability: &str,
        delivery: Delivery,
        from: Ipv4Addr,
    ) -> Result<OverlayTransfer, OverlayDenied> {
        let now = self.env.now();
        let opened = self.enrolment.capabilities.lock().open(now, capability, from);
        let transfer = match opened {
            Ok(transfer) => transfer,
            Err(denied) => return Err(self.denied(denied, from).await),
        };
        // From here on a return without a transfer must free the capability; the transfer's drop does.
        let mut transfer = OverlayTransfer {
            pieces: Vec::new(),
            boot: self.clone(),
            pending: None,
            id: transfer.id,
            grant: transfer.grant,
            is_finished: false,
        };
        let grant = transfer.grant;
        if let Err(mismatch) = self.check_grant_neighbour(&grant, from).await {
            return Err(self.alarm_foreign_use(&grant, from, mismatch).await);
        }
        let pending = self.pending_overlays.lock().get(&grant.session).map(|pending| pending.rendered.clone());
        let Some(pending) = pending else { return Err(OverlayDenied::Gone) };
        let (token, generation) = self.record_delivery(transfer.id, &grant, &pending, now).await?;
        // Only an approved node gets a token and files with secrets.
        let secrets = if token.is_some() { self.secrets(&pending)? } else { Vec::new() };
        let part = BootPart {
            version: meshd_proto::VERSION,
            node: grant.node,
            session: grant.session,
            generation: generation.to_string(),
            issued_at: now,
            roots_pem: Some(self.enrolment.authority().roots_pem().to_owned()),
            token,
        };
        transfer.pieces = match delivery {
            Delivery::Initrd => deliver(&pending.overlay, &part, &secrets),
            Delivery::Url => deliver_targz(&pending.overlay, &part, &secrets),
        };
        transfer.pending = Some(pending);
        Ok(transfer)
    }

    /// Checks a capability for HEAD without consuming it. A request from another machine raises an alarm.
    pub async fn probe_overlay(&self, capability: &str, from: Ipv4Addr) -> Result<(), OverlayDenied> {
        let probed = self.enrolment.capabilities.lock().probe(self.env.now(), capability, from);
        match probed {
            Ok(grant) => match self.check_grant_neighbour(&grant, from).await {
                Ok(()) => Ok(()),
                Err(mismatch) => Err(self.alarm_foreign_use(&grant, from, mismatch).await),
            },
            Err(Denied::Unknown) => Err(OverlayDenied::NotFound),
            Err(denied @ Denied::Foreign(_)) => Err(self.denied(denied, from).await),
            Err(Denied::Busy(_)) => Err(OverlayDenied::Busy),
            Err(Denied::Expired | Denied::Spent(_)) => Err(OverlayDenied::Gone),
        }
    }

    /// Checks on the wire that the address of a capability is its machine's: another machine may have claimed it.
    async fn check_grant_neighbour(&self, grant: &Grant, from: Ipv4Addr) -> Result<(), String> {
        let own = self.env.store.read(|model| model.session(grant.session).map(|session| session.mac));
        self.env.check_neighbour(from, |mac| Some(*mac) == own || !fail::defends("overlay-neighbour")).await
    }

    /// Raises an alarm: another machine with the right address presents the capability.
    async fn alarm_foreign_use(&self, grant: &Grant, from: Ipv4Addr, mismatch: String) -> OverlayDenied {
        self.env
            .alarm(Alarm {
                kind: ConditionKind::BootImpersonated,
                node: Some(grant.node),
                session: Some(grant.session),
                cause: format!("overlay by {from}"),
                detail: format!("{from} asked for the overlay of {}: {mismatch}", grant.node),
            })
            .await;
        OverlayDenied::NotFound
    }

    /// Renders the files with secrets for this delivery.
    fn secrets(&self, pending: &Rendered) -> Result<Vec<Delivered>, OverlayDenied> {
        let catalog = self.env.catalog();
        let contents = pending.overlay.secrets.iter().map(|file| file.make(catalog.secrets()));
        contents.collect::<Result<_, _>>().map_err(|fault| {
            tracing::error!(%fault, "a file with a secret cannot be rendered");
            OverlayDenied::Busy
        })
    }

    /// Creates the token if the node is approved, and records the delivered overlay. Tokens of earlier overlays
    /// of this node become void. A node that gets its overlay without secrets has another generation.
    async fn record_delivery(
        &self,
        transfer: TransferId,
        grant: &Grant,
        pending: &Rendered,
        now: Timestamp,
    ) -> Result<(Option<Secret<String>>, Generation), OverlayDenied> {
        let (token, hash) = token::mint(self.env.random());
        let expires_at = now.after(self.env.site().enroll.token_ttl);
        self.env
            .store
            .commit(|tx| {
                // The machine may have a newer script and token, which stay valid.
                if !self.enrolment.capabilities.lock().is_open(transfer) {
                    return Err(OverlayDenied::Gone);
                }
                let old: Vec<Digest> = tx.before().tokens_of(grant.node).map(|old| old.hash).collect();
                for hash in old {
                    tx.remove_token(hash);
                }
                let (full_generation, has_secrets) = (pending.generation, !pending.overlay.secrets.is_empty());
                let (mut generation, mut protected) = (full_generation, [None, None]);
                let admitted = tx.edit_node(grant.node, |node| {
                    if has_secrets && !node.phase.is_admitted() {
                        generation = without_secrets(full_generation);
                    }
                    node.generation = Some(generation);
                    // The phase stays `booting` until the link opens.
                    node.clear(ConditionKind::RebootRequired);
                    protected = [node.booted, node.pinned];
                    node.phase.is_admitted()
                });
                let mut history = tx.history(grant.node);
                let delivered = DeliveredGeneration { generation, ..delivered(pending, now) };
                history.record_delivery(delivered, &protected.into_iter().flatten().collect::<Vec<_>>());
                tx.put_history(grant.node, history);
                let detail = format!("profile {} generation {}", pending.what.profile, generation.0.short());
                let chosen = Event::new(now, Actor::Central, EventKind::ProfileChosen, detail);
                tx.event(chosen.of_node(grant.node).in_session(grant.session));
                if admitted != Some(true) {
                    return Ok((None, generation));
                }
                tx.put_token(TokenRecord::new(hash, grant.node, grant.session, expires_at));
                Ok((Some(token), generation))
            })
            .await
    }

    async fn denied(&self, denied: Denied, from: Ipv4Addr) -> OverlayDenied {
        let reason = match denied {
            Denied::Unknown => "unknown",
            Denied::Expired => "expired",
            Denied::Foreign(_) => "foreign",
            Denied::Busy(_) => "busy",
            Denied::Spent(_) => "spent",
        };
        metrics::counter!("meshd_overlay_refusals_total", "reason" => reason).increment(1);
        let (grant, answer) = match denied {
            Denied::Unknown => return OverlayDenied::NotFound,
            Denied::Expired => return OverlayDenied::Gone,
            Denied::Foreign(grant) => (grant, OverlayDenied::NotFound),
            Denied::Busy(grant) => (grant, OverlayDenied::Busy),
            Denied::Spent(grant) => (grant, OverlayDenied::Gone),
        };
        let detail = format!("{denied}; asked by {from}, given to {}", grant.address);
        self.env
            .alarm(Alarm {
                kind: ConditionKind::CapabilityReplayed,
                node: Some(grant.node),
                session: Some(grant.session),
                cause: format!("overlay by {from}"),
                detail,
            })
            .await;
        answer
    }

    /// Stores the overlay that the script of a session names.
    pub(crate) fn add_pending_overlay(
        &self,
        session: BootSessionId,
        rendered: Rendered,
        script: Option<Arc<CachedScript>>,
    ) {
        let at = self.env.now();
        let mut pending_overlays = self.pending_overlays.lock();
        if pending_overlays.len() < MAX_PENDING || pending_overlays.contains_key(&session) {
            pending_overlays.insert(session, PendingOverlay { at, rendered, script });
        } else {
            tracing::warn!("too many machines have a script and no overlay: one more has to retry");
        }
    }

    /// Extends the lifetime of a pending overlay. Returns false if there is none.
    pub(crate) fn renew_pending_overlay(&self, session: BootSessionId, now: Timestamp) -> bool {
        self.pending_overlays.lock().get_mut(&session).map(|pending| pending.at = now).is_some()
    }

    /// Removes pending overlays without a usable capability.
    pub(crate) fn remove_expired_overlays(&self, now: Timestamp) {
        self.pending_overlays.lock().retain(|_, pending| now.since(pending.at) <= CAPABILITY_LIFE);
    }
}

fn delivered(pending: &Rendered, now: Timestamp) -> DeliveredGeneration {
    let BootContents { profile, image, .. } = &*pending.what;
    let (profile, image) = (profile.clone(), image.clone());
    let (generation, version) = (pending.generation, pending.version);
    let layers = pending.layers.clone();
    DeliveredGeneration {
        generation,
        profile,
        image,
        version,
        layers,
        delivered_at: now,
        booted_at: None,
        last_at: now,
    }
}

impl OverlayTransfer {
    /// The last byte was written: the capability is spent.
    pub async fn finished(mut self) {
        self.is_finished = true;
        if let Some(pending) = self.pending.take() {
            self.boot.generations.queue_for_archive(pending);
        }
        metrics::counter!("meshd_overlays_total").increment(1);
        let session = self.grant.session;
        if self.boot.enrolment.capabilities.lock().finish(self.id) {
            self.boot.pending_overlays.lock().remove(&session);
        }
        fail::point("overlay-sent");
        self.boot.record_loaded(Stage::Overlay, |_| Some(session)).await;
    }
}

impl Drop for OverlayTransfer {
    fn drop(&mut self) {
        if !self.is_finished {
            self.boot.enrolment.capabilities.lock().abort(self.id);
        }
    }
}
