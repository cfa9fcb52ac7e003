//! The web UI in Debian's Chromium.
//!
//! With `MESHD_SCREENSHOTS=FOLDER` the pictures of README are written there.

pub mod page;

use serde_json::json;
use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
};
use thirtyfour::prelude::*;

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

/// Starts of a program that another one may keep from its port, or that a busy machine makes give
/// up.
const STARTS: usize = 5;

/// ChromeDriver at a free port.
fn driver() -> (Ends, String) {
    (0..STARTS).find_map(|_| start_driver()).expect("chromedriver starts")
}

/// `None` if it ends.
fn start_driver() -> Option<(Ends, String)> {
    // ChromeDriver takes no port 0: a port that was free a moment ago is as near as it gets.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("chromedriver");
    command
        .arg(format!("--port={port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut driver = Ends(command.spawn().unwrap());
    let mut stdout = BufReader::new(driver.0.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("started successfully") {
        line.clear();
        if stdout.read_line(&mut line).unwrap() == 0 {
            return None;
        }
    }
    // Its pipe must not fill up.
    std::thread::spawn(move || drop(stdout.read_to_end(&mut Vec::new())));
    Some((driver, format!("http://127.0.0.1:{port}")))
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
    for _ in 1..STARTS {
        match WebDriver::new(driver, options.clone()).await {
            Ok(browser) => return browser,
            Err(error) => eprintln!("Chromium did not start: {error}"),
        }
    }
    WebDriver::new(driver, options).await.unwrap()
}

/// Records violations of the content security policy in every page, from its first line on.
const RECORD_VIOLATIONS: &str = "window.violations = []; document.addEventListener('securitypolicyviolation', \
    (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));";
/// Runs `walk` with a browser, and the link that signs in to the UI of the site that this file
/// describes.
pub fn in_chromium(site: &Path, walk: impl AsyncFnOnce(&WebDriver, &str)) {
    let (ui, link) = meshd_ui(site);
    browse(async |browser| walk(browser, &link).await);
    drop(ui);
}

/// Runs `walk` with a browser.
pub fn browse(walk: impl AsyncFnOnce(&WebDriver)) {
    let (chrome, driver) = driver();
    let profile = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let browser = start(&driver, profile.path()).await;
        let script = json!({ "source": RECORD_VIOLATIONS });
        browser.cdp().send_raw("Page.addScriptToEvaluateOnNewDocument", script).await.unwrap();
        let done = std::panic::AssertUnwindSafe(walk(&browser));
        let done = futures_util::FutureExt::catch_unwind(done).await;
        browser.quit().await.unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    drop(chrome);
}
