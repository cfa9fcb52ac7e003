//! What a test does on a page: it waits for a text, clicks, and lets axe-core check the page.
//!
//! Waiting happens in the page, whose observer answers at the first change that fits.

use crate::kit::python_tools;
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};
use thirtyfour::{error::WebDriverErrorInner, prelude::*, session::scriptret::ScriptRet};

/// How long a page may take to show what is expected.
const PATIENCE: Duration = Duration::from_secs(180);

/// Answers with the first visible element of a selector that contains a text, or with the texts of
/// all after a time in milliseconds.
const FIND: &str = "const [selector, text, patience, done] = arguments; \
    const all = () => [...document.querySelectorAll(selector)].filter((it) => it.checkVisibility()); \
    const end = (answer) => { observer.disconnect(); clearTimeout(timer); done(answer); }; \
    const look = () => { const found = all().find((it) => it.innerText.includes(text)); if (found) end(found); }; \
    const observer = new MutationObserver(look); \
    const timer = setTimeout(() => end(all().map((it) => it.innerText)), patience); \
    observer.observe(document, { subtree: true, childList: true, characterData: true, attributes: true }); \
    look();";
/// Answers once the page after the one that was clicked on is loaded. The page that is left takes
/// the script with it.
const ARRIVE: &str = "const done = arguments[0]; \
    if (!window.wasClicked) { document.readyState === 'complete' ? done() : window.addEventListener('load', () => done()); }";

/// Runs a script that ends with its callback; another page in between runs it anew.
async fn run_in_page(
    browser: &WebDriver,
    script: &str,
    arguments: &[Value],
    patience: Duration,
) -> ScriptRet {
    // The script's own time ends first, and its answer says more.
    browser.set_script_timeout(patience + PATIENCE).await.unwrap();
    let began = Instant::now();
    loop {
        match browser.execute_async(script, arguments).await {
            Ok(answer) => return answer,
            // ChromeDriver 156 reports either of them as soon as the page is left.
            Err(error) => {
                let is_left = match &*error {
                    WebDriverErrorInner::JavascriptError(info) => {
                        info.to_string().contains("unloaded")
                    }
                    other => matches!(other, WebDriverErrorInner::ScriptTimeout(_)),
                };
                assert!(is_left && began.elapsed() < patience, "{error}");
            }
        }
    }
}

/// Waits until a selector's text contains something.
pub async fn wait_for(browser: &WebDriver, selector: &str, text: &str) -> WebElement {
    wait_long_for(browser, selector, text, PATIENCE).await
}

/// [`wait_for`] with a deadline of its own.
pub async fn wait_long_for(
    browser: &WebDriver,
    selector: &str,
    text: &str,
    patience: Duration,
) -> WebElement {
    let arguments = [json!(selector), json!(text), json!(patience.as_millis())];
    let answer = run_in_page(browser, FIND, &arguments, patience).await;
    let texts = answer.json().clone();
    answer.element().unwrap_or_else(|_| panic!("no `{text}` in {selector}: {texts}"))
}

/// Clicks the element that contains a text, and waits for the page that the click leads to.
pub async fn click(browser: &WebDriver, selector: &str, text: &str) {
    browser.execute("window.wasClicked = true", []).await.unwrap();
    let began = Instant::now();
    // A refresh may replace the element between these two steps.
    while let Err(error) = wait_for(browser, selector, text).await.click().await {
        let is_replaced = matches!(&*error, WebDriverErrorInner::StaleElementReference(_));
        assert!(
            is_replaced && began.elapsed() < PATIENCE,
            "click on `{text}` in {selector}: {error}"
        );
    }
    run_in_page(browser, ARRIVE, &[], PATIENCE).await;
}

/// Opens the menu of a node. A refresh may replace the menu between these two steps.
pub async fn open_menu(browser: &WebDriver) {
    let began = Instant::now();
    while let Err(error) =
        wait_for(browser, "details.menu > summary", "Actions").await.click().await
    {
        let is_replaced = matches!(&*error, WebDriverErrorInner::StaleElementReference(_));
        assert!(is_replaced && began.elapsed() < PATIENCE, "menu of a node: {error}");
    }
    wait_for(browser, "details.menu[open] button", "").await;
}

/// Selects all nodes of a table, gives them an order and confirms it.
pub async fn order_all(browser: &WebDriver, action: &str, reason: &str) {
    browser.find(By::Css("thead input[data-all]")).await.unwrap().click().await.unwrap();
    click(browser, &format!("button[value={action}]"), "").await;
    wait_for(browser, "form button.main", "1 node").await;
    browser.find(By::Css("input[name=reason]")).await.unwrap().send_keys(reason).await.unwrap();
    click(browser, "form button.main", "1 node").await;
    wait_for(browser, "main", "Done for 1 node").await;
}

pub async fn picture(browser: &WebDriver, name: &str) {
    if let Some(folder) = std::env::var_os("MESHD_SCREENSHOTS") {
        browser.screenshot(&PathBuf::from(folder).join(name)).await.unwrap();
    }
}

/// Answers with a line for each violation of a rule.
const RUN_AXE: &str = "const done = arguments[0]; axe.run(document, { resultTypes: ['violations'] }).then( \
    (result) => done(result.violations.flatMap((it) => it.nodes.map((node) => `${it.id} at ${node.target}: ${node.failureSummary}`))), \
    (error) => done([String(error)]));";

/// axe-core finds nothing in the page, in the light and in the dark theme; the page breaks no
/// content security policy.
pub async fn assert_accessible(browser: &WebDriver, page: &str) {
    let packages = python_tools().join("lib");
    let version = fs::read_dir(&packages).unwrap().next().unwrap().unwrap().path();
    let axe =
        fs::read_to_string(version.join("site-packages/axe_playwright_python/axe.min.js")).unwrap();
    for theme in ["light", "dark"] {
        // Without motion: a colour that is halfway to the other theme has no contrast.
        let features = [("prefers-color-scheme", theme), ("prefers-reduced-motion", "reduce")];
        let features = features.map(|(name, value)| json!({ "name": name, "value": value }));
        let media = json!({ "features": features });
        browser.cdp().send_raw("Emulation.setEmulatedMedia", media).await.unwrap();
        let found = browser.execute_async(format!("{axe};{RUN_AXE}"), vec![]).await.unwrap();
        assert_eq!(found.json(), &json!([]), "{page}, {theme} theme");
    }
    let violations = browser.execute("return window.violations", vec![]).await.unwrap();
    assert_eq!(violations.json(), &Value::Array(Vec::new()), "{page}");
}
