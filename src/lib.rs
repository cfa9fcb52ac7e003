//! meshd: one central node boots a rack of diskless machines. Read this list downwards: it is the boot chain.
//!
//! A module uses only what stands above it; `tests/house.rs` holds that rule. The agent, which travels in every overlay,
//! knows nothing but the vocabulary and the wire.

// 0  the words, and what agent and central node say to each other; and failpoints for tests
pub mod fail;
pub mod id;
pub mod wire;
// 1  site.toml as written -> Site as valid
#[cfg(feature = "server")]
pub mod config;
// 2  nodes and what they are; who may have what
#[cfg(feature = "server")]
pub mod fleet;
#[cfg(feature = "server")]
pub mod trust;
#[cfg(feature = "server")]
pub mod work;
// 3  images and overlays as read; durable state
#[cfg(feature = "server")]
pub mod catalog;
#[cfg(feature = "server")]
pub mod store;
// 4  what shall this machine boot?
#[cfg(feature = "server")]
pub mod boot;
// 5  what it boots is made here
#[cfg(feature = "server")]
pub mod overlay;
#[cfg(feature = "server")]
pub mod image;
#[cfg(feature = "server")]
pub mod backup;
// 6  the servers, in the order in which a node meets them
#[cfg(feature = "server")]
pub mod serve;
// 7  bind, spawn, drain
#[cfg(feature = "server")]
pub mod daemon;
// N  the node's side
pub mod agent;
// 8  a rack in a box, and the words an operator types
#[cfg(feature = "server")]
pub mod lab;
#[cfg(feature = "server")]
pub mod cli;
