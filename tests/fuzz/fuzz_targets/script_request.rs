//! The query with which iPXE asks for its script.
#![no_main]

#[path = "../../probes/mod.rs"]
mod probes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::script_request(bytes));
