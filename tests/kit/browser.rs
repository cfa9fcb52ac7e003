//! The web UI in Debian's Chromium.
//!
//! With `MESHD_SCREENSHOTS=FOLDER` the pictures of README are written there.

use super::python_tools;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use thirtyfour::prelude::*;

/// How long a page may take to show what is expected.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `meshd ui` of a site, and its link.
fn meshd_ui(site: &Path) -> (Ends, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    command.arg("--site").arg(site).arg("ui").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut link = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut link).unwrap();
    assert!(link.starts_with("http://127.0.0.1:"), "{link}");
    (Ends(child), link.trim().to_owned())
}

/// ChromeDriver at a free port.
fn driver() -> (Ends, String) {
    // ChromeDriver takes no port 0: a port that was free a moment ago is as near as it gets.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("chromedriver");
    command.arg(format!("--port={port}")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("started successfully") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "chromedriver ended");
    }
    // Its pipe must not fill up.
    std::thread::spawn(move || drop(said.read_to_end(&mut Vec::new())));
    (Ends(child), format!("http://127.0.0.1:{port}"))
}

async fn start(driver: &str, profile: &Path) -> WebDriver {
    let mut options = DesiredCapabilities::chrome();
    options.set_binary("/usr/bin/chromium").unwrap();
    let profile = format!("--user-data-dir={}", profile.display());
    // The tests run as root, where Chromium has no sandbox.
    for argument in [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,800",
        &profile,
    ] {
        options.add_arg(argument).unwrap();
    }
    WebDriver::new(driver, options).await.unwrap()
}

/// Waits until a selector's text contains something.
pub async fn wait_for(browser: &WebDriver, selector: &str, text: &str) -> WebElement {
    wait_long_for(browser, selector, text, PATIENCE).await
}

/// [`wait_for`] with a deadline of its own.
pub async fn wait_long_for(browser: &WebDriver, selector: &str, text: &str, patience: Duration) -> WebElement {
    let began = Instant::now();
    loop {
        let mut seen = Vec::new();
        for element in browser.find_all(By::Css(selector)).await.unwrap() {
            // A refresh may replace it between these two steps.
            let Ok(shown) = element.text().await else { continue };
            if shown.contains(text) {
                return element;
            }
            seen.push(shown);
        }
        assert!(began.elapsed() < patience, "no `{text}` in {selector}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Selects all nodes of a table, gives them an order and confirms it.
pub async fn order_all(browser: &WebDriver, action: &str, reason: &str) {
    browser.find(By::Css("thead input[data-all]")).await.unwrap().click().await.unwrap();
    browser.find(By::Css(format!("button[value={action}]"))).await.unwrap().click().await.unwrap();
    wait_for(browser, "form button.main", "1 node").await;
    browser.find(By::Css("input[name=reason]")).await.unwrap().send_keys(reason).await.unwrap();
    browser.find(By::Css("form button.main")).await.unwrap().click().await.unwrap();
    wait_for(browser, "main", "Done for 1 node").await;
}

pub async fn picture(browser: &WebDriver, name: &str) {
    if let Some(folder) = std::env::var_os("MESHD_SCREENSHOTS") {
        browser.screenshot(&PathBuf::from(folder).join(name)).await.unwrap();
    }
}

/// Records violations of the content security policy in every page, from its first line on.
const RECORD_VIOLATIONS: &str = "window.violations = []; document.addEventListener('securitypolicyviolation', \
    (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));";
/// Answers with a line for each violation of a rule.
const RUN_AXE: &str = "const done = arguments[0]; axe.run(document, { resultTypes: ['violations'] }).then( \
    (result) => done(result.violations.flatMap((it) => it.nodes.map((node) => `${it.id} at ${node.target}: ${node.failureSummary}`))), \
    (error) => done([String(error)]));";

/// Runs `walk` with a browser, and the link that signs in to the UI of the site that this file describes.
pub fn in_chromium(site: &Path, walk: impl AsyncFnOnce(&WebDriver, &str)) {
    let (ui, link) = meshd_ui(site);
    let (chrome, driver) = driver();
    let profile = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let browser = start(&driver, profile.path()).await;
        let script = json!({ "source": RECORD_VIOLATIONS });
        browser.cdp().send_raw("Page.addScriptToEvaluateOnNewDocument", script).await.unwrap();
        let done = std::panic::AssertUnwindSafe(walk(&browser, &link));
        let done = futures_util::FutureExt::catch_unwind(done).await;
        browser.quit().await.unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    drop((ui, chrome));
}

/// axe-core finds nothing in the page, in the light and in the dark theme; the page breaks no content security policy.
pub async fn assert_accessible(browser: &WebDriver, page: &str) {
    let packages = python_tools().join("lib");
    let version = fs::read_dir(&packages).unwrap().next().unwrap().unwrap().path();
    let axe = fs::read_to_string(version.join("site-packages/axe_playwright_python/axe.min.js")).unwrap();
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
