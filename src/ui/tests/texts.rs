//! Texts of the pages: events, names with IDs, links of banners, the timeline of a waiting node,
//! and pages of leases.

use super::{Browser, FakeApi, HOSTILE, detail};
use serde_json::{Value, json};

/// A node whose boot waits for approval.
const WAITING: &str = "5a0b77c1";
const AT: &str = "2026-01-01T00:00:00Z";

/// The event log as lines of JSON.
pub fn events() -> String {
    let event = |seq: u32, kind: &str, more: Value| {
        let mut event = json!({ "seq": seq, "at": AT, "kind": kind, "node": "3f9a1c0e", "session": null, "actor": "node", "detail": "" });
        for (key, value) in more.as_object().expect("an object") {
            event[key] = value.clone();
        }
        format!("{event}\n")
    };
    [
        event(1, "stage", json!({ "stage": "os_dhcp" })),
        event(2, "cleared", json!({ "condition": "boot_stalled" })),
        event(3, "phase", json!({ "from": "enrolling", "to": "online" })),
        event(4, "check_failed", json!({ "condition": "check_failed" })),
        event(5, "discovered", json!({ "node": "00000009" })),
    ]
    .concat()
}

/// The status of the site with one warning for each subject.
fn status() -> Value {
    let warning = |check: &str| json!({ "check": check, "status": "warn", "found": HOSTILE, "next": HOSTILE });
    let checks = ["approval", "stalled boots", "degraded", "quarantine", "offline", "pool br0"];
    json!({ "site": HOSTILE, "version": "1", "pid": 1, "ready": true, "phases": { "degraded": 1 }, "replicas": { "running": 1, "total": 2 },
        "warnings": checks.map(warning) })
}

/// The answer of the API; `None` for a path of another test.
pub fn answer(path: &str) -> Option<Value> {
    let mut waiting = detail();
    waiting["id"] = json!(WAITING);
    let audit = json!({ "seq": 1, "at": AT, "node": "3f9a1c0e", "target": null, "outcome": "done", "detail": HOSTILE,
        "actor": "token:ada", "verb": "reboot", "correlation_id": "0".repeat(16) });
    let lease = json!({ "address": "10.77.0.100", "mac": "02:00:00:00:00:09", "state": "active", "expires_at": AT,
        "node": null, "name": null, "vm": "00000000-0000-4000-8000-000000000001" });
    let stage = |stage: &str, duration_ms: u64, elapsed_ms: u64| json!({ "stage": stage, "at": AT, "duration_ms": duration_ms, "elapsed_ms": elapsed_ms, "count": 1 });
    Some(match path {
        "/v1/status" => status(),
        "/v1/nodes/5a0b77c1" => waiting,
        "/v1/nodes/5a0b77c1/timeline" => json!({
            "node": WAITING, "name": "waiting", "session": "0".repeat(24), "mac": "02:00:00:00:00:01", "address": null,
            "opened_at": AT, "result": "waiting", "total_ms": 90_000, "stalls": [], "boots": [],
            "waits": [{ "code": "approval", "at": AT, "last": AT }, { "code": "busy", "at": AT, "last": AT }],
            "stages": [stage("modloop", 30_000, 30_000), stage("approval", 60_000, 90_000)],
        }),
        "/v1/nodes/5a0b77c1/series" => json!([
            { "name": "cpu", "unit": "percent", "step_s": 600, "from": AT, "to": "2026-01-02T00:00:00Z",
                "points": [{ "at": AT, "value": 40.4 }] },
            { "name": "gpu", "unit": "percent", "step_s": 600, "from": AT, "to": "2026-01-02T00:00:00Z", "points": [] },
        ]),
        "/v1/nodes/5a0b77c1/boot-times" => json!({
            "node": WAITING, "name": "waiting", "session": "0".repeat(24), "mac": "02:00:00:00:00:01", "model": "SYS-1",
            "result": "online", "order": "power on", "begun_at": AT, "total_ms": 90_000, "own_boots": 3, "model_boots": 7,
            "steps": [{ "step": "attempts", "at": AT, "duration_ms": 60_000, "own_median_ms": 30_000 }],
            "delays": [{ "kind": "other_nic", "step": "attempts", "cost_ms": 60_000, "detail": HOSTILE, "setting": "boot order" }],
        }),
        "/v1/audit" => json!([audit]),
        "/v1/leases" => json!([lease]),
        "/v1/vms" => json!([]),
        _ => return None,
    })
}

