//! Delivers the overlay of a boot: a capability opens it, and is spent when the last byte is written.

use crate::{
    boot::{BootService, script_cache::CachedScript},
    environment::{alarms::Alarm, records::reach},
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

/// Maximum number of promises, one for each machine between script and overlay. [`BootService::forget_promises`] removes them.
const MAX_PROMISES: usize = 65_536;

/// The promise of a session's script, and its time.
pub(crate) struct PendingOverlay {
    at: Timestamp,
    rendered: Rendered,
    /// The script, for repeated requests.
    pub(crate) told: Option<Arc<CachedScript>>,
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
    /// What to send, in order. The large pieces are shared by all boots.
    pub pieces: Vec<Bytes>,
    boot: Arc<BootService>,
    promise: Option<Rendered>,
    id: TransferId,
    grant: Grant,
    done: bool,
}

impl BootService {
    /// Opens the overlay of a capability for the machine at an address.
    pub async fn open_overlay(
        self: &Arc<Self>,
        capability: &str,
        form: Delivery,
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
            promise: None,
            id: transfer.id,
            grant: transfer.grant,
            done: false,
        };
        let grant = transfer.grant;
        if let Err(wire) = self.check_grant_neighbour(&grant, from).await {
            return Err(self.used_elsewhere(&grant, from, wire).await);
        }
        let promise = self.promises.lock().get(&grant.session).map(|promised| promised.rendered.clone());
        let Some(promise) = promise else { return Err(OverlayDenied::Gone) };
        let (token, generation) = self.choose(transfer.id, &grant, &promise, now).await?;
        // Only an approved node gets a token and files with secrets.
        let secrets = if token.is_some() { self.secrets(&promise)? } else { Vec::new() };
        let part = BootPart {
            version: meshd_proto::VERSION,
            node: grant.node,
            session: grant.session,
            generation: generation.to_string(),
            issued_at: now,
            roots_pem: Some(self.enrolment.authority().roots_pem().to_owned()),
            token,
        };
        transfer.pieces = match form {
            Delivery::Initrd => deliver(&promise.overlay, &part, &secrets),
            Delivery::Url => deliver_targz(&promise.overlay, &part, &secrets),
        };
        transfer.promise = Some(promise);
        Ok(transfer)
    }

    /// Checks a capability for HEAD without consuming it. A request from another machine raises an alarm.
    pub async fn probe_overlay(&self, capability: &str, from: Ipv4Addr) -> Result<(), OverlayDenied> {
        let probed = self.enrolment.capabilities.lock().probe(self.env.now(), capability, from);
        match probed {
            Ok(grant) => match self.check_grant_neighbour(&grant, from).await {
                Ok(()) => Ok(()),
                Err(wire) => Err(self.used_elsewhere(&grant, from, wire).await),
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
    async fn used_elsewhere(&self, grant: &Grant, from: Ipv4Addr, wire: String) -> OverlayDenied {
        self.env
            .alarm(Alarm {
                kind: ConditionKind::BootImpersonated,
                node: Some(grant.node),
                session: Some(grant.session),
                cause: format!("overlay by {from}"),
                detail: format!("{from} asked for the overlay of {}: {wire}", grant.node),
            })
            .await;
        OverlayDenied::NotFound
    }

    /// Renders the files with secrets for this delivery.
    fn secrets(&self, promise: &Rendered) -> Result<Vec<Delivered>, OverlayDenied> {
        let catalog = self.env.catalog();
        let made = promise.overlay.secrets.iter().map(|file| file.make(catalog.secrets()));
        made.collect::<Result<_, _>>().map_err(|fault| {
            tracing::error!(%fault, "a file with a secret cannot be rendered");
            OverlayDenied::Busy
        })
    }

    /// Creates the token if the node is approved, and records the delivered overlay. Tokens of earlier overlays
    /// of this node become void. A node that gets its overlay without secrets has another generation.
    async fn choose(
        &self,
        transfer: TransferId,
        grant: &Grant,
        promise: &Rendered,
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
                let (whole, partial) = (promise.generation, !promise.overlay.secrets.is_empty());
                let (mut generation, mut runs) = (whole, [None, None]);
                let admitted = tx.edit_node(grant.node, |node| {
                    if partial && !node.phase.is_admitted() {
                        generation = without_secrets(whole);
                    }
                    node.generation = Some(generation);
                    // The phase stays `booting` until the link opens.
                    node.clear(ConditionKind::RebootRequired);
                    runs = [node.booted, node.pinned];
                    node.phase.is_admitted()
                });
                let mut history = tx.history(grant.node);
                let given = DeliveredGeneration { generation, ..given(promise, now) };
                history.record_delivery(given, &runs.into_iter().flatten().collect::<Vec<_>>());
                tx.put_history(grant.node, history);
                let detail = format!("profile {} generation {}", promise.what.profile, generation.0.short());
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

    /// Stores the promise of a session's script.
    pub(crate) fn promise(&self, session: BootSessionId, rendered: Rendered, told: Option<Arc<CachedScript>>) {
        let at = self.env.now();
        let mut promises = self.promises.lock();
        if promises.len() < MAX_PROMISES || promises.contains_key(&session) {
            promises.insert(session, PendingOverlay { at, rendered, told });
        } else {
            tracing::warn!("so many machines have a script and no overlay that one more has to ask again");
        }
    }

    /// Renews a promise; false if there is none.
    pub(crate) fn promise_again(&self, session: BootSessionId, now: Timestamp) -> bool {
        self.promises.lock().get_mut(&session).map(|promised| promised.at = now).is_some()
    }

    /// Removes promises without a usable capability.
    pub(crate) fn forget_promises(&self, now: Timestamp) {
        self.promises.lock().retain(|_, promised| now.since(promised.at) <= CAPABILITY_LIFE);
    }
}

fn given(promise: &Rendered, now: Timestamp) -> DeliveredGeneration {
    let BootContents { profile, image, .. } = &*promise.what;
    let (profile, image) = (profile.clone(), image.clone());
    let (generation, version) = (promise.generation, promise.version);
    let layers = promise.layers.clone();
    DeliveredGeneration { generation, profile, image, version, layers, given_at: now, booted_at: None, last_at: now }
}

impl OverlayTransfer {
    /// The last byte was written: the capability is spent.
    pub async fn finished(mut self) {
        self.done = true;
        if let Some(promise) = self.promise.take() {
            self.boot.generations.keep(promise);
        }
        metrics::counter!("meshd_overlays_total").increment(1);
        let (now, grant) = (self.boot.env.now(), self.grant);
        if self.boot.enrolment.capabilities.lock().finish(self.id) {
            self.boot.promises.lock().remove(&grant.session);
        }
        meshd_types::fail::point("overlay-sent");
        let marked = self.boot.env.store.commit(|tx| {
            reach(tx, grant.session, Stage::Overlay, now);
            Ok::<_, StoreError>(tx.session(grant.session).map(|session| session.mac))
        });
        match marked.await {
            Ok(Some(mac)) => self.boot.loaded(mac, Stage::Overlay),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot record a boot stage");
            }
        }
    }
}

impl Drop for OverlayTransfer {
    fn drop(&mut self) {
        if !self.done {
            self.boot.enrolment.capabilities.lock().abort(self.id);
        }
    }
}
