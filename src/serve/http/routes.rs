//! The routes of the boot API and their responses.

use super::backend::{BootBackend, Transfer};
use super::blob::{Selection, select};
use super::blob_files::BlobFiles;
use super::body::tracked;
use super::fetched_ranges::FetchedRanges;
use super::request_rate::RequestRate;
use super::sendfile_writer::PendingWrites;
use crate::metrics::count_request;
use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, RawQuery, Request, State, rejection::PathRejection},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::any,
};
use bytes::Bytes;
use meshd_central::{Fetched, LanClient, OverlayDenied};
use meshd_config::Delivery;
use meshd_model::{
    boot::{BootFailure, Endpoint, Loader, Refusal, ScriptRequest},
    image_kind::PART_NAMES,
};
use meshd_types::{Digest, failpoint};
use std::{net::IpAddr, sync::Arc};

/// Client of a connection.
#[derive(Clone)]
pub struct Client {
    pub from: LanClient,
    /// Server address of the connection, for URLs in scripts.
    pub at: Endpoint,
    /// Completions of response bodies.
    pub pending: PendingWrites,
}

/// Shared state of the handlers.
#[derive(Clone)]
struct Shared<P> {
    api: P,
    blob_files: BlobFiles,
    fetched_ranges: Arc<FetchedRanges>,
}

/// Cache header of blobs. The content of a blob URL never changes.
const FOR_EVER: (HeaderName, &str) = (header::CACHE_CONTROL, "public, max-age=31536000, immutable");
/// Cache header of scripts and overlays, which are for one boot of one machine.
const NO_STORE: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");
const TEXT: (HeaderName, &str) = (header::CONTENT_TYPE, "text/plain; charset=utf-8");
/// The UEFI specification (24.7.2.1) names this type for programs; some firmware refuses others.
const EFI: (HeaderName, &str) = (header::CONTENT_TYPE, "application/efi");
const BYTES: (HeaderName, &str) = (header::CONTENT_TYPE, "application/octet-stream");

/// Last part of the URL of a bundle's layer, for readers of logs. The digest alone identifies a
/// blob.
const BUNDLE: &str = "bundle";

/// Returns all routes. Requests must have a [`Client`] as extension.
pub fn router<P: BootBackend>(api: P, requests_per_second: u16) -> Router {
    Router::new()
        .route("/boot.ipxe", any(entry))
        .route("/boot/script", any(script::<P>))
        .route("/boot/failed", any(record_failed_boot::<P>))
        .route("/boot/", any(no_script))
        .route("/boot/{*rest}", any(no_script))
        .route("/blob/{digest}/{part}", any(blob::<P>))
        .route("/overlay/{capability}/{file}", any(overlay::<P>))
        .route("/loader/{file}", any(loader::<P>))
        .route("/healthz", any(healthz::<P>))
        .fallback(|| async {
            sentence(StatusCode::NOT_FOUND, "No such path; machines begin at /boot.ipxe.")
        })
        .layer(middleware::from_fn_with_state(
            Arc::new(RequestRate::new(requests_per_second)),
            guard,
        ))
        .with_state(Shared {
            blob_files: BlobFiles::new(api.folder()),
            fetched_ranges: Arc::default(),
            api,
        })
}

fn sentence(status: StatusCode, text: &str) -> Response {
    (status, [NO_STORE, TEXT], format!("{text}\n")).into_response()
}

/// Rejects methods other than GET and HEAD, request bodies, and requests above the rate of a
/// client.
async fn guard(State(rate): State<Arc<RequestRate>>, request: Request, next: Next) -> Response {
    let route = route_name(request.uri().path());
    let from = request.extensions().get::<Client>().map(|client| client.from.clone());
    let is_decided = matches!(route, "script" | "overlay");
    let address = from.as_ref().map(|client| client.address);
    let is_too_fast = is_decided
        && matches!(address, Some(IpAddr::V4(address)) if !rate.allow(address))
        && failpoint::defends("http-request-rate");
    let response = match refuse(&request) {
        _ if is_too_fast => {
            let slower =
                sentence(StatusCode::TOO_MANY_REQUESTS, "Too many requests; retry in a second.");
            ([(header::RETRY_AFTER, "1")], slower).into_response()
        }
        Some(refused) => refused,
        None => next.run(request).await,
    };
    tracing::debug!(route, ?from, status = response.status().as_u16(), "answered");
    count_request("boot", route, &response);
    response
}

