//! Attacks on the pages: other origins, guests, nodes, and people who are signed in.

use super::*;
use crate::{OpenSocket, Opening};
use axum::http::Extensions;
use futures_util::SinkExt as _;
use std::{
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};
use tokio::{
    io::DuplexStream,
    sync::{Notify, mpsc},
    time::timeout,
};
use tokio_tungstenite::{WebSocketStream, accept_async, client_async, tungstenite::Message};

const CONSOLE: &str = "/ui/vms/0b1f6bd0-8c4d-4c0c-9d1e-3c5a1f0e7a11/console";
/// How long a test waits for what must happen.
const DEADLINE: Duration = Duration::from_secs(20);
/// Capacity of a socket in bytes.
const WIRE: usize = 4096;

/// Opens sockets whose far ends a test holds, once it lets them open.
fn opener(
    far_ends: mpsc::UnboundedSender<WebSocketStream<DuplexStream>>,
    gate: Option<Arc<[Notify; 2]>>,
) -> OpenSocket {
    Arc::new(move |request: axum::http::Request<()>, _: Extensions| -> Opening {
        let far_ends = far_ends.clone();
        let gate = gate.clone();
        Box::pin(async move {
            if let Some([requested, may_open]) = gate.as_deref() {
                requested.notify_one();
                may_open.notified().await;
            }
            let (near, far) = tokio::io::duplex(WIRE);
            tokio::spawn(
                async move { far_ends.send(accept_async(far).await.expect("a WebSocket")) },
            );
            let near: Box<dyn meshd_client::Stream> = Box::new(near);
            Ok(client_async(request, near).await.expect("a WebSocket").0)
        })
    })
}

/// Resolves once the near end of a socket is gone. Reads nothing, as a guest that ignores its
/// serial port.
async fn ended(mut far: WebSocketStream<DuplexStream>) {
    let pings = async { while far.send(Message::Ping(bytes::Bytes::new())).await.is_ok() {} };
    timeout(DEADLINE, pings).await.expect("the console ends");
}

/// Another one each time, so that each sign-in begins a session.
fn numbered() -> [u8; 32] {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    [COUNT.fetch_add(1, Ordering::SeqCst); 32]
}

async fn signed_in(ui: &Router) -> Browser {
    let mut browser = Browser { host: "meshd.example:8443", ui: ui.clone(), cookie: None };
    let answer = browser.post("/ui/sign-in", &format!("token={TOKEN}")).await;
    assert_eq!(answer.location(), "/ui/", "{}", answer.text);
    browser
}

#[tokio::test]
async fn form_from_plain_http_origin_is_refused() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let form = "action=reboot&node=3f9a1c0e~r1~n1";
    for (origin, status) in [
        ("http://meshd.example:8443", StatusCode::FORBIDDEN),
        ("ws://meshd.example:8443", StatusCode::FORBIDDEN),
        ("https://meshd.example:8443", StatusCode::OK),
    ] {
        let answer = browser.send(Method::POST, "/ui/actions/run", Some(origin), form).await;
        assert_eq!(answer.status, status, "{origin}: {}", answer.text);
    }
    let mut local = Browser::new(&api, SignIn::Link(LinkCode::new([3; 32]).0));
    local.host = LOOPBACK;
    for (origin, status) in [
        ("https://127.0.0.1:8765", StatusCode::FORBIDDEN),
        ("http://127.0.0.1:8765", StatusCode::SEE_OTHER),
    ] {
        assert_eq!(
            local.send(Method::POST, "/ui/sign-out", Some(origin), "").await.status,
            status,
            "{origin}"
        );
    }
}

