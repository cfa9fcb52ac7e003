//! Launch options of Hydra proxies, parsed from `mpiexec -launcher manual`. A node builds its
//! command line from these options, so the head cannot start another program.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Accepted proxy options besides control port and proxy ID: those of MPICH 3.3 to 4.2 with the
/// manual launcher.
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
/// Maximum length of a value in bytes.
const MAX_VALUE: usize = 64;

/// The port of the head, and the options that are the same for all proxies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "HydraLaunchData")]
pub struct HydraLaunch {
    port: u16,
    options: BTreeMap<String, String>,
}

/// Launch options before validation.
#[derive(Deserialize)]
struct HydraLaunchData {
    port: u16,
    options: BTreeMap<String, String>,
}

/// The launch options are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HydraLaunchError {
    #[error("unsupported option --{0} of a Hydra proxy; use the MPICH of the bundle `mpi`")]
    Option(String),
    #[error(
        "invalid value of the option --{0} of a Hydra proxy; use the MPICH of the bundle `mpi`"
    )]
    Value(String),
    #[error("the launch command of Hydra has no port")]
    Port,
}

impl HydraLaunch {
    /// Validates port and options.
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

    /// Returns the control port of the head.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the options as arguments.
    pub fn args(&self) -> impl Iterator<Item = String> + '_ {
        self.options.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()])
    }
}

impl TryFrom<HydraLaunchData> for HydraLaunch {
    type Error = HydraLaunchError;

    fn try_from(data: HydraLaunchData) -> Result<Self, Self::Error> {
        HydraLaunch::new(data.port, data.options)
    }
}
