//! Orders about slots, tokens and certificates: requests to the API, and forms for each role.

use super::{Browser, FakeApi, HOSTILE};
use axum::http::StatusCode;
use serde_json::{Value, json};

/// A slot, or a token.
pub fn answer(path: &str) -> Value {
    let token = json!({ "name": "ada", "role": "viewer", "created_at": "2026-01-01T00:00:00Z", "expires_at": null, "expired": false });
    match path {
        "/v1/slots" => json!([{
            "id": "3f9a1c0e/0000:01:00.0", "state": "cleanup_blocked", "reason": HOSTILE, "functions": { "0000:01:00.0": HOSTILE },
            "numa": 0, "disk": null, "fabric": null, "near_disk": HOSTILE, "approved": false
        }]),
        "/v1/api-tokens" => json!([token]),
        _ => json!({ "token": token, "secret": "meshd_secret" }),
    }
}

/// The path and the body of the last order.
fn last(api: &FakeApi) -> (String, Value) {
    api.requests.lock().expect("no panic").last().cloned().expect("it was asked something")
}

#[tokio::test]
async fn slot_forms_send_approve_disable_and_release() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let page = browser.get("/ui/slots").await.text;
    let parts = "disk=nearest&fabric=&mac=52:54:00:00:00:07&address=10.77.0.210&reason=new";
    let approval =
        json!({ "disk": "nearest", "mac": "52:54:00:00:00:07", "address": "10.77.0.210" });
    for (verb, form, body) in
        [("approve", parts, approval), ("disable", "", Value::Null), ("release", "", Value::Null)]
    {
        let to = format!("/ui/slots/3f9a1c0e/0000%3A01%3A00.0/{verb}");
        assert!(page.contains(&format!("action=\"{to}\"")), "{verb}: {page}");
        assert_eq!(browser.post(&to, form).await.location(), "/ui/slots");
        assert_eq!(last(&api), (format!("/v1/slots/3f9a1c0e/0000%3A01%3A00.0/{verb}"), body));
    }
    let refused = browser.post("/ui/slots/3f9a1c0e/0000:01:00.0/approve", "mac=x").await;
    assert!(
        refused.status == StatusCode::BAD_REQUEST && refused.text.contains("mac:"),
        "{}",
        refused.text
    );
    let viewer = Browser::signed_in(&FakeApi::new("viewer")).await.get("/ui/slots").await.text;
    assert!(
        !viewer.contains("<form method=\"post\" action=\"/ui/slots") && !viewer.contains("Approve"),
        "{viewer}"
    );
}

#[tokio::test]
async fn task_form_sends_task_request_and_refuses_invalid_fields() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let form = browser.get("/ui/tasks/new").await.text;
    assert!(form.contains("name=\"argv\"") && !form.contains("<script>alert"), "{form}");
    let fields = "argv=/opt/solve%0D%0A--deck+a%0D%0A&group=cfd&ranks_per_node=2&launcher=mpich&user=1000&timeout=12h";
    browser.post("/ui/tasks", fields).await;
    let order = json!({ "argv": ["/opt/solve", "--deck a"], "group": "cfd", "ranks_per_node": 2, "launcher": "mpich",
        "user": { "uid": 1000 }, "timeout_s": 43_200 });
    let requests = api.requests.lock().expect("no panic").clone();
    assert!(requests.contains(&("/v1/tasks".to_owned(), order)), "{requests:?}");
    for wrong in ["nodes=many", "ranks_per_node=65536", "launcher=slurm", "user=ada", "timeout=12"]
    {
        let refused =
            browser.post("/ui/tasks", &format!("argv=/bin/true%26x&group=cfd&{wrong}")).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{wrong}");
        assert!(
            refused.text.contains("is not valid") && refused.text.contains("/bin/true&amp;x"),
            "{}",
            refused.text
        );
    }
    let viewer = Browser::signed_in(&FakeApi::new("viewer")).await.get("/ui/tasks/new").await.text;
    assert!(!viewer.contains("name=\"argv\""), "{viewer}");
}

