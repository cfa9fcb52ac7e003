//! Delivers the overlay of a boot: a capability opens it, and is spent when the last byte is
//! written.

use crate::{
    boot::{BootService, script::CachedScript},
    enrolment::revoke::remove_tokens,
    environment::{alarms::Alarm, lan_client::LanClient},
    generations::Rendered,
};
use bytes::Bytes;
use meshd_config::Delivery;
use meshd_image::overlay::{
    Delivered, deliver, deliver_targz, deliver_with_stage1, without_secrets,
};
use meshd_model::{
    boot::{BootContents, Endpoint},
    fleet::{
        Actor, ConditionKind, DeliveredGeneration, Event, EventKind, Generation, Stage, WarmState,
    },
    image_kind::{DEFAULT_WRITABLE, ImageKind, RootParts},
};
use meshd_proto::{
    BootPart,
    stage1::{RootSource, STAGE1_VERSION, Stage1Config},
};
use meshd_store::StoreError;
use meshd_trust::{
    TokenRecord, enrol_token as token,
    overlay_capability::{CAPABILITY_LIFE, Denied, Grant, Transfer, TransferId},
};
use meshd_types::{BootSessionId, MacAddr, Secret, Timestamp, failpoint};
use std::{net::Ipv4Addr, sync::Arc};

/// Maximum number of machines between script and overlay.
const MAX_PENDING: usize = 65_536;

