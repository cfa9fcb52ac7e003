//! Responses of each route.

use super::super::routes::{Client, router};
use super::super::sendfile_writer::PendingWrites;
use super::*;
use axum::{body::Body, extract::Request};
use proptest::prelude::*;
use tower::ServiceExt as _;

const BLOB: &[u8] = b"0123456789";
const SESSION: &str = "7cd57a24ea8a2b04d4dd1d1d";

fn path() -> String {
    format!("/blob/{}/kernel", Digest::of(BLOB))
}

#[tokio::test]
async fn partial_range_records_no_fetch() {
    let mut server = Server::start(Limits::default(), BLOB, "");
    let fetched = format!("blob {}", Digest::of(BLOB).short());
    for (range, status, body, end) in [
        ("", 200, "0123456789", true),
        ("range: bytes=4-\r\n", 206, "456789", false),
        ("range: bytes=-2\r\n", 206, "89", false),
        ("range: bytes=9-9\r\n", 206, "9", false),
        ("range: bytes=0-9\r\n", 206, "0123456789", true),
        ("range: bytes=10-\r\n", 416, "", false),
        ("range: bytes=0-1,4-5\r\n", 200, "0123456789", true),
        ("range: bytes=0-1\r\nif-range: \"other\"\r\n", 200, "0123456789", true),
        ("range: bytes=0-3\r\n", 206, "0123", false),
    ] {
        let answer = server.ask("GET", &path(), range).await;
        assert_eq!((answer.status, answer.body.as_slice()), (status, body.as_bytes()), "{range}");
        if end {
            assert_eq!(server.event().await, fetched, "{range}");
        }
    }
    assert!(server.events.try_recv().is_err(), "a part alone is not recorded");
}

#[tokio::test]
async fn continued_fetch_is_recorded_and_gap_is_not() {
    let mut server = Server::start(Limits::default(), BLOB, "");
    let fetched = format!("blob {}", Digest::of(BLOB).short());
    for (range, end) in [
        ("range: bytes=0-3\r\n", false),
        ("range: bytes=5-\r\n", false),
        ("range: bytes=4-5\r\n", false),
        ("range: bytes=6-\r\n", true),
        // The fetch of the next boot.
        ("range: bytes=6-\r\n", false),
        ("", true),
        ("range: bytes=6-\r\n", false),
    ] {
        assert!(server.ask("GET", &path(), range).await.status < 300, "{range}");
        if end {
            assert_eq!(server.event().await, fetched, "{range}");
        }
    }
    assert!(server.events.try_recv().is_err(), "a gap is not recorded");
}

#[tokio::test]
async fn blob_has_etag_and_matching_client_gets_304() {
    let mut server = Server::start(Limits::default(), BLOB, "");
    let etag = format!("\"sha256-{}\"", Digest::of(BLOB));
    let answer = server.ask("HEAD", &path(), "range: bytes=0-1\r\n").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-length"), Some("10"));
    assert_eq!(answer.header("etag"), Some(etag.as_str()));
    assert_eq!(answer.header("accept-ranges"), Some("bytes"));
    assert_eq!(answer.header("cache-control"), Some("public, max-age=31536000, immutable"));
    let part = server.ask("GET", &path(), "range: bytes=2-3\r\n").await;
    assert_eq!(part.header("content-range"), Some("bytes 2-3/10"));
    assert_eq!(
        server.ask("GET", &path(), "range: bytes=10-\r\n").await.header("content-range"),
        Some("bytes */10")
    );
    for method in ["GET", "HEAD"] {
        assert_eq!(
            server.ask(method, &path(), &format!("if-none-match: {etag}\r\n")).await.status,
            304
        );
    }
    assert!(server.events.try_recv().is_err(), "nothing was fetched whole");
}

#[tokio::test]
async fn head_has_content_length_of_get_or_none() {
    let server = Server::start(Limits::default(), BLOB, "an overlay");
    let failed = format!("/boot/failed?session={SESSION}&reason=no%20packages");
    let overlay = format!("/overlay/{CAPABILITY}/overlay.cpio.gz");
    let paths = [
        "/boot.ipxe",
        "/boot/script?mac=52:54:00:12:34:56",
        "/boot/junk",
        "/healthz",
        "/loader/snponly.efi",
        "/no",
    ];
    for path in paths.into_iter().chain([path().as_str(), &failed, &overlay]) {
        let head = server.ask("HEAD", path, "").await;
        let get = server.ask("GET", path, "").await;
        let length = head.header("content-length");
        assert!(
            length.is_none() || length == get.header("content-length"),
            "{path}: {}",
            head.head
        );
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
    }
}

