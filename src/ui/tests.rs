//! Tests of the pages with a fake API: sign-in, origin, escaping, roles.

mod changes;
mod confirmations;
mod console;
mod containers;
mod inbox;
mod node;
mod orders;
mod pages;
mod rack;
mod rack_data;
mod refresh;
mod security;
mod texts;

use crate::{Environment, LinkCode, SignIn, router};
use axum::{
    Json, Router,
    body::Body,
    extract::Request,
    http::{
        HeaderMap, Method, StatusCode,
        header::{
            AUTHORIZATION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, LOCATION, ORIGIN,
            SET_COOKIE,
        },
    },
    response::{IntoResponse as _, Response},
};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Instant,
};
use tower::ServiceExt as _;

/// Markup that would run if it were not escaped, and text that would be read from right to left.
const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u{1b}[31m\u{202e}";
/// Where `meshd ui` answers.
const LOOPBACK: &str = "127.0.0.1:8765";
const TOKEN: &str = "meshd_0123";

/// Requests to the API, and whether the token is revoked.
#[derive(Clone)]
struct FakeApi {
    role: &'static str,
    /// Nodes of the site; `None` is a site with one node and hostile texts.
    nodes: Option<Arc<Vec<Value>>>,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    is_revoked: Arc<Mutex<bool>>,
}

fn node() -> Value {
    json!({
        "id": "3f9a1c0e", "name": HOSTILE, "profile": "compute", "assigned": true, "phase": "degraded",
        "conditions": [{ "kind": "check_failed", "since": "2026-01-01T00:00:00Z", "detail": HOSTILE }],
        "address": "10.0.0.7", "mac": "02:00:00:00:00:01",
        "model": "Supermicro SYS-1", "serial": "SN-0042", "segment": "rack-a", "generation": null, "next_generation": null,
        "last_seen": "2026-01-01T00:00:00Z", "boot": null, "labels": {}, "revision": "r1"
    })
}

fn detail() -> Value {
    let mut detail = node();
    let more = json!({
        "basis": "mac:02:00:00:00:00:01", "fingerprint": { "manufacturer": HOSTILE, "product": "", "serial": HOSTILE, "board_serial": "", "macs": [], "uuid": null }, "discovered_at": "2026-01-01T00:00:00Z",
        "link_since": null, "certificates": [], "checks": [], "facts": null, "warm_reboot": node::cold_boot()
    });
    for (key, value) in more.as_object().expect("an object") {
        detail[key] = value.clone();
    }
    detail
}

impl FakeApi {
    fn new(role: &'static str) -> Self {
        FakeApi { role, nodes: None, requests: Arc::default(), is_revoked: Arc::default() }
    }

    fn of_nodes(role: &'static str, nodes: Vec<Value>) -> Self {
        FakeApi { nodes: Some(Arc::new(nodes)), ..FakeApi::new(role) }
    }

    fn router(&self) -> Router {
        let api = self.clone();
        Router::new().fallback(async move |request: Request| api.answer(request).await)
    }

    async fn answer(&self, request: Request) -> Response {
        let is_token = request
            .headers()
            .get(AUTHORIZATION)
            .is_some_and(|value| value == &format!("Bearer {TOKEN}"));
        if !is_token || *self.is_revoked.lock().expect("no panic") {
            let view = json!({ "code": "unauthorized", "message": "this token is invalid", "hint": "", "correlation_id": "c" });
            return (StatusCode::UNAUTHORIZED, Json(view)).into_response();
        }
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        self.requests.lock().expect("no panic").push((path.clone(), body));
        let of_rack = self.nodes.as_ref().and_then(|all| rack_data::answer(all, &path, &query));
        if let Some((answer, total)) = of_rack {
            let is_page = answer.as_array().is_some_and(|rows| rows.len() < total);
            let total = [("x-total-count", total.to_string())];
            let next = is_page.then_some([("x-next-cursor", "c1")]);
            return (total, next.unwrap_or([("x-more", "")]), Json(answer)).into_response();
        }
        let answer = match path.as_str() {
            "/v1/whoami" => json!({ "name": "token:ada", "role": self.role }),
            "/v1/nodes" => json!([node()]),
            "/v1/nodes/3f9a1c0e" => detail(),
            path if path.starts_with("/v1/vms/") && path.matches('/').count() == 3 => {
                console::vm(path)
            }
            "/v1/bulk/nodes/reboot" => {
                json!({ "failed": 1, "results": [{ "id": "3f9a1c0e", "node": null,
                "error": { "code": "holds_vms", "message": HOSTILE, "hint": "drain it", "correlation_id": "c" } }] })
            }
            "/v1/slots" | "/v1/api-tokens" | "/v1/api-tokens/create" => orders::answer(&path),
            "/v1/vms" if query.contains("node=3f9a1c0e") => confirmations::vms(),
            // Confirmations ask for tasks that have not ended alone.
            "/v1/tasks" if query.contains("state=starting%2Crunning%2Cending") => {
                confirmations::tasks()
            }
            path => changes::answer(path)
                .or_else(|| containers::answer(path, &query))
                .or_else(|| inbox::answer(path))
                .or_else(|| pages::answer(path, &query))
                .or_else(|| texts::answer(path))
                .unwrap_or_else(|| json!([])),
        };
        let absent =
            ["/v1/nodes/3f9a1c0e/timeline", "/v1/nodes/3f9a1c0e/boot-times", "/v1/nodes/unknown"];
        if absent.contains(&path.as_str()) {
            let view = json!({ "code": "no_node", "message": "there is no node", "hint": "", "correlation_id": "c" });
            return (StatusCode::NOT_FOUND, Json(view)).into_response();
        }
        match path.as_str() {
            "/v1/events" if query.contains("kind=container") => containers::events(&query),
            "/v1/events" if self.nodes.is_some() => rack_data::events().into_response(),
            "/v1/events" => texts::events().into_response(),
            "/v1/leases" => {
                ([("x-next-cursor", "c1"), ("x-total-count", "1500")], Json(answer)).into_response()
            }
            _ => Json(answer).into_response(),
        }
    }
}

fn environment(api: Router, sign_in: SignIn) -> Environment {
    Environment {
        api,
        open_socket: console::guest(),
        sign_in,
        random: || [9; 32],
        now: Instant::now,
    }
}

struct Browser {
    host: &'static str,
    ui: Router,
    cookie: Option<String>,
}

struct Shown {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Shown {
    fn location(&self) -> &str {
        self.headers.get(LOCATION).map_or("", |value| value.to_str().expect("text"))
    }
}

impl Browser {
    fn new(api: &FakeApi, sign_in: SignIn) -> Self {
        let ui = router(environment(api.router(), sign_in));
        Browser { host: "meshd.example:8443", ui, cookie: None }
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        origin: Option<&str>,
        form: &str,
    ) -> Shown {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.host);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        if let Some(cookie) = &self.cookie {
            request = request.header(COOKIE, cookie);
        }
        let request = request
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(form.to_owned()));
        let response =
            self.ui.clone().oneshot(request.expect("a request")).await.expect("infallible");
        let (parts, body) = response.into_parts();
        if let Some(cookie) = parts.headers.get(SET_COOKIE) {
            let cookie =
                cookie.to_str().expect("text").split(';').next().expect("a pair").to_owned();
            self.cookie = Some(cookie).filter(|cookie| !cookie.ends_with('='));
        }
        let text = String::from_utf8(body.collect().await.expect("a body").to_bytes().to_vec())
            .expect("UTF-8");
        Shown { status: parts.status, headers: parts.headers, text }
    }

    async fn get(&mut self, path: &str) -> Shown {
        self.send(Method::GET, path, None, "").await
    }

    async fn post(&mut self, path: &str, form: &str) -> Shown {
        let origin = format!("https://{}", self.host);
        self.send(Method::POST, path, Some(&origin), form).await
    }

    async fn signed_in(api: &FakeApi) -> Self {
        let mut browser = Browser::new(api, SignIn::Token);
        let answer = browser.post("/ui/sign-in", &format!("token={TOKEN}")).await;
        assert_eq!(
            (answer.status, answer.location()),
            (StatusCode::SEE_OTHER, "/ui/"),
            "{}",
            answer.text
        );
        browser
    }
}

