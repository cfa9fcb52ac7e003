//! Observes DHCPv6 requests of firmware that tries IPv6 first. meshd does not answer them: the
//! record explains the time that the machine loses.

use meshd_central::Shared;
use meshd_types::MacAddr;
use rustix::net::netdevice::name_to_index;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{net::UdpSocket, time::sleep};
use tokio_util::sync::CancellationToken;

/// All DHCPv6 servers and relays on a link (RFC 8415 section 7.1).
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const SERVER_PORT: u16 = 547;
const SOLICIT: u8 = 1;
/// Client architecture of a network boot (RFC 5970); an operating system does not send it.
const CLIENT_ARCH: u16 = 61;
/// Message type and transaction ID.
const HEADER: usize = 4;
const MAX_PACKET: usize = 2048;
/// Pause after a receive error, which would repeat at once.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Observes an interface until `shutdown`. Logs if it cannot, such as without IPv6.
pub async fn run(interface: String, central: Shared, shutdown: CancellationToken) {
    match open(&interface) {
        Ok(socket) => {
            shutdown.run_until_cancelled(observe(&socket, &central)).await;
        }
        Err(why) => {
            tracing::info!(interface, %why, "DHCPv6 is not observed: boot times do not name machines that try IPv6 first");
            shutdown.cancelled().await;
        }
    }
}

fn open(interface: &str) -> io::Result<UdpSocket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::IPV6, kind, Some(Protocol::UDP))?;
    socket.set_only_v6(true)?;
    // A DHCPv6 server of this host receives multicasts, too.
    socket.set_reuse_address(true)?;
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, SERVER_PORT)).into())?;
    socket.join_multicast_v6(&SERVERS, name_to_index(&socket, interface)?)?;
    UdpSocket::from_std(socket.into())
}

async fn observe(socket: &UdpSocket, central: &Shared) {
    let mut packet = [0; MAX_PACKET];
    loop {
        match socket.recv_from(&mut packet).await {
            Ok((length, from)) => {
                let boots = packet.get(..length).is_some_and(is_boot_solicit);
                if let Some(mac) = sender_mac(from).filter(|_| boots) {
                    central.boot.observe_ipv6_boot(mac);
                }
            }
            Err(_) => sleep(ERROR_PAUSE).await,
        }
    }
}

/// Returns true for a solicitation with the architecture of firmware. Accepts any input.
fn is_boot_solicit(packet: &[u8]) -> bool {
    let mut rest = match packet {
        [SOLICIT, ..] => packet.get(HEADER..).unwrap_or_default(),
        _ => return false,
    };
    while let [code_high, code_low, length_high, length_low, more @ ..] = rest {
        if u16::from_be_bytes([*code_high, *code_low]) == CLIENT_ARCH {
            return true;
        }
        let length = u16::from_be_bytes([*length_high, *length_low]);
        rest = more.get(usize::from(length)..).unwrap_or_default();
    }
    false
}

/// Returns the MAC address in the link-local address of a sender (RFC 4291, appendix A).
fn sender_mac(from: SocketAddr) -> Option<MacAddr> {
    let SocketAddr::V6(from) = from else { return None };
    match from.ip().octets() {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, first, b, c, 0xff, 0xfe, d, e, f] => {
            Some(MacAddr([first ^ 2, b, c, d, e, f]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_solicitation_of_firmware_is_observed() {
        let client_id = [0, 1, 0, 4, 1, 2, 3, 4];
        let arch = [0, 61, 0, 2, 0, 7];
        let solicit = [&[SOLICIT, 1, 2, 3][..], &client_id, &arch].concat();
        assert!(is_boot_solicit(&solicit));
        assert!(!is_boot_solicit(&solicit[..HEADER + client_id.len()]), "an operating system");
        let advertise = [&[2, 1, 2, 3][..], &client_id, &arch].concat();
        assert!(!is_boot_solicit(&advertise));
        assert!(!is_boot_solicit(&[SOLICIT, 1, 2, 3, 0, 1, 0xff, 0xff, 0, 61]), "too long");
    }

    #[test]
    fn mac_address_of_a_sender_is_that_of_its_link_local_address() {
        let mac = |text: &str| sender_mac(SocketAddr::new(text.parse().expect("an IP"), 546));
        assert_eq!(mac("fe80::5054:ff:fe00:7"), Some(MacAddr([0x52, 0x54, 0, 0, 0, 7])));
        for other in ["fe80::1", "2001:db8::5054:ff:fe00:7", "10.77.0.1"] {
            assert_eq!(mac(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_packet_is_accepted(packet in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = is_boot_solicit(&packet);
        }
    }
}
