//! The load: `wrk` in the client's namespace.

use crate::frame::{Process, Wire};
use anyhow::Context as _;
use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

pub struct Load {
    pub bytes_a_second: f64,
    pub bytes: f64,
}

/// Runs wrk with these arguments; an error when any request failed.
pub fn load(wire: &Wire, args: &[&str]) -> anyhow::Result<Load> {
    let output = wire.path("wrk.out");
    let mut command = Command::new("wrk");
    command.args(["--timeout", "10s"]);
    command.args(args).stdin(Stdio::null()).stdout(File::create(&output)?).stderr(Stdio::null());
    let status = Process::start(&wire.client, &mut command)?.wait()?;
    let text = fs::read_to_string(&output)?;
    let clean = status.success() && !text.contains("Socket errors") && !text.contains("Non-2xx");
    anyhow::ensure!(clean, "wrk {args:?}: {text}");
    read(&text).with_context(|| format!("cannot read what wrk wrote: {text}"))
}

fn read(text: &str) -> Option<Load> {
    let value =
        |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
    let total = text.lines().find_map(|line| line.trim().strip_suffix(" read")?.split(", ").nth(1));
    Some(Load { bytes_a_second: amount(value("Transfer/sec:")?)?, bytes: amount(total?)? })
}

/// `1.23GB`, as wrk writes it: in powers of 1024.
fn amount(text: &str) -> Option<f64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let power = ["B", "KB", "MB", "GB", "TB"].into_iter().position(|known| known == unit)?;
    Some(number.parse::<f64>().ok()? * 1024f64.powi(i32::try_from(power).ok()?))
}