#[tokio::test]
async fn page_without_session_redirects_to_sign_in() {
    let api = FakeApi::new("viewer");
    let mut browser = Browser::new(&api, SignIn::Token);
    for path in ["/ui", "/ui/", "/ui/nodes", "/ui/nodes/3f9a1c0e", "/ui/nothing", "/ui/audit"] {
        let answer = browser.get(path).await;
        assert_eq!(
            (answer.status, answer.location()),
            (StatusCode::SEE_OTHER, "/ui/sign-in"),
            "{path}"
        );
    }
    browser.cookie = Some(format!("__Host-meshd={}", "0".repeat(64)));
    assert_eq!(browser.get("/ui/").await.location(), "/ui/sign-in", "an invented session");
    assert!(api.requests.lock().expect("no panic").is_empty());
    let refused = browser.post("/ui/sign-in", "token=meshd_wrong").await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert!(refused.text.contains("this token is invalid"));
}

#[tokio::test]
async fn session_cookie_is_host_bound_secure_and_http_only() {
    let api = FakeApi::new("viewer");
    let mut browser = Browser::new(&api, SignIn::Token);
    let answer = browser.post("/ui/sign-in", &format!("token={TOKEN}")).await;
    let cookie = answer.headers.get(SET_COOKIE).expect("a cookie").to_str().expect("text");
    let (pair, attributes) = cookie.split_once("; ").expect("attributes");
    assert!(pair.starts_with("__Host-meshd=") && !pair.contains(TOKEN));
    assert_eq!(attributes, "Path=/; Secure; HttpOnly; SameSite=Strict");
}

