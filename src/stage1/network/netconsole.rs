//! Kernel messages by UDP to the central node: parameters of the module `netconsole`. Pure and
//! total.

use meshd_types::MacAddr;
use std::{ffi::CString, net::Ipv4Addr, num::NonZeroU16};

/// Flags of a neighbour that has not answered.
const INCOMPLETE: &str = "0x0";

/// Why the module gets no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetconsoleError {
    #[error("the NIC has no route to {0}")]
    NoRoute(Ipv4Addr),
    /// The kernel would broadcast the messages.
    #[error("the Ethernet address of {0} is unknown")]
    UnknownNeighbour(Ipv4Addr),
    #[error("the name of the interface has a NUL")]
    Interface,
}

/// Returns the parameters by which the kernel sends its messages in the extended format, beginning
/// with its first one. `routes`: `/proc/net/route`, `neighbours`: `/proc/net/arp`.
pub fn netconsole_parameters(
    interface: &str,
    server: Ipv4Addr,
    port: NonZeroU16,
    routes: &str,
    neighbours: &str,
) -> Result<CString, NetconsoleError> {
    let hop = next_hop(routes, interface, server).ok_or(NetconsoleError::NoRoute(server))?;
    let peer = neighbour(neighbours, hop).ok_or(NetconsoleError::UnknownNeighbour(hop))?;
    let text = format!("netconsole=+@/{interface},{port}@{server}/{peer}");
    CString::new(text).map_err(|_| NetconsoleError::Interface)
}

/// Returns the router of the most specific route of an interface, or the address itself if that is
/// on the network. The table has addresses as hexadecimal words in the order of the machine.
fn next_hop(routes: &str, interface: &str, address: Ipv4Addr) -> Option<Ipv4Addr> {
    let word = |text: &str| u32::from_str_radix(text, 16).ok();
    let wanted = u32::from_ne_bytes(address.octets());
    let route = |line: &str| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, network, router, _, _, _, _, mask, ..] = columns[..] else { return None };
        let mask = word(mask)?;
        let is_used = name == interface && wanted & mask == word(network)?;
        let prefix = u32::from_be_bytes(mask.to_ne_bytes());
        is_used.then_some((prefix, word(router)?))
    };
    let (_, router) = routes.lines().filter_map(route).max_by_key(|(prefix, _)| *prefix)?;
    Some(if router == 0 { address } else { Ipv4Addr::from(router.to_ne_bytes()) })
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

    /// A route of `/proc/net/route`: network, router and mask.
    fn route(network: [u8; 4], router: [u8; 4], mask: [u8; 4]) -> String {
        let [network, router, mask] =
            [network, router, mask].map(|it| format!("{:08X}", u32::from_ne_bytes(it)));
        format!("eth3\t{network}\t{router}\t0003\t0\t0\t0\t{mask}\t0\t0\t0\n")
    }

    fn parameters(routes: &[String]) -> Result<String, NetconsoleError> {
        let head =
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let routes = format!("{head}{}", routes.concat());
        let server = Ipv4Addr::new(10, 77, 0, 1);
        let port = NonZeroU16::new(6666).expect("a port");
        let made = netconsole_parameters("eth3", server, port, &routes, NEIGHBOURS);
        made.map(|parameters| parameters.into_string().expect("text"))
    }

    #[test]
    fn messages_go_to_the_ethernet_address_of_the_next_hop() {
        let sent = "netconsole=+@/eth3,6666@10.77.0.1/52:54:00:00:00:";
        let none = [0; 4];
        let net = [255, 255, 255, 0];
        let direct = route([10, 77, 0, 0], none, net);
        let default = route(none, [10, 88, 0, 1], none);
        assert_eq!(parameters(&[default.clone(), direct.clone()]), Ok(format!("{sent}aa")));
        assert_eq!(parameters(&[direct, default.clone()]), Ok(format!("{sent}aa")));
        let routed = [route([10, 88, 0, 0], none, net), default];
        assert_eq!(parameters(&routed), Ok(format!("{sent}bb")));
        let hop = Ipv4Addr::new(10, 88, 0, 2);
        let silent = route(none, hop.octets(), none);
        assert_eq!(parameters(&[silent]), Err(NetconsoleError::UnknownNeighbour(hop)));
        let server = Ipv4Addr::new(10, 77, 0, 1);
        assert_eq!(parameters(&[]), Err(NetconsoleError::NoRoute(server)));
        let other = route(none, none, none).replace("eth3", "eth0");
        assert_eq!(parameters(&[other]), Err(NetconsoleError::NoRoute(server)));
    }

    proptest! {
        #[test]
        fn tables_of_any_text_never_panic(
            routes in "[eth30-9A-F\t\n]{0,200}",
            neighbours in "[0-9a-fx.: \n]{0,200}",
        ) {
            let port = NonZeroU16::MIN;
            let _ = netconsole_parameters("eth0", Ipv4Addr::LOCALHOST, port, &routes, &neighbours);
        }
    }
}