/// An overlay that a delivered script names.
pub(crate) struct PendingOverlay {
    at: Timestamp,
    rendered: Rendered,
    /// Address of the boot API for the node.
    endpoint: Endpoint,
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

/// A transfer of an overlay. If it is dropped before [`OverlayTransfer::finished`], the capability
/// stays usable.
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
        client: impl Into<LanClient>,
    ) -> Result<OverlayTransfer, OverlayDenied> {
        let client = client.into();
        let now = self.env.now();
        let from = client.ipv4();
        // A request of another machine must not occupy the capability, even while its alarm is
        // recorded.
        let probed = self.enrolment.capabilities.lock().probe(now, capability, from);
        if let Ok(grant) | Err(Denied::Busy(grant)) = probed {
            self.check_grant_neighbour(&grant, &client).await?;
        }
        let opened = self.enrolment.capabilities.lock().open(now, capability, from);
        let transfer = match opened {
            Ok(transfer) => transfer,
            Err(denied) => return Err(self.refuse_overlay(denied, from).await),
        };
        self.fill_transfer(transfer, delivery).await
    }

    /// Renders the overlay of a transfer.
    pub(super) async fn fill_transfer(
        self: &Arc<Self>,
        transfer: Transfer,
        delivery: Delivery,
    ) -> Result<OverlayTransfer, OverlayDenied> {
        let now = self.env.now();
        // From here on a return without a transfer must free the capability; the transfer's drop
        // does.
        let mut transfer = OverlayTransfer {
            pieces: Vec::new(),
            boot: self.clone(),
            pending: None,
            id: transfer.id,
            grant: transfer.grant,
            is_finished: false,
        };
        let grant = transfer.grant;
        let pending = self
            .pending_overlays
            .lock()
            .get(&grant.session)
            .map(|pending| (pending.rendered.clone(), pending.endpoint));
        let Some((pending, endpoint)) = pending else { return Err(OverlayDenied::Gone) };
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
            http_port: self.env.site().http.port,
            token,
        };
        transfer.pieces = match (delivery, &pending.contents.kind) {
            (Delivery::Initrd, ImageKind::Alpine(_)) => deliver(&pending.overlay, &part, &secrets),
            (Delivery::Initrd, ImageKind::Root(root)) => {
                let config = self.stage1_config(&part, root, &pending.contents, endpoint)?;
                let program = pending.stage1.as_ref().ok_or(OverlayDenied::Busy)?;
                deliver_with_stage1(&pending.overlay, &part, &secrets, program, &config)
            }
            (Delivery::Url, _) => deliver_targz(&pending.overlay, &part, &secrets),
        };
        transfer.pending = Some(pending);
        Ok(transfer)
    }

    /// Checks a capability for HEAD without consuming it. A request from another machine raises an
    /// alarm.
    pub async fn probe_overlay(
        &self,
        capability: &str,
        client: impl Into<LanClient>,
    ) -> Result<(), OverlayDenied> {
        let client = client.into();
        let from = client.ipv4();
        let probed = self.enrolment.capabilities.lock().probe(self.env.now(), capability, from);
        match probed {
            Ok(grant) => self.check_grant_neighbour(&grant, &client).await,
            Err(Denied::Unknown) => Err(OverlayDenied::NotFound),
            Err(denied @ Denied::Foreign(_)) => Err(self.refuse_overlay(denied, from).await),
            Err(Denied::Busy(_)) => Err(OverlayDenied::Busy),
            Err(Denied::Expired | Denied::Spent(_)) => Err(OverlayDenied::Gone),
        }
    }

    /// Checks on the wire that the address of a capability is its machine's. Raises an alarm if
    /// another machine has claimed it.
    async fn check_grant_neighbour(
        &self,
        grant: &Grant,
        client: &LanClient,
    ) -> Result<(), OverlayDenied> {
        let from = client.ipv4();
        let own =
            self.env.store.read(|model| model.session(grant.session).map(|session| session.mac));
        let is_own = |mac: &MacAddr| Some(*mac) == own || !failpoint::defends("overlay-neighbour");
        let Err(mismatch) = self.env.check_neighbour(client, is_own).await else {
            if let Some(own) = own {
                self.pin(from, own);
            }
            return Ok(());
        };
        if !client.claim_alarm(Some(grant.node)) {
            return Err(OverlayDenied::NotFound);
        }
        let detail = format!("{from} asked for the overlay of {}: {mismatch}", grant.node);
        self.overlay_alarm(ConditionKind::BootImpersonated, grant, from, detail).await;
        Err(OverlayDenied::NotFound)
    }

    async fn overlay_alarm(
        &self,
        kind: ConditionKind,
        grant: &Grant,
        from: Ipv4Addr,
        detail: String,
    ) {
        let node = Some(grant.node);
        let session = Some(grant.session);
        let cause = format!("overlay by {from}");
        self.env.alarm(Alarm { kind, node, session, cause, detail }).await;
    }

    /// Returns what stage 1 boots.
    fn stage1_config(
        &self,
        boot: &BootPart,
        root: &RootParts,
        contents: &BootContents,
        endpoint: Endpoint,
    ) -> Result<Stage1Config, OverlayDenied> {
        let mac =
            self.env.store.read(|model| model.session(boot.session).map(|session| session.mac));
        let base = endpoint.http();
        let path = format!("/blob/{}/root", root.root.digest);
        let others = &self.env.site().boot.root_servers;
        let others = others.iter().map(|server| format!("http://{server}{path}"));
        Ok(Stage1Config {
            version: STAGE1_VERSION,
            node: boot.node,
            mac: mac.ok_or(OverlayDenied::Gone)?,
            session: boot.session,
            root: RootSource {
                urls: others.chain([format!("{base}{path}")]).collect(),
                digest: root.root.digest,
                size: root.root.size,
                verity: root.verity.clone(),
            },
            mode: contents.root_mode,
            upper_bytes: contents.writable.unwrap_or(DEFAULT_WRITABLE).bytes(),
            failed_url: format!("{base}/boot/failed"),
            time: boot.issued_at.seconds(),
        })
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

    /// Creates the token if the node is approved, and records the delivered overlay. Tokens of
    /// earlier overlays of this node become void. A node that gets its overlay without secrets has
    /// another generation.
    async fn record_delivery(
        &self,
        transfer: TransferId,
        grant: &Grant,
        pending: &Rendered,
        now: Timestamp,
    ) -> Result<(Option<Secret<String>>, Generation), OverlayDenied> {
        let (token, hash) = token::mint(self.env.random());
        let expires_at = now.after(self.env.site().enroll.token_ttl);
        let stored = self.env.store.commit(|tx| {
            // The machine may have a newer script and token, which stay valid.
            if !self.enrolment.capabilities.lock().is_open(transfer) {
                return Err(OverlayDenied::Gone);
            }
            // Two requests for the overlay of one warm boot may come at once.
            let warm = tx.session(grant.session).and_then(|session| session.warm);
            if warm == Some(WarmState::Delivered) && failpoint::defends("warm-overlay-once") {
                return Err(OverlayDenied::Gone);
            }
            if warm == Some(WarmState::Staged) {
                let delivered = Some(WarmState::Delivered);
                tx.edit_session(grant.session, |session| session.warm = delivered);
            }
            remove_tokens(tx, grant.node);
            let full_generation = pending.generation;
            let has_secrets = !pending.overlay.secrets.is_empty();
            let mut generation = full_generation;
            let mut protected = [None, None];
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
            let delivered = delivered_generation(generation, pending, now);
            history
                .record_delivery(delivered, &protected.into_iter().flatten().collect::<Vec<_>>());
            tx.put_history(grant.node, history);
            let detail =
                format!("profile {} generation {}", pending.contents.profile, generation.0.short());
            let chosen = Event::new(now, Actor::Central, EventKind::ProfileChosen, detail);
            tx.event(chosen.of_node(grant.node).in_session(grant.session));
            if admitted != Some(true) {
                return Ok((None, generation));
            }
            tx.put_token(TokenRecord::new(hash, grant.node, grant.session, expires_at));
            Ok((Some(token), generation))
        });
        stored.await
    }

    async fn refuse_overlay(&self, denied: Denied, from: Ipv4Addr) -> OverlayDenied {
        let (reason, grant, answer) = match denied {
            Denied::Unknown => ("unknown", None, OverlayDenied::NotFound),
            Denied::Expired => ("expired", None, OverlayDenied::Gone),
            Denied::Foreign(grant) => ("foreign", Some(grant), OverlayDenied::NotFound),
            Denied::Busy(grant) => ("busy", Some(grant), OverlayDenied::Busy),
            Denied::Spent(grant) => ("spent", Some(grant), OverlayDenied::Gone),
        };
        metrics::counter!("meshd_overlay_refusals_total", "reason" => reason).increment(1);
        if let Some(grant) = grant {
            let detail = format!("{denied}; asked by {from}, given to {}", grant.address);
            self.overlay_alarm(ConditionKind::CapabilityReplayed, &grant, from, detail).await;
        }
        answer
    }

    /// Stores the overlay that the script of a session names.
    pub(crate) fn add_pending_overlay(
        &self,
        session: BootSessionId,
        rendered: Rendered,
        endpoint: Endpoint,
        script: Option<Arc<CachedScript>>,
    ) {
        let at = self.env.now();
        let mut pending_overlays = self.pending_overlays.lock();
        if pending_overlays.len() < MAX_PENDING || pending_overlays.contains_key(&session) {
            pending_overlays.insert(session, PendingOverlay { at, rendered, endpoint, script });
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
        self.pending_overlays
            .lock()
            .retain(|_, pending| now.distance(pending.at) <= CAPABILITY_LIFE);
    }
}

fn delivered_generation(
    generation: Generation,
    pending: &Rendered,
    now: Timestamp,
) -> DeliveredGeneration {
    DeliveredGeneration {
        generation,
        profile: pending.contents.profile.clone(),
        image: pending.contents.image.clone(),
        version: pending.version,
        layers: pending.layers.clone(),
        revision: None,
        delivered_at: now,
        booted_at: None,
        last_at: now,
    }
}

impl OverlayTransfer {
    /// The last byte was written: the capability is spent.
    pub async fn finish(mut self) {
        self.is_finished = true;
        if let Some(pending) = self.pending.take() {
            self.boot.generations.queue_for_archive(pending);
        }
        metrics::counter!("meshd_overlays_total").increment(1);
        let session = self.grant.session;
        if self.boot.enrolment.capabilities.lock().finish(self.id) {
            self.boot.pending_overlays.lock().remove(&session);
        }
        failpoint::point("overlay-sent");
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
