//! Integration tests: real sockets on loopback, real TLS, no machine.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod admin;
#[path = "../attack/mod.rs"]
mod attack;
mod boot;
mod house;
#[path = "../kit/mod.rs"]
mod kit;
mod nodes;
mod requirements;
mod site;
mod work;
mod world;
