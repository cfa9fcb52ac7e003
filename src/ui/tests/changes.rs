//! Bisections, the groups of the page of operations, and the orders of a rollout.

use super::{Browser, FakeApi, HOSTILE};
use serde_json::{Value, json};

const AT: &str = "2026-01-01T00:00:00Z";

/// A generation by its number.
fn generation(number: usize) -> String {
    format!("{number:064}")
}

/// A search among 8 generations: the third is good, the sixth is bad, and the fifth boots.
pub fn bisection(state: &str) -> Value {
    let probe = |number: usize, verdict: Value, reason: Value| {
        json!({ "generation": generation(number), "node": "3f9a1c0e", "rollout": "0a0b0c0e",
            "verdict": verdict, "reason": reason })
    };
    json!({ "id": "0a0b0c0f", "profile": "compute", "state": state, "reason": HOSTILE, "suspects": 3,
        "generations": (1..=8).map(generation).collect::<Vec<_>>(), "nodes": ["3f9a1c0e"], "check": "jobs",
        "probes": [probe(3, json!("good"), Value::Null), probe(6, json!("bad"), json!(HOSTILE)), probe(5, Value::Null, Value::Null)],
        "started_at": AT,
        "by": { "actor": "token:ci", "verb": "bisect-start", "reason": HOSTILE, "correlation_id": "0101010101010101" } })
}

/// The answer of the API; `None` for a path of another test.
pub fn answer(path: &str) -> Option<Value> {
    Some(match path {
        "/v1/bulk/nodes/drain" => {
            json!({ "operation": "0a0b0c0d", "finished": false, "failed": 0, "results": [] })
        }
        "/v1/bisections/0a0b0c0f/abort" => bisection("returning"),
        "/v1/bisections/00000001" => {
            let mut done = bisection("done");
            done["first_bad"] = json!(generation(5));
            done["suspects"] = json!(1);
            done
        }
        "/v1/nodes/3f9a1c0e/power" => {
            json!({ "id": "3f9a1c0e", "name": HOSTILE, "driver": "redfish", "address": HOSTILE,
            "state": "on", "is_linked": true, "verbs": [{ "verb": "reset" }, { "verb": "boot-device", "impossible": HOSTILE }] })
        }
        "/v1/nodes/3f9a1c0e/sensors" => {
            json!([{ "name": HOSTILE, "reading": HOSTILE, "state": "ok" }])
        }
        _ => return None,
    })
}

async fn page(role: &'static str, path: &str) -> String {
    let mut browser = Browser::signed_in(&FakeApi::new(role)).await;
    browser.get(&format!("/ui/{path}")).await.text
}

/// The state that the page shows for a generation.
fn state_of(page: &str, number: usize) -> String {
    let cell = format!("<code>{}</code></td><td>", generation(number));
    let rest = page.split(&cell).nth(1).unwrap_or_else(|| panic!("{number}: {page}"));
    let badge = rest.split("</span>").next().expect("a badge");
    badge.rsplit('>').next().expect("a text").to_owned()
}

#[tokio::test]
async fn bisection_page_shows_the_range_that_is_left() {
    let shown = page("operator", "bisections/0a0b0c0f").await;
    let states = [1, 3, 4, 5, 6, 8].map(|number| state_of(&shown, number));
    assert_eq!(states, ["good", "good", "suspect", "suspect", "bad, perhaps the first", "bad"]);
    for part in ["3 generations left, at least 2 boots", "/ui/rollouts/0a0b0c0e", ">boots</span>"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let done = page("operator", "bisections/00000001").await;
    assert_eq!([4, 5, 6].map(|number| state_of(&done, number)), ["suspect", "first bad", "bad"]);
    assert!(!done.contains("/abort"), "it is over: {done}");
}

#[tokio::test]
async fn operator_aborts_a_bisection_and_stays_on_its_page() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let shown = browser.get("/ui/bisections/0a0b0c0f").await.text;
    assert!(shown.contains("action=\"/ui/bisections/0a0b0c0f/abort\""), "{shown}");
    let done = browser.post("/ui/bisections/0a0b0c0f/abort", "reason=enough").await;
    assert_eq!(done.location(), "/ui/bisections/0a0b0c0f", "{}", done.text);
    let last = api.requests.lock().expect("no panic").last().cloned();
    assert_eq!(last, Some(("/v1/bisections/0a0b0c0f/abort".to_owned(), Value::Null)));
    assert!(!page("viewer", "bisections/0a0b0c0f").await.contains("/abort"));
}

#[tokio::test]
async fn operations_are_grouped_with_counts_that_link() {
    let shown = page("viewer", "operations").await;
    // Three activities and a bisection are in progress; an order and a machine that nothing has
    // confirmed wait, and so does the paused rollout; a node does not boot.
    for (group, count) in [("runs", 4), ("waits", 3), ("failed", 1), ("done", 0)] {
        let link = format!("href=\"#{group}\"><strong>{count}</strong>");
        assert!(shown.contains(&link), "{link}: {shown}");
        assert!(shown.contains(&format!("<section id=\"{group}\" data-live>")), "{group}");
    }
    assert!(shown.contains("/ui/rollouts/0a0b0c0e") && shown.contains("/ui/bisections/0a0b0c0f"));
    assert!(shown.contains("Nothing is done yet."), "{shown}");
}
