//! A conversation of DHCP clients with a site.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::dhcp(bytes));
