//! Requests and transfers of TFTP clients.
#![no_main]

#[path = "../../probes/mod.rs"]
mod probes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::tftp(bytes));
