//! Launch options of Hydra proxies, as typed values parsed from `mpiexec -launcher manual`. A node builds its own
//! command line from them, so the head cannot start anything else.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Options that a proxy may be given, beside where the head is and which proxy it is. Those of MPICH 3.3 to 4.2 when it launches by hand.
const OPTIONS: [&str; 10] = [
    "rmk",
    "launcher",
    "demux",
    "iface",
    "pgid",
    "retries",
    "usize",
    "pmi-port",
    "gpus-per-proc",
    "gpu-subdevs-per-proc",
];
/// Longest value, in bytes.
const MAX_VALUE: usize = 64;

/// The port of the head, and the options that are the same for all proxies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct HydraLaunch {
    port: u16,
    options: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    port: u16,
    options: BTreeMap<String, String>,
}

/// Not how a proxy is started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HydraLaunchError {
    /// A proxy is told something that this program does not know.
    #[error("Hydra wants its proxies to have --{0}, which this agent does not know; use the MPICH of the bundle `mpi`")]
    Option(String),
    /// The value of an option is no plain word.
    #[error("Hydra gives its proxies an odd value of --{0}; use the MPICH of the bundle `mpi`")]
    Value(String),
    /// Nobody listens at port 0.
    #[error("Hydra names no port")]
    Port,
}

impl HydraLaunch {
    /// Only options that are known, with plain values.
    pub fn new(port: u16, options: BTreeMap<String, String>) -> Result<Self, HydraLaunchError> {
        for (name, value) in &options {
            if !OPTIONS.contains(&name.as_str()) {
                return Err(HydraLaunchError::Option(name.chars().take(MAX_VALUE).collect()));
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if value.is_empty() || value.len() > MAX_VALUE || !value.chars().all(plain) {
                return Err(HydraLaunchError::Value(name.clone()));
            }
        }
        if port == 0 {
            return Err(HydraLaunchError::Port);
        }
        Ok(HydraLaunch { port, options })
    }

    /// Where the head waits for its proxies.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The options, as a command line has them.
    pub fn args(&self) -> impl Iterator<Item = String> + '_ {
        self.options.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()])
    }
}

impl TryFrom<Written> for HydraLaunch {
    type Error = HydraLaunchError;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        HydraLaunch::new(written.port, written.options)
    }
}

impl From<HydraLaunch> for Written {
    fn from(HydraLaunch { port, options }: HydraLaunch) -> Self {
        Written { port, options }
    }
}
