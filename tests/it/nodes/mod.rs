//! Approved nodes: certificates, the agent and its API, states, generations, hardware.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `agent_api` | the agent and its API over loopback TLS, with a fake central node |
//! | `boot_log` | the log of a boot, and why a boot failed |
//! | `boot_times` | where the time of a boot goes: other NICs, lost packets, orders |
//! | `generations` | what a node boots and runs: variables, orders for one boot, reloads |
//! | `lists` | lists for scripts, verbs of other programs, completion of names |
//! | `machines` | machines that are defined before they boot |
//! | `operations` | orders to nodes as records: restart, cancellation, overlap |
//! | `power` | orders to BMCs, by IPMI and by a program of the site |
//! | `rollouts` | rollouts: canary, return, floor, kills of the daemon |
//! | `hostlists` | hostlists in commands and in the admin API |
//! | `lifecycle` | approval by rules, drain, hold, silence, removal |
//! | `redfish` | orders to BMCs by Redfish, through a proxy that lies |
//! | `trust` | rotation of the certificate authority, and enrolment tokens |
//! | `vfio` | the shipped VFIO overlay, and `mesh-agent` on a machine that has it |

mod agent_api;
mod boot_log;
mod boot_times;
pub mod generations;
mod hostlists;
pub mod lifecycle;
mod lists;
mod machines;
mod operations;
mod power;
mod redfish;
mod rollouts;
mod trust;
mod vfio;
