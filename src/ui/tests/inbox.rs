//! The form that approves machines: it is checked as a whole, keeps what was typed, and changes
//! settings before it approves.

use super::{Browser, FakeApi, HOSTILE, node};
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use std::time::Duration;

const FORM: &str = "confirmed=1&node=3f9a1c0e~r1~n1&key=k&reason=sticker";

/// The answer of the API; `None` for a path of another test.
pub fn answer(path: &str) -> Option<Value> {
    let done = || json!({ "failed": 0, "results": [{ "id": "3f9a1c0e", "node": node() }] });
    Some(match path {
        "/v1/nodes/3f9a1c0e/rename" => node(),
        "/v1/bulk/nodes/label" | "/v1/bulk/nodes/assign-profile" | "/v1/bulk/nodes/approve" => {
            done()
        }
        "/v1/profiles" => json!([profile("base"), profile("compute")]),
        _ => return None,
    })
}

fn profile(name: &str) -> Value {
    json!({ "name": name, "default": name == "base", "extends": null, "image": "alpine-lab", "overlays": [],
        "kernel_args": [], "packages": [], "vfio": [] })
}

/// The orders that the API received.
fn orders(api: &FakeApi) -> Vec<(String, Value)> {
    let requests = api.requests.lock().expect("no panic").clone();
    requests
        .into_iter()
        .filter(|(path, _)| answer(path).is_some() && path != "/v1/profiles")
        .collect()
}

#[tokio::test]
async fn form_shows_each_machine_and_takes_name_profile_and_labels() {
    let mut browser = Browser::signed_in(&FakeApi::new("operator")).await;
    let shown = browser.post("/ui/inbox/approve", "node=3f9a1c0e~r1~n1").await;
    assert_eq!(shown.status, StatusCode::OK, "{}", shown.text);
    for part in [
        "SN-0042",
        "Supermicro SYS-1",
        "rack-a",
        "name=\"name-3f9a1c0e\"",
        "name=\"labels\"",
        ">compute</option>",
    ] {
        assert!(shown.text.contains(part), "{part}: {}", shown.text);
    }
    assert!(!shown.text.contains("<script>"), "{}", shown.text);
}

#[tokio::test]
async fn settings_are_changed_before_the_approval() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let form = format!("{FORM}&name-3f9a1c0e=gpu-7&profile=compute&labels=rack%3Da+spare-");
    let done = browser.post("/ui/inbox/approve", &form).await;
    assert!(done.text.contains("Done for 1 node"), "{}", done.text);
    assert!(done.text.contains("href=\"/ui/inbox\">Back to the inbox"), "{}", done.text);
    let bulk =
        |order: Value| json!({ "nodes": [{ "id": "3f9a1c0e", "revision": "r1" }], "order": order });
    let expected = [
        ("/v1/nodes/3f9a1c0e/rename", json!({ "name": "gpu-7" })),
        ("/v1/bulk/nodes/label", bulk(json!({ "set": { "rack": "a" }, "unset": ["spare"] }))),
        ("/v1/bulk/nodes/assign-profile", bulk(json!({ "profile": "compute" }))),
        ("/v1/bulk/nodes/approve", bulk(json!({ "moved": false }))),
    ];
    let expected = expected.map(|(path, body)| (path.to_owned(), body));
    assert_eq!(orders(&api), expected);
}

#[tokio::test]
async fn unchanged_machine_is_only_approved() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let done =
        browser.post("/ui/inbox/approve", &format!("{FORM}&name-3f9a1c0e=&profile=&labels=")).await;
    assert!(done.text.contains("Done for 1 node"), "{}", done.text);
    let paths: Vec<_> = orders(&api).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["/v1/bulk/nodes/approve"]);
}

