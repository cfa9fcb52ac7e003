//! Hardware and software of a node, as rows of `meshd node show`. Equal devices are one entry.

use crate::cli::output::print::bytes;
use meshd_api::{NodeDetail, gpus};
use meshd_proto::{DiskFacts, Facts, MemoryFacts, MemoryModuleFacts, NicFacts, PciFacts};
use std::collections::BTreeMap;

/// Returns the rows of the facts of a node.
pub(crate) fn rows(detail: &NodeDetail, facts: &Facts) -> [(&'static str, String); 9] {
    let cpu = &facts.cpu;
    [
        ("processors", format!("{} ({} threads {})", cpu.model, cpu.threads, cpu.virtualization)),
        ("memory", memory(&facts.memory)),
        ("GPUs", counted(gpus(facts).map(|function| gpu(detail, function)))),
        ("disks", counted(facts.disks.iter().map(disk))),
        ("NICs", facts.nics.iter().map(|it| nic(it, detail)).collect::<Vec<_>>().join(", ")),
        ("PCI devices", facts.pci.len().to_string()),
        ("kernel", facts.versions.kernel.clone()),
        ("system", facts.versions.os.clone()),
        ("agent", facts.versions.agent.clone()),
    ]
}

fn memory(memory: &MemoryFacts) -> String {
    let total = bytes(memory.total_kib.saturating_mul(1024));
    if memory.modules.is_empty() {
        return total;
    }
    let modules: Vec<String> = memory.modules.iter().map(module).collect();
    let used: u32 = memory.modules.iter().map(|module| module.count).sum();
    format!("{total} ({}; {used} of {} sockets)", modules.join(", "), memory.sockets)
}

fn module(module: &MemoryModuleFacts) -> String {
    let speed = module.speed_mts.map(|speed| format!("{speed} MT/s")).unwrap_or_default();
    let words = [bytes(module.bytes), module.kind.clone(), speed, module.manufacturer.clone()];
    let words = words.into_iter().chain([module.part.clone()]).filter(|word| !word.is_empty());
    format!("{} x {}", module.count, words.collect::<Vec<_>>().join(" "))
}

fn gpu(detail: &NodeDetail, function: &PciFacts) -> String {
    let memory = detail.gpu_memory(function).map(bytes);
    Vec::from_iter([detail.gpu_model(function)].into_iter().chain(memory)).join(" ")
}

fn disk(disk: &DiskFacts) -> String {
    let spins = if disk.rotational { " spinning" } else { "" };
    let model = disk.model.as_deref().unwrap_or_default();
    format!("{} {model}{spins}", bytes(disk.bytes)).trim().to_owned()
}

fn nic(nic: &NicFacts, detail: &NodeDetail) -> String {
    let link = if nic.carrier { nic.speed_words() } else { Some("no link".to_owned()) };
    let words = [Some(nic.name.clone()), link, detail.nic_name(nic)];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Joins words, equal ones once with their number.
fn counted(words: impl Iterator<Item = String>) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    let shown = |(word, count)| if count == 1 { word } else { format!("{count} x {word}") };
    counts.into_iter().map(shown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_devices_are_one_entry_with_their_number() {
        let module = MemoryModuleFacts {
            count: 16,
            bytes: 64 << 30,
            kind: "DDR5".to_owned(),
            speed_mts: Some(4800),
            manufacturer: "Samsung".to_owned(),
            part: String::new(),
        };
        let modules = vec![module];
        let facts =
            MemoryFacts { total_kib: 1 << 30, sockets: 24, modules, ..MemoryFacts::default() };
        let shown = memory(&facts);
        assert!(
            shown.ends_with(" (16 x 64.0 GiB DDR5 4800 MT/s Samsung; 16 of 24 sockets)"),
            "{shown}"
        );
        let words = ["b", "a", "b"].map(str::to_owned);
        assert_eq!(counted(words.into_iter()), "a, 2 x b");
        let disk_of = |model: Option<&str>, rotational| {
            let model = model.map(str::to_owned);
            disk(&DiskFacts { bytes: 2 << 40, model, rotational, ..DiskFacts::default() })
        };
        assert_eq!(disk_of(Some("ST2000"), true), "2048.0 GiB ST2000 spinning");
        assert_eq!(disk_of(None, false), "2048.0 GiB");
    }
}
