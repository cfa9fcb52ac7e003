//! Gauges of this process, read from /proc.

use super::page::MetricsPage;

/// Clock ticks per second in /proc, equal on every architecture that meshd runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns gauges of memory, file descriptors and processor time. Omits values that cannot be read.
pub(super) fn process() -> String {
    let mut page = MetricsPage::default();
    if let Some(bytes) = resident_bytes() {
        page.gauge(
            "meshd_process_resident_memory_bytes",
            "Resident memory of this process.",
            bytes,
        );
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        page.gauge("meshd_process_open_fds", "Open file descriptors.", open.count());
    }
    if let Some(seconds) = cpu_seconds() {
        page.counter(
            "meshd_process_cpu_seconds_total",
            "Processor time, user and system.",
            seconds,
        );
    }
    page.text()
}

/// Returns the resident memory of this process; `None` if it cannot be read.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program name may contain any character, so the fields are counted after its closing
    // bracket.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}