#[tokio::test]
async fn session_cookie_used_elsewhere_ends_the_session() {
    let api = FakeApi::new("operator");
    let ui = router(environment(api.router(), SignIn::Token));
    let ask = async |from: &str, cookie: &str| {
        let origin = crate::SessionOrigin::of_address(from.parse().expect("an address"));
        let request = Request::get("/ui/")
            .header(HOST, "meshd.example:8443")
            .header(COOKIE, cookie)
            .extension(origin);
        ui.clone()
            .oneshot(request.body(Body::empty()).expect("a request"))
            .await
            .expect("infallible")
            .status()
    };
    let sign_in = async |from: &str| {
        let origin = crate::SessionOrigin::of_address(from.parse().expect("an address"));
        let request = Request::post("/ui/sign-in").header(HOST, "meshd.example:8443");
        let request = request.header(ORIGIN, "https://meshd.example:8443").extension(origin);
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let request = request.body(Body::from(format!("token={TOKEN}"))).expect("a request");
        let answer = ui.clone().oneshot(request).await.expect("infallible");
        let cookie = answer.headers().get(SET_COOKIE).expect("a cookie").to_str().expect("text");
        cookie.split(';').next().expect("a pair").to_owned()
    };
    let cookie = sign_in("10.1.0.5").await;
    assert_eq!(ask("10.1.0.5", &cookie).await, StatusCode::OK);
    assert_eq!(ask("10.1.0.6", &cookie).await, StatusCode::SEE_OTHER, "a thief");
    assert_eq!(ask("10.1.0.5", &cookie).await, StatusCode::SEE_OTHER, "the stolen session is over");
    let cookie = sign_in("2001:db8::5").await;
    assert_eq!(ask("2001:db8::1:2:3:4", &cookie).await, StatusCode::OK, "the same network");
    assert_eq!(ask("2001:db8:0:1::5", &cookie).await, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn same_site_page_opens_no_console() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let cookie = browser.cookie.clone().expect("signed in");
    for (site, status) in [
        (Some("same-site"), StatusCode::FORBIDDEN),
        (Some("cross-site"), StatusCode::FORBIDDEN),
        (Some("?"), StatusCode::FORBIDDEN),
        (Some("same-origin"), StatusCode::OK),
        (Some("none"), StatusCode::OK),
        (None, StatusCode::OK),
    ] {
        let mut request = Request::get(CONSOLE).header(HOST, browser.host).header(COOKIE, &cookie);
        if let Some(site) = site {
            request = request.header("sec-fetch-site", site);
        }
        let request = request.body(Body::empty()).expect("a request");
        let answer = browser.ui.clone().oneshot(request).await.expect("infallible");
        assert_eq!(answer.status(), status, "{site:?}");
        let is_open = browser.get(&format!("{CONSOLE}/screen")).await.status != StatusCode::GONE;
        assert_eq!(is_open, status == StatusCode::OK, "{site:?}");
    }
}

#[tokio::test]
async fn refusals_and_redirects_have_security_headers() {
    let api = FakeApi::new("viewer");
    let mut local = Browser::new(&api, SignIn::Link(LinkCode::new([3; 32]).0));
    let mut remote = Browser::new(&api, SignIn::Token);
    local.host = "evil.example";
    let mut answers =
        vec![local.get("/ui/").await, remote.get("/").await, remote.get("/ui/").await];
    assert_eq!(answers[0].status, StatusCode::MISDIRECTED_REQUEST);
    local.host = LOOPBACK;
    answers.push(local.get("/v1/nodes").await);
    for answer in answers {
        for (name, value) in [("cache-control", "no-store"), ("x-frame-options", "DENY")] {
            assert_eq!(answer.headers.get(name).expect(name), value, "{}", answer.status);
        }
        assert!(answer.headers.contains_key(CONTENT_SECURITY_POLICY), "{}", answer.status);
    }
}

#[tokio::test]
async fn direction_marks_in_node_text_are_removed() {
    let api = FakeApi::new("admin");
    let mut browser = Browser::signed_in(&api).await;
    for path in ["/ui/", "/ui/nodes", "/ui/nodes/3f9a1c0e", "/ui/inbox"] {
        let page = browser.get(path).await.text;
        assert!(page.contains("alert(1)"), "{path}: the text of the node is there");
        assert!(!page.contains(|c: char| ('\u{202a}'..='\u{202e}').contains(&c)), "{path}");
    }
}

#[tokio::test]
async fn sign_out_ends_console_of_guest_that_reads_no_input() {
    let api = FakeApi::new("operator");
    let (far_ends, mut sockets) = mpsc::unbounded_channel();
    let env = environment(api.router(), SignIn::Token);
    let mut browser =
        signed_in(&router(Environment { open_socket: opener(far_ends, None), ..env })).await;
    assert_eq!(browser.get(CONSOLE).await.status, StatusCode::OK);
    let guest = timeout(DEADLINE, sockets.recv()).await.expect("in time").expect("a socket");
    for _ in 0..4 {
        let typed = browser.post(&format!("{CONSOLE}/input"), &"x".repeat(4 * WIRE)).await;
        assert_eq!(typed.status, StatusCode::NO_CONTENT);
        // The console takes the first piece, and waits for the guest from then on.
        tokio::task::yield_now().await;
    }
    browser.post("/ui/sign-out", "").await;
    ended(guest).await;
}

#[tokio::test]
async fn console_opened_during_sign_out_ends() {
    let api = FakeApi::new("operator");
    let (far_ends, mut sockets) = mpsc::unbounded_channel();
    let gate = Arc::new([Notify::new(), Notify::new()]);
    let env = environment(api.router(), SignIn::Token);
    let open_socket = opener(far_ends, Some(gate.clone()));
    let mut browser = signed_in(&router(Environment { open_socket, ..env })).await;
    let mut other_tab =
        Browser { host: browser.host, ui: browser.ui.clone(), cookie: browser.cookie.clone() };
    let opening = tokio::spawn(async move { other_tab.get(CONSOLE).await });
    timeout(DEADLINE, gate[0].notified()).await.expect("it opens");
    browser.post("/ui/sign-out", "").await;
    gate[1].notify_one();
    let page = timeout(DEADLINE, opening).await.expect("in time").expect("no panic");
    assert_eq!(page.location(), "/ui/sign-in", "{}", page.text);
    ended(timeout(DEADLINE, sockets.recv()).await.expect("in time").expect("a socket")).await;
}

#[tokio::test]
async fn consoles_of_evicted_session_end() {
    let api = FakeApi::new("operator");
    let (far_ends, mut sockets) = mpsc::unbounded_channel();
    let env = environment(api.router(), SignIn::Token);
    let ui = router(Environment { open_socket: opener(far_ends, None), random: numbered, ..env });
    let mut first = signed_in(&ui).await;
    assert_eq!(first.get(CONSOLE).await.status, StatusCode::OK);
    let guest = timeout(DEADLINE, sockets.recv()).await.expect("in time").expect("a socket");
    for _ in 0..8 {
        signed_in(&ui).await;
    }
    assert_eq!(first.get("/ui/").await.location(), "/ui/sign-in");
    ended(guest).await;
}
