//! A container in Chromium, on a node with the real crun: form, log, shell, stop and deletion.

use crate::{
    kit::{
        browser::{
            in_chromium,
            page::{assert_accessible, click, wait_for},
        },
        web_image::write_layout,
    },
    work::containers::{Host, run},
    world::World,
};
use thirtyfour::prelude::*;

/// Value of a variable, which no page shows.
const SECRET: &str = "s3cr3t-value";

#[test]
fn container_is_run_opened_stopped_and_deleted_in_chromium() {
    let mut world = World::prepared("auto");
    world.start();
    let host = Host::boot(&world, 1);
    world.wait_for_phase("online");
    let files = tempfile::tempdir().unwrap();
    let source = format!("oci:{}:latest", write_layout(files.path()));
    run(&world, &["image", "import", "demo", "--container", &source, "--arch", "x86_64"]);
    in_chromium(&world.path("site.toml"), async |browser, link| {
        browser.goto(link).await.unwrap();
        click(browser, "nav a", "Containers").await;
        click(browser, "a.button", "Run container").await;
        run_from_form(browser).await;
        read_and_type(browser).await;
        end(browser).await;
    });
    drop(host);
}

async fn fill(browser: &WebDriver, name: &str, text: &str) {
    let field = browser.find(By::Css(format!("[name={name}]"))).await.unwrap();
    field.clear().await.unwrap();
    field.send_keys(text).await.unwrap();
}

/// A form with a fault is shown again, without the variables; the corrected one runs the container.
async fn run_from_form(browser: &WebDriver) {
    wait_for(browser, "h1", "Run container").await;
    assert_accessible(browser, "run-container").await;
    let argv = "/bin/sh\n-c\necho begun; exec /bin/httpd -f -p 80 -h /srv";
    let fields = [("name", "web"), ("memory", "64M"), ("health", "http:80/hello"), ("argv", argv)];
    for (name, text) in fields {
        fill(browser, name, text).await;
    }
    for (ports, is_right) in [("8080:x", false), ("8080:80", true)] {
        fill(browser, "ports", ports).await;
        fill(browser, "env", &format!("TOKEN={SECRET}")).await;
        if is_right {
            fill(browser, "scratch", "8M").await;
            fill(browser, "health_interval", "1").await;
        }
        click(browser, "form button.main", "Run").await;
        if !is_right {
            wait_for(browser, ".alert.bad", "published port is not valid").await;
            assert!(!browser.source().await.unwrap().contains(SECRET), "it was sent back");
        }
    }
    wait_for(browser, "h1", "web").await;
    wait_for(browser, "#replicas td", "healthy").await;
    wait_for(browser, "#facts dd", "TOKEN").await;
    wait_for(browser, "#events td", "web.0").await;
    assert!(!browser.source().await.unwrap().contains(SECRET));
    assert_accessible(browser, "containers/web").await;
}

async fn read_and_type(browser: &WebDriver) {
    click(browser, "#replicas a", "Log").await;
    wait_for(browser, "#log pre", "begun").await;
    assert_accessible(browser, "containers/web.0/log").await;
    click(browser, "main p a", "web").await;
    click(browser, "#replicas a", "Shell").await;
    wait_for(browser, "h1", "Shell of web.0").await;
    assert_accessible(browser, "containers/web.0/shell").await;
    // A program that may end before its page is loaded.
    fill(browser, "program", "/bin/busybox ls /nothing").await;
    click(browser, "main form button", "Open shell").await;
    wait_for(browser, "[role=status]", "exit code 1").await;
    browser.refresh().await.unwrap();
    wait_for(browser, "pre.terminal", "No such file").await;
    wait_for(browser, "[role=status]", "The program ended: exit code 1.").await;
    assert_accessible(browser, "containers/web.0/shell").await;
    click(browser, "main form button", "Open shell").await;
    let terminal = wait_for(browser, "#terminal", "$").await;
    terminal.send_keys("echo answer $((6 * 7))" + Key::Enter).await.unwrap();
    wait_for(browser, "#terminal", "answer 42").await;
    click(browser, "h1 a", "web.0").await;
}

async fn end(browser: &WebDriver) {
    click(browser, "a.button", "Stop…").await;
    wait_for(browser, ".alert.warn", "1 replica ends").await;
    assert_accessible(browser, "containers/web/stop").await;
    click(browser, "form button.danger", "Stop web").await;
    wait_for(browser, "#replicas td", "stopped").await;
    click(browser, "form button", "Start").await;
    wait_for(browser, "#replicas td", "healthy").await;
    click(browser, "a.button", "Delete…").await;
    wait_for(browser, ".chosen li", "web.0").await;
    click(browser, "form button.danger", "Delete web").await;
    wait_for(browser, "#rows", "There is no container.").await;
}
