//! SMBIOS, CPUs, memory and operating system.
//!
//! | module | content |
//! | --- | --- |
//! | [`memory_modules`] | memory modules, from the tables of the firmware |

pub mod memory_modules;

use super::Tree;
use meshd_proto::{CpuFacts, MemoryFacts, SystemFacts};
use std::{collections::BTreeSet, time::Duration};

/// `USER_HZ` of Linux on all architectures of nodes: include/asm-generic/param.h.
const TICKS_PER_SECOND: u64 = 100;

/// Reads the SMBIOS identity.
pub fn system(tree: &Tree) -> SystemFacts {
    let dmi = |name: &str| tree.read(&format!("/sys/class/dmi/id/{name}")).unwrap_or_default();
    SystemFacts {
        uuid: dmi("product_uuid").parse().ok(),
        manufacturer: dmi("sys_vendor"),
        product: dmi("product_name"),
        serial: dmi("product_serial"),
        board_serial: dmi("board_serial"),
        uptime_s: uptime(tree).as_secs(),
        kernel_boot_id: kernel_boot_id(tree),
    }
}

/// Returns the random ID of this boot of the kernel.
pub fn kernel_boot_id(tree: &Tree) -> String {
    tree.read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Returns the time since the kernel started.
pub fn uptime(tree: &Tree) -> Duration {
    let text = tree.read("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|seconds| seconds.parse().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

/// Returns the time since a process started, by the clock of [`uptime`]: a step of the wall clock
/// does not change it.
pub fn process_age(tree: &Tree, process: u32) -> Option<Duration> {
    let started = started_after(&tree.read(&format!("/proc/{process}/stat"))?)?;
    uptime(tree).checked_sub(started)
}

/// Returns the time from the start of the kernel to that of a process: field 22 of
/// `/proc/PID/stat`, `starttime` in proc_pid_stat(5). The second field is in parentheses, and may
/// have any character.
fn started_after(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks: u64 = after_name.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?))
}

/// Parses `/proc/cpuinfo`.
pub fn cpu(tree: &Tree) -> CpuFacts {
    let text = tree.read("/proc/cpuinfo").unwrap_or_default();
    let mut facts = CpuFacts::default();
    let mut sockets = BTreeSet::new();
    let mut cores = BTreeSet::new();
    let mut socket = "";
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key.trim() {
            "processor" => facts.threads = facts.threads.saturating_add(1),
            "model name" if facts.model.is_empty() => facts.model = value.to_owned(),
            "vendor_id" if facts.vendor.is_empty() => facts.vendor = value.to_owned(),
            "flags" if facts.virtualization.is_empty() => {
                facts.virtualization = virtualization(value)
            }
            "physical id" => {
                socket = value;
                sockets.insert(value);
            }
            "core id" => {
                cores.insert((socket, value));
            }
            _ => {}
        }
    }
    // Some VMs and architectures report no topology. Each thread counts as a core of one socket.
    let count = |n: usize, default: u32| {
        if n == 0 { default } else { u32::try_from(n).unwrap_or(u32::MAX) }
    };
    facts.sockets = count(sockets.len(), facts.threads.min(1));
    facts.cores = count(cores.len(), facts.threads);
    facts
}

fn virtualization(flags: &str) -> String {
    let mut flags = flags.split_ascii_whitespace();
    flags.find(|flag| matches!(*flag, "vmx" | "svm")).unwrap_or_default().to_owned()
}

/// Reads total and available memory.
pub fn memory(tree: &Tree) -> MemoryFacts {
    MemoryFacts {
        total_kib: memory_field(tree, "MemTotal"),
        available_kib: memory_field(tree, "MemAvailable"),
        ..MemoryFacts::default()
    }
}

/// Returns a field of `/proc/meminfo` in KiB; 0 if missing.
pub fn memory_field(tree: &Tree, name: &str) -> u64 {
    let text = tree.read("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

/// Returns `PRETTY_NAME` of `/etc/os-release`.
pub fn os(tree: &Tree) -> String {
    let text = tree.read("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches(['"', '\'']).to_owned()
}
