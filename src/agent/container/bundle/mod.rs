//! The bundle of a replica for the container runtime: `config.json` of the OCI runtime
//! specification 1.0. Pure.
//!
//! | module | content |
//! | --- | --- |
//! | `oci_config` | process, mounts, namespaces |
//! | `seccomp` | system calls that no replica may use |

mod oci_config;
mod seccomp;

pub(super) use oci_config::{config, mount_points, process};

#[cfg(test)]
mod tests;