fn refuse(request: &Request) -> Option<Response> {
    // RFC 9112, 3.2
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        return Some(sentence(
            StatusCode::BAD_REQUEST,
            "Send one Host header; HTTP/1.1 requires it.",
        ));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response =
            sentence(StatusCode::METHOD_NOT_ALLOWED, "This server is read-only: use GET or HEAD.");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(response);
    }
    let length = request.headers().get(header::CONTENT_LENGTH);
    if length.is_some_and(|length| length != "0")
        || request.headers().contains_key(header::TRANSFER_ENCODING)
    {
        let mut response =
            sentence(StatusCode::PAYLOAD_TOO_LARGE, "This server takes no request bodies.");
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        return Some(response);
    }
    None
}

/// Returns the name of the route for logs, without the path's parameters.
fn route_name(path: &str) -> &'static str {
    match path.split('/').nth(1).unwrap_or_default() {
        "boot.ipxe" => "entry",
        "boot" => "script",
        "blob" => "blob",
        "overlay" => "overlay",
        "loader" => "loader",
        "healthz" => "healthz",
        _ => "none",
    }
}

/// Reports whether machines can boot. Without the store, no boot can be recorded and no machine can
/// boot.
async fn healthz<P: BootBackend>(State(shared): State<Shared<P>>) -> Response {
    match shared.api.ready().await {
        Ok(()) => ([NO_STORE, TEXT], "ok\n").into_response(),
        Err(why) => sentence(StatusCode::SERVICE_UNAVAILABLE, &format!("not ready: {why}")),
    }
}

async fn entry(Extension(client): Extension<Client>) -> Response {
    ([NO_STORE, TEXT], Loader::Ipxe.entry_script(client.at)).into_response()
}

async fn script<P: BootBackend>(
    State(shared): State<Shared<P>>,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
    method: Method,
) -> Response {
    if method == Method::HEAD {
        // A script voids the capability of the previous script, so a HEAD request creates none.
        return ([NO_STORE, TEXT], unknown_length()).into_response();
    }
    let request = ScriptRequest::parse(query.as_deref().unwrap_or_default());
    let text = shared.api.script(request, client.from, client.at).await;
    ([NO_STORE, TEXT], text).into_response()
}

async fn record_failed_boot<P: BootBackend>(
    State(shared): State<Shared<P>>,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
    method: Method,
) -> Response {
    let failure = BootFailure::parse(query.as_deref().unwrap_or_default());
    if method == Method::HEAD {
        // A HEAD request records nothing.
        let status = failure.map_or(StatusCode::BAD_REQUEST, |_| StatusCode::OK);
        return (status, [NO_STORE, TEXT], unknown_length()).into_response();
    }
    let Some(failure) = failure else {
        return sentence(
            StatusCode::BAD_REQUEST,
            "Send session= and reason=, as mesh-init and stage 1 do.",
        );
    };
    match shared.api.record_failed_boot(client.from, failure).await {
        true => sentence(StatusCode::OK, "Recorded."),
        false => sentence(StatusCode::NOT_FOUND, "This machine does not boot this session."),
    }
}

async fn no_script(Extension(client): Extension<Client>) -> Response {
    let refusal = Refusal::BadRequest { detail: "there is no script of this name".to_owned() };
    ([NO_STORE, TEXT], Loader::Ipxe.refusal_script(&refusal, client.at, None, "none"))
        .into_response()
}

async fn blob<P: BootBackend>(
    State(shared): State<Shared<P>>,
    Extension(client): Extension<Client>,
    path: Result<Path<(String, String)>, PathRejection>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let is_part = |part: &str| PART_NAMES.contains(&part) || part == BUNDLE;
    let named = path.ok().filter(|Path((_, part))| is_part(part));
    let digest = named.and_then(|Path((digest, _))| digest.parse::<Digest>().ok());
    let Some((digest, bytes)) = digest.and_then(|digest| Some((digest, shared.api.blob(digest)?)))
    else {
        return sentence(
            StatusCode::NOT_FOUND,
            "No image has this part; `meshd image list` shows those that are built.",
        );
    };
    let etag = format!("\"sha256-{digest}\"");
    let len = bytes.len();
    let selection = match method {
        Method::HEAD if select(&headers, &etag, len) != Selection::NotModified => Selection::Whole,
        _ => select(&headers, &etag, len),
    };
    let common = [FOR_EVER, BYTES, (header::ACCEPT_RANGES, "bytes")];
    let tag = [(header::ETAG, etag)];
    let range = |text: String| [(header::CONTENT_RANGE, text)];
    let send = |first: usize, end: usize| {
        let api = shared.api.clone();
        let from = client.from.clone();
        let ranges = shared.fetched_ranges.clone();
        // The last byte alone proves no fetch; without a body, nothing is fetched.
        let is_continued = method != Method::HEAD && ranges.add(from.address, digest, first, end);
        let is_whole = end == len && (is_continued || !failpoint::defends("fetched-whole"));
        if let Some(blob_file) =
            shared.blob_files.of(digest, &bytes, |digest| api.blob(digest).is_some())
        {
            client.pending.announce(blob_file);
        }
        deliver(&method, &client.pending, vec![bytes.slice(first..end)], async move {
            if is_whole {
                ranges.forget(from.address, digest);
                api.record_fetch(from, Fetched::Blob(digest)).await;
            }
        })
    };
    match selection {
        Selection::NotModified => (StatusCode::NOT_MODIFIED, [FOR_EVER], tag).into_response(),
        Selection::Unsatisfiable => (
            StatusCode::RANGE_NOT_SATISFIABLE,
            [NO_STORE],
            tag,
            range(format!("bytes */{len}")),
            Body::empty(),
        )
            .into_response(),
        Selection::Whole => (common, tag, send(0, len)).into_response(),
        Selection::Part(first, last) => {
            let part = send(first, last + 1);
            (
                StatusCode::PARTIAL_CONTENT,
                common,
                tag,
                range(format!("bytes {first}-{last}/{len}")),
                part,
            )
                .into_response()
        }
    }
}

