//! Packets, one transfer against a model of a client and its network, the table, and the service
//! with real clients.

mod clients;
mod datagrams;
mod model;
mod packets;
mod service;
mod table;
