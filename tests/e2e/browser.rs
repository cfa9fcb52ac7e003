//! A machine of the lab in Chromium: it boots while somebody watches, is approved from the inbox, gets another profile, runs a virtual
//! machine with a console, and fails to boot with a reason.

use crate::{
    kit::browser::{assert_accessible, in_chromium, order_all, picture, wait_for, wait_long_for},
    overlays,
    racks::{BOOT, OrEnd, STAGE, up},
    work::vms::guest::{self, HELLO},
};
use meshd_lab::{Power, Rack};
use std::{collections::BTreeSet, fs, path::Path, time::Instant};
use thirtyfour::prelude::*;

const NODE: u8 = 1;
/// What `mesh-init` says where the overlay `broken` is.
const REASON: &str = "the file <b>/etc/broken</b> exists";

/// The repository's overlays, and `broken`: a node that has it does not start.
fn with_broken(dir: &Path) -> String {
    let folder = overlays::with_service(dir, "broken", "#!/sbin/openrc-run\n");
    let init = folder.join("agent/rootfs/sbin/mesh-init");
    let text = fs::read_to_string(&init).unwrap();
    let step = format!("\n[ ! -e /etc/init.d/broken ] || fail '{REASON}'\nlock_root\n");
    let refuses = text.replace("\nlock_root\n", &step);
    assert_ne!(text, refuses, "mesh-init has this step");
    fs::write(&init, refuses).unwrap();
    folder.display().to_string()
}

#[test]
fn machine_is_watched_approved_changed_used_and_diagnosed_in_chromium() {
    let mut image = None;
    let mut test = up(|mut options, dir| {
        image = Some(guest::image(dir));
        (options.nodes, options.powered) = (1, false);
        options
            .set("enroll.policy", "approve")
            .set("site.overlays_dir", &with_broken(dir))
            .set("profiles.compute.overlays", r#"["motd", "kvm-host"]"#)
            .set("profiles.compute.bundles", r#"["qemu"]"#)
            .set("profiles.broken.extends", "compute")
            .set("profiles.broken.overlays", r#"["broken"]"#)
    });
    let rack = &mut test.rack;
    let digest = rack.run_cli(&["volume", "add", image.unwrap().to_str().unwrap()]).or_end();
    let site = rack.site_file().to_owned();
    in_chromium(&site, async |browser, link| {
        browser.goto(link).await.unwrap();
        wait_for(browser, "#rack", "No machine was seen yet").await;
        boot_is_watched(browser, rack).await;
        machine_is_approved(browser).await;
        profile_is_assigned(browser, "compute").await;
        wait_long_for(browser, "#phase", "online", BOOT).await;
        wait_for(browser, "#facts", "compute").await;
        virtual_machine_is_used(browser, digest.trim()).await;
        wait_for(browser, "nav a", "Nodes").await.click().await.unwrap();
        wait_for(browser, "tbody a", "node1").await.click().await.unwrap();
        profile_is_assigned(browser, "broken").await;
        wait_long_for(browser, "#boot .alert.bad", REASON, BOOT).await;
        picture(browser, "failed-boot.png").await;
        assert_accessible(browser, "a node whose boot failed").await;
    });
}

/// The overview shows the stages of a boot as they come, without a new load of the page.
async fn boot_is_watched(browser: &WebDriver, rack: &mut Rack) {
    browser.execute("window.isSame = true", vec![]).await.unwrap();
    rack.power(NODE, Power::On).or_end();
    let (began, mut stages) = (Instant::now(), BTreeSet::new());
    while !stages.contains("modloop") {
        for stage in browser.find_all(By::Css(".tile progress + span")).await.unwrap() {
            // A refresh may replace it between these two steps.
            if let Ok(stage) = stage.text().await {
                stages.insert(stage);
            }
        }
        assert!(began.elapsed() < BOOT, "stages that were shown: {stages:?}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    // The page asks every three seconds, so a fast machine shows few of its stages.
    assert!(stages.len() >= 2, "the boot is seen while it goes on: {stages:?}");
    let same = browser.execute("return window.isSame === true", vec![]).await.unwrap();
    assert_eq!(same.json(), &serde_json::Value::Bool(true), "the page was loaded anew");
}

async fn machine_is_approved(browser: &WebDriver) {
    wait_for(browser, "nav a", "Inbox").await.click().await.unwrap();
    wait_for(browser, "tbody td", "node1").await;
    order_all(browser, "approve", "sticker compared").await;
    wait_for(browser, "tbody a", "node1").await.click().await.unwrap();
    wait_long_for(browser, "#phase", "online", STAGE).await;
}

/// Assigns a profile on the page of the node, and reboots the node from there.
async fn profile_is_assigned(browser: &WebDriver, profile: &str) {
    wait_for(browser, "button", "Assign profile").await.click().await.unwrap();
    let choice = browser.find(By::Css("#profile")).await.unwrap();
    let choice = thirtyfour::components::SelectElement::new(&choice).await.unwrap();
    choice.select_by_exact_text(profile).await.unwrap();
    confirm(browser).await;
    wait_for(browser, "button", "Reboot").await.click().await.unwrap();
    confirm(browser).await;
    wait_long_for(browser, "#phase", "booting", STAGE).await;
}

/// Confirms an order even if it ends a virtual machine, and returns to the page of its node.
async fn confirm(browser: &WebDriver) {
    // The page of the node has forms with such a box, too; this is the one of the preview.
    const FORM: &str = "form.stack[action$='/actions/run']";
    let confirm = format!("{FORM} button.main, {FORM} button.danger");
    let confirm = wait_for(browser, &confirm, "1 node").await;
    browser.find(By::Css(format!("{FORM} input[name=force]"))).await.unwrap().click().await.unwrap();
    confirm.click().await.unwrap();
    wait_for(browser, "main", "Done for 1 node").await;
    wait_for(browser, "tbody a", "node1").await.click().await.unwrap();
    wait_for(browser, "#facts", "Profile").await;
}

/// Creates a virtual machine and types into its console: the guest answers each letter with the next one of the alphabet.
async fn virtual_machine_is_used(browser: &WebDriver, digest: &str) {
    wait_for(browser, "nav a", "VMs").await.click().await.unwrap();
    wait_for(browser, "a.button", "Create virtual machine").await.click().await.unwrap();
    let field = browser.find(By::Css("textarea")).await.unwrap();
    field.clear().await.unwrap();
    let file = format!(
        "name = \"one\"\nvcpus = 1\nmemory = \"64M\"\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n"
    );
    field.send_keys(file).await.unwrap();
    browser.find(By::Css("form button.main")).await.unwrap().click().await.unwrap();
    wait_long_for(browser, "tbody td", "running", STAGE).await;
    wait_for(browser, "a.button", "Open console").await.click().await.unwrap();
    let terminal = wait_long_for(browser, "#terminal", HELLO, STAGE).await;
    terminal.send_keys("G").await.unwrap();
    wait_for(browser, "#terminal", &format!("{HELLO}H")).await;
}
