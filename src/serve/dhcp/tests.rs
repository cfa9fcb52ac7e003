//! The engine as clients see it: packets in, packets out.

mod clients;
mod conversation;
mod pool;
mod quirks;
mod rivals;
mod segments;
mod vms;
