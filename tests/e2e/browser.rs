//! A machine of the lab in Chromium: it boots while somebody watches, is approved from the inbox,
//! gets another profile, runs a virtual machine with a console, and fails to boot with a reason.

use crate::{
    kit::browser::{
        in_chromium,
        page::{assert_accessible, click, open_menu, order_all, picture, wait_for, wait_long_for},
    },
    overlays::{self, REFUSAL},
    racks::{BOOT, OrEnd, STAGE, up_alone},
    work::vms::guest::{self, HELLO},
};
use meshd_lab::Power;
use meshd_model::fleet::Stage;
use std::path::Path;
use thirtyfour::prelude::*;

const NODE: u8 = 1;
/// The repository's overlays, and `broken`: a node that has it does not start.
fn with_broken(dir: &Path) -> String {
    let folder = dir.join("overlays");
    overlays::copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays"), &folder);
    overlays::add_refused(&folder, "broken");
    folder.display().to_string()
}

#[test]
fn machine_is_watched_approved_changed_used_and_diagnosed_in_chromium() {
    let mut image = None;
    let mut test = up_alone(|mut options, dir| {
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
        wait_for(browser, "#rack", "No machines were seen").await;
        browser.execute(COLLECT, []).await.unwrap();
        rack.power(NODE, Power::On).or_end();
        boot_is_watched(browser, "modloop").await;
        machine_is_approved(browser).await;
        profile_is_assigned(browser, "compute").await;
        wait_long_for(browser, "#phase", "online", BOOT).await;
        wait_for(browser, "#facts", "compute").await;
        virtual_machine_is_used(browser, digest.trim()).await;
        click(browser, "nav a", "Nodes").await;
        click(browser, "tbody a", "node1").await;
        wait_for(browser, "#phase", "online").await;
        profile_is_assigned(browser, "broken").await;
        wait_long_for(browser, "#boot .alert.bad", REFUSAL, BOOT).await;
        picture(browser, "failed-boot.png").await;
        assert_accessible(browser, "a node whose boot failed").await;
    });
}

/// Collects the stages that a machine's tile shows, as long as its page is not loaded anew.
const COLLECT: &str = "window.stages = []; const look = () => { \
    for (const { innerText } of document.querySelectorAll('.tile progress.boot + span')) \
        if (!window.stages.includes(innerText)) window.stages.push(innerText); }; \
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true });";

/// The overview shows the stages of a boot as they come, without a new load of the page.
async fn boot_is_watched(browser: &WebDriver, last: &str) {
    wait_long_for(browser, ".tile progress.boot + span", last, BOOT).await;
    let stages = browser.execute("return window.stages", []).await.unwrap();
    let stages: Vec<String> = stages.convert().expect("the page was loaded anew");
    // The page asks once in a second: a fast machine passes some stages in between.
    assert!(stages.len() >= 3, "stages that were shown: {stages:?}");
    let order = |stage: &String| Stage::ALL.iter().position(|it| it.as_str() == stage);
    assert!(stages.is_sorted_by_key(order), "stages out of order: {stages:?}");
}

async fn machine_is_approved(browser: &WebDriver) {
    click(browser, "nav a", "Inbox").await;
    wait_for(browser, "tbody td", "node1").await;
    order_all(browser, "approve", "sticker compared").await;
    click(browser, "tbody a", "node1").await;
    wait_long_for(browser, "#phase", "online", STAGE).await;
}

/// Assigns a profile on the page of the node, and reboots the node from there.
async fn profile_is_assigned(browser: &WebDriver, profile: &str) {
    open_menu(browser).await;
    click(browser, "button", "Assign profile").await;
    let choice = wait_for(browser, "#profile", profile).await;
    let choice = thirtyfour::components::SelectElement::new(&choice).await.unwrap();
    choice.select_by_exact_text(profile).await.unwrap();
    confirm(browser).await;
    open_menu(browser).await;
    click(browser, "button", "Reboot").await;
    confirm(browser).await;
    wait_long_for(browser, "#phase", "booting", STAGE).await;
}

/// Confirms an order even if it ends a VM, and returns to the page of its node.
async fn confirm(browser: &WebDriver) {
    // The page of the node has forms with such a box, too; this is the one of the preview.
    const FORM: &str = "form.stack[action$='/actions/run']";
    let confirm = format!("{FORM} button.main, {FORM} button.danger");
    wait_for(browser, &confirm, "1 node").await;
    browser
        .find(By::Css(format!("{FORM} input[name=force]")))
        .await
        .unwrap()
        .click()
        .await
        .unwrap();
    click(browser, &confirm, "1 node").await;
    wait_for(browser, "main", "Done for 1 node").await;
    click(browser, "tbody a", "node1").await;
    wait_for(browser, "#facts", "Profile").await;
}

/// Creates a VM and types into its console: the guest answers each letter with the next one of the
/// alphabet.
async fn virtual_machine_is_used(browser: &WebDriver, digest: &str) {
    click(browser, "nav a", "VMs").await;
    click(browser, "a.button", "Create VM").await;
    let field = browser.find(By::Css("textarea")).await.unwrap();
    field.clear().await.unwrap();
    let file = format!(
        "name = \"one\"\nvcpus = 1\nmemory = \"64M\"\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n"
    );
    field.send_keys(file).await.unwrap();
    click(browser, "form button.main", "").await;
    wait_long_for(browser, "tbody td", "running", STAGE).await;
    click(browser, "a.button", "Open console").await;
    let terminal = wait_long_for(browser, "#terminal", HELLO, STAGE).await;
    terminal.send_keys("G").await.unwrap();
    wait_for(browser, "#terminal", &format!("{HELLO}H")).await;
}
