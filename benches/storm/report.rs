//! What the storm comes to: percentiles of each step, when the central node called each machine
//! online, and what it cost.

use crate::{
    Storm,
    arguments::Arguments,
    frame::{Server, Wire, cpu_of},
    tally::{STEPS, Step, Tally, print_times},
};
use meshd_types::Timestamp;
use serde_json::Value;
use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant, SystemTime},
};

/// How long the central node may take to call the last machine online after its checks were sent.
const SETTLE: Duration = Duration::from_secs(20);
/// The goal of PERFORMANCE for 10,000 machines.
const GOAL: Duration = Duration::from_secs(120);
/// Ten thousand agents that dial again at once are all back within it.
const RETURN_GOAL: Duration = Duration::from_secs(60);

/// A moment by both clocks, with the processor time that this program had used by then: it
/// calibrates before it storms.
#[derive(Clone, Copy)]
pub struct Moment {
    timer: Instant,
    wall: SystemTime,
    own_cpu: Duration,
}

impl Moment {
    /// This one.
    pub fn now() -> Self {
        Moment {
            timer: Instant::now(),
            wall: SystemTime::now(),
            own_cpu: cpu_of(std::process::id()),
        }
    }

    /// Since then.
    pub fn elapsed(self) -> Duration {
        self.timer.elapsed()
    }
}

/// One line that is written over, where somebody watches.
pub fn progress(elapsed: Duration, tally: &Tally) {
    let mut out = std::io::stdout();
    if out.is_terminal() {
        let counts: Vec<String> =
            STEPS.iter().map(|(step, _)| tally.finished(*step).to_string()).collect();
        print!("\r{:>6.1} s  {} \x1b[K", elapsed.as_secs_f64(), counts.join(" > "));
        // Only for show.
        let _ = out.flush();
    }
}

/// How long all agents took to be back after meshd was killed and started again.
pub fn print_return(arguments: &Arguments, storm: &Storm, began: Moment, memory: u64) {
    let took = began.elapsed();
    let back = storm.tally.finished(Step::Return);
    println!();
    storm.tally.print_step(Step::Return);
    let met =
        usize::try_from(arguments.nodes).is_ok_and(|nodes| back == nodes) && took <= RETURN_GOAL;
    println!(
        "storm: {back} of {} agents back {:.1} s after meshd was killed, {} MB at most; goal {} s: {}",
        arguments.nodes,
        took.as_secs_f64(),
        memory / 1_000_000,
        RETURN_GOAL.as_secs(),
        if met { "met" } else { "MISSED" }
    );
}

/// Figures of one storm.
pub struct Report {
    nodes: usize,
    online: Vec<Duration>,
    lost: u64,
    server_cpu: Duration,
    own_cpu: Duration,
    server_memory: u64,
    storm: std::sync::Arc<Storm>,
}

impl Report {
    /// Waits until the central node has written everyone down, then takes its figures.
    pub fn new(
        arguments: &Arguments,
        wire: &Wire,
        server: &Server,
        storm: &std::sync::Arc<Storm>,
        begin: Moment,
        cpu_before: Duration,
    ) -> anyhow::Result<Self> {
        let expected = usize::try_from(arguments.nodes)?;
        let server_cpu = server.cpu().saturating_sub(cpu_before);
        let own_cpu = cpu_of(std::process::id()).saturating_sub(begin.own_cpu);
        let end = Instant::now() + SETTLE;
        let online = loop {
            let online = online(&wire.json(&["node", "list", "-o", "json"])?, begin);
            if online.len() + usize::try_from(storm.tally.lost())? >= expected
                || Instant::now() > end
            {
                break online;
            }
        };
        Ok(Report {
            nodes: expected,
            online,
            lost: storm.tally.lost(),
            server_cpu,
            own_cpu,
            server_memory: server.peak_memory(),
            storm: storm.clone(),
        })
    }

    /// Everything, and a last line that says it in short.
    pub fn print(mut self) {
        println!();
        self.storm.tally.print();
        print_times("online, since the first power-on", &mut self.online);
        self.storm.tally.print_faults();
        println!(
            "central node: {:.1} CPU-s, {} MB of memory at most; machines: {:.1} CPU-s",
            self.server_cpu.as_secs_f64(),
            self.server_memory / 1_000_000,
            self.own_cpu.as_secs_f64()
        );
        let last = self.online.last().copied().unwrap_or_default();
        let verdict =
            if self.online.len() == self.nodes && last <= GOAL { "met" } else { "MISSED" };
        println!(
            "storm: {} of {} machines online in {:.1} s, {} gave up; goal {} s: {verdict}",
            self.online.len(),
            self.nodes,
            last.as_secs_f64(),
            self.lost,
            GOAL.as_secs()
        );
    }
}

/// Since the first power-on, for each machine that the central node calls online, by its own
/// record.
fn online(nodes: &Value, begin: Moment) -> Vec<Duration> {
    let begin = begin.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let nodes = nodes.as_array().into_iter().flatten().filter(|node| node["phase"] == "online");
    let reached = nodes.filter_map(|node| {
        let stages = node["boot"]["stages"].as_array()?;
        let at = stages.iter().find(|stage| stage["stage"] == "online")?["at"].as_str()?;
        let at: Timestamp = at.parse().ok()?;
        let at = Duration::from_millis(u64::try_from(at.millis()).ok()?);
        Some(at.saturating_sub(begin))
    });
    reached.collect()
}
