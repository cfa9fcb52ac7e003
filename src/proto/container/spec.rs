//! What a replica runs, with its limits. The central node and the agent both check them.

use super::{
    faults::ReplicaFaults,
    mount::{self, ReplicaMount},
};
use crate::vm::{ByteSize, SpecFault};
use meshd_types::Digest;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

/// Maximum number of environment variables.
pub const MAX_ENV: usize = 256;
/// Maximum number of bytes of all environment variables, with their names.
pub const MAX_ENV_BYTES: usize = 32 * 1024;
/// Maximum number of published ports.
pub const MAX_PORTS: usize = 32;
/// Thousandths of a CPU.
const CPU_MILLIS: RangeInclusive<u32> = 10..=1_024_000;
const MEMORY_MIB: RangeInclusive<u32> = 8..=4 * 1024 * 1024;
const SCRATCH_MIB: RangeInclusive<u32> = 1..=4 * 1024 * 1024;
/// Grace period before the node kills the program, in seconds.
const STOP_S: RangeInclusive<u16> = 0..=600;
/// Restarts of [`ContainerRestart::OnFailure`].
const RESTARTS: RangeInclusive<u16> = 1..=1000;
const HEALTH_INTERVAL_S: RangeInclusive<u16> = 1..=3600;
const HEALTH_TIMEOUT_S: RangeInclusive<u16> = 1..=300;
const HEALTH_FAILURES: RangeInclusive<u8> = 1..=100;
const HEALTH_START_S: RangeInclusive<u16> = 0..=3600;

/// What a replica runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaSpec {
    /// Number of this start. The node replaces a replica that runs under a lower number.
    pub run: u32,
    /// Squashfs file of the image.
    pub image: Digest,
    /// Size of the file in bytes.
    pub image_size: u64,
    /// Program and arguments; no shell interprets them.
    pub argv: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    pub working_dir: String,
    pub uid: u32,
    pub gid: u32,
    /// Limit of CPU time, in thousandths of a CPU.
    pub cpu_millis: u32,
    /// Limit of memory, which includes written files.
    pub memory_mib: u32,
    /// Limit of written files. They are in memory, and end with the program.
    pub scratch_mib: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PublishedPort>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<ReplicaMount>,
    pub restart: ContainerRestart,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthCheck>,
    /// Seconds between SIGTERM and SIGKILL.
    pub stop_seconds: u16,
}

/// A TCP port of the node that leads to a port of the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PublishedPort {
    /// Port of the node.
    pub node: u16,
    /// Port in the network of the replica.
    pub container: u16,
}

/// When the node starts a program again. The delay doubles from 1 to 60 seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "when", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ContainerRestart {
    Never,
    /// After an exit code other than 0, and when it is unhealthy.
    OnFailure {
        /// Maximum number of restarts in a row.
        max: u16,
    },
    /// After each end, and when it is unhealthy.
    #[default]
    Always,
}

/// When a replica is healthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HealthCheck {
    #[serde(flatten)]
    pub probe: HealthProbe,
    /// Seconds between two probes.
    pub interval_seconds: u16,
    /// Seconds until a probe fails.
    pub timeout_seconds: u16,
    /// Failed probes in a row that make a replica unhealthy.
    pub failures: u8,
    /// Seconds after the start in which failed probes do not count.
    pub start_seconds: u16,
}

/// A probe of a health check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "probe", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum HealthProbe {
    /// The port of the replica accepts connections.
    Tcp { port: u16 },
    /// `GET` of the path is answered with a status from 200 to 399.
    Http { port: u16, path: String },
    /// The program exits with 0 in the replica.
    Exec { argv: Vec<String> },
}

impl ReplicaSpec {
    /// Returns the memory that the replica may take from its node.
    pub fn memory(&self) -> ByteSize {
        ByteSize::from_mib(u64::from(self.memory_mib))
    }

