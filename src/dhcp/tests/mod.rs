//! Tests of the engine through packets.

mod clients;
mod conversation;
mod forgery;
mod pool;
mod quirks;
mod replies;
mod other_servers;
mod segments;
mod vms;