#[tokio::test]
async fn each_fault_is_named_and_every_input_is_kept() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let form =
        format!("{FORM}&name-3f9a1c0e=GPU_7&profile=absent&labels=%3D%3D%3Cscript%3E&moved=1");
    let refused = browser.post("/ui/inbox/approve", &form).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
    for part in [
        "the name `GPU_7` is not valid",
        "there is no such profile",
        "labels:",
        "value=\"GPU_7\"",
        "value=\"==&lt;script&gt;\"",
        "name=\"moved\" value=\"1\" checked",
    ] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    let changed = FORM.replace("~r1~", "~r0~");
    let refused = browser.post("/ui/inbox/approve", &changed).await;
    assert!(refused.text.contains("changed since the form was shown"), "{}", refused.text);
    assert!(refused.text.contains("3f9a1c0e~r1~"), "the next form is about the machine as it is");
    let twice = format!("{FORM}&node=5a0b77c1~r1~n2");
    let refused = browser.post("/ui/inbox/approve", &twice).await;
    assert!(refused.text.contains("5a0b77c1 is no longer there"), "{}", refused.text);
    assert!(orders(&api).is_empty(), "nothing was ordered");
    assert!(!refused.text.contains(HOSTILE));
}

/// Two machines named `a` and `b`, with 31 labels each.
fn two_machines() -> FakeApi {
    let labels: Map<String, Value> = (0..31).map(|key| (format!("k{key}"), json!("v"))).collect();
    let machine = |id: &str, name: &str| {
        let mut machine = node();
        machine["id"] = json!(id);
        machine["name"] = json!(name);
        machine["labels"] = Value::Object(labels.clone());
        machine
    };
    FakeApi::of_nodes("operator", vec![machine("3f9a1c0e", "a"), machine("5a0b77c1", "b")])
}

#[tokio::test]
async fn form_that_meshd_would_refuse_half_way_changes_no_machine() {
    let api = two_machines();
    let mut browser = Browser::signed_in(&api).await;
    let both = "confirmed=1&node=3f9a1c0e~r1~a&node=5a0b77c1~r1~b&key=k&reason=x";
    for (inputs, fault) in [
        ("name-3f9a1c0e=gpu-1&name-5a0b77c1=localhost", "the name `localhost` is not valid"),
        ("name-3f9a1c0e=gpu-1&name-5a0b77c1=node-3f9a1c0e", "`node-3f9a1c0e` is not valid"),
        ("name-3f9a1c0e=b&name-5a0b77c1=gpu-2", "the name `b` is taken"),
        ("labels=x%3D1+y%3D2", "a would have 33 labels"),
    ] {
        let refused = browser.post("/ui/inbox/approve", &format!("{both}&{inputs}")).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
        assert!(refused.text.contains(fault), "{fault}: {}", refused.text);
    }
    assert!(orders(&api).is_empty(), "nothing was ordered");
}

#[tokio::test]
async fn order_does_not_wait_for_the_counts_of_the_navigation() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let asked = |api: &FakeApi| {
        let requests = api.requests.lock().expect("no panic").clone();
        requests.iter().filter(|(path, _)| path.starts_with("/v1/status")).count()
    };
    let before = asked(&api);
    browser.post("/ui/inbox/approve", FORM).await;
    assert_eq!(asked(&api), before);
    browser.get("/ui/inbox").await;
    assert!(asked(&api) > before, "a page shows them");
}

#[tokio::test]
async fn form_that_is_sent_again_has_the_result_of_the_first() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let mut other_tab =
        Browser { host: browser.host, ui: browser.ui.clone(), cookie: browser.cookie.clone() };
    let form = format!("{FORM}&name-3f9a1c0e=gpu-7&profile=compute");
    // A double click: the browser forgets its first request.
    let first = browser.post("/ui/inbox/approve", &form);
    let _ = tokio::time::timeout(Duration::ZERO, first).await;
    let (second, third) = tokio::join!(
        browser.post("/ui/inbox/approve", &form),
        other_tab.post("/ui/inbox/approve", &form)
    );
    let reloaded = browser.post("/ui/inbox/approve", &form).await;
    for shown in [second, third, reloaded] {
        assert_eq!(shown.status, StatusCode::OK, "{}", shown.text);
        assert!(shown.text.contains("Done for 1 node"), "{}", shown.text);
    }
    let approvals = |api: &FakeApi| {
        let paths = orders(api).into_iter().map(|(path, _)| path);
        paths.filter(|path| path == "/v1/bulk/nodes/approve").count()
    };
    assert_eq!((approvals(&api), orders(&api).len()), (1, 3), "{:?}", orders(&api));
    let another = form.replace("key=k", "key=l");
    assert!(browser.post("/ui/inbox/approve", &another).await.text.contains("Done for 1 node"));
    assert_eq!(approvals(&api), 2, "another form is another order");
}
