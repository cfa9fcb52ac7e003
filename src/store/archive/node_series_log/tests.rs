//! Series of nodes over hours, days, restarts, damage and wrong clocks.

use super::*;
use meshd_types::{Basis, MacAddr};
use std::time::Duration;

/// Begin of a day, in seconds since the epoch.
const START: u64 = 19_700 * DAY;

fn at(minute: u64) -> Timestamp {
    Timestamp::EPOCH.after(Duration::from_secs(START + minute * MINUTE))
}

fn node(number: u16) -> NodeId {
    let [high, low] = number.to_be_bytes();
    Basis::Mac(MacAddr([2, 0, 0, 0, high, low])).node_id()
}

fn open(folder: &tempfile::TempDir) -> NodeSeriesLog {
    NodeSeriesLog::new(folder.path().join("nodes"), NODE_SERIES_BYTES)
}

fn record(log: &NodeSeriesLog, minute: u64, code: u8) {
    let codes = [code, 1, 2, 3, 4, 5, UNKNOWN];
    log.record(at(minute), &[(node(1), codes), (node(2), [7; NODE_SERIES])]);
}

/// Minutes since the start, and the values of the first series of node 1.
fn cpu(log: &NodeSeriesLog, minutes: [u64; 2], step: u64) -> Vec<(i64, f64)> {
    let range = SeriesRange::new(at(minutes[0]), at(minutes[1]), Some(step)).unwrap();
    let series = log.read(node(1), &range);
    assert_eq!(series.len(), NODE_SERIES);
    assert!(series[6].is_empty(), "the node has no GPU");
    let start = i64::try_from(START).unwrap();
    series[0].iter().map(|point| ((point.at.seconds() - start) / 60, point.value)).collect()
}

#[test]
fn minutes_and_hours_are_read_over_files_and_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(&folder);
    for minute in 0..150 {
        record(&log, minute, u8::try_from(minute / 60 * 10).unwrap());
        if minute.is_multiple_of(37) {
            log = open(&folder);
        }
    }
    let minutes = cpu(&log, [0, 200], 60);
    assert_eq!(minutes.len(), 150);
    assert_eq!((minutes[59], minutes[60], minutes[149]), ((59, 0.0), (60, 10.0), (149, 20.0)));
    assert_eq!(cpu(&log, [55, 65], 300), [(55, 0.0), (60, 10.0), (65, 10.0)]);
    assert_eq!(cpu(&log, [0, 24 * 60], 3600), [(0, 0.0), (60, 10.0), (120, 20.0)]);
    assert_eq!(cpu(&log, [0, 24 * 60], 7200), [(0, 5.0), (120, 20.0)]);
    let range = SeriesRange::new(at(0), at(60), Some(60)).unwrap();
    assert!(log.read(node(3), &range).iter().all(Vec::is_empty), "an unknown node");
}

#[test]
fn torn_log_of_the_hour_loses_its_last_minute_only() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    (0..5).for_each(|minute| record(&log, minute, 9));
    let path = folder.path().join("nodes/present");
    let whole = fs::read(&path).unwrap();
    for lost in [1, whole.len() / 5 - 1] {
        fs::write(&path, &whole[..whole.len() - lost]).unwrap();
        let torn = open(&folder);
        assert_eq!(cpu(&torn, [0, 60], 60).len(), 4, "{lost} bytes are lost");
        record(&torn, 5, 9);
        assert_eq!(cpu(&open(&folder), [0, 60], 60).len(), 5, "{lost} bytes are lost");
    }
}

#[test]
fn damaged_table_is_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    (0..121).for_each(|minute| record(&log, minute, 9));
    let [hour, day] =
        [("hours", HOUR), ("days", DAY)].map(|(of, length)| log.path(of, START / length));
    for bytes in [&b""[..], b"MSN1", &[0xff; 300]] {
        fs::write(&hour, bytes).unwrap();
        fs::write(&day, bytes).unwrap();
        assert_eq!(cpu(&log, [0, 180], 60).len(), 61, "the second hour and the present minute");
        assert_eq!(cpu(&log, [0, 180], 3600), [(120, 9.0)]);
    }
    (121..200).for_each(|minute| record(&log, minute, 9));
    assert_eq!(cpu(&log, [0, 240], 3600), [(120, 9.0), (180, 9.0)]);
}

