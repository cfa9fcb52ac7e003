//! Integration tests: real sockets on loopback, real TLS, no machine.
#![cfg(feature = "server")]

mod agent_plane;
mod chain;
mod house;
mod stranger;
mod world;
