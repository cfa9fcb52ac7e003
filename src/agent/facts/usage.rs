//! Utilisation of the node: processors, memory, file systems, NICs, temperature.

use super::gpu_usage::GpuMeter;
use crate::system::{
    self, Tree,
    source::{self, DeadlineRead},
};
use meshd_proto::Usage;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Interval between two measurements.
const INTERVAL: Duration = Duration::from_secs(55);
/// A measurement that began longer before a new link says nothing about the present minute.
const MAX_READING_AGE: Duration = Duration::from_secs(150);
/// Counters that are older at a new link have no difference: it would be the mean of an outage.
const MAX_COUNTERS_AGE: Duration = Duration::from_secs(300);
/// Sensors outside of this range, in thousandths of a degree Celsius, are broken or absent.
const PLAUSIBLE: std::ops::RangeInclusive<i64> = 1_000..=150_000;
/// Maximum number of temperature sensors that are read.
const MAX_SENSORS: usize = 256;

/// Counters that only grow, at one moment.
#[derive(Debug)]
pub(super) struct UsageCounters {
    at: Instant,
    /// Busy and total ticks of all processors.
    cpu: Option<[u64; 2]>,
    /// Received and sent bytes of each NIC.
    nics: BTreeMap<String, [u64; 2]>,
}

/// One measurement.
#[derive(Debug)]
pub(super) struct UsageReading {
    counters: UsageCounters,
    /// Values that need no earlier measurement.
    present: Usage,
}

/// Measures about once a minute. No file and no program delays the link: a measurement is taken
/// in the background, and the next heartbeat has it.
#[derive(Default)]
pub struct UsageMeter {
    reading: Option<DeadlineRead<UsageReading>>,
    begun: Option<Instant>,
    before: Option<UsageCounters>,
    gpu: GpuMeter,
}

impl UsageMeter {
    /// Drops measurements from before an outage. The central node takes each for the present.
    pub fn begin_link(&mut self, now: Instant) {
        let is_old = |at: Instant, limit: Duration| now.duration_since(at) > limit;
        if self.begun.is_some_and(|begun| is_old(begun, MAX_READING_AGE)) {
            self.reading = None;
            self.gpu.drop_result();
        }
        self.before = self.before.take().filter(|before| !is_old(before.at, MAX_COUNTERS_AGE));
    }

    /// Returns a measurement that has ended since the last call, and begins the next one when it is
    /// due. `vms` is the folder of VMs.
    pub fn next_usage(&mut self, tree: &Tree, vms: &Path) -> Option<Usage> {
        let now = Instant::now();
        let ended = self.reading.as_ref().and_then(DeadlineRead::try_result);
        if ended.is_some() {
            self.reading = None;
        }
        let is_due = self.begun.is_none_or(|begun| now.duration_since(begun) >= INTERVAL);
        if is_due {
            self.begun = Some(now);
            let folders = [tree.path("/"), vms.to_owned()];
            self.reading = Some(source::read(tree, "usage", move |tree| read(tree, &folders)));
        }
        let UsageReading { counters, present } = ended?.ok()?;
        let usage = usage(self.before.as_ref(), &counters, present);
        self.before = Some(counters);
        Some(Usage { gpu_percent: self.gpu.next_percent(tree), ..usage })
    }
}

pub(super) fn read(tree: &Tree, folders: &[PathBuf]) -> UsageReading {
    let memory = system::machine::memory(tree);
    let used = memory.total_kib.saturating_sub(memory.available_kib);
    let present = Usage {
        memory_percent: percent(used, memory.total_kib),
        disk_percent: folders.iter().filter_map(|folder| used_percent(folder)).max(),
        temperature_c: hottest(tree),
        ..Usage::default()
    };
    let counters =
        UsageCounters { at: Instant::now(), cpu: cpu_ticks(tree), nics: nic_bytes(tree) };
    UsageReading { counters, present }
}

