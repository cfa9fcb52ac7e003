//! Diagnoses a silent node when a test fails: emulator, kernel or agent.

use crate::{LabError, ProcessId, Rack, qemu::qmp, rack::record::NodeRecord};
use std::{
    fs,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread::park_timeout,
    time::{Duration, Instant},
};

/// Duration of the observation of an emulator.
const OBSERVATION: Duration = Duration::from_secs(3);
/// Longest time that a kernel may take to refuse a connection; an emulated one takes milliseconds.
const RESPONSE_LIMIT: Duration = Duration::from_secs(10);
/// TCP port without a service on nodes; the kernel alone refuses the connection.
const CLOSED_PORT: u16 = 9;
/// CPU ticks per second (`getconf CLK_TCK`, 100 on every current Linux).
const TICKS: u64 = 100;

/// State of an emulator, observed from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EmulatorState {
    /// QEMU's response to `query-status`, or the error.
    status: Result<String, String>,
    /// CPU time of QEMU during the observation, in percent of one processor.
    cpu_percent: u64,
    /// Whether the node's kernel responds on the network; `None` if its address is unknown.
    kernel: Option<bool>,
}

impl EmulatorState {
    fn verdict(&self) -> String {
        let cpu = format!("QEMU uses {} % of a processor", self.cpu_percent);
        match (&self.status, self.kernel) {
            (Err(error), _) => {
                format!("DEAD EMULATOR: QEMU's control socket does not answer ({error}); {cpu}")
            }
            (Ok(status), _) if status != "running" => {
                format!("DEAD EMULATOR: QEMU says `{status}`; {cpu}")
            }
            (Ok(_), Some(true)) => {
                format!(
                    "the emulator and the node's kernel answer; if it is silent, its AGENT is dead; {cpu}"
                )
            }
            (Ok(_), Some(false)) => {
                let how = match self.cpu_percent {
                    0 => "executes nothing",
                    95.. => "spins",
                    _ => "executes something",
                };
                format!(
                    "DEAD EMULATOR OR KERNEL: QEMU says `running`, the node's kernel does not answer; it {how}: {cpu}"
                )
            }
            (Ok(_), None) => format!("the emulator answers; the node has no address yet; {cpu}"),
        }
    }
}

impl Rack {
    /// Reports for each powered node whether its emulator, kernel or agent does not respond. Takes
    /// seconds.
    pub fn emulators(&self) -> String {
        let on = self.record.nodes.iter().filter(|node| node.is_on());
        on.map(|node| format!("---- {}: {}\n", node.name(), self.emulator_state(node).verdict()))
            .collect()
    }

    fn emulator_state(&self, node: &NodeRecord) -> EmulatorState {
        let begin = Instant::now();
        let before = node.process.and_then(cpu_ticks);
        let socket = self.layout.dir.join(format!("{}.qmp", node.name()));
        let status =
            qmp::status(&node.name(), &socket).map_err(|error: LabError| error.to_string());
        let address = self.node(node.position).ok().flatten();
        let address = address.and_then(|node| node["address"].as_str()?.parse::<Ipv4Addr>().ok());
        let kernel =
            address.and_then(|address| self.namespace.inside(|| kernel_responds(address)).ok());
        while begin.elapsed() < OBSERVATION {
            park_timeout(OBSERVATION.saturating_sub(begin.elapsed()));
        }
        let used = node
            .process
            .and_then(cpu_ticks)
            .zip(before)
            .map_or(0, |(after, before)| after.saturating_sub(before));
        let elapsed_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        EmulatorState { status, cpu_percent: used * 100 * 1000 / TICKS / elapsed_ms, kernel }
    }
}

/// Returns whether a kernel refuses a connection to a closed port, which does not depend on its
/// programs.
fn kernel_responds(address: Ipv4Addr) -> bool {
    match TcpStream::connect_timeout(&SocketAddr::from((address, CLOSED_PORT)), RESPONSE_LIMIT) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionRefused,
    }
}

/// Returns the CPU time of a process since its start: `utime` and `stime` of `/proc/PID/stat`.
fn cpu_ticks(process: ProcessId) -> Option<u64> {
    parse_ticks(&fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok()?)
}

/// Parses the line from its last closing bracket, because the command name may contain blanks and
/// brackets.
fn parse_ticks(line: &str) -> Option<u64> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(status: Result<&str, &str>, cpu_percent: u64, kernel: Option<bool>) -> String {
        let status = status.map(str::to_owned).map_err(str::to_owned);
        EmulatorState { status, cpu_percent, kernel }.verdict()
    }

    #[test]
    fn verdict_distinguishes_dead_emulator_from_dead_agent() {
        assert!(
            verdict(Err("timed out"), 0, None).starts_with("DEAD EMULATOR: QEMU's control socket")
        );
        assert!(
            verdict(Ok("internal-error"), 0, Some(false))
                .starts_with("DEAD EMULATOR: QEMU says `internal-error`")
        );
        assert!(verdict(Ok("running"), 100, Some(false)).contains("it spins"));
        assert!(verdict(Ok("running"), 0, Some(false)).contains("it executes nothing"));
        assert!(verdict(Ok("running"), 7, Some(true)).contains("its AGENT is dead"));
    }

    #[test]
    fn cpu_ticks_are_parsed_after_name_with_brackets() {
        let line = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 70 7 13 14";
        assert_eq!(parse_ticks(line), Some(77));
        assert_eq!(parse_ticks("42 (x"), None);
    }

    #[test]
    fn kernel_response_includes_refused_connection() {
        assert!(kernel_responds(Ipv4Addr::LOCALHOST));
    }
}
