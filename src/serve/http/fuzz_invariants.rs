//! Runs arbitrary requests against the routes with a small test rack, for fuzzing and tests of
//! paths, queries and headers.

use super::{
    backend::{BootBackend, Transfer},
    routes::{Client, router},
    sendfile_writer::PendingWrites,
};
use axum::{
    body::{Body, HttpBody as _},
    http::{Request, Response, StatusCode, header},
};
use bytes::Bytes;
use meshd_central::{Fetched, LanClient, OverlayDenied};
use meshd_config::Delivery;
use meshd_model::boot::{BootFailure, Endpoint, Loader, QueryError, Refusal, ScriptRequest};
use meshd_types::Digest;
use std::net::Ipv4Addr;
use tower::ServiceExt as _;

pub(super) const ENDPOINT: Endpoint =
    Endpoint { address: Ipv4Addr::new(10, 77, 0, 1), http_port: 8080 };
const BLOB: &[u8] = b"a kernel";
pub(super) const CAPABILITY: &str = "00112233445566778899aabbccddeeff";

/// Sends the request in `bytes`, and panics when a response violates an invariant. Every request
/// gets a response, and no response is a redirect. Only blobs are cacheable. The length of a body
/// equals its header.
///
/// The first line is `METHOD TARGET`, each further line `NAME: VALUE`. Input that HTTP cannot
/// express is ignored.
pub fn check_invariants(bytes: &[u8]) {
    let Some((request, method)) = request(bytes) else { return };
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime without sockets");
    let is_blob = request.uri().path().starts_with("/blob/");
    let answer = match runtime.block_on(router(Rack, u16::MAX).oneshot(request)) {
        Ok(answer) => answer,
        Err(never) => match never {},
    };
    check(&answer, is_blob, &method);
}

fn request(bytes: &[u8]) -> Option<(Request<Body>, String)> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target).header(header::HOST, "fuzz");
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        request = request.header(name, value.trim());
    }
    let mut request = request.body(Body::empty()).ok()?;
    let client = Client {
        from: Ipv4Addr::new(10, 77, 0, 100).into(),
        at: ENDPOINT,
        pending: PendingWrites::default(),
    };
    request.extensions_mut().insert(client);
    Some((request, method.to_owned()))
}

fn check(answer: &Response<Body>, is_blob: bool, method: &str) {
    let status = answer.status();
    assert!(!status.is_redirection() || status == StatusCode::NOT_MODIFIED, "{status}");
    assert!(!status.is_server_error() || status == StatusCode::SERVICE_UNAVAILABLE, "{status}");
    assert!(!answer.headers().contains_key(header::LOCATION));
    let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
    let may_be_kept =
        header(header::CACHE_CONTROL).is_some_and(|control| !control.contains("no-store"));
    assert!(is_blob || !may_be_kept, "only what is named by its digest may be kept");
    let length = header(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if let (Some(length), true) = (length, method == "GET") {
        assert_eq!(answer.body().size_hint().exact(), Some(length));
    }
    if status == StatusCode::PARTIAL_CONTENT {
        assert!(
            length.is_some_and(|length| length > 0 && length <= BLOB.len() as u64),
            "{length:?}"
        );
    }
}

/// Test rack with one blob, one loader and one overlay.
#[derive(Clone)]
struct Rack;

impl BootBackend for Rack {
    fn folder(&self) -> std::path::PathBuf {
        std::env::temp_dir()
    }

    fn blob(&self, digest: Digest) -> Option<Bytes> {
        (digest == Digest::of(BLOB)).then(|| Bytes::from_static(BLOB))
    }

    fn loader(&self, name: &str) -> Option<Bytes> {
        (name == "snponly.efi").then(|| Bytes::from_static(b"MZ"))
    }

    async fn record_fetch(&self, _: LanClient, _: Fetched) {}

    async fn script(
        &self,
        request: Result<ScriptRequest, QueryError>,
        _: LanClient,
        endpoint: Endpoint,
    ) -> String {
        let detail = request.map_or_else(|error| error.to_string(), |request| request.serial);
        Loader::Ipxe.refusal_script(&Refusal::BadRequest { detail }, endpoint, None, "c0ffee00")
    }

    async fn record_failed_boot(&self, _: LanClient, failure: BootFailure) -> bool {
        failure.reason.len().is_multiple_of(2)
    }

    async fn open_overlay(
        &self,
        capability: &str,
        _: Delivery,
        from: LanClient,
    ) -> Result<Transfer, OverlayDenied> {
        self.probe_overlay(capability, from).await?;
        let pieces = vec![Bytes::from_static(b"an overlay")];
        Ok(Transfer { pieces, completion: Box::pin(std::future::ready(())) })
    }

    async fn probe_overlay(&self, capability: &str, _: LanClient) -> Result<(), OverlayDenied> {
        if capability == CAPABILITY { Ok(()) } else { Err(OverlayDenied::NotFound) }
    }
}
