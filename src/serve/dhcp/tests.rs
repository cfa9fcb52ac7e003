//! The engine as clients see it: packets in, packets out.

mod clients;
mod conversation;
mod pool;
