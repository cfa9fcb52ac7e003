//! The web UI in Chromium: a link signs in, pages follow what happens, an action goes from the list to the result.
//!
//! With `MESHD_SCREENSHOTS=FOLDER` the pictures of README are written there.

use crate::world::{World, eventually, node::PxeNode};
use std::{
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
fn meshd_ui(world: &World) -> (Ends, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    command.arg("--site").arg(world.path("site.toml")).arg("ui").stdout(Stdio::piped()).stderr(Stdio::null());
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

async fn browser(driver: &str, profile: &Path) -> WebDriver {
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
async fn wait_for(browser: &WebDriver, selector: &str, text: &str) -> WebElement {
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
        assert!(began.elapsed() < PATIENCE, "no `{text}` in {selector}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn picture(browser: &WebDriver, name: &str) {
    if let Some(folder) = std::env::var_os("MESHD_SCREENSHOTS") {
        browser.screenshot(&PathBuf::from(folder).join(name)).await.unwrap();
    }
}

/// Eight machines: seven are named and approved, five of these have begun to boot.
fn rack() -> World {
    let world = World::new("approve");
    for number in 1..=8 {
        let machine = PxeNode::new(&world, number);
        let script = machine.power_on().unwrap();
        if number == 8 {
            break;
        }
        let nodes = world.json(&["node", "list", "-o", "json"]);
        let new = nodes.as_array().unwrap().iter().find(|node| node["name"].as_str().unwrap().starts_with("node-"));
        let (id, name) = (new.unwrap()["id"].as_str().unwrap().to_owned(), format!("gpu-{number}"));
        assert!(world.meshd(&["node", "rename", &id, &name]).status.success());
        assert!(world.meshd(&["node", "approve", &name]).status.success());
        drop(script);
        if number <= 5 {
            let script = eventually("a script that boots", || {
                let script = machine.ipxe().map_err(|error| error.to_string())?;
                if script.overlay().is_some() { Ok(script) } else { Err(script.0) }
            });
            if number <= 3 {
                machine.load(&script).unwrap();
            }
        }
    }
    world
}

#[test]
fn rack_is_seen_and_changed_in_chromium() {
    let world = rack();
    let (ui, link) = meshd_ui(&world);
    let (chrome, driver) = driver();
    let profile = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let browser = browser(&driver, profile.path()).await;
        let done = std::panic::AssertUnwindSafe(walk(&browser, &world, &link));
        let done = futures_util::FutureExt::catch_unwind(done).await;
        browser.quit().await.unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    drop((ui, chrome));
}

async fn walk(browser: &WebDriver, world: &World, link: &str) {
    browser.goto(link).await.unwrap();
    wait_for(browser, "h1", "world").await;
    wait_for(browser, ".tile", "gpu-7").await;
    assert!(!browser.current_url().await.unwrap().as_str().contains("code="), "the link is not in the address");
    picture(browser, "overview.png").await;

    // What happens elsewhere is seen without a new load of the page.
    browser.execute("window.isSame = true", vec![]).await.unwrap();
    assert!(world.meshd(&["node", "quarantine", "gpu-7", "--yes"]).status.success());
    wait_for(browser, ".tile.bad", "gpu-7").await;
    let same = browser.execute("return window.isSame === true", vec![]).await.unwrap();
    assert_eq!(same.json(), &serde_json::Value::Bool(true), "the page was loaded anew");

    wait_for(browser, ".tile", "gpu-1").await.click().await.unwrap();
    wait_for(browser, "h1", "gpu-1").await;
    wait_for(browser, ".stages th", "overlay").await;
    picture(browser, "node.png").await;

    // From the inbox to an approved machine.
    wait_for(browser, "nav a", "Inbox").await.click().await.unwrap();
    wait_for(browser, "tbody td", "node-").await;
    browser.find(By::Css("thead input[data-all]")).await.unwrap().click().await.unwrap();
    browser.find(By::Css("button[value=approve]")).await.unwrap().click().await.unwrap();
    wait_for(browser, "form button.main", "Approve 1 node").await;
    browser.find(By::Css("input[name=reason]")).await.unwrap().send_keys("sticker compared").await.unwrap();
    browser.find(By::Css("form button.main")).await.unwrap().click().await.unwrap();
    wait_for(browser, ".alert.good", "Done for 1 node").await;
    wait_for(browser, "nav a", "Audit log").await.click().await.unwrap();
    wait_for(browser, "tbody td", "sticker compared").await;

    // A narrow screen scrolls tables, not the page.
    browser.set_window_rect(0, 0, 500, 800).await.unwrap();
    let width = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    for page in ["Nodes", "Events", "Overview"] {
        wait_for(browser, "nav a", page).await.click().await.unwrap();
        wait_for(browser, "nav a[aria-current]", page).await;
        let fits = browser.execute(width, vec![]).await.unwrap();
        assert_eq!(fits.json(), &serde_json::Value::Bool(true), "{page} is wider than the screen");
    }
}