#[test]
fn wrong_clock_removes_no_file_of_the_right_time() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    (0..120).for_each(|minute| record(&log, minute, 9));
    // Ten hours 30 years ahead, then 1970, then an hour back, then right again.
    for hour in 0..10 {
        record(&log, 30 * 365 * 24 * 60 + hour * 60, 99);
    }
    log.record(Timestamp::EPOCH, &[(node(1), [99; NODE_SERIES])]);
    record(&log, 60, 11);
    (121..180).for_each(|minute| record(&log, minute, 9));
    let points = cpu(&log, [0, 180], 60);
    assert_eq!(points.len(), 179, "{points:?}");
    assert_eq!(points[60], (60, 11.0), "the hour continued");
}

/// As after a battery of the clock failed: all places are taken, and the present is the farthest.
#[test]
fn clock_that_goes_back_to_1970_removes_no_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    let last = 100 * 24 * 60;
    (0..=100 * 4).for_each(|sample| record(&log, sample * 6 * 60, 9));
    (0..3).for_each(|minute| record(&log, last - 60 + minute, 9));
    for hour in 0..3 {
        let wrong = Timestamp::EPOCH.after(Duration::from_secs(hour * HOUR));
        log.record(wrong, &[(node(1), [99; NODE_SERIES])]);
    }
    record(&log, last + 60, 9);
    let minutes = cpu(&log, [last - 60, last + 60], 60);
    assert_eq!(minutes.len(), 5, "the newest hours are there: {minutes:?}");
    let hours = cpu(&log, [last - 24 * 60, last], 3600);
    assert!(hours.len() >= 4, "the newest day is there: {hours:?}");
}

#[test]
fn answer_is_read_once_for_each_sample() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    (0..=60).for_each(|minute| record(&log, minute, 9));
    assert_eq!(cpu(&log, [0, 120], 60).len(), 61);
    fs::remove_file(log.path("hours", START / HOUR)).unwrap();
    assert_eq!(cpu(&log, [0, 120], 60).len(), 61, "the answer is kept");
    record(&log, 61, 9);
    assert_eq!(cpu(&log, [0, 120], 60).len(), 2, "a sample ends it");
}

#[test]
fn files_are_bounded_in_number_and_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    (0..100 * 4).for_each(|sample| record(&log, sample * 6 * 60, 9));
    let count = |folder: &Path| fs::read_dir(folder).unwrap().count();
    let nodes = folder.path().join("nodes");
    assert_eq!((count(&nodes.join("hours")), count(&nodes.join("days"))), (MAX_HOURS, MAX_DAYS));
    let range = SeriesRange::new(at(10 * 24 * 60), at(100 * 24 * 60), Some(3600)).unwrap();
    assert_eq!(log.read(node(1), &range)[0].len(), 90 * 4, "all samples of 90 days");
    let small = NodeSeriesLog::new(nodes.clone(), 1000);
    record(&small, 101 * 24 * 60, 9);
    let bytes = |folder: &str| {
        let files = fs::read_dir(nodes.join(folder)).unwrap().flatten();
        files.map(|file| file.metadata().unwrap().len()).sum::<u64>()
    };
    assert!(bytes("hours") + bytes("days") <= 1000);
    assert_eq!(count(&nodes.join("days")), 0, "days are removed before hours");
    assert!(count(&nodes.join("hours")) > 3);
}

#[test]
fn failed_write_keeps_samples_of_the_hour_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    record(&log, 0, 9);
    // A file in place of the folder refuses every write, also those of root.
    let nodes = folder.path().join("nodes");
    fs::remove_dir_all(&nodes).unwrap();
    fs::write(&nodes, "").unwrap();
    record(&log, 1, 9);
    assert!(log.is_failing());
    fs::remove_file(&nodes).unwrap();
    record(&log, 2, 9);
    assert!(!log.is_failing());
    record(&log, 60, 9);
    assert_eq!(cpu(&open(&folder), [0, 59], 60).len(), 3, "the hour is stored as a whole");
}

