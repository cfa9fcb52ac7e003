//! Calls of the boot API's routes to the central node.

use super::sendfile_writer::Completion;
use bytes::Bytes;
use meshd_central::{Fetched, LanClient, OverlayDenied, ServiceHealth, Shared};
use meshd_config::Delivery;
use meshd_model::boot::{BootFailure, Endpoint, QueryError, ScriptRequest};
use meshd_types::Digest;
use std::{future::Future, net::SocketAddr, path::PathBuf};

/// Transfer of an overlay.
pub struct Transfer {
    /// The whole overlay, in order.
    pub pieces: Vec<Bytes>,
    /// Spends the capability; runs when the last byte is written to the socket. Dropping it before
    /// means that the transfer failed: the capability stays valid.
    pub completion: Completion,
}

/// Decisions behind the routes, made by the central node or by a test.
pub trait BootBackend: Clone + Send + Sync + 'static {
    /// Returns the client of an accepted connection. `interface` is that of the listener.
    fn client(&self, interface: Option<&str>, from: SocketAddr, at: SocketAddr) -> LanClient {
        let _ = (interface, at);
        from.ip().into()
    }

    /// Returns the folder for unnamed files of large blobs.
    fn folder(&self) -> PathBuf;

    /// Returns a part of an image, with verified digest.
    fn blob(&self, digest: Digest) -> Option<Bytes>;

    /// Returns a loader by its file name.
    fn loader(&self, name: &str) -> Option<Bytes>;

    /// Returns the reason if machines cannot boot.
    fn ready(&self) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }

    /// Records a complete download.
    fn record_fetch(&self, from: LanClient, what: Fetched) -> impl Future<Output = ()> + Send;

    /// Returns the boot script. A refusal is a script too.
    fn script(
        &self,
        request: Result<ScriptRequest, QueryError>,
        from: LanClient,
        endpoint: Endpoint,
    ) -> impl Future<Output = String> + Send;

    /// Records why a node did not start. Returns false if this machine does not boot this session.
    fn record_failed_boot(
        &self,
        from: LanClient,
        failure: BootFailure,
    ) -> impl Future<Output = bool> + Send;

    /// Begins the single transfer of an overlay.
    fn open_overlay(
        &self,
        capability: &str,
        form: Delivery,
        from: LanClient,
    ) -> impl Future<Output = Result<Transfer, OverlayDenied>> + Send;

    /// Checks whether [`BootBackend::open_overlay`] would succeed, without spending the capability.
    fn probe_overlay(
        &self,
        capability: &str,
        from: LanClient,
    ) -> impl Future<Output = Result<(), OverlayDenied>> + Send;
}

impl BootBackend for Shared {
    fn client(&self, interface: Option<&str>, from: SocketAddr, at: SocketAddr) -> LanClient {
        self.lan_client(interface, from, at)
    }

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
        self.env.storage_ready().await.map_err(|error| error.to_string())?;
        let faulty = self
            .boot
            .services()
            .into_iter()
            .find_map(|service| Some((service.fault.clone()?, service)));
        match faulty {
            Some((fault, ServiceHealth { service, interface, .. })) => {
                Err(format!("{service} on {interface}: {fault}"))
            }
            None => Ok(()),
        }
    }

    async fn record_fetch(&self, from: LanClient, what: Fetched) {
        self.boot.record_fetch(from, what).await;
    }

    async fn script(
        &self,
        request: Result<ScriptRequest, QueryError>,
        from: LanClient,
        endpoint: Endpoint,
    ) -> String {
        self.boot.script(request, from, endpoint).await
    }

    async fn record_failed_boot(&self, from: LanClient, failure: BootFailure) -> bool {
        self.boot.record_failed_boot(from, failure).await
    }

    async fn open_overlay(
        &self,
        capability: &str,
        form: Delivery,
        from: LanClient,
    ) -> Result<Transfer, OverlayDenied> {
        let opened = self.boot.open_overlay(capability, form, from).await?;
        Ok(Transfer { pieces: opened.pieces.clone(), completion: Box::pin(opened.finish()) })
    }

    async fn probe_overlay(&self, capability: &str, from: LanClient) -> Result<(), OverlayDenied> {
        self.boot.probe_overlay(capability, from).await
    }
}
