//! What the boot plane asks of the central node.

use crate::serve::central::{Fetched, OverlayDenied, OverlayTransfer, Shared};
use bytes::Bytes;
use meshd_config::Delivery;
use meshd_model::boot::{Endpoint, QueryError, ScriptRequest};
use meshd_types::Digest;
use std::{future::Future, net::Ipv4Addr, path::PathBuf};

/// An overlay on its way. Dropping it is a transfer that failed: the capability is as it was before.
pub trait Transfer: Send + 'static {
    /// The whole overlay, in pieces.
    fn pieces(&self) -> Vec<Bytes>;

    /// Spends the capability. Called once the last byte is in the socket.
    fn finished(self) -> impl Future<Output = ()> + Send;
}

/// The decisions behind the routes. Central makes them; tests put something small in its place.
pub trait BootPlane: Clone + Send + Sync + 'static {
    /// What [`BootPlane::open_overlay`] gives.
    type Overlay: Transfer;

    /// Where large blobs may lie once more, in files without a name.
    fn folder(&self) -> PathBuf;

    /// A part of an image, already checked against its digest.
    fn blob(&self, digest: Digest) -> Option<Bytes>;

    /// A loader by its file name.
    fn loader(&self, name: &str) -> Option<Bytes>;

    /// Whether machines can boot; else why not.
    fn ready(&self) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }

    /// Something was fetched whole.
    fn fetched(&self, from: Ipv4Addr, what: Fetched) -> impl Future<Output = ()> + Send;

    /// What the machine boots, or why not: always a script.
    fn script(
        &self,
        request: Result<ScriptRequest, QueryError>,
        from: Ipv4Addr,
        endpoint: Endpoint,
    ) -> impl Future<Output = String> + Send;

    /// Begins the one transfer of an overlay.
    fn open_overlay(
        &self,
        capability: &str,
        form: Delivery,
        from: Ipv4Addr,
    ) -> impl Future<Output = Result<Self::Overlay, OverlayDenied>> + Send;

    /// Whether [`BootPlane::open_overlay`] would succeed. Consumes nothing.
    fn probe_overlay(&self, capability: &str, from: Ipv4Addr)
    -> impl Future<Output = Result<(), OverlayDenied>> + Send;
}

impl Transfer for OverlayTransfer {
    fn pieces(&self) -> Vec<Bytes> {
        self.pieces.clone()
    }

    fn finished(self) -> impl Future<Output = ()> + Send {
        OverlayTransfer::finished(self)
    }
}

impl BootPlane for Shared {
    type Overlay = OverlayTransfer;

    fn folder(&self) -> PathBuf {
        self.site().state_dir.clone()
    }

    fn blob(&self, digest: Digest) -> Option<Bytes> {
        self.catalog().blob(&digest)
    }

    fn loader(&self, name: &str) -> Option<Bytes> {
        self.boot.loader(name)
    }

    async fn ready(&self) -> Result<(), String> {
        self.store().ready().await.map_err(|error| error.to_string())
    }

    async fn fetched(&self, from: Ipv4Addr, what: Fetched) {
        self.boot.fetched(from, what).await;
    }

    async fn script(&self, request: Result<ScriptRequest, QueryError>, from: Ipv4Addr, endpoint: Endpoint) -> String {
        self.boot.script(request, from, endpoint).await
    }

    async fn open_overlay(
        &self,
        capability: &str,
        form: Delivery,
        from: Ipv4Addr,
    ) -> Result<OverlayTransfer, OverlayDenied> {
        self.boot.open_overlay(capability, form, from).await
    }

    async fn probe_overlay(&self, capability: &str, from: Ipv4Addr) -> Result<(), OverlayDenied> {
        self.boot.probe_overlay(capability, from).await
    }
}
