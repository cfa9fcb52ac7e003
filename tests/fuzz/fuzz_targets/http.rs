//! A request to the boot plane.
#![no_main]

#[path = "../../probes/mod.rs"]
mod probes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::http(bytes));
