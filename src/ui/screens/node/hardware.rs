//! Hardware and identity of a node.

use crate::{
    PREFIX,
    html::{self, bytes, code, display_text, maybe, plain, time},
};
use maud::{Markup, html};
use meshd_api::{NodeDetail, gpus};
use meshd_proto::{DiskFacts, Facts, MemoryModuleFacts, NicFacts, PciFacts};

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
                ("Kernel", maybe(facts.map(|facts| &facts.versions.kernel))),
                ("System", maybe(facts.map(|facts| &facts.versions.os))),
                ("Agent", maybe(facts.map(|facts| &facts.versions.agent))),
            ]))
            @if may_order { p { a href=(format!("{PREFIX}/nodes/{}/bmc", node.id)) { "Power and sensors of its BMC" } } }
            @if let Some(facts) = facts {
                @if !facts.memory.modules.is_empty() {
                    h2 { "Memory modules" }
                    (memory_modules(&facts.memory.modules))
                }
                @if gpus(facts).next().is_some() {
                    h2 { "GPUs" }
                    (gpu_table(detail, facts))
                }
                h2 { "PCI devices" }
                (pci(detail, facts))
                h2 { "Disks" }
                (disks(&facts.disks))
                h2 { "NICs" }
                (nics(detail, &facts.nics))
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

fn memory_modules(modules: &[MemoryModuleFacts]) -> Markup {
    let row = |module: &MemoryModuleFacts| {
        vec![
            plain(module.count),
            plain(bytes(module.bytes)),
            plain(&module.kind),
            maybe(module.speed_mts.map(|speed| format!("{speed} MT/s"))),
            plain(&module.manufacturer),
            plain(&module.part),
        ]
    };
    let rows: Vec<_> = modules.iter().take(MAX_ROWS).map(row).collect();
    let names = ["Number", "Size", "Kind", "Speed", "Manufacturer", "Part"];
    html::table(&names, &rows, "The node reports no memory module.")
}

fn gpu_table(detail: &NodeDetail, facts: &Facts) -> Markup {
    let row = |function: &PciFacts| {
        vec![
            code(&function.address),
            plain(detail.gpu_model(function)),
            maybe(detail.gpu_memory(function).map(bytes)),
            maybe(function.driver.as_ref()),
            maybe(function.numa_node),
        ]
    };
    let rows: Vec<_> = gpus(facts).take(MAX_ROWS).map(row).collect();
    let names = ["Address", "Model", "Memory", "Driver", "NUMA node"];
    html::table(&names, &rows, "The node reports no GPU.")
}

/// Bridges are left out.
fn pci(detail: &NodeDetail, facts: &Facts) -> Markup {
    let is_shown = |function: &&PciFacts| !function.class.starts_with("06");
    let row = |function: &PciFacts| {
        vec![
            code(&function.address),
            plain(detail.pci_name(function)),
            code(format!("{}:{}", function.vendor, function.device)),
            maybe(function.driver.as_ref()),
            maybe(function.numa_node),
        ]
    };
    let rows: Vec<_> = facts.pci.iter().filter(is_shown).take(MAX_ROWS).map(row).collect();
    let names = ["Address", "Device", "ID", "Driver", "NUMA node"];
    html::table(&names, &rows, "The node reports no PCI device.")
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

fn nics(detail: &NodeDetail, nics: &[NicFacts]) -> Markup {
    let row = |nic: &NicFacts| {
        let link =
            if nic.carrier { html::badge("good", "link") } else { html::badge("idle", "no link") };
        let addresses: Vec<_> = nic.addresses.iter().map(ToString::to_string).collect();
        vec![
            code(&nic.name),
            nic.mac.map(code).unwrap_or_default(),
            link,
            maybe(nic.speed_words()),
            maybe(detail.nic_name(nic)),
            maybe(nic.driver.as_ref()),
            plain(addresses.join(" ")),
        ]
    };
    let rows: Vec<_> = nics.iter().take(MAX_ROWS).map(row).collect();
    html::table(
        &["Name", "MAC address", "Link", "Speed", "Device", "Driver", "Addresses"],
        &rows,
        "The node reports no NIC.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hardware_has_its_names_and_hostile_words_are_escaped() {
        let facts = json!({
            "memory": { "sockets": 2, "modules": [{ "count": 2, "bytes": 17_179_869_184_u64,
                "kind": "DDR5", "speed_mts": 4800, "manufacturer": "<b>", "part": "P1" }] },
            "pci": [
                { "address": "0000:01:00.0", "vendor": "10de", "device": "2330", "class": "0302" },
                { "address": "0000:02:00.0", "vendor": "15b3", "device": "101d", "class": "0200" },
                { "address": "0000:03:00.0", "vendor": "8086", "device": "0001", "class": "0604" }
            ],
            "gpus": [{ "function": "0000:01:00.0", "model": "H100", "memory": 8_589_934_592_u64 }],
            "nics": [{ "name": "eth0", "mac": null, "carrier": true, "speed_mbps": 100_000,
                "function": "0000:02:00.0" }]
        });
        let detail = json!({
            "id": "3f9a1c0e", "name": "n", "profile": "p", "assigned": true, "phase": "online",
            "conditions": [], "address": null, "mac": "02:00:00:00:00:01", "generation": null,
            "last_seen": "2026-01-01T00:00:00Z", "boot": null, "revision": "r1",
            "basis": "mac:02:00:00:00:00:01", "discovered_at": "2026-01-01T00:00:00Z",
            "fingerprint": { "manufacturer": "", "product": "", "serial": "", "board_serial": "",
                "macs": [], "uuid": null },
            "link_since": null, "certificates": [], "checks": [], "facts": facts,
            "pci_names": { "15b3:101d": "ConnectX-6" }
        });
        let detail: NodeDetail = serde_json::from_value(detail).expect("a node");
        let page = super::facts(&detail, true).into_string();
        for part in [
            "Memory modules",
            "16.0 GiB",
            "4800 MT/s",
            "&lt;b&gt;",
            "GPUs",
            "H100",
            "8.0 GiB",
            "ConnectX-6",
            "100 Gbit/s",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("8086:0001"), "bridges are left out: {page}");
    }
}
