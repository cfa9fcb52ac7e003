//! Servers, in the order of the boot chain. Protocol engines perform no I/O; sockets are thin.
//!
//! | module | content |
//! | --- | --- |
//! | `bind` | opens the ports; binds handles again with their interface |
//! | `self_test` | uses the boot services as a machine would |
//! | `lan` | layer 2 of the boot LAN: neighbours and packet sockets |
//! | `connections` | connections of the APIs: accept loop, limits, close |
//! | `log` | a log with a rate limit for each cause |
//! | `metrics` | metrics for Prometheus |
//! | `dhcp` | DHCP |
//! | `tftp` | TFTP |
//! | `ipv6` | what firmware needs that tries IPv6 first |
//! | `netconsole` | kernel messages that nodes send by UDP |
//! | `http` | the boot API |
//! | `agent` | the agent API |
//! | `admin` | the admin API |

pub mod bind;
pub mod self_test;
pub mod lan;
pub mod connections;
mod log;
pub mod metrics;
pub mod dhcp;
pub mod tftp;
pub mod ipv6;
pub mod netconsole;
pub mod http;
pub mod agent;
pub mod admin;