/// Returns an empty body for HEAD that has no Content-Length. It would have to be that of GET (RFC
/// 9110, 8.6), which is not known.
fn unknown_length() -> Body {
    Body::from_stream(futures_util::stream::empty::<Result<Bytes, std::convert::Infallible>>())
}

/// Returns a body with its length; for HEAD the length alone, which does not count as a download.
fn deliver(
    method: &Method,
    pending: &PendingWrites,
    pieces: Vec<Bytes>,
    completion: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let length = pieces.iter().map(Bytes::len).sum::<usize>();
    let length = [(header::CONTENT_LENGTH, length.to_string())];
    let body = match *method {
        Method::HEAD => Body::empty(),
        _ => tracked(pieces, pending.clone(), Box::pin(completion)),
    };
    (length, body).into_response()
}

async fn overlay<P: BootBackend>(
    State(shared): State<Shared<P>>,
    Extension(client): Extension<Client>,
    path: Result<Path<(String, String)>, PathRejection>,
    method: Method,
) -> Response {
    let named = path.ok().and_then(|Path((capability, file))| match file.as_str() {
        "overlay.cpio.gz" => Some((capability, Delivery::Initrd)),
        "apkovl.tar.gz" => Some((capability, Delivery::Url)),
        _ => None,
    });
    let Some((capability, form)) = named else { return denied_response(OverlayDenied::NotFound) };
    if method == Method::HEAD {
        return match shared.api.probe_overlay(&capability, client.from).await {
            Ok(()) => ([NO_STORE, BYTES], unknown_length()).into_response(),
            Err(error) => denied_response(error),
        };
    }
    // The Range header is ignored: a partial transfer of an overlay counts as failed.
    match shared.api.open_overlay(&capability, form, client.from).await {
        Ok(Transfer { pieces, completion }) => {
            let body = deliver(&method, &client.pending, pieces, completion);
            ([NO_STORE, BYTES], body).into_response()
        }
        Err(error) => denied_response(error),
    }
}

fn denied_response(error: OverlayDenied) -> Response {
    match error {
        OverlayDenied::NotFound => sentence(StatusCode::NOT_FOUND, "There is no such overlay."),
        OverlayDenied::Gone => {
            sentence(StatusCode::GONE, "This overlay was delivered; request a new script.")
        }
        OverlayDenied::Busy => {
            let busy = sentence(
                StatusCode::SERVICE_UNAVAILABLE,
                "This overlay is being transferred; retry.",
            );
            ([(header::RETRY_AFTER, "1")], busy).into_response()
        }
    }
}

async fn loader<P: BootBackend>(
    State(shared): State<Shared<P>>,
    Extension(client): Extension<Client>,
    path: Result<Path<String>, PathRejection>,
    method: Method,
) -> Response {
    let found =
        path.ok().and_then(|Path(file)| shared.api.loader(&file).map(|bytes| (file, bytes)));
    match found {
        Some((file, bytes)) => {
            let api = shared.api.clone();
            let from = client.from;
            let fetched = async move { api.record_fetch(from, Fetched::Loader).await };
            let kind = if file.ends_with(".efi") { EFI } else { BYTES };
            ([NO_STORE, kind], deliver(&method, &client.pending, vec![bytes], fetched))
                .into_response()
        }
        None => sentence(
            StatusCode::NOT_FOUND,
            "There is no such loader; [boot].loaders_dir in site.toml names their folder.",
        ),
    }
}
