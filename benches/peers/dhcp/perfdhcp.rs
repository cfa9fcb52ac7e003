//! `perfdhcp` (ISC, package kea-admin) as it stands behind a relay: its packets carry its own
//! address as giaddr.

use crate::frame::{CLIENT, CLIENT_INTERFACE, SERVER, Wire};
use anyhow::Context as _;
use std::process::{Command, Stdio};

/// Seconds of one try.
const SPAN: u32 = 4;
/// Different MAC addresses; the pool holds more.
const CLIENTS: u32 = 50_000;
/// Drops of either exchange below which a try is clean, in percent.
const CLEAN: f64 = 1.0;
/// Exchanges a second that everyone can do, and beyond which nobody is asked.
const FLOOR: u32 = 500;
const CEILING: u32 = 64_000;
/// The answer is this near to the truth, as a part of it.
const PRECISION: f64 = 0.06;

struct Try {
    /// Exchanges that were completed, a second.
    rate: f64,
    /// The worse one of both exchanges, in percent.
    drops: f64,
}

/// Doubles the offered rate until it is too much, then halves the interval. Gives what was really
/// completed in the best clean try.
pub fn highest_clean_rate(wire: &Wire) -> anyhow::Result<f64> {
    // The first exchanges of a fresh server meet cold caches, and an address that nobody resolved
    // yet.
    attempt(wire, FLOOR)?;
    let mut clean = 0;
    let mut best = 0.0;
    let mut dirty = CEILING;
    let mut offered = FLOOR * 2;
    while f64::from(dirty - clean) > f64::from(dirty) * PRECISION {
        let result = attempt(wire, offered)?;
        if result.drops < CLEAN {
            (clean, best) = (offered, result.rate);
        } else {
            dirty = offered;
        }
        offered = if dirty == CEILING { (clean * 2).min(CEILING) } else { clean.midpoint(dirty) };
        if clean == CEILING {
            break;
        }
    }
    anyhow::ensure!(best > 0.0, "not even {FLOOR} exchanges a second are clean");
    Ok(best)
}

fn attempt(wire: &Wire, offered: u32) -> anyhow::Result<Try> {
    let mut command = Command::new("perfdhcp");
    command.args(["-4", "-l", CLIENT_INTERFACE, "-W", "200000"]);
    command.args(["-r", &offered.to_string(), "-R", &CLIENTS.to_string(), "-p", &SPAN.to_string()]);
    command.arg(SERVER.to_string()).stdin(Stdio::null());
    let output = wire.client.inside(|| command.output())?.context("run perfdhcp")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // It exits with 3 when there were drops, which is no failure here.
    read(&text).with_context(|| {
        format!(
            "perfdhcp from {CLIENT} said nothing of use: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// Reads the report: one rate, and one block of statistics for each of the two exchanges.
fn read(report: &str) -> Option<Try> {
    let number = |line: &str| line.split_whitespace().find_map(|word| word.parse::<f64>().ok());
    let rate = report.lines().find_map(|line| number(line.strip_prefix("Rate: ")?))?;
    let sum = |name: &str| -> Vec<f64> {
        report.lines().filter_map(|line| number(line.strip_prefix(name)?)).collect()
    };
    let sent = sum("sent packets: ");
    let received = sum("received packets: ");
    let lost = sent
        .iter()
        .zip(&received)
        .map(|(sent, received)| (sent - received) / sent.max(1.0) * 100.0);
    let drops = lost.fold(0.0, f64::max);
    (!sent.is_empty()).then_some(Try { rate, drops })
}
