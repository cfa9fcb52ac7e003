//! Parses the output of `mpiexec -launcher manual`: the command that starts each proxy. Pure.
//!
//! ```text
//! HYDRA_LAUNCH: /usr/bin/hydra_pmi_proxy --control-port 10.9.0.1:36249 --rmk user --launcher manual ... --proxy-id 0
//! HYDRA_LAUNCH: ... --proxy-id 1
//! HYDRA_LAUNCH_END
//! ```
//! This is the output of MPICH 4.0.2. Each line ends with a blank.

use meshd_proto::task::{HydraLaunch, HydraLaunchError};
use std::collections::BTreeMap;

/// The line after the launch commands.
pub const END: &str = "HYDRA_LAUNCH_END";
const LINE: &str = "HYDRA_LAUNCH:";

/// An error of invalid launch commands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HydraError {
    #[error("mpiexec printed `{0}` instead of a launch command")]
    Line(String),
    #[error("a launch command of mpiexec has no {0}")]
    Missing(&'static str),
    /// The commands differ, or are out of order.
    #[error("the launch commands of mpiexec differ; use the MPICH of the bundle `mpi`")]
    Different,
    #[error("mpiexec has {found} launch commands for {nodes} nodes")]
    Count { found: usize, nodes: usize },
    /// Unknown options.
    #[error(transparent)]
    Launch(#[from] HydraLaunchError),
}

/// Parses the lines before [`END`] for a task of this many nodes.
pub fn parse(text: &str, nodes: usize) -> Result<HydraLaunch, HydraError> {
    let mut common: Option<HydraLaunch> = None;
    let mut found = 0;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let launch = parse_line(line, found)?;
        if common.as_ref().is_some_and(|common| *common != launch) {
            return Err(HydraError::Different);
        }
        common = Some(launch);
        found += 1;
    }
    match common {
        Some(launch) if found == nodes => Ok(launch),
        _ => Err(HydraError::Count { found, nodes }),
    }
}

fn parse_line(line: &str, number: usize) -> Result<HydraLaunch, HydraError> {
    let invalid = || HydraError::Line(line.chars().take(120).collect());
    let mut words = line.strip_prefix(LINE).ok_or_else(invalid)?.split_whitespace();
    // The path of the proxy depends on the node.
    words.next().ok_or_else(invalid)?;
    let mut options = BTreeMap::new();
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").filter(|name| !name.is_empty()).ok_or_else(invalid)?;
        options.insert(name.to_owned(), words.next().ok_or_else(invalid)?.to_owned());
    }
    let control = options.remove("control-port").ok_or(HydraError::Missing("control port"))?;
    let port = control.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let port = port.ok_or(HydraError::Missing("control port"))?;
    let id = options.remove("proxy-id").ok_or(HydraError::Missing("number"))?;
    if id.parse() != Ok(number) {
        return Err(HydraError::Different);
    }
    Ok(HydraLaunch::new(port, options)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Output of MPICH 4.0.2.
    const OUTPUT: &str = "\
HYDRA_LAUNCH: /usr/bin/hydra_pmi_proxy --control-port 10.9.0.1:36249 --rmk user --launcher manual --demux poll --iface v0 --pgid 0 --retries 10 --usize -2 --pmi-port 0 --gpus-per-proc -2 --proxy-id 0 
HYDRA_LAUNCH: /usr/bin/hydra_pmi_proxy --control-port 10.9.0.1:36249 --rmk user --launcher manual --demux poll --iface v0 --pgid 0 --retries 10 --usize -2 --pmi-port 0 --gpus-per-proc -2 --proxy-id 1 
";

    #[test]
    fn launch_commands_become_options() {
        let launch = parse(OUTPUT, 2).expect("valid output");
        assert_eq!(launch.port(), 36249);
        let args: Vec<String> = launch.args().collect();
        assert_eq!(args[..4], ["--demux", "poll", "--gpus-per-proc", "-2"]);
        assert!(!args.iter().any(|arg| arg.contains("proxy-id") || arg.contains("control")));
    }

    #[test]
    fn invalid_launch_commands_are_refused() {
        assert_eq!(parse(OUTPUT, 3), Err(HydraError::Count { found: 2, nodes: 3 }));
        assert_eq!(parse("", 1), Err(HydraError::Count { found: 0, nodes: 1 }));
        let error = |line: &str| parse(line, 1).expect_err("refused");
        assert!(matches!(error("mpiexec: unrecognized option"), HydraError::Line(_)));
        assert!(matches!(
            error("HYDRA_LAUNCH: p --control-port a:1 --proxy-id"),
            HydraError::Line(_)
        ));
        assert_eq!(error("HYDRA_LAUNCH: p --proxy-id 0"), HydraError::Missing("control port"));
        assert_eq!(error("HYDRA_LAUNCH: p --control-port a:1 --proxy-id 1"), HydraError::Different);
        let shell = "HYDRA_LAUNCH: /bin/sh --control-port a:1 --launcher-exec /bin/sh --proxy-id 0";
        assert!(matches!(error(shell), HydraError::Launch(_)), "unknown options are refused");
        assert_eq!(parse(&OUTPUT.replacen("user", "lsf", 1), 2), Err(HydraError::Different));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "(HYDRA_LAUNCH: |p|--[a-z]{0,3}|[ -:\n]|control-port|proxy-id|\\PC){0,40}", nodes in 0usize..3) {
            let _ = parse(&text, nodes);
        }
    }
}
