//! The engine as clients see it: packets in, packets out.

mod clients;
mod conversation;
mod forgery;
mod pool;
mod quirks;
mod other_servers;
mod segments;
mod vms;
