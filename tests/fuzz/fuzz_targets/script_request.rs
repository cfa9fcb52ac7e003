//! The query with which iPXE asks for its script.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::script_request(bytes));
