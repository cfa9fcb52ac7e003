//! Confirmations: what an order costs, the typed number, and the way back.

use super::{Browser, FakeApi, SignIn, TOKEN, console, environment};
use crate::router;
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{
        Method, StatusCode,
        header::{CONTENT_TYPE, COOKIE, HOST, ORIGIN, REFERER},
    },
};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

const NODE: &str = "node=3f9a1c0e~r1~n1";

/// The VMs of a node: one with a disk that its deletion wipes.
pub fn vms() -> Value {
    let mut vm = console::vm("");
    vm["node"] = json!("3f9a1c0e");
    vm["volumes"] = json!([{ "name": "data", "format": "raw", "disk": "slot:wwn-0x5000" }]);
    json!([vm])
}

/// A task that runs on the node.
pub fn tasks() -> Value {
    let member = json!({ "node": "3f9a1c0e", "address": "10.0.0.7", "state": "running", "lost": false, "claimed": true });
    json!([{ "id": "0123abcd", "state": "running", "group": "cfd", "argv": ["/opt/solve"], "ranks_per_node": 1,
        "launcher": "none", "user": { "uid": 1000 }, "owner": "token:ada", "created_at": "2026-01-01T00:00:00Z",
        "nodes": [member] }])
}

/// Sends a form from a page, as browsers do.
async fn post_from(browser: &Browser, from: &str, path: &str, form: &str) -> String {
    let request = Request::builder().method(Method::POST).uri(path);
    let request = request
        .header(HOST, browser.host)
        .header(ORIGIN, format!("https://{}", browser.host))
        .header(REFERER, format!("https://{}{from}", browser.host))
        .header(COOKIE, browser.cookie.clone().expect("signed in"))
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::from(form.to_owned()));
    let answer = browser.ui.clone().oneshot(request.expect("a request")).await.expect("infallible");
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    String::from_utf8(body.to_vec()).expect("UTF-8")
}

#[tokio::test]
async fn confirmation_names_nodes_vms_and_disks() {
    let mut browser = Browser::signed_in(&FakeApi::new("operator")).await;
    let shown = browser.post("/ui/actions/preview", &format!("action=reboot&{NODE}")).await.text;
    for part in [
        "Affected: 1 node, 1 VM, 1 replica, 1 task, 1 disk",
        "0123abcd</a> (/opt/solve)",
        "web-1</a> (running), with disks slot:wwn-0x5000 (volume data)",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let label = browser.post("/ui/actions/preview", &format!("action=label&{NODE}")).await.text;
    assert!(!label.contains("Affected"), "a label costs nothing: {label}");
}

#[tokio::test]
async fn dangerous_order_to_several_nodes_wants_the_typed_number() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let form = format!("action=drain&{NODE}&node=5a0b77c1~r2~n2&workloads=stop&reason=x");
    let shown = browser.post("/ui/actions/preview", &form).await.text;
    assert!(shown.contains("pattern=\"2\""), "{shown}");
    for count in ["", "&count=1", "&count=02"] {
        let refused = browser.post("/ui/actions/run", &format!("{form}{count}")).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{count}");
        let is_kept = refused.text.contains("value=\"stop\" selected");
        assert!(is_kept && refused.text.contains("type the number"), "{}", refused.text);
    }
    let is_ordered = || {
        let requests = api.requests.lock().expect("no panic").clone();
        requests.iter().any(|(path, _)| path == "/v1/bulk/nodes/drain")
    };
    assert!(!is_ordered());
    let done = browser.post("/ui/actions/run", &format!("{form}&count=2")).await;
    assert!(is_ordered() && done.text.contains("Accepted for 2 nodes"), "{}", done.text);
}

#[tokio::test]
async fn result_leads_back_to_the_page_of_the_order_and_nowhere_else() {
    let mut browser = Browser::signed_in(&FakeApi::new("operator")).await;
    let from = "/ui/nodes?label=rack%3Da&phase=online";
    let link = "href=\"/ui/nodes?label=rack%3Da&amp;phase=online\">Back to the nodes</a>";
    let form = format!("action=drain&{NODE}");
    let shown = post_from(&browser, from, "/ui/actions/preview", &form).await;
    assert!(shown.contains(link), "{shown}");
    let back = "back=%2Fui%2Fnodes%3Flabel%3Drack%253Da%26phase%3Donline";
    let done = browser.post("/ui/actions/run", &format!("{form}&{back}")).await.text;
    assert!(done.contains(link), "{done}");
    for hostile in ["https%3A%2F%2Fevil.example", "%2F%2Fevil.example", "javascript%3Aalert(1)"] {
        let done = browser.post("/ui/actions/run", &format!("{form}&back={hostile}")).await.text;
        assert!(done.contains("href=\"/ui/nodes\">Back to the nodes</a>"), "{done}");
        assert!(!done.contains("evil.example") && !done.contains("javascript:"), "{done}");
    }
}

/// Two tabs of a session. The API takes orders, and executes them with the permits of a gate.
async fn tabs(api: &FakeApi, gate: &Arc<Semaphore>) -> [Browser; 2] {
    let api = api.clone();
    let gate = gate.clone();
    let gated = Router::new().fallback(async move |request: Request| {
        let path = request.uri().path().to_owned();
        let answer = api.answer(request).await;
        if path.contains("/bulk/") || path.ends_with("/rename") || path.ends_with("/stop") {
            let _permit = gate.acquire().await.expect("an open gate");
        }
        answer
    });
    let ui = router(environment(gated, SignIn::Token));
    let mut first = Browser { host: "meshd.example:8443", ui: ui.clone(), cookie: None };
    first.post("/ui/sign-in", &format!("token={TOKEN}")).await;
    let second = Browser { host: first.host, ui, cookie: first.cookie.clone() };
    [first, second]
}

#[tokio::test]
async fn order_that_is_sent_again_while_it_runs_is_executed_once() {
    let drain = format!("action=drain&{NODE}&workloads=wait&key=k");
    for (to, form, path, result) in [
        ("/ui/actions/run", drain.as_str(), "/v1/bulk/nodes/drain", "Accepted for 1 node"),
        ("/ui/nodes/3f9a1c0e/rename", "name=gpu-7", "/v1/nodes/3f9a1c0e/rename", ""),
        ("/ui/containers/web/stop", "key=k", "/v1/containers/web/stop", ""),
    ] {
        let api = FakeApi::new("operator");
        let gate = Arc::new(Semaphore::new(0));
        let [mut one, mut other] = tabs(&api, &gate).await;
        // A double click: the browser forgets its first request.
        let _ = tokio::time::timeout(Duration::ZERO, one.post(to, form)).await;
        let open = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            gate.add_permits(1);
        };
        let (second, third, ()) = tokio::join!(one.post(to, form), other.post(to, form), open);
        for shown in [second, third] {
            assert!(shown.status.is_success() || shown.status.is_redirection(), "{}", shown.text);
            assert!(shown.text.contains(result), "{}", shown.text);
        }
        let requests = api.requests.lock().expect("no panic").clone();
        let orders = requests.iter().filter(|(asked, _)| asked == path).count();
        assert_eq!(orders, 1, "{to}: {requests:?}");
    }
}