#[tokio::test]
async fn pages_have_strict_content_policy_and_escape_node_text() {
    let api = FakeApi::new("admin");
    let mut browser = Browser::signed_in(&api).await;
    for path in [
        "/ui/",
        "/ui/nodes",
        "/ui/nodes/3f9a1c0e",
        "/ui/nodes/3f9a1c0e?tab=checks",
        "/ui/nodes/3f9a1c0e?tab=hardware",
        "/ui/nodes/3f9a1c0e?tab=work",
        "/ui/nodes/3f9a1c0e?tab=events",
        "/ui/nodes/3f9a1c0e?tab=%3Cscript%3E&done=%3Cscript%3E",
        "/ui/nodes/3f9a1c0e/bmc",
        "/ui/inbox",
        "/ui/nothing",
        "/ui/nodes/unknown",
        "/ui/vms",
        "/ui/access",
        "/ui/slots",
        "/ui/dhcp?q=%3Cscript%3E",
        "/ui/doctor",
    ] {
        let answer = browser.get(path).await;
        let is_there = !path.ends_with("nothing") && !path.ends_with("unknown");
        assert_eq!(answer.status.is_success(), is_there, "{path}: {}", answer.text);
        let policy =
            answer.headers.get(CONTENT_SECURITY_POLICY).expect("a policy").to_str().expect("text");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}");
        assert!(
            !answer.text.contains("<script>") && !answer.text.contains("<img"),
            "{path}: {}",
            answer.text
        );
        assert!(!answer.text.contains('\u{1b}') && !answer.text.contains(" style="), "{path}");
    }
    assert!(browser.get("/ui/").await.text.contains("&lt;script&gt;"), "it is shown as text");
}

#[tokio::test]
async fn form_with_foreign_origin_is_refused() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let before = api.requests.lock().expect("no panic").len();
    let form = "action=reboot&node=3f9a1c0e~r1~n1";
    for origin in
        [None, Some("null"), Some("https://evil.example"), Some("https://meshd.example"), Some("")]
    {
        let answer = browser.send(Method::POST, "/ui/actions/run", origin, form).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{origin:?}");
    }
    assert_eq!(api.requests.lock().expect("no panic").len(), before, "nothing was ordered");
}

