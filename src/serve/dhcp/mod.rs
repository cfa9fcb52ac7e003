//! DHCP: a machine asks for an address and is told what to boot.
