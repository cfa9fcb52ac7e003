//! Answers to the script of a page: 304 while nothing changes, then the parts that changed.

use super::{
    Browser, FakeApi, environment,
    rack_data::{answer, nodes},
};
use crate::{SignIn, router};
use axum::{
    Json, Router,
    body::Body,
    extract::Request,
    http::{StatusCode, header::COOKIE, header::IF_NONE_MATCH},
    response::IntoResponse as _,
};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tower::ServiceExt as _;

/// A site whose nodes change during the test.
#[derive(Clone)]
struct Site(Arc<Mutex<Vec<Value>>>);

impl Site {
    fn change(&self, change: impl Fn(&mut Value)) {
        self.0.lock().expect("no panic").iter_mut().for_each(change);
    }

    async fn browser(&self) -> Browser {
        let site = self.clone();
        let rest = FakeApi::new("operator");
        let api = Router::new().fallback(async move |request: Request| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let nodes = site.0.lock().expect("no panic").clone();
            match answer(&nodes, request.uri().path(), &query) {
                Some((answer, _)) => Json(answer).into_response(),
                None => rest.answer(request).await,
            }
        });
        let ui = router(environment(api, SignIn::Token));
        let mut browser = Browser { host: "meshd.example:8443", ui, cookie: None };
        browser.post("/ui/sign-in", &format!("token={}", super::TOKEN)).await;
        browser
    }
}

/// The answer to the script: status, entity tag, text.
async fn look(browser: &Browser, path: &str, tag: &str) -> (StatusCode, String, String) {
    let cookie = browser.cookie.clone().expect("signed in");
    let request = Request::builder().uri(path).header(COOKIE, cookie).header(IF_NONE_MATCH, tag);
    let request = request.body(Body::empty()).expect("a request");
    let answer = browser.ui.clone().oneshot(request).await.expect("infallible");
    let tag = answer.headers()["etag"].to_str().expect("text").to_owned();
    let status = answer.status();
    let body = answer.into_body();
    let text = body.collect().await.expect("a body").to_bytes().to_vec();
    (status, tag, String::from_utf8(text).expect("UTF-8"))
}

/// The entity tag that a page gives to its script.
fn tag_of(page: &str) -> String {
    let tag = page.split("<body data-tag=\"").nth(1).and_then(|rest| rest.split("\">").next());
    tag.expect("a tag").replace("&quot;", "\"")
}

#[tokio::test]
async fn heartbeats_change_no_page_and_a_change_sends_its_parts_alone() {
    let site = Site(Arc::new(Mutex::new(nodes(1000))));
    let mut browser = site.browser().await;
    let heartbeat = |node: &mut Value| {
        // Nodes in these phases have no link.
        if node["phase"] != "offline" && node["phase"] != "booting" {
            node["last_seen"] = json!("2026-01-01T00:00:10Z");
        }
    };
    let set_phase = |phase: &'static str| {
        move |node: &mut Value| {
            if node["name"] == "gpu-0007" {
                node["phase"] = json!(phase);
            }
        }
    };
    for (path, changed, same) in [
        ("/ui/", "id=\"rack\"", "id=\"events\""),
        ("/ui/nodes", "<table><tbody id=\"rows\"", "id=\"count\""),
    ] {
        site.change(|node| node["last_seen"] = json!("2026-01-01T00:00:00Z"));
        let page = browser.get(path).await.text;
        let tag = tag_of(&page);
        site.change(heartbeat);
        let (status, again, text) = look(&browser, path, &tag).await;
        assert_eq!((status, text.as_str(), &again), (StatusCode::NOT_MODIFIED, "", &tag), "{path}");
        site.change(set_phase("draining"));
        let (status, new, text) = look(&browser, path, &tag).await;
        assert_eq!(status, StatusCode::OK);
        assert!(new != tag && text.contains(changed) && !text.contains(same), "{path}: {text}");
        assert!(!text.contains("<header>") && text.len() < page.len(), "{path}: {text}");
        site.change(set_phase("online"));
        let (status, ..) = look(&browser, path, &tag).await;
        assert_eq!(status, StatusCode::NOT_MODIFIED, "{path}");
        // A tab that slept for a day, or that an older meshd filled.
        let (status, _, text) = look(&browser, path, "\"0123\"").await;
        assert!(status.is_success() && text.contains("id=\"nav\"") && text.contains(changed));
    }
}