#[tokio::test]
async fn bulk_action_sends_ids_and_revisions_and_shows_result_per_node() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let list = browser.get("/ui/nodes").await.text;
    assert!(list.contains("value=\"3f9a1c0e~r1~"));
    let preview = browser.post("/ui/actions/preview", "action=reboot&node=3f9a1c0e~r1~n1").await;
    assert!(
        preview.status.is_success() && preview.text.contains("Reboot 1 node"),
        "{}",
        preview.text
    );
    assert!(
        api.requests.lock().expect("no panic").iter().all(|(path, _)| !path.contains("bulk")),
        "only a preview"
    );
    let done =
        browser.post("/ui/actions/run", "action=reboot&node=3f9a1c0e~r1~n1&reason=rack+move").await;
    let requests = api.requests.lock().expect("no panic").clone();
    let (_, order) =
        requests.iter().find(|(path, _)| path == "/v1/bulk/nodes/reboot").expect("an order");
    assert_eq!(order, &json!({ "nodes": [{ "id": "3f9a1c0e", "revision": "r1" }], "order": null }));
    assert!(
        done.text.contains("Refused for 1 of 1") && done.text.contains("drain it"),
        "{}",
        done.text
    );
    let accepted = browser.post("/ui/actions/run", "action=drain&node=3f9a1c0e~r1~n1").await.text;
    assert!(
        accepted.contains("Accepted for 1 node") && accepted.contains("/ui/operations/0a0b0c0d"),
        "{accepted}"
    );
    for form in
        ["action=reboot", "action=reboot&node=x", "action=nothing&node=3f9a1c0e~r1~n1", "%ff=%00"]
    {
        let refused = browser.post("/ui/actions/run", form).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{form}");
    }
    let long = format!("action=reboot{}", "&node=3f9a1c0e~r1~n1".repeat(20_000));
    assert_eq!(browser.post("/ui/actions/run", &long).await.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn node_form_sends_request_body_of_the_api() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let page = browser.get("/ui/nodes/3f9a1c0e").await.text;
    for (verb, form, body) in [
        ("fence", "confirm=gpu-1&reason=power+is+off", json!({ "confirm": "gpu-1" })),
        ("replace", "new=5a0b77c1", json!({ "new": "5a0b77c1" })),
        ("accept-nic", "mac=02:00:00:00:00:09", json!({ "mac": "02:00:00:00:00:09" })),
        (
            "boot-once",
            "profile=&kernel_args=debug+-quiet",
            json!({ "profile": null, "kernel_args": ["debug", "-quiet"], "clear": false }),
        ),
        ("boot-once", "clear=1", json!({ "profile": null, "kernel_args": [], "clear": true })),
    ] {
        assert!(page.contains(&format!("action=\"/ui/nodes/3f9a1c0e/{verb}\"")), "{verb}");
        let done = browser.post(&format!("/ui/nodes/3f9a1c0e/{verb}"), form).await;
        assert_eq!(done.location(), format!("/ui/nodes/3f9a1c0e?done={verb}"), "{}", done.text);
        let requests = api.requests.lock().expect("no panic").clone();
        assert_eq!(requests.last(), Some(&(format!("/v1/nodes/3f9a1c0e/{verb}"), body)));
    }
    for (verb, form) in [("accept-nic", "mac=x"), ("erase", "")] {
        let refused = browser.post(&format!("/ui/nodes/3f9a1c0e/{verb}"), form).await;
        assert!(refused.status.is_client_error(), "{verb}");
    }
}

#[tokio::test]
async fn vm_file_faults_are_shown_with_line_numbers() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let refused =
        browser.post("/ui/vms", "key=k&start=1&file=name+%3D+%22one%22%0D%0Avcpu+%3D+1").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(
        refused.text.contains("vm.toml:2: vcpu") && refused.text.contains("vcpu = 1</textarea>"),
        "{}",
        refused.text
    );
    let requests = api.requests.lock().expect("no panic").clone();
    assert!(requests.iter().all(|(path, _)| path != "/v1/vms"), "nothing was ordered");
    let mut viewer = Browser::signed_in(&FakeApi::new("viewer")).await;
    for path in ["/ui/vms", "/ui/vms/new"] {
        let page = viewer.get(path).await.text;
        assert!(!page.contains("textarea") && !page.contains("/ui/vms/new\""), "{path}");
    }
}