#[test]
fn file_that_cannot_be_read_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    // A folder in place of a file refuses every read, also those of root.
    let nodes = folder.path().join("nodes");
    let present = nodes.join("present");
    fs::create_dir_all(&present).unwrap();
    record(&log, 0, 9);
    assert!(log.is_failing() && present.is_dir());
    assert!(cpu(&log, [0, 59], 60).is_empty());
    fs::remove_dir(&present).unwrap();
    record(&log, 1, 9);
    assert!(!log.is_failing());
    let hour = log.path("hours", START / HOUR + 1);
    fs::create_dir_all(&hour).unwrap();
    record(&log, 60, 9);
    assert!(log.is_failing() && hour.is_dir());
    fs::remove_dir(&hour).unwrap();
    record(&log, 61, 9);
    assert!(!log.is_failing());
    assert_eq!(cpu(&open(&folder), [0, 120], 60), [(1, 9.0), (61, 9.0)]);
}

/// Values of a busy node: plateaus of jobs with noise. The noise of an hour's mean is smaller.
fn busy_codes(random: &mut impl FnMut(u32) -> u32, job: u32, noise: u32) -> NodeCodes {
    let mut around = |value: u32, noise: u32| {
        let value = (value + random(2 * noise + 1)).saturating_sub(noise);
        u8::try_from(value.min(254)).unwrap()
    };
    let load = 10 + job % 80;
    [
        around(load, 5 * noise).min(100),
        around(30 + job % 40, noise),
        12,
        around(80 + job % 20, 2 * noise),
        around(85 + job % 20, 2 * noise),
        around(50 + job % 15, noise),
        around(load, 5 * noise).min(100),
    ]
}

/// Prints the cost of `MESHD_SERIES_NODES` nodes, 300 by default. All have GPUs.
#[test]
fn day_of_10000_noisy_nodes_fits_into_the_budget() {
    let count = std::env::var("MESHD_SERIES_NODES").ok().and_then(|count| count.parse().ok());
    let count: u16 = count.unwrap_or(300);
    let mut seed = 1_u32;
    let mut random = move |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % below
    };
    let nodes: Vec<NodeId> = (0..count).map(node).collect();
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder);
    let mut minute_time = Duration::ZERO;
    let mut hour_time = Duration::ZERO;
    let mut hour = 0;
    let length = |folder: &str, number: u64| {
        fs::metadata(log.path(folder, number)).map(|file| file.len()).unwrap()
    };
    // Two hours by the minute, then the rest of three days with one sample an hour.
    let minutes = (0..120).chain((2..72).map(|hour| hour * 60));
    for minute in minutes {
        let job = |index: usize| (index as u32 + u32::try_from(minute / 90).unwrap()) * 7919;
        let noise = if minute < 120 { 2 } else { 1 };
        let samples: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| (*node, busy_codes(&mut random, job(index) >> 4, noise)))
            .collect();
        let begun = std::time::Instant::now();
        log.record(at(minute), &samples);
        match minute {
            0..120 => minute_time = begun.elapsed(),
            120 => {
                hour_time = begun.elapsed();
                hour = length("hours", START / HOUR + 1) / u64::from(count);
            }
            _ => {}
        }
    }
    let day = length("days", START / DAY + 1) / u64::from(count);
    let present = 60 * (8 + NODE_SERIES as u64);
    let bytes = MAX_HOURS as u64 * hour + MAX_DAYS as u64 * day + present;
    let read = std::time::Instant::now();
    let range = SeriesRange::new(at(0), at(72 * 60), Some(3600)).unwrap();
    assert_eq!(log.read(nodes[0], &range)[0].len(), 72);
    println!(
        "{count} nodes: {hour} bytes of an hour, {day} of a day, {bytes} in all for each node; \
         a minute takes {minute_time:?}, the end of an hour {hour_time:?}, three days are read in {:?}",
        read.elapsed()
    );
    assert!(
        MAX_HOURS as u64 * hour * 10_000 < NODE_SERIES_BYTES,
        "a day by the minute fits: {hour} bytes of an hour"
    );
    assert!(
        NODE_SERIES_BYTES + present * 10_000 < 97_000_000,
        "100 MB with the series of the site"
    );
}
