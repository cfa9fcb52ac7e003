//! Kernel messages by UDP to the central node: parameters of the module `netconsole`. Pure and
//! total.

use super::lease::Lease;
use meshd_types::MacAddr;
use std::{ffi::CString, net::Ipv4Addr, num::NonZeroU16};

/// Argument of the kernel: UDP port of the central node for kernel messages.
const ARGUMENT: &str = "meshd.netconsole=";
/// Flags of a neighbour that has not answered.
const INCOMPLETE: &str = "0x0";

/// Why the module gets no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetconsoleError {
    #[error("the lease has no router to {0}")]
    NoRoute(Ipv4Addr),
    /// The kernel would broadcast the messages.
    #[error("the Ethernet address of {0} is unknown")]
    UnknownNeighbour(Ipv4Addr),
    #[error("the name of the interface has a NUL")]
    Interface,
}

/// Returns the port for kernel messages, if the kernel's command line has one.
pub fn netconsole_port(command_line: &str) -> Option<NonZeroU16> {
    command_line.split_ascii_whitespace().find_map(|word| word.strip_prefix(ARGUMENT))?.parse().ok()
}

/// Returns the parameters by which the kernel sends its messages in the extended format, beginning
/// with its first one. `neighbours`: `/proc/net/arp`.
pub fn netconsole_parameters(
    interface: &str,
    lease: &Lease,
    server: Ipv4Addr,
    port: NonZeroU16,
    neighbours: &str,
) -> Result<CString, NetconsoleError> {
    let hop = next_hop(lease, server).ok_or(NetconsoleError::NoRoute(server))?;
    let peer = neighbour(neighbours, hop).ok_or(NetconsoleError::UnknownNeighbour(hop))?;
    let text = format!("netconsole=+@/{interface},{port}@{server}/{peer}");
    CString::new(text).map_err(|_| NetconsoleError::Interface)
}

fn next_hop(lease: &Lease, server: Ipv4Addr) -> Option<Ipv4Addr> {
    let host_bits = u32::BITS.saturating_sub(lease.prefix.into());
    let network = |address: Ipv4Addr| u32::from(address).checked_shr(host_bits);
    if network(server) == network(lease.address) { Some(server) } else { lease.router }
}

/// Returns the Ethernet address of a neighbour that has answered (proc_pid_net(5)).
fn neighbour(table: &str, address: Ipv4Addr) -> Option<MacAddr> {
    table.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let is_it = words.next()?.parse() == Ok(address);
        let flags = words.nth(1)?;
        let mac = words.next()?.parse().ok()?;
        (is_it && flags != INCOMPLETE).then_some(mac)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEIGHBOURS: &str =
        "IP address       HW type     Flags       HW address            Mask     Device
10.77.0.1        0x1         0x2         52:54:00:00:00:aa     *        eth3
10.88.0.1        0x1         0x2         52:54:00:00:00:bb     *        eth3
10.88.0.2        0x1         0x0         00:00:00:00:00:00     *        eth3
";

    fn lease(address: &str, prefix: u8, router: Option<&str>) -> Lease {
        let parse = |text: &str| text.parse().expect("an address");
        Lease {
            address: parse(address),
            prefix,
            server: parse("10.77.0.1"),
            router: router.map(parse),
            dns: Vec::new(),
            domain: None,
            mtu: None,
            lease_s: 60,
        }
    }

    fn parameters(lease: &Lease) -> Result<String, NetconsoleError> {
        let server = Ipv4Addr::new(10, 77, 0, 1);
        let port = netconsole_port("quiet meshd.netconsole=6666 panic=10\n").expect("a port");
        let made = netconsole_parameters("eth3", lease, server, port, NEIGHBOURS);
        made.map(|parameters| parameters.into_string().expect("text"))
    }

    #[test]
    fn messages_go_to_the_ethernet_address_of_the_next_hop() {
        let sent = "netconsole=+@/eth3,6666@10.77.0.1/52:54:00:00:00:";
        assert_eq!(parameters(&lease("10.77.0.9", 24, None)), Ok(format!("{sent}aa")));
        let routed = lease("10.88.0.9", 24, Some("10.88.0.1"));
        assert_eq!(parameters(&routed), Ok(format!("{sent}bb")));
        let silent = lease("10.88.0.9", 24, Some("10.88.0.2"));
        let hop = Ipv4Addr::new(10, 88, 0, 2);
        assert_eq!(parameters(&silent), Err(NetconsoleError::UnknownNeighbour(hop)));
        let alone = lease("10.88.0.9", 32, None);
        let server = Ipv4Addr::new(10, 77, 0, 1);
        assert_eq!(parameters(&alone), Err(NetconsoleError::NoRoute(server)));
    }

    #[test]
    fn command_line_without_a_valid_port_starts_nothing() {
        for line in ["", "meshd.netconsole=", "meshd.netconsole=0", "meshd.netconsole=70000"] {
            assert_eq!(netconsole_port(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn neighbours_of_any_text_never_panic(table in "[0-9a-fx.: \n]{0,200}", prefix in 0u8..=255) {
            let lease = lease("10.88.0.9", prefix, Some("10.88.0.1"));
            let port = NonZeroU16::MIN;
            let _ = netconsole_parameters("eth0", &lease, Ipv4Addr::LOCALHOST, port, &table);
        }
    }
}
