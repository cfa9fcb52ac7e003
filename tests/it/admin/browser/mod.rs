//! The web UI in Chromium: a link signs in, pages follow what happens, an action goes from the list
//! to the result, and a console is typed into. Each page is checked with axe-core in both themes.
//!
//! | module | content |
//! | --- | --- |
//! | `containers` | a container from its form to its deletion |
//! | `wall` | sites with up to 1,000 nodes: size, layout, keys |

mod containers;
mod wall;

use crate::{
    kit::browser::{
        in_chromium,
        page::{assert_accessible, click, open_menu, order_all, picture, wait_for},
    },
    work::vms::{central, linux},
    world::{World, eventually, node::PxeNode},
};
use thirtyfour::prelude::*;

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
        let new = nodes
            .as_array()
            .unwrap()
            .iter()
            .find(|node| node["name"].as_str().unwrap().starts_with("node-"));
        let id = new.unwrap()["id"].as_str().unwrap().to_owned();
        let name = format!("gpu-{number}");
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
    in_chromium(&world.path("site.toml"), async |browser, link| walk(browser, &world, link).await);
}

async fn walk(browser: &WebDriver, world: &World, link: &str) {
    browser.goto(link).await.unwrap();
    wait_for(browser, "h1", "world").await;
    wait_for(browser, ".tile", "gpu-7").await;
    assert!(
        !browser.current_url().await.unwrap().as_str().contains("code="),
        "the link is not in the address"
    );

    // What happens elsewhere is seen without a new load of the page.
    browser.execute("window.isSame = true", vec![]).await.unwrap();
    assert!(world.meshd(&["node", "quarantine", "gpu-7", "--yes"]).status.success());
    wait_for(browser, ".tile.bad", "gpu-7").await;
    wait_for(browser, "#nav a[href$='/nodes'] .badge.bad", "1").await;
    let same = browser.execute("return window.isSame === true", vec![]).await.unwrap();
    assert_eq!(same.json(), &serde_json::Value::Bool(true), "the page was loaded anew");

    click(browser, ".tile", "gpu-1").await;
    wait_for(browser, "h1", "gpu-1").await;
    wait_for(browser, ".stages th", "overlay").await;
    picture(browser, "node.png").await;
    open_menu(browser).await;
    assert_accessible(browser, "menu of a node").await;

    // From the inbox to an approved machine.
    click(browser, "nav a", "Inbox").await;
    wait_for(browser, "tbody td", "node-").await;
    order_all(browser, "approve", "sticker compared").await;
    click(browser, "nav a", "Audit log").await;
    wait_for(browser, "tbody td", "sticker compared").await;

    // A narrow screen scrolls tables, not the page.
    browser.set_window_rect(0, 0, 500, 800).await.unwrap();
    let width =
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    for page in ["Nodes", "Operations", "Events", "Overview"] {
        click(browser, "nav a", page).await;
        wait_for(browser, "nav a[aria-current]", page).await;
        let fits = browser.execute(width, vec![]).await.unwrap();
        assert_eq!(fits.json(), &serde_json::Value::Bool(true), "{page} is wider than the screen");
    }
}

/// Pages of a site with nodes and a VM, below `/ui`.
const PAGES: [&str; 32] = [
    "",
    "operations",
    "nodes",
    "nodes/gpu-1",
    "nodes/gpu-1?tab=checks",
    "nodes/gpu-1?tab=hardware",
    "nodes/gpu-1?tab=work",
    "nodes/gpu-1?tab=events",
    "nodes/gpu-1?tab=plots",
    "nodes/gpu-1/bmc",
    "rollouts",
    "bisections",
    "nodes/gpu-1/overlay",
    "nodes/gpu-1/overlay?path=%2Fetc%2Fhostname",
    "inbox",
    "vms",
    "containers",
    "run-container",
    "tasks",
    "slots",
    "volumes",
    "profiles",
    "profiles/compute",
    "images",
    "overlays",
    "overlays/motd",
    "overlays/motd?path=%2Fetc%2Fmotd",
    "dhcp",
    "doctor",
    "events",
    "audit",
    "access",
];

#[test]
fn pages_are_accessible_in_both_themes_and_break_no_content_policy() {
    let world = rack();
    in_chromium(&world.path("site.toml"), async |browser, link| {
        browser.goto(link).await.unwrap();
        wait_for(browser, ".tile", "gpu-7").await;
        let base = browser.current_url().await.unwrap();
        for page in PAGES {
            browser.goto(base.join(page).unwrap().as_str()).await.unwrap();
            wait_for(browser, "nav a", "Overview").await;
            assert_accessible(browser, page).await;
        }
    });
}

#[test]
fn virtual_machine_is_created_and_its_console_is_typed_into_in_chromium() {
    let world = central::world();
    let mut machine = central::Machine::new(&world, &PxeNode::new(&world, 1).boot());
    machine.start();
    world.wait_for_phase("online");
    let file = linux::file(&world, "one");
    in_chromium(&world.path("site.toml"), async |browser, link| {
        browser.goto(link).await.unwrap();
        click(browser, "nav a", "VMs").await;
        click(browser, "a.button", "Create VM").await;
        create_from_file(browser, &file).await;
        wait_for(browser, "h1", "one").await;
        wait_for(browser, "tbody td", "running").await;
        click(browser, "a.button", "Open console").await;
        let terminal = wait_for(browser, "#terminal", linux::PROMPT.trim()).await;
        assert_accessible(browser, "console").await;
        terminal.send_keys("echo answer $((6 * 7))" + Key::Enter).await.unwrap();
        wait_for(browser, "#terminal", "answer 42").await;
        // Control and cursor keys: the line is discarded, then the last one is fetched and
        // completed.
        terminal.send_keys("false" + Key::Control + "c").await.unwrap();
        terminal.send_keys(Key::Up + "8" + Key::Enter).await.unwrap();
        wait_for(browser, "#terminal", "answer 428").await;
        picture(browser, "console.png").await;
    });
}

/// A file with a fault is shown again with the line of the fault; the corrected one makes the VM.
async fn create_from_file(browser: &WebDriver, file: &str) {
    wait_for(browser, "h1", "Create VM").await;
    assert_accessible(browser, "vms/new").await;
    assert_accessible(browser, "tasks/new").await;
    for (text, is_right) in
        [(file.replace("vcpus = 1", "vcpu = 1"), false), (file.to_owned(), true)]
    {
        let field = browser.find(By::Css("textarea")).await.unwrap();
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
        click(browser, "form button.main", "").await;
        if !is_right {
            wait_for(browser, ".alert.bad", "vm.toml:2: vcpu").await;
            let kept =
                browser.find(By::Css("textarea")).await.unwrap().prop("value").await.unwrap();
            assert!(kept.unwrap_or_default().contains("vcpu = 1"), "the text is kept");
        }
    }
}
