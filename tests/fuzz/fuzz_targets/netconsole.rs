//! A packet of Linux's netconsole.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::netconsole(bytes));