#[tokio::test]
async fn token_secret_is_shown_once_and_admin_revokes_token() {
    let api = FakeApi::new("admin");
    let mut browser = Browser::signed_in(&api).await;
    let created = browser.post("/ui/access/api-tokens", "name=ada&role=viewer&days=2").await;
    assert!(
        created.status.is_success() && created.text.contains("meshd_secret"),
        "{}",
        created.text
    );
    assert_eq!(created.headers["cache-control"], "no-store");
    let body = json!({ "name": "ada", "role": "viewer", "expires_in": 172_800 });
    assert_eq!(last(&api), ("/v1/api-tokens/create".to_owned(), body));
    for form in [
        "name=ada&role=root&days=2",
        "name=ada&role=viewer&days=-1",
        "name=ada&role=viewer&days=99999",
        "name=",
    ] {
        let refused = browser.post("/ui/access/api-tokens", form).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{form}");
    }
    assert_eq!(browser.post("/ui/access/api-tokens/ada/revoke", "").await.location(), "/ui/access");
    assert_eq!(last(&api).0, "/v1/api-tokens/ada/revoke");
    assert_eq!(
        browser.post("/ui/access/ca/rotate", "grace=0&enrol_again=1").await.location(),
        "/ui/access"
    );
    assert_eq!(
        last(&api),
        ("/v1/ca/rotate".to_owned(), json!({ "grace_s": 0, "enrol_again": true }))
    );
    assert!(!browser.get("/ui/access").await.text.contains("meshd_secret"));
}

#[tokio::test]
async fn operator_sees_tokens_without_admin_forms() {
    for (role, sees) in [("operator", false), ("admin", true)] {
        let mut browser = Browser::signed_in(&FakeApi::new(role)).await;
        let page = browser.get("/ui/access").await.text;
        assert!(page.contains("ada"), "{page}");
        for form in ["access/api-tokens\"", "api-tokens/ada/revoke", "access/ca/rotate"] {
            assert_eq!(page.contains(form), sees, "{role}: {form}");
        }
        assert_eq!(
            browser.get("/ui/nodes/3f9a1c0e").await.text.contains("/3f9a1c0e/revoke"),
            sees,
            "{role}"
        );
    }
}

#[tokio::test]
async fn bulk_pin_boot_once_and_doctor_send_node_revisions() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let nodes = "node=3f9a1c0e~r1~n1&node=5a0b77c1~r2~n2";
    for (action, form, order) in [
        ("pin", "", json!({ "generation": null, "off": false })),
        ("pin", "&off=1", json!({ "generation": null, "off": true })),
        (
            "boot-once",
            "&profile=compute&kernel_args=debug+-quiet",
            json!({ "profile": "compute", "kernel_args": ["debug", "-quiet"], "clear": false }),
        ),
        ("doctor", "", Value::Null),
    ] {
        let preview =
            browser.post("/ui/actions/preview", &format!("action={action}&{nodes}")).await;
        assert!(
            preview.status.is_success() && preview.text.contains("2 nodes"),
            "{action}: {}",
            preview.text
        );
        browser.post("/ui/actions/run", &format!("action={action}&{nodes}{form}")).await;
        let body = json!({ "nodes": [{ "id": "3f9a1c0e", "revision": "r1" }, { "id": "5a0b77c1", "revision": "r2" }], "order": order });
        assert_eq!(last(&api), (format!("/v1/bulk/nodes/{action}"), body));
    }
    let refused = browser.post("/ui/actions/run", &format!("action=accept-nic&{nodes}")).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "each node has another NIC");
}

#[tokio::test]
async fn variables_form_parses_values_like_cli() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let form = |text: &str| format!("action=vars&node=3f9a1c0e~r1~n1&variables={text}");
    browser
        .post("/ui/actions/run", &form("slots%3D8%0D%0Atags%3D%5Ba%2Cb%5D%0D%0Ascratch-%0D%0A"))
        .await;
    let (path, body) = last(&api);
    let order = json!({ "set": { "slots": 8, "tags": ["a", "b"] }, "unset": ["scratch"] });
    assert_eq!((path.as_str(), &body["order"]), ("/v1/bulk/nodes/vars", &order));
    for text in ["slots", "a+b%3D1", "%3D1"] {
        let refused = browser.post("/ui/actions/run", &form(text)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{text}");
    }
}
