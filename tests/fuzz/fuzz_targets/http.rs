//! A request to the boot API.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::http(bytes));
