//! Operations, overlays, volumes and revisions of profiles: values are escaped, and orders need a
//! role.

use super::{Browser, FakeApi, HOSTILE, TOKEN, changes};
use axum::{
    body::Body,
    extract::Request,
    http::{StatusCode, header::COOKIE},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const DIGEST: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const OTHER: &str = "2222222222222222222222222222222222222222222222222222222222222222";

fn operation(object: &str, id: &str, state: &str) -> Value {
    json!({ "kind": "boot", "object": object, "id": id, "name": HOSTILE, "node": "3f9a1c0e", "request": HOSTILE,
        "since": "2026-01-01T00:00:00Z", "state": state, "progress": HOSTILE, "reason": HOSTILE })
}

fn volume(name: &str, digest: &str, vms: &[&str]) -> Value {
    json!({ "name": name, "digest": digest, "kind": "qcow2", "size": 5 << 20, "virtual_size": 3u64 << 30,
        "added_at": "2026-01-01T00:00:00Z", "vms": vms })
}

fn revision(generation: &str, is_newest: bool) -> Value {
    json!({ "generation": generation, "image": "alpine-lab", "version": generation, "since": "2026-01-01T00:00:00Z",
        "boots": is_newest, "current": is_newest, "pinned": false })
}

fn source(path: &str, text: Option<&str>, hidden: Option<&str>) -> Value {
    json!({ "path": path, "kind": "file", "mode": "0644", "owner": "0:0", "size": 9, "append": false,
        "secret": hidden == Some("secret"), "text": text, "hidden": hidden })
}

/// An order to two nodes.
fn order() -> Value {
    json!({ "id": "0a0b0c0d", "verb": "reboot", "order": { "order": "reboot" }, "state": "running", "nodes": 2,
        "pending": 1, "running": 0, "done": 0, "failed": 1, "cancelled": 0, "accepted_at": "2026-01-01T00:00:00Z",
        "by": { "actor": "token:ci", "verb": "reboot", "reason": HOSTILE, "correlation_id": "0101010101010101" } })
}

/// A rollout with hostile texts.
fn rollout() -> Value {
    json!({ "id": "0a0b0c0e", "target": { "to": "profile", "profile": "compute" }, "policy": {}, "state": "paused", "reason": HOSTILE,
        "eta_s": 700, "nodes": 2, "waves": 2, "waiting": 1, "active": 0, "done": 0, "failed": 1, "skipped": 0, "started_at": "2026-01-01T00:00:00Z",
        "by": { "actor": "token:ci", "verb": "rollout-start", "reason": HOSTILE, "correlation_id": "0101010101010101" },
        "board": [{ "wave": 0, "waiting": 0, "active": 0, "done": 0, "failed": 1, "skipped": 0 },
            { "wave": 1, "waiting": 1, "active": 0, "done": 0, "failed": 0, "skipped": 0 }] })
}

/// The answer of the API; `None` for a path of another test.
pub fn answer(path: &str, query: &str) -> Option<Value> {
    let overlay = json!({ "name": HOSTILE, "description": HOSTILE, "digest": DIGEST, "files": 1, "packages": [HOSTILE],
        "services": { "default": [HOSTILE] }, "variables": ["slots"], "profiles": ["compute"] });
    let mut detail = overlay.clone();
    detail["removes"] = json!([HOSTILE]);
    detail["declares"] = json!([{ "name": "slots", "type": "text", "default": HOSTILE, "required": true, "secret": false,
        "choices": [HOSTILE], "description": HOSTILE }]);
    let mut link = source("/etc/link", None, None);
    (link["kind"], link["target"]) = (json!("link"), json!(format!("/etc/passwd{HOSTILE}")));
    Some(match (path, query) {
        ("/v1/operations", _) => json!([order()]),
        ("/v1/operations/0a0b0c0d", _) => order(),
        ("/v1/operations/0a0b0c0d/nodes", _) => json!([
            { "node": "3f9a1c0e", "name": HOSTILE, "state": "failed", "reason": HOSTILE, "finished_at": "2026-01-01T00:00:00Z" },
            { "node": "3f9a1c0f", "name": "spare", "state": "pending" },
        ]),
        ("/v1/rollouts", _) => json!([rollout()]),
        ("/v1/rollouts/0a0b0c0e", _) => rollout(),
        ("/v1/rollouts/0a0b0c0e/nodes", _) => json!([
            { "node": "3f9a1c0e", "name": HOSTILE, "wave": 0, "stage": "returned", "reason": HOSTILE },
            { "node": "3f9a1c0f", "name": "spare", "wave": 1, "stage": "waiting" },
        ]),
        ("/v1/bisections", _) => json!([changes::bisection("running")]),
        ("/v1/bisections/0a0b0c0f", _) => changes::bisection("running"),
        (path, _) if path.starts_with("/v1/series/") => {
            json!({ "name": "x", "unit": "nodes", "step_s": 600,
            "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z",
            "points": [{ "at": "2026-01-01T00:00:00Z", "value": 3.0 }, { "at": "2026-01-01T00:10:00Z", "value": 7.0 }] })
        }
        ("/v1/activities", _) => json!({ "rest": 7, "activities": [
            operation("node", "3f9a1c0e", "failed"), operation("machine", HOSTILE, "requested"),
            operation("vm", HOSTILE, "accepted"), operation("slot", HOSTILE, "accepted"), operation("task", "01020304", "accepted"),
        ] }),
        ("/v1/volumes", _) => {
            let mut image = volume("nginx", &"3".repeat(64), &[]);
            (image["kind"], image["containers"]) = (json!("squashfs"), json!(["web"]));
            image["container_image"] = json!(true);
            json!([volume("free", DIGEST, &[]), volume("used", OTHER, &["vm-1"]), image])
        }
        ("/v1/overlays", _) => json!([overlay]),
        ("/v1/overlays/motd", _) => detail,
        ("/v1/overlays/motd/files", "") => json!([source("/etc/motd", None, None), link]),
        ("/v1/overlays/motd/files", "path=%2Fetc%2Fmotd") => {
            json!([source("/etc/motd", Some(HOSTILE), None)])
        }
        ("/v1/overlays/motd/files", query) => {
            let kind = query.rsplit("%2F").next().unwrap_or_default();
            json!([source("/etc/x", None, Some(kind))])
        }
        ("/v1/profiles/compute/settings", _) => json!([
            { "key": "vars.slots", "value": HOSTILE, "by": "base" },
            { "key": "packages", "value": "vim", "by": "base", "removed_by": "compute" },
        ]),
        ("/v1/profiles/compute/history", _) => {
            json!([revision(OTHER, true), revision(DIGEST, false)])
        }
        ("/v1/profiles/compute/diff", _) => json!({
            "changed": { HOSTILE: [HOSTILE, HOSTILE] }, "files": { HOSTILE: "changed", "motd/rootfs/etc/motd": "added" },
        }),
        _ => return None,
    })
}

const PAGES: [&str; 14] = [
    "bisections",
    "bisections/0a0b0c0f",
    "rollouts/0a0b0c0e",
    "rollouts",
    "operations",
    "operations/0a0b0c0d",
    "volumes",
    "overlays",
    "overlays/motd",
    "overlays/motd?path=/etc/motd",
    "overlays/motd?path=/etc/binary",
    "profiles/compute",
    "profiles/compute/diff?from=1111&to=2222",
    "profiles/compute/diff?from=%3Cscript%3E&to=%3Cimg%3E",
];

#[tokio::test]
async fn hostile_values_of_catalog_pages_are_escaped() {
    let mut browser = Browser::signed_in(&FakeApi::new("operator")).await;
    for path in PAGES {
        let page = browser.get(&format!("/ui/{path}")).await;
        assert_eq!(page.status, StatusCode::OK, "{path}: {}", page.text);
        let is_plain = !page.text.contains("<script>")
            && !page.text.contains("<img")
            && !page.text.contains('\u{1b}');
        assert!(is_plain && !page.text.contains("'><"), "{path}: {}", page.text);
        // Names of volumes, VMs and profiles are checked by their types.
        let is_typed = ["volumes", "rollouts"].contains(&path) || path.ends_with("binary");
        assert!(is_typed || page.text.contains("&lt;script&gt;"), "{path}: {}", page.text);
    }
}

#[tokio::test]
async fn operations_page_links_objects_and_counts_rest() {
    let page = Browser::signed_in(&FakeApi::new("viewer")).await.get("/ui/operations").await.text;
    for part in [
        "href=\"/ui/nodes/3f9a1c0e?tab=boot\"",
        "href=\"/ui/tasks/01020304\"",
        "href=\"/ui/slots\"",
        "7 more",
        "failed",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(page.contains("href=\"/ui/operations\" aria-current=\"page\""), "{page}");
}

#[tokio::test]
async fn operation_page_lists_nodes_and_offers_to_cancel_pending_ones() {
    let page = Browser::signed_in(&FakeApi::new("operator"))
        .await
        .get("/ui/operations/0a0b0c0d")
        .await
        .text;
    for part in
        ["href=\"/ui/nodes/3f9a1c0e?tab=boot\"", "spare", "Cancel 1 pending", "1 waiting, 1 failed"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    let page =
        Browser::signed_in(&FakeApi::new("viewer")).await.get("/ui/operations/0a0b0c0d").await.text;
    assert!(!page.contains("Cancel 1 pending"), "{page}");
    let page = Browser::signed_in(&FakeApi::new("viewer")).await.get("/ui/operations").await.text;
    assert!(page.contains("href=\"/ui/operations/0a0b0c0d\""), "{page}");
}

#[tokio::test]
async fn rollout_page_shows_its_board_and_offers_what_its_state_permits() {
    let page = async |role| {
        let mut browser = Browser::signed_in(&FakeApi::new(role)).await;
        browser.get("/ui/rollouts/0a0b0c0e").await.text
    };
    let shown = page("operator").await;
    for part in [
        "href=\"/ui/nodes/3f9a1c0e?tab=boot\"",
        "1 waiting, 1 failed",
        "about 12 min left",
        "canaries",
        "Resume",
        "<summary>Abort…</summary>",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("Pause"), "{shown}");
    assert!(!page("viewer").await.contains("Resume"));
}

#[tokio::test]
async fn overlay_file_without_text_shows_reason() {
    let mut browser = Browser::signed_in(&FakeApi::new("operator")).await;
    for (kind, expected) in [
        ("secret", "secret and not shown"),
        ("binary", "binary file"),
        ("invalid_utf8", "not UTF-8"),
    ] {
        let page = browser.get(&format!("/ui/overlays/motd?path=/etc/{kind}")).await.text;
        assert!(page.contains(expected) && !page.contains("<pre"), "{kind}: {page}");
    }
    let list = browser.get("/ui/overlays/motd").await.text;
    assert!(
        list.contains("?path=%2Fetc%2Fmotd\"") && !list.contains("?path=%2Fetc%2Flink"),
        "a link is not followed"
    );
    let page =
        Browser::signed_in(&FakeApi::new("viewer")).await.get("/ui/overlays/motd").await.text;
    assert!(page.contains("require the role operator") && !page.contains("?path="), "{page}");
}

#[tokio::test]
async fn profile_page_shows_setting_origins_and_revision_changes() {
    let mut browser = Browser::signed_in(&FakeApi::new("viewer")).await;
    let page = browser.get("/ui/profiles/compute").await.text;
    assert!(
        page.contains("href=\"/ui/profiles/base\"") && page.contains("<del>vim</del>"),
        "{page}"
    );
    let diff = format!("/ui/profiles/compute/diff?from={DIGEST}&amp;to={OTHER}");
    assert_eq!(page.matches("/diff?").count(), 1, "{page}");
    assert!(
        page.contains(&diff) && !page.contains("rollback"),
        "a viewer rolls nothing back: {page}"
    );
    let changes = browser.get(&diff.replace("&amp;", "&")).await.text;
    assert!(
        changes.contains("<td>+</td>") && changes.contains("motd/rootfs/etc/motd"),
        "{changes}"
    );
}

#[tokio::test]
async fn unused_volume_is_removable_by_operator_only() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let page = browser.get("/ui/volumes").await.text;
    assert!(page.contains("5.0 MiB") && page.contains("href=\"/ui/vms/vm-1\""), "{page}");
    assert!(
        page.contains(&format!("{DIGEST}/remove")) && !page.contains(&format!("{OTHER}/remove")),
        "{page}"
    );
    let done = browser.post(&format!("/ui/volumes/{DIGEST}/remove"), "reason=old").await;
    assert_eq!(done.location(), "/ui/volumes", "{}", done.text);
    let last = api.requests.lock().expect("no panic").last().cloned();
    assert_eq!(last, Some((format!("/v1/volumes/{DIGEST}/remove"), Value::Null)));
    let page = Browser::signed_in(&FakeApi::new("viewer")).await.get("/ui/volumes").await.text;
    assert!(page.contains("free") && !page.contains("/remove"), "{page}");
}

/// Number of the parts that a page keeps up to date, with the navigation.
async fn live_parts(browser: &mut Browser, path: &str) -> usize {
    let page = browser.get(&format!("/ui/{path}")).await.text;
    page.matches(" data-live").count() - page.matches("id=\"target\" data-live").count() + 1
}

#[tokio::test]
async fn unchanged_live_page_gets_304_without_body() {
    let browser = Browser::signed_in(&FakeApi::new("operator")).await;
    let cookie = browser.cookie.clone().expect("signed in");
    let mut reader =
        Browser { host: browser.host, ui: browser.ui.clone(), cookie: browser.cookie.clone() };
    assert!(!cookie.contains(TOKEN));
    for path in [
        "",
        "operations",
        "nodes",
        "nodes/3f9a1c0e",
        "nodes/3f9a1c0e?tab=checks",
        "nodes/3f9a1c0e?tab=hardware",
        "nodes/3f9a1c0e?tab=work",
        "rollouts/0a0b0c0e",
        "bisections/0a0b0c0f",
        "inbox",
        "vms",
        "containers",
        "containers/web",
        "containers/web.0/log",
        "tasks",
        "slots",
        "dhcp",
        "events",
    ] {
        let get = async |tag: &str| {
            let request = Request::builder().uri(format!("/ui/{path}")).header(COOKIE, &cookie);
            let request =
                request.header("if-none-match", tag).body(Body::empty()).expect("a request");
            browser.ui.clone().oneshot(request).await.expect("infallible")
        };
        let first = get("\"none\"").await;
        assert_eq!(first.status(), StatusCode::OK, "{path}");
        let tag = first.headers()["etag"].to_str().expect("text").to_owned();
        assert_eq!(tag.matches('.').count() + 1, live_parts(&mut reader, path).await, "{path}");
        let again = get(&tag).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
        let body = axum::body::to_bytes(again.into_body(), 1).await.expect("a body");
        assert!(body.is_empty(), "{path}");
    }
}
