//! Overview and node list of sites with 2, 50 and 1,000 nodes in Chromium: they fit the screen, are
//! accessible, and are used by the keyboard. The API is a fake one.
//!
//! With `MESHD_SCREENSHOTS=FOLDER` the pictures are written there.

#[path = "../../../../src/ui/tests/rack_data.rs"]
mod rack_data;

use crate::kit::browser::{
    browse,
    page::{assert_accessible, picture, wait_for},
};
use axum::{
    Json, Router,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use meshd_api::ErrorView;
use meshd_ui::{Environment, LinkCode, OpenSocket, SignIn};
use serde_json::{Value, json};
use std::{sync::Arc, time::Instant};
use thirtyfour::prelude::*;
use tokio::net::TcpListener;

/// Height of a screen of 1440 pixels width.
const SCREEN: u64 = 900;
/// Most bytes of the overview of 1,000 nodes.
const MOST_BYTES: u64 = 300_000;

fn answer(nodes: &[Value], request: &Request) -> Response {
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    if let Some((answer, total)) = rack_data::answer(nodes, path, query) {
        return ([("x-total-count", total.to_string())], Json(answer)).into_response();
    }
    match path {
        "/v1/whoami" => Json(json!({ "name": "token:ada", "role": "operator" })).into_response(),
        "/v1/events" => rack_data::events().into_response(),
        _ => Json(json!([])).into_response(),
    }
}

/// Serves the UI of a site with so many nodes, and returns the link that signs in.
async fn serve(count: usize) -> String {
    let nodes = Arc::new(rack_data::nodes(count));
    let api = Router::new().fallback(async move |request: Request| answer(&nodes, &request));
    let (code, secret) = LinkCode::new([7; 32]);
    let open_socket: OpenSocket = Arc::new(|_, _| {
        let code = "no_console".to_owned();
        let message = "there is no console".to_owned();
        let view = ErrorView { code, message, hint: String::new(), correlation_id: String::new() };
        Box::pin(async move { Err((StatusCode::NOT_FOUND, view)) })
    });
    let sign_in = SignIn::Link(code);
    let random = || [9; 32];
    let ui = meshd_ui::router(Environment { api, open_socket, sign_in, random, now: Instant::now });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, ui).await });
    format!("http://{address}/ui/enter?code={}", secret.expose())
}

/// Changes the size of the page. A window of Chromium is at least 500 pixels wide.
async fn resize(browser: &WebDriver, width: u64) {
    let height = if width < 500 { 800 } else { SCREEN };
    let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
    browser.cdp().send_raw("Emulation.setDeviceMetricsOverride", size).await.unwrap();
}

async fn number(browser: &WebDriver, script: &str) -> u64 {
    let answer = browser.execute(format!("return Math.ceil({script})"), []).await.unwrap();
    answer.json().as_u64().unwrap()
}

/// Writes a picture of the whole page.
async fn whole_picture(browser: &WebDriver, name: &str, width: u64) {
    let height = number(browser, "document.documentElement.scrollHeight").await;
    let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
    browser.cdp().send_raw("Emulation.setDeviceMetricsOverride", size).await.unwrap();
    picture(browser, name).await;
}

#[test]
fn pages_of_2_50_and_1000_nodes_fit_their_screens_and_are_accessible() {
    browse(async |browser| {
        for count in [2, 50, 1000] {
            browser.goto(serve(count).await).await.unwrap();
            wait_for(browser, "#rack a", "").await;
            let base = browser.current_url().await.unwrap();
            for page in ["", "nodes"] {
                browser.goto(base.join(page).unwrap().as_str()).await.unwrap();
                for width in [1440, 1000, 360] {
                    resize(browser, width).await;
                    let overhang = "document.documentElement.scrollWidth \
                        - document.documentElement.clientWidth";
                    let overhang = number(browser, overhang).await;
                    assert_eq!(overhang, 0, "{page} of {count} nodes, {width} pixels wide");
                    let shown = if page.is_empty() { "overview" } else { page };
                    whole_picture(browser, &format!("{shown}-{count}-{width}.png"), width).await;
                }
                resize(browser, 1440).await;
                assert_accessible(browser, &format!("/{page} of {count} nodes")).await;
            }
        }
    });
}

#[test]
fn overview_of_1000_nodes_has_two_screens_and_trouble_on_the_first() {
    browse(async |browser| {
        browser.goto(serve(1000).await).await.unwrap();
        resize(browser, 1440).await;
        wait_for(browser, ".troubles li", "gpu-0456").await;
        picture(browser, "overview.png").await;
        let height = number(browser, "document.documentElement.scrollHeight").await;
        assert!(height <= 2 * SCREEN, "{height} pixels high");
        let bytes = "performance.getEntriesByType('navigation')[0].decodedBodySize";
        let bytes = number(browser, bytes).await;
        assert!(bytes < MOST_BYTES, "{bytes} bytes");
        for broken in ["gpu-0123", "gpu-0456", "gpu-0789"] {
            let row = wait_for(browser, ".troubles li", broken).await;
            let place = row.rect().await.unwrap();
            assert!(place.y + place.height < SCREEN as f64 / 2.0, "{broken} at {place:?}");
        }
        let cells = number(browser, "document.querySelectorAll('.rack > a').length").await;
        assert_eq!(cells, 1000);
    });
}

#[test]
fn keys_open_pages_the_search_and_their_list() {
    browse(async |browser| {
        browser.goto(serve(50).await).await.unwrap();
        wait_for(browser, "#rack a", "gpu-0050").await;
        let press = async |keys: &str| {
            browser.find(By::Css("body")).await.unwrap().send_keys(keys).await.unwrap();
        };
        press("?").await;
        wait_for(browser, "dialog[open] li", "Inbox").await;
        assert_accessible(browser, "the list of keys").await;
        press("?").await;
        press("gn").await;
        wait_for(browser, "h1", "Nodes").await;
        press("/").await;
        let focus = browser.execute("return document.activeElement.id", []).await.unwrap();
        assert_eq!(focus.json(), &json!("q"));
        browser.find(By::Css("#q")).await.unwrap().send_keys("gn").await.unwrap();
        wait_for(browser, "h1", "Nodes").await;
        let typed = browser.find(By::Css("#q")).await.unwrap().prop("value").await.unwrap();
        assert_eq!(typed.as_deref(), Some("gn"), "a field takes all keys");
    });
}