#[tokio::test]
async fn request_without_a_single_host_gets_400() {
    let server = Server::start(Limits::default(), BLOB, "");
    for (request, status) in [
        ("GET /healthz HTTP/1.1\r\n\r\n", 400),
        ("HEAD /healthz HTTP/1.1\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n", 200),
        ("GET /healthz HTTP/1.1\r\nhost:\r\n\r\n", 200),
        ("GET /healthz HTTP/1.0\r\n\r\n", 200),
    ] {
        let mut stream = server.connect().await;
        stream.write_all(request.as_bytes()).await.expect("the server reads");
        let method = request.split(' ').next().expect("a method");
        assert_eq!(
            read_answer(&mut BufReader::new(stream), method).await.status,
            status,
            "{request:?}"
        );
    }
}

#[tokio::test]
async fn efi_loader_has_its_media_type() {
    let server = Server::start(Limits::default(), BLOB, "");
    let answer = server.ask("GET", "/loader/snponly.efi", "").await;
    assert_eq!(answer.header("content-type"), Some("application/efi"));
}

#[tokio::test]
async fn routes_answer_with_documented_status_and_body() {
    let server = Server::start(Limits::default(), BLOB, "");
    let other = Digest::of(b"other");
    for (method, path, status, body) in [
        ("GET", "/healthz".to_owned(), 200, "ok"),
        ("GET", "/boot.ipxe".to_owned(), 200, "#!ipxe"),
        ("GET", "/boot.ipxe?x".to_owned(), 200, "#!ipxe"),
        (
            "GET",
            "/boot/script?mac=52:54:00:12:34:56".to_owned(),
            200,
            "#!ipxe\n# 52:54:00:12:34:56 at 127.0.0.1",
        ),
        ("GET", "/boot/script".to_owned(), 200, "#!ipxe\n# `mac` is missing"),
        ("GET", "/boot/junk".to_owned(), 200, "#!ipxe\n# refusal bad_request"),
        ("GET", format!("/boot/failed?session={SESSION}&reason=no%20packages"), 200, "Recorded"),
        (
            "GET",
            format!("/boot/failed?session={SESSION}&reason=unknown"),
            404,
            "This machine does not boot this session.",
        ),
        ("GET", "/boot/failed?reason=no%20packages".to_owned(), 400, "Send session= and reason="),
        ("HEAD", format!("/boot/failed?session={SESSION}&reason=no%20packages"), 200, ""),
        ("HEAD", "/boot/failed?reason=no%20packages".to_owned(), 400, ""),
        ("GET", "/loader/snponly.efi".to_owned(), 200, "MZ"),
        ("GET", "/loader/nothing.efi".to_owned(), 404, "There is no such loader"),
        ("GET", "/loader/..%2f..%2fetc%2fpasswd".to_owned(), 404, "There is no such loader"),
        ("GET", "/loader/%ff".to_owned(), 404, "There is no such loader"),
        ("GET", "/autoexec.ipxe".to_owned(), 404, "No such path"),
        ("GET", "/".to_owned(), 404, "No such path"),
        ("GET", "/blob".to_owned(), 404, "No such path"),
        ("GET", "/blob/junk/kernel".to_owned(), 404, "No image has this part"),
        ("GET", format!("/blob/{other}/kernel"), 404, "No image has this part"),
        ("GET", format!("{}x", super::answers::path()), 404, "No image has this part"),
        ("GET", "/overlay/junk/overlay.cpio.gz".to_owned(), 404, "There is no such overlay"),
        ("GET", format!("/overlay/{CAPABILITY}/other"), 404, "There is no such overlay"),
        ("POST", "/boot.ipxe".to_owned(), 405, "This server is read-only"),
        ("DELETE", "/junk".to_owned(), 405, "This server is read-only"),
    ] {
        let answer = server.ask(method, &path, "").await;
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, status, "{method} {path}");
        assert!(text.starts_with(body), "{method} {path}: {text}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{method} {path}");
        assert_eq!(answer.header("location"), None);
    }
}

