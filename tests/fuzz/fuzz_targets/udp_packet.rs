//! An IPv4 packet of the boot LAN.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| probes::udp_packet(bytes));
