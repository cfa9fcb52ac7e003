//! Requests and transfers of TFTP clients.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::tftp(bytes));
