//! Hardware and identity of a node.

use crate::{
    PREFIX,
    html::{self, bytes, code, display_text, maybe, plain, time},
};
use maud::{Markup, html};
use meshd_api::NodeDetail;
use meshd_proto::{DiskFacts, Facts, NicFacts};

/// Maximum number of disks and of NICs on the page.
const MAX_ROWS: usize = 100;

/// Renders hardware and identity. `may_order`: the BMC may be asked.
pub(super) fn facts(detail: &NodeDetail, may_order: bool) -> Markup {
    let print = &detail.fingerprint;
    let facts = detail.facts.as_ref();
    let node = &detail.node;
    let available = detail.heartbeat.as_ref().map(|beat| bytes(beat.memory_available_kib << 10));
    let memory = facts.map(|facts| bytes(facts.memory.total_kib << 10));
    let processor = |facts: &Facts| format!("{}, {} threads", facts.cpu.model, facts.cpu.threads);
    html! {
        div id="hardware" data-live {
            (html::facts(&[
                ("Manufacturer", plain(&print.manufacturer)),
                ("Product", plain(&print.product)),
                ("Serial number", code(&print.serial)),
                ("Board serial", code(&print.board_serial)),
                ("Processor", maybe(facts.map(processor))),
                ("Memory", html! { (maybe(memory)) @if let Some(available) = available { span.quiet { " (" (available) " available)" } } }),
                ("PCI devices", maybe(facts.map(|facts| facts.pci.len()))),
                ("Kernel", maybe(facts.map(|facts| &facts.versions.kernel))),
                ("System", maybe(facts.map(|facts| &facts.versions.os))),
                ("Agent", maybe(facts.map(|facts| &facts.versions.agent))),
            ]))
            @if may_order { p { a href=(format!("{PREFIX}/nodes/{}/bmc", node.id)) { "Power and sensors of its BMC" } } }
            @if let Some(facts) = facts {
                h2 { "Disks" }
                (disks(&facts.disks))
                h2 { "NICs" }
                (nics(&facts.nics))
            }
            h2 { "Identity" }
            (html::facts(&[
                ("ID", code(node.id)),
                ("Basis of the ID", code(&detail.basis)),
                ("UUID", print.uuid.map(code).unwrap_or_default()),
                (
                    "MAC addresses",
                    plain(print.macs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
                ),
                ("Circuit ID of its switch port", node.circuit_id.as_ref().map(code).unwrap_or_default()),
                ("Remote ID of its switch port", node.remote_id.as_ref().map(code).unwrap_or_default()),
                ("Former IDs", plain(detail.former.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))),
                ("Discovered", time(detail.discovered_at)),
            ]))
        }
    }
}

fn disks(disks: &[DiskFacts]) -> Markup {
    let row = |disk: &DiskFacts| {
        vec![
            code(&disk.name),
            code(disk.identity().unwrap_or_default()),
            maybe(disk.model.as_ref()),
            plain(bytes(disk.bytes)),
            plain(if disk.rotational { "spinning" } else { "flash" }),
            html! { (display_text(&disk.signatures.join(" "))) @if let Some(why) = &disk.blocked { " " (display_text(why)) } },
        ]
    };
    let rows: Vec<_> = disks.iter().take(MAX_ROWS).map(row).collect();
    html::table(
        &["Name", "WWN or serial", "Model", "Size", "Kind", "Detail"],
        &rows,
        "The node reports no disk.",
    )
}

fn nics(nics: &[NicFacts]) -> Markup {
    let row = |nic: &NicFacts| {
        let link =
            if nic.carrier { html::badge("good", "link") } else { html::badge("idle", "no link") };
        let addresses: Vec<_> = nic.addresses.iter().map(ToString::to_string).collect();
        vec![
            code(&nic.name),
            nic.mac.map(code).unwrap_or_default(),
            link,
            maybe(nic.speed_mbps.map(|speed| format!("{speed} Mbit/s"))),
            maybe(nic.driver.as_ref()),
            plain(addresses.join(" ")),
        ]
    };
    let rows: Vec<_> = nics.iter().take(MAX_ROWS).map(row).collect();
    html::table(
        &["Name", "MAC address", "Link", "Speed", "Driver", "Addresses"],
        &rows,
        "The node reports no NIC.",
    )
}
