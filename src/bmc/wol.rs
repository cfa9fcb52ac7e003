//! Wake-on-LAN: a packet that wakes a machine by the MAC address of its NIC. It has no answer.

use crate::Bmc;
use meshd_model::operations::{BmcFailure, BmcResult};
use meshd_types::MacAddr;
use std::net::Ipv4Addr;
use tokio::net::UdpSocket;

/// Port for packets that no program receives (RFC 863).
const DISCARD: u16 = 9;

/// A network in which machines are woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BroadcastDomain {
    /// Interface of the network; `None` for a network behind a router.
    pub interface: Option<String>,
    pub broadcast: Ipv4Addr,
}

/// Sends the packet into each network.
pub(crate) async fn send(bmc: &Bmc) -> BmcResult {
    let packet = magic_packet(bmc.machine.mac);
    let mut failure = "no network to send to".to_owned();
    let mut sent = 0;
    for domain in &bmc.broadcast_domains {
        match send_into(domain, &packet).await {
            Ok(()) => sent += 1,
            Err(error) => failure = error.to_string(),
        }
    }
    if sent > 0 { Ok(None) } else { Err(BmcFailure::Failed(format!("Wake-on-LAN: {failure}"))) }
}

async fn send_into(domain: &BroadcastDomain, packet: &[u8]) -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.set_broadcast(true)?;
    socket.bind_device(domain.interface.as_deref().map(str::as_bytes))?;
    socket.send_to(packet, (domain.broadcast, DISCARD)).await.map(drop)
}

/// Six bytes of ones, then the address 16 times.
fn magic_packet(mac: MacAddr) -> Vec<u8> {
    [[0xff; 6].as_slice(), &mac.0.repeat(16)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_packet_has_the_address_16_times() {
        let packet = magic_packet(MacAddr([2, 0, 0, 0, 0, 7]));
        assert_eq!((packet.len(), &packet[..6]), (102, [0xff; 6].as_slice()));
        assert!(packet[6..].chunks(6).all(|part| part == [2, 0, 0, 0, 0, 7]));
    }
}
