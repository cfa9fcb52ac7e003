//! Renders a plan or a refusal as an iPXE script. All commands work in every iPXE since 2013.
//!
//! No script ends. After a failure the machine waits, repeats DHCP (which refreshes its boot
//! session), and returns to the entry script without a firmware self test. Scripts use
//! `ifconf --configurator dhcp`, because `dhcp` also waits 16 seconds for an IPv6 router (observed
//! with the iPXE of 2019).

use super::ipxe_quote;
use crate::boot::{
    boot_plan::BootPlan, endpoint::Endpoint, kernel_command_line::command_line, refusal::Refusal,
};
use meshd_config::Delivery;
use meshd_types::NodeId;
use std::fmt::Write as _;

/// Seconds between two attempts when the network or the central node does not answer.
const RETRY_SECONDS: u32 = 5;

/// Name of the kernel's image. On UEFI, iPXE puts it and a blank before the command line.
const KERNEL_NAME: &str = "kernel";

/// Length of what iPXE puts before the command line on UEFI, in bytes.
pub(super) const LINE_PREFIX: usize = KERNEL_NAME.len() + 1;

/// SMBIOS structure 2, string of byte 7. iPXE has the name `board-serial` since 2018; this form
/// works in every version.
const BOARD_SERIAL: &str = "smbios/2.7.0";

/// Returns the script that boots a node. It contains the capability of the overlay: never log or
/// cache it.
pub(super) fn boot_script(plan: &BootPlan) -> String {
    let BootPlan { public, secret } = plan;
    let node = public.node;
    let profile = &public.profile;
    let session = secret.session;
    let line = command_line(plan, &kernel_args(plan));
    let mut out = format!(
        "#!ipxe\n# node {node}\n# profile {profile}\n# session {session}\n\
         echo meshd: node {node} boots profile {profile} in session {session}\n\
         # Images of an attempt before this one would be loaded beside the new ones.\n\
         imgfree\n\
         set step kernel\nkernel --name {KERNEL_NAME} {} {line} || goto failed\n",
        public.kernel().url
    );
    for (name, url) in initrds(plan) {
        let _ = writeln!(out, "set step {name}\ninitrd --name {name} {url} || goto failed");
    }
    out.push_str("set step boot\nboot || goto failed\n");
    out.push_str(":failed\necho meshd: ${step} failed, retrying in 5 seconds\nimgfree\n");
    out.push_str(&ask_again(&public.entry, RETRY_SECONDS));
    out
}

/// Returns the kernel arguments that name the initrds: Linux's EFI stub reads them by these names
/// from iPXE.
pub(super) fn kernel_args(plan: &BootPlan) -> Vec<String> {
    initrds(plan).iter().map(|(name, _)| format!("initrd={name}")).collect()
}

/// Returns name and URL of each initrd, with the overlay at the end.
fn initrds(plan: &BootPlan) -> Vec<(&str, &str)> {
    let mut initrds: Vec<(&str, &str)> =
        plan.public.initrds().map(|part| (part.name, part.url.as_str())).collect();
    if plan.public.delivery == Delivery::Initrd {
        // The capability is exposed only to the script of this node.
        initrds.push(("overlay", plan.secret.overlay.expose()));
    }
    initrds
}

/// Returns the script that shows a refusal and retries. `correlation` identifies the event in the
/// log.
pub(super) fn refusal_script(
    refusal: &Refusal,
    endpoint: Endpoint,
    node: Option<NodeId>,
    correlation: &str,
) -> String {
    let node = node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
    let code = refusal.code();
    let seconds = refusal.wait_seconds();
    let message = ipxe_quote::ipxe_text(&refusal.message());
    let correlation = ipxe_quote::ipxe_text(correlation);
    format!(
        "#!ipxe\n# refusal {code}\n# node {node}\n# correlation {correlation}\n\
         echo\necho meshd: not booted ({code})\necho {message}\necho node {node}, correlation {correlation}\n\
         echo retrying in {seconds} seconds\n{}",
        ask_again(&endpoint.entry(), seconds)
    )
}

/// Returns the script that DHCP announces, the same for every machine of a segment. iPXE
/// substitutes the values of its machine.
pub(super) fn entry_script(endpoint: Endpoint) -> String {
    // Vendor texts are hexadecimal: see `ScriptRequest`.
    format!(
        "#!ipxe\n:ask\n\
         chain --replace --autofree {}/boot/script?mac=${{netX/mac}}&uuid=${{uuid}}&arch=${{buildarch}}\
         &manufacturer_hex=${{manufacturer:hexhyp}}&product_hex=${{product:hexhyp}}&serial_hex=${{serial:hexhyp}}\
         &board_serial_hex=${{{BOARD_SERIAL}:hexhyp}}&nic_hex=${{netX/busid:hexhyp}} || goto failed\n\
         :failed\necho meshd: no boot script from {}, retrying in {RETRY_SECONDS} seconds\n\
         sleep {RETRY_SECONDS}\nifconf --configurator dhcp netX || goto failed\ngoto ask\n",
        endpoint.http(),
        endpoint.http()
    )
}

/// Returns the last lines of every script except the entry script: wait, repeat DHCP, and load the
/// entry script.
fn ask_again(entry: &str, seconds: u32) -> String {
    format!(
        ":again\nsleep {seconds}\nifconf --configurator dhcp netX || goto again\nchain --replace --autofree {entry} || goto again\n"
    )
}