/// Adds the values that are differences of counters. A counter that went back has none.
pub(super) fn usage(
    before: Option<&UsageCounters>,
    after: &UsageCounters,
    present: Usage,
) -> Usage {
    let Some(before) = before else { return present };
    let cpu = before.cpu.zip(after.cpu).and_then(|(before, after)| difference(before, after));
    let millis = u64::try_from(after.at.duration_since(before.at).as_millis()).unwrap_or(u64::MAX);
    // A NIC that appeared or disappeared in between has no rate, and changes none.
    let nics = after
        .nics
        .iter()
        .filter_map(|(name, after)| difference(*before.nics.get(name)?, *after))
        .reduce(|sum, nic| std::array::from_fn(|at| sum[at].saturating_add(nic[at])));
    let rates = nics.map(|bytes| bytes.map(|bytes| bytes.saturating_mul(1000) / millis.max(1)));
    Usage {
        cpu_percent: cpu.and_then(|[busy, total]| percent(busy, total)),
        received_bytes_per_s: rates.map(|[received, _]| received),
        sent_bytes_per_s: rates.map(|[_, sent]| sent),
        ..present
    }
}

fn difference(before: [u64; 2], after: [u64; 2]) -> Option<[u64; 2]> {
    Some([after[0].checked_sub(before[0])?, after[1].checked_sub(before[1])?])
}

fn percent(part: u64, whole: u64) -> Option<u8> {
    let percent = (u128::from(part) * 100).checked_div(u128::from(whole))?;
    u8::try_from(percent.min(100)).ok()
}

fn used_percent(folder: &Path) -> Option<u8> {
    let system = rustix::fs::statvfs(folder).ok()?;
    percent(system.f_blocks.saturating_sub(system.f_bavail), system.f_blocks)
}

/// Busy and total ticks of the first line of `/proc/stat`. Time of guests is part of user time.
fn cpu_ticks(tree: &Tree) -> Option<[u64; 2]> {
    let text = tree.text("/proc/stat")?;
    let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
    let total = ticks.iter().fold(0_u64, |sum, ticks| sum.saturating_add(*ticks));
    Some([total.saturating_sub(idle), total])
}

/// Received and sent bytes of each NIC with a device. Bridges, taps and virtual functions count
/// nothing twice.
fn nic_bytes(tree: &Tree) -> BTreeMap<String, [u64; 2]> {
    let folder = "/sys/class/net";
    let is_physical = |name: &String| {
        let device = format!("{folder}/{name}/device");
        tree.has(&device) && !tree.has(&format!("{device}/physfn"))
    };
    let nics = tree.list(folder).into_iter().filter(is_physical);
    let bytes = nics.filter_map(|name| {
        let counter = |counter: &str| tree.number(&format!("{folder}/{name}/statistics/{counter}"));
        let bytes: [u64; 2] = [counter("rx_bytes")?, counter("tx_bytes")?];
        Some((name, bytes))
    });
    bytes.collect()
}