    /// Returns the files that the replica needs, with their sizes: the image and the volumes.
    pub fn files(&self) -> impl Iterator<Item = (Digest, u64)> {
        let volumes = self.mounts.iter().map(|mount| (mount.volume, mount.size));
        std::iter::once((self.image, self.image_size)).chain(volumes)
    }

    /// Returns all faults that do not depend on the node.
    pub fn faults(&self) -> Vec<SpecFault> {
        let mut faults = ReplicaFaults::default();
        faults.argv("argv", &self.argv);
        self.env_faults(&mut faults);
        faults.path("working_dir", &self.working_dir);
        faults.bound("cpu", self.cpu_millis, &CPU_MILLIS);
        faults.bound("memory", self.memory_mib, &MEMORY_MIB);
        faults.bound("scratch", self.scratch_mib, &SCRATCH_MIB);
        if self.scratch_mib > self.memory_mib {
            let message = format!("{} MiB is more than the memory", self.scratch_mib);
            faults.add("scratch", message, format!("write at most {}", self.memory_mib));
        }
        faults.bound("stop_seconds", self.stop_seconds, &STOP_S);
        if let ContainerRestart::OnFailure { max } = self.restart {
            faults.bound("restart", max, &RESTARTS);
        }
        self.port_faults(&mut faults);
        mount::add_faults(&self.mounts, &mut faults);
        if let Some(health) = &self.health {
            health_faults(health, &mut faults);
        }
        faults.0
    }

    fn env_faults(&self, faults: &mut ReplicaFaults) {
        if self.env.len() > MAX_ENV {
            let message = format!("{} variables", self.env.len());
            faults.add("env", message, format!("at most {MAX_ENV}"));
        }
        let bytes: usize = self.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > MAX_ENV_BYTES {
            let hint = format!("at most {MAX_ENV_BYTES}; put the rest into the image");
            faults.add("env", format!("{bytes} bytes of variables"), hint);
        }
        let is_name = |name: &str| {
            !name.starts_with(|c: char| c.is_ascii_digit())
                && !name.is_empty()
                && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"_.-".contains(&c))
        };
        // Viewers read refusals in the audit log, and a malformed name may be a part of a secret.
        let count = self.env.len();
        if let Some(index) = self.env.keys().position(|name| !is_name(name)) {
            let hint = "use letters, digits, `_`, `.` and `-`, not first a digit; variables are \
                        counted in order of their names, with those of the image";
            faults.add("env", format!("name {} of {count} is not valid", index + 1), hint);
        }
        if let Some(index) = self.env.values().position(|value| value.contains('\0')) {
            let message = format!("value {} of {count} contains a zero byte", index + 1);
            faults.add("env", message, "remove it");
        }
    }

    fn port_faults(&self, faults: &mut ReplicaFaults) {
        if self.ports.len() > MAX_PORTS {
            let message = format!("{} published ports", self.ports.len());
            faults.add("ports", message, format!("at most {MAX_PORTS}"));
        }
        let mut earlier = BTreeSet::new();
        for port in &self.ports {
            faults.port("ports", port.node);
            faults.port("ports", port.container);
            if !earlier.insert(port.node) {
                let message = format!("port {} of the node occurs twice", port.node);
                faults.add("ports", message, "remove one");
            }
        }
    }
}

fn health_faults(health: &HealthCheck, faults: &mut ReplicaFaults) {
    match &health.probe {
        HealthProbe::Tcp { port } => faults.port("health.port", *port),
        HealthProbe::Http { port, path } => {
            faults.port("health.port", *port);
            faults.path("health.path", path);
        }
        HealthProbe::Exec { argv } => faults.argv("health.argv", argv),
    }
    faults.bound("health.interval_seconds", health.interval_seconds, &HEALTH_INTERVAL_S);
    faults.bound("health.timeout_seconds", health.timeout_seconds, &HEALTH_TIMEOUT_S);
    faults.bound("health.failures", health.failures, &HEALTH_FAILURES);
    faults.bound("health.start_seconds", health.start_seconds, &HEALTH_START_S);
}
