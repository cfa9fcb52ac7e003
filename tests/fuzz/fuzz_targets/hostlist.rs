//! A hostlist, as operators and programs send it to the admin API.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::hostlist(bytes));
