//! The page of a node: what its parts load, its menu, and its card.

use super::{Browser, FakeApi, HOSTILE};
use crate::html::display_text;
use serde_json::{Value, json};

/// A warm reboot that became a cold one.
pub fn cold_boot() -> Value {
    let cold = json!({ "cause": "memory", "reason": HOSTILE, "remedy": "end work on the node" });
    json!({ "operation": "0a0b0c0d", "at": "2026-01-01T00:00:00Z", "cold": cold })
}

/// The page, and the paths that it requested from the API.
async fn requests_of(path: &str) -> (String, Vec<String>) {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    api.requests.lock().expect("no panic").clear();
    let page = browser.get(path).await.text;
    let requests = api.requests.lock().expect("no panic").clone();
    (page, requests.into_iter().map(|(path, _)| path).collect())
}

#[tokio::test]
async fn part_of_a_node_loads_only_what_it_shows() {
    let parts = [
        ("", "/v1/nodes/3f9a1c0e/timeline"),
        ("?tab=boot", "/v1/nodes/3f9a1c0e/timeline"),
        ("?tab=work", "/v1/slots"),
        ("?tab=events", "/v1/events"),
        ("?tab=plots", "/v1/nodes/3f9a1c0e/series"),
    ];
    for (query, own) in parts {
        let (page, requests) = requests_of(&format!("/ui/nodes/3f9a1c0e{query}")).await;
        for (_, path) in parts {
            let is_asked = requests.iter().any(|request| request == path);
            assert_eq!(is_asked, path == own, "{query}: {path}: {requests:?}");
        }
        let word = query.strip_prefix("?tab=").unwrap_or("boot");
        let current = format!("href=\"/ui/nodes/3f9a1c0e?tab={word}\" aria-current=\"page\"");
        assert!(page.contains(&current), "{current}: {page}");
    }
    let (page, _) = requests_of("/ui/nodes/3f9a1c0e?tab=nothing").await;
    assert!(page.contains("?tab=boot\" aria-current=\"page\""), "{page}");
    let (_, requests) = requests_of("/ui/nodes/3f9a1c0e?tab=hardware").await;
    assert!(requests.iter().all(|path| !path.contains("power")), "a BMC is slow: {requests:?}");
}

#[tokio::test]
async fn menu_of_a_node_fits_its_phase() {
    let (page, _) = requests_of("/ui/nodes/3f9a1c0e").await;
    assert!(page.contains("<details class=\"menu\"><summary>Actions</summary>"), "{page}");
    // The node is degraded.
    for (order, is_offered) in [
        ("drain", true),
        ("reboot", true),
        ("quarantine", true),
        ("remove", true),
        ("release", false),
        ("resume", false),
        ("reject", false),
    ] {
        let button = format!("name=\"action\" value=\"{order}\"");
        assert_eq!(page.contains(&button), is_offered, "{order}: {page}");
    }
}

#[tokio::test]
async fn card_of_a_node_shows_model_address_and_the_way_to_its_bmc() {
    let (page, _) = requests_of("/ui/nodes/3f9a1c0e").await;
    for part in ["Supermicro SYS-1", "SN-0042", "10.0.0.7", "rack-a", "/ui/nodes/3f9a1c0e/bmc"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (page, _) = requests_of("/ui/nodes/3f9a1c0e/bmc").await;
    assert!(page.contains("redfish") && !page.contains("data-live"), "a BMC is slow: {page}");
    let mut viewer = Browser::signed_in(&FakeApi::new("viewer")).await;
    assert!(!viewer.get("/ui/nodes/3f9a1c0e").await.text.contains("/bmc"));
}

#[tokio::test]
async fn card_of_a_node_shows_why_it_booted_cold_and_what_to_do() {
    let (page, _) = requests_of("/ui/nodes/3f9a1c0e").await;
    let card =
        page.split("<dt>Warm reboot</dt>").nth(1).and_then(|rest| rest.split("</dd>").next());
    let card = card.expect("a row");
    for part in ["booted cold", "/ui/operations/0a0b0c0d", "&lt;script&gt;", "end work on the node"]
    {
        assert!(card.contains(part), "{part}: {card}");
    }
}

#[test]
fn text_of_a_node_is_cut_and_cleaned() {
    let huge = display_text(&HOSTILE.repeat(200_000));
    assert!(huge.chars().count() <= 4001 && huge.ends_with('…'), "{}", huge.len());
    assert!(!huge.contains('\u{1b}') && !huge.contains('\u{202e}'));
}