#[tokio::test]
async fn head_request_has_no_side_effect() {
    let mut server = Server::start(Limits::default(), BLOB, "overlay");
    let overlay = format!("/overlay/{CAPABILITY}/overlay.cpio.gz");
    for path in [
        "/boot.ipxe",
        "/boot/script?mac=52:54:00:12:34:56",
        "/loader/snponly.efi",
        "/healthz",
        &overlay,
        &path(),
    ] {
        assert_eq!(server.ask("HEAD", path, "").await.status, 200, "{path}");
    }
    assert_eq!(server.ask("HEAD", "/overlay/junk/overlay.cpio.gz", "").await.status, 404);
    assert!(server.events.try_recv().is_err(), "no script, no transfer, nothing fetched");
}

proptest! {
    #[test]
    fn request_path_and_query_never_cause_server_error(
        path in "(/(boot|blob|overlay|loader|boot.ipxe|script|[a-z0-9%.]{0,12})){0,4}/?",
        query in "(mac=52:54:00:12:34:56)?[ -~]{0,40}",
        head: bool,
    ) {
        let Ok(uri) = format!("{path}?{query}").parse::<axum::http::Uri>() else { return Ok(()) };
        let (api, _events) = Fake::new(BLOB.into(), "overlay".into());
        let client = Client { from: Ipv4Addr::LOCALHOST.into(), at: ENDPOINT, pending: PendingWrites::default() };
        let mut request = Request::new(Body::empty());
        request.headers_mut().insert("host", axum::http::HeaderValue::from_static("x"));
        *request.uri_mut() = uri;
        *request.method_mut() = if head { axum::http::Method::HEAD } else { axum::http::Method::GET };
        request.extensions_mut().insert(client);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let answer = runtime.block_on(router(api, u16::MAX).oneshot(request)).expect("infallible");
        prop_assert!(matches!(answer.status().as_u16(), 200 | 400 | 404), "{}", answer.status());
        let script = path.starts_with("/boot/") && path != "/boot/failed";
        prop_assert!(!script || answer.status() == 200, "{path}: {}", answer.status());
    }
}

/// Returns bytes that differ at each position.
fn large() -> Vec<u8> {
    (0..5_000_000u32).flat_map(|number| number.to_le_bytes()).collect()
}

#[tokio::test]
async fn large_blob_is_equal_from_memory_and_file() {
    let blob = large();
    let path = format!("/blob/{}/kernel", Digest::of(&blob));
    let mut server = Server::start(Limits::default(), blob.clone(), "");
    let fetched = format!("blob {}", Digest::of(&blob).short());
    let mut stream = BufReader::new(server.connect().await);
    // The first ones are answered from memory, the later ones from the file that was made
    // meanwhile.
    for round in 0..20 {
        for (range, first, last) in [
            ("", 0, blob.len() - 1),
            ("range: bytes=1-70000\r\n", 1, 70_000),
            ("range: bytes=4999999-\r\n", 4_999_999, blob.len() - 1),
        ] {
            send(stream.get_mut(), "GET", &path, range).await;
            let answer = read_answer(&mut stream, "GET").await;
            assert!(answer.body == blob[first..=last], "round {round}, {range:?}");
            if (first, last + 1) == (0, blob.len()) {
                assert_eq!(server.event().await, fetched);
            }
        }
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let blob = large();
    let path = format!("/blob/{}/kernel", Digest::of(&blob));
    let server = Server::start(Limits::default(), blob.clone(), "");
    let mut stream = BufReader::new(server.connect().await);
    for _ in 0..3 {
        for (path, range) in
            [(path.as_str(), "range: bytes=0-99999\r\n"), ("/healthz", ""), (path.as_str(), "")]
        {
            send(stream.get_mut(), "GET", path, range).await;
        }
        assert!(read_answer(&mut stream, "GET").await.body == blob[..100_000]);
        assert_eq!(read_answer(&mut stream, "GET").await.body, b"ok\n");
        assert!(read_answer(&mut stream, "GET").await.body == blob);
    }
}

#[tokio::test]
async fn unknown_paths_get_404_and_script_names_local_address() {
    let server = Server::start(Limits::default(), BLOB, "");
    for path in [
        "/boot.ipxe/",
        "//boot.ipxe",
        "/boot",
        "/blob/",
        "/loader",
        "/loader/",
        "/overlay",
        "/healthz/",
        "/x/../",
    ] {
        let answer = server.ask("GET", path, "").await;
        assert_eq!((answer.status, answer.header("location")), (404, None), "{path}");
    }
    let entry = String::from_utf8(server.ask("GET", "/boot.ipxe", "").await.body).expect("text");
    assert!(entry.contains(&format!("http://{}/boot/script?", server.at)), "{entry}");
}
