//! A file, packet or response that the first program of a node reads.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::stage1(bytes));