#[tokio::test]
async fn viewer_gets_pages_without_actions() {
    let (viewer, operator) = (FakeApi::new("viewer"), FakeApi::new("operator"));
    for (api, sees) in [(viewer, false), (operator, true)] {
        let mut browser = Browser::signed_in(&api).await;
        for path in ["/ui/nodes", "/ui/nodes/3f9a1c0e", "/ui/inbox"] {
            let page = browser.get(path).await.text;
            assert_eq!(page.contains("name=\"action\""), sees, "{path}: {page}");
        }
    }
}

#[tokio::test]
async fn session_ends_on_token_revocation_and_sign_out() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    assert!(browser.get("/ui/").await.status.is_success());
    let cookie = browser.cookie.clone();
    *api.is_revoked.lock().expect("no panic") = true;
    assert_eq!(browser.get("/ui/").await.location(), "/ui/sign-in");
    *api.is_revoked.lock().expect("no panic") = false;
    browser.cookie = cookie;
    assert_eq!(browser.get("/ui/").await.location(), "/ui/sign-in", "the session is gone");

    let mut browser = Browser::signed_in(&api).await;
    let cookie = browser.cookie.clone();
    assert_eq!(browser.post("/ui/sign-out", "").await.location(), "/ui/sign-in");
    browser.cookie = cookie;
    assert_eq!(browser.get("/ui/").await.location(), "/ui/sign-in");
}

#[tokio::test]
async fn sign_in_link_works_once_and_exposes_no_api() {
    let api = FakeApi::new("admin");
    let (code, text) = LinkCode::new([3; 32]);
    let trusting = api.router();
    let with_token = Router::new().fallback(async move |mut request: Request| {
        // Each client of the socket is an admin.
        let value = format!("Bearer {TOKEN}").parse().expect("plain");
        request.headers_mut().insert(AUTHORIZATION, value);
        trusting.oneshot(request).await.expect("infallible")
    });
    let ui = router(environment(with_token, SignIn::Link(code)));
    let mut browser = Browser { host: LOOPBACK, ui: ui.clone(), cookie: None };
    for path in ["/v1/nodes", "/metrics", "/v1/../v1/nodes"] {
        assert_eq!(browser.get(path).await.status, StatusCode::SEE_OTHER, "{path}");
    }
    assert_eq!(browser.get("/ui/enter?code=wrong").await.status, StatusCode::FORBIDDEN);
    assert_eq!(browser.get("/ui/enter").await.status, StatusCode::FORBIDDEN);
    assert!(api.requests.lock().expect("no panic").is_empty());
    let link = format!("/ui/enter?code={}", text.expose());
    assert_eq!(browser.get(&link).await.location(), "/ui/");
    assert!(browser.get("/ui/").await.status.is_success());
    let mut other = Browser { host: LOOPBACK, ui, cookie: None };
    assert_eq!(other.get(&link).await.status, StatusCode::FORBIDDEN, "the link was used");
    assert_eq!(
        other.post("/ui/sign-in", &format!("token={TOKEN}")).await.location(),
        "",
        "a token is no way in here"
    );
}

/// DNS rebinding: a name of another site resolves to the loopback address, so that its pages and
/// the UI have the same origin.
#[tokio::test]
async fn request_with_foreign_host_header_is_refused() {
    let api = FakeApi::new("admin");
    let (code, text) = LinkCode::new([3; 32]);
    let mut browser = Browser::new(&api, SignIn::Link(code));
    let link = format!("/ui/enter?code={}", text.expose());
    for host in ["evil.example:8765", "127.0.0.1.evil.example", "10.0.0.1:8765", ""] {
        browser.host = host;
        for path in [link.as_str(), "/ui/", "/ui/sign-in", "/v1/nodes"] {
            assert_eq!(
                browser.get(path).await.status,
                StatusCode::MISDIRECTED_REQUEST,
                "{host} {path}"
            );
        }
    }
    for host in ["localhost:8765", "[::1]:8765", "127.0.0.1:8765"] {
        browser.host = host;
        assert_eq!(browser.get("/ui/sign-in").await.status, StatusCode::OK, "{host}");
    }
}