/// Returns the text of a page without its tags.
fn words(page: &str) -> String {
    let texts = page.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    texts.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn page(path: &str) -> String {
    Browser::signed_in(&FakeApi::new("operator")).await.get(&format!("/ui/{path}")).await.text
}

#[tokio::test]
async fn event_row_shows_stage_phases_and_condition() {
    for path in ["events", "nodes/3f9a1c0e?tab=events"] {
        let page = page(path).await;
        for (kind, cell) in [
            ("stage", "stage: os_dhcp"),
            ("cleared", "cleared: its boot has stalled"),
            ("phase", "phase: enrolling → online"),
            ("check_failed", "a readiness check fails"),
        ] {
            let cell = format!("<td><span title=\"{kind}\">{cell}</span></td>");
            assert!(page.contains(&cell), "{path}: {cell}: {page}");
        }
    }
}

#[tokio::test]
async fn node_is_shown_by_name_with_id_in_brackets() {
    for path in ["events", "audit", "operations", "nodes/3f9a1c0e?tab=events", "slots"] {
        let page = page(path).await;
        assert!(
            words(&page).contains("onerror=alert(1)&gt;[31m (3f9a1c0e)"),
            "{path}: {}",
            words(&page)
        );
        assert!(!page.contains(">3f9a1c0e</a>"), "{path}: an ID without its name: {page}");
    }
    let deleted = page("events").await;
    assert!(deleted.contains(">00000009</a>"), "the record of this node is deleted: {deleted}");
}

#[tokio::test]
async fn warning_links_to_its_subject() {
    let page = page("").await;
    for to in [
        "/inbox",
        "/operations#failed",
        "/nodes?phase=degraded",
        "/nodes?phase=quarantined",
        "/nodes?phase=offline",
        "/dhcp",
    ] {
        let findings = page.split("id=\"findings\"").nth(1).unwrap_or_default();
        assert!(findings.contains(&format!("<a href=\"/ui{to}\">")), "{to}: {page}");
    }
    let node = self::page("nodes/3f9a1c0e").await;
    let link =
        "href=\"/ui/nodes/3f9a1c0e?tab=checks\"><strong>a readiness check fails (check_failed)";
    assert!(node.contains(link), "{node}");
}

#[tokio::test]
async fn timeline_shows_wait_for_approval_once_as_stage() {
    let page = page(&format!("nodes/{WAITING}")).await;
    assert!(page.contains("1 min 30 s so far"), "the time of a waiting boot runs: {page}");
    assert!(page.contains("<th scope=\"row\">approval</th><td>1 min 0 s</td>"), "{page}");
    assert!(
        words(&page).contains("Boot deferred (busy)") && !page.contains("deferred (approval)"),
        "{}",
        words(&page)
    );
}

#[tokio::test]
async fn boot_times_are_drawn_beside_medians_with_what_to_change() {
    let page = page(&format!("nodes/{WAITING}")).await;
    let text = words(&page);
    assert!(text.contains("1 min 30 s since the order power on"), "{text}");
    assert!(text.contains("3 earlier boots and 7 machines of the model"), "{text}");
    assert!(text.contains("other_nic costs 1 min 0 s in attempts"), "{text}");
    assert!(text.contains("Change: boot order"), "{text}");
    assert!(page.contains("<rect class=\"mark\" x=\"498\""), "half as long: {page}");
    assert_eq!(page.matches("class=\"mark\"").count(), 1, "no machine of the model: {page}");
}

#[tokio::test]
async fn node_page_plots_series_that_have_values() {
    let page = page(&format!("nodes/{WAITING}?tab=plots")).await;
    assert!(words(&page).contains("Processors busy 40 % 40 % to 40 %"), "{}", words(&page));
    assert!(page.contains("id=\"plot-cpu\"") && !page.contains("plot-gpu"), "{page}");
}

#[tokio::test]
async fn overview_plots_the_last_day_with_a_table_of_values() {
    let page = page("").await;
    let text = words(&page);
    assert!(text.contains("Last 24 hours") && text.contains("Nodes online 7 3 to 7"), "{text}");
    assert_eq!(page.matches("role=\"img\"").count(), 8, "{page}");
    assert!(page.contains("aria-labelledby=\"plot-leases-title plot-leases-text\""), "{page}");
    assert!(page.contains("d=\"M0 34.0h0L4 2.0\""), "from zero: {page}");
    assert!(!page.contains("style="), "the policy forbids it: {page}");
}

#[tokio::test]
async fn inbox_and_its_confirmation_show_serial_model_and_segment() {
    let mut browser = Browser::signed_in(&FakeApi::new("operator")).await;
    let inbox = browser.get("/ui/inbox").await.text;
    let confirmation =
        browser.post("/ui/actions/preview", "action=approve&node=3f9a1c0e~r1~n1").await.text;
    for page in [&inbox, &confirmation] {
        let is_complete =
            ["Supermicro SYS-1", "SN-0042", "rack-a"].iter().all(|part| page.contains(part));
        assert!(is_complete, "{page}");
    }
    assert!(confirmation.contains("Takes effect immediately"), "{confirmation}");
}

#[tokio::test]
async fn leases_have_pages_that_keep_the_filter() {
    let page = page("dhcp?q=10.77&all=1").await;
    assert!(words(&page).contains("1500 leases"), "{}", words(&page));
    assert!(page.contains("href=\"/ui/dhcp?after=c1&amp;q=10.77&amp;all=1\""), "{page}");
    assert!(
        words(&page).contains("VM 00000000-0000-4000-8000-000000000001"),
        "the VM is deleted: {}",
        words(&page)
    );
}

#[tokio::test]
async fn audit_row_breaks_in_text_columns_only() {
    let page = page("audit").await;
    assert_eq!(page.matches("<td class=\"text\">").count(), 2, "reason and detail: {page}");
    assert!(page.contains("<td>token:ada</td>") && page.contains(">Target</th>"), "{page}");
    let style = self::page("assets/style.css").await;
    assert!(
        style.contains("td { white-space: nowrap; }")
            && style.contains("td.text { overflow-wrap: anywhere;"),
        "{style}"
    );
}

#[test]
fn hint_with_a_command_links_to_the_page_of_its_noun() {
    let hint = |text| crate::html::hint(text).into_string();
    let vms = hint("retry after the VM disappears from `meshd vm list`");
    assert!(
        vms.starts_with("In a terminal: retry") && vms.contains("<a href=\"/ui/vms\">VMs</a>"),
        "{vms}"
    );
    assert_eq!(hint("run `meshd backup restore`"), "In a terminal: run `meshd backup restore`");
    assert_eq!(hint("drain the node"), "drain the node");
}
