//! Step 6, serve: the servers, in the order in which a node meets them. Protocol engines are pure; sockets are thin.

pub mod bind;
pub mod lan;
pub mod limiter;
mod log;
pub mod central;
pub mod metrics;
pub mod dhcp;
pub mod tftp;
pub mod ndp;
pub mod http;
pub mod agent;
pub mod admin;