/// The highest temperature of all sensors, in degrees Celsius.
fn hottest(tree: &Tree) -> Option<u8> {
    let folder = "/sys/class/hwmon";
    let chips = tree.list(folder).into_iter();
    let sensors = chips.flat_map(|chip| {
        let files = tree.list(&format!("{folder}/{chip}")).into_iter();
        files
            .filter(|file| file.starts_with("temp") && file.ends_with("_input"))
            .map(move |file| format!("{folder}/{chip}/{file}"))
    });
    let temperatures = sensors.take(MAX_SENSORS).filter_map(|path| tree.number::<i64>(&path));
    let hottest = temperatures.filter(|value| PLAUSIBLE.contains(value)).max()?;
    u8::try_from((hottest + 500) / 1000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    fn machine() -> FakeMachine {
        let fake = FakeMachine::new("", &[]);
        fake.file("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 250 kB\n");
        fake.file("proc/stat", "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3\n");
        for (nic, received, is_physical) in [("eth0", 1000, true), ("br0", 9_000_000, false)] {
            fake.file(
                &format!("sys/class/net/{nic}/statistics/rx_bytes"),
                &format!("{received}\n"),
            );
            fake.file(&format!("sys/class/net/{nic}/statistics/tx_bytes"), "5\n");
            if is_physical {
                fake.folder(&format!("sys/class/net/{nic}/device"));
            }
        }
        for (sensor, value) in
            [("temp1_input", "61400"), ("temp2_input", "-128000"), ("fan1_input", "90000")]
        {
            fake.file(&format!("sys/class/hwmon/hwmon0/{sensor}"), &format!("{value}\n"));
        }
        fake.file("sys/class/hwmon/hwmon1/temp1_input", "255000\n");
        fake
    }

    #[test]
    fn usage_of_two_measurements_has_busy_time_and_rates() {
        let fake = machine();
        let first = read(&fake.tree, &[]);
        let alone = usage(None, &first.counters, first.present.clone());
        assert_eq!((alone.memory_percent, alone.temperature_c), (Some(75), Some(61)));
        assert_eq!((alone.cpu_percent, alone.received_bytes_per_s), (None, None));
        fake.file("proc/stat", "cpu  130 0 130 720 120 0 0 0 50 0\n");
        fake.file("sys/class/net/eth0/statistics/rx_bytes", "61000\n");
        let second = read(&fake.tree, &[]);
        let after =
            UsageCounters { at: first.counters.at + Duration::from_secs(60), ..second.counters };
        let both = usage(Some(&first.counters), &after, second.present);
        assert_eq!(both.cpu_percent, Some(60), "60 of 100 ticks");
        assert_eq!((both.received_bytes_per_s, both.sent_bytes_per_s), (Some(1000), Some(0)));
    }

    #[test]
    fn nic_that_appears_disappears_or_is_virtual_changes_no_rate() {
        let fake = machine();
        let nic = |name: &str, bytes: u64, device: &str| {
            for counter in ["rx_bytes", "tx_bytes"] {
                let path = format!("sys/class/net/{name}/statistics/{counter}");
                fake.file(&path, &format!("{bytes}\n"));
            }
            fake.folder(&format!("sys/class/net/{name}/{device}"));
        };
        nic("eth1", 1_000_000, "device");
        nic("vf0", 0, "device/physfn");
        let first = read(&fake.tree, &[]);
        assert!(first.counters.nics.keys().eq(["eth0", "eth1"]));
        nic("eth2", 5_000_000, "device");
        fake.file("sys/class/net/eth0/statistics/rx_bytes", "61000\n");
        fake.file("sys/class/net/eth1/statistics/rx_bytes", "7\n");
        let second = read(&fake.tree, &[]);
        let after =
            UsageCounters { at: first.counters.at + Duration::from_secs(60), ..second.counters };
        let both = usage(Some(&first.counters), &after, second.present);
        assert_eq!((both.received_bytes_per_s, both.sent_bytes_per_s), (Some(1000), Some(0)));
    }

    #[test]
    fn measurement_from_before_an_outage_is_dropped() {
        let fake = machine();
        let mut meter = UsageMeter::default();
        assert_eq!(meter.next_usage(&fake.tree, Path::new("/")), None);
        meter.before = Some(read(&fake.tree, &[]).counters);
        let begun = meter.begun.expect("a reading");
        meter.begin_link(begun + Duration::from_secs(60));
        assert!(meter.reading.is_some() && meter.before.is_some(), "a short outage");
        meter.begin_link(begun + Duration::from_secs(200));
        assert!(meter.reading.is_none() && meter.before.is_some());
        meter.begin_link(begun + Duration::from_secs(3600));
        assert!(meter.before.is_none());
    }

    #[test]
    fn counter_that_went_back_and_absent_files_have_no_value() {
        let fake = machine();
        let first = read(&fake.tree, &[]);
        fake.file("proc/stat", "cpu  1 0 1 7 1 0 0 0 0 0\n");
        fake.file("sys/class/net/eth0/statistics/rx_bytes", "no number\n");
        let second = read(&fake.tree, &[]);
        let both = usage(Some(&first.counters), &second.counters, second.present);
        assert_eq!((both.cpu_percent, both.received_bytes_per_s), (None, None));
        let bare = FakeMachine::new("", &[]);
        let reading = read(&bare.tree, &[]);
        assert_eq!(usage(None, &reading.counters, reading.present), Usage::default());
    }
}
