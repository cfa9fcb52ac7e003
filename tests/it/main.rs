//! Integration tests: real sockets on loopback, real TLS, no machine.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod admin;
mod agent_plane;
#[path = "../attack/mod.rs"]
mod attack;
mod authoring;
mod backup;
mod boots;
mod captures;
mod chain;
mod compat;
mod dhcp;
mod disk;
mod generations;
mod contract;
mod crash;
mod house;
mod build_commit;
mod ndp;
mod parsers;
mod http;
mod identity;
mod init;
mod images;
mod jobs;
mod life;
mod rows;
mod secrets;
mod ssh;
mod storm;
mod trust;
mod vfio;
mod vms;
mod workloads;
mod world;
