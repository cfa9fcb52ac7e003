//! Finds all machines that claim an IPv4 address, with ARP (RFC 826). The kernel's neighbour table
//! contains only one of these machines.

use super::{ethernet_link, register_with_tokio};
use meshd_types::MacAddr;
use nix::sys::socket::{LinkAddr, MsgFlags, bind, recvfrom, sendto};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::{
    collections::BTreeSet,
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, timeout_at},
};

/// EtherType of ARP.
const ETH_P_ARP: u16 = 0x0806;
/// Ethernet, IPv4, and the lengths of their addresses.
const HEADER: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];
/// Length of an ARP packet for IPv4 on Ethernet, in bytes.
const LENGTH: usize = 28;
/// Position of the operation (request or reply) in a frame.
const OPERATION: u32 = 20;
// Instructions of classic BPF (linux/bpf_common.h).
const LOAD_HALF: u16 = 0x28;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Number of requests per probe. A machine on the LAN answers each within milliseconds.
const REQUESTS: u32 = 2;
const WAIT: Duration = Duration::from_millis(400);
/// Maximum number of answers per probe.
const MAX_ANSWERS: usize = 64;

/// Sends ARP requests on one interface and receives replies, without waiting.
pub struct ArpProber {
    socket: OwnedFd,
    link: LinkAddr,
    mac: MacAddr,
    own: Ipv4Addr,
}

impl ArpProber {
    /// Opens the socket on an Ethernet interface. Requests are sent from `own`. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn open(interface: &str, own: Ipv4Addr) -> io::Result<Self> {
        let (link, mac) = ethernet_link(interface)?;
        let protocol = Protocol::from(i32::from(ETH_P_ARP.to_be()));
        let socket =
            Socket::new(Domain::PACKET, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
        socket.attach_filter(&[
            SockFilter::new(LOAD_HALF, 0, 0, OPERATION),
            SockFilter::new(JUMP_EQUAL, 1, 0, u32::from(REPLY[1])),
            SockFilter::new(RETURN, 0, 0, 0),
            SockFilter::new(RETURN, 0, 0, u32::MAX),
        ])?;
        bind(socket.as_raw_fd(), &link)?;
        Ok(ArpProber { socket: socket.into(), link, mac, own })
    }

    /// Asks the network for the machines that use an address.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn request_owner(&self, address: Ipv4Addr) -> io::Result<()> {
        let request = request(self.mac, self.own, address);
        sendto(self.socket.as_raw_fd(), &request, &self.link, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// Returns the next answer: an address and the machine that claims it.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, and errors of the kernel.
    pub fn try_receive(&self) -> io::Result<Option<(Ipv4Addr, MacAddr)>> {
        let mut buffer = [0; 128];
        let (length, _) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut buffer)?;
        Ok(buffer.get(..length).and_then(claim))
    }
}

/// Returns the Ethernet addresses of all machines on this interface that answer for `address`. The
/// requests are sent from `own`.
///
/// # Errors
/// Errors of the kernel. Needs CAP_NET_RAW and an Ethernet interface.
pub(super) async fn probe(
    interface: &str,
    own: Ipv4Addr,
    address: Ipv4Addr,
) -> io::Result<BTreeSet<MacAddr>> {
    let (link, mac) = ethernet_link(interface)?;
    let protocol = Protocol::from(i32::from(ETH_P_ARP.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
    bind(socket.as_raw_fd(), &link)?;
    let socket = register_with_tokio(socket)?;
    let mut answers = BTreeSet::new();
    for _ in 0..REQUESTS {
        sendto(socket.as_raw_fd(), &request(mac, own, address), &link, MsgFlags::MSG_DONTWAIT)?;
        let end = Instant::now() + WAIT;
        while let Ok(answer) = timeout_at(end, receive_answer(&socket, address)).await {
            answers.extend(answer?);
            if answers.len() >= MAX_ANSWERS {
                return Ok(answers);
            }
        }
    }
    Ok(answers)
}

/// Receives one frame and parses it as an answer.
async fn receive_answer(
    socket: &AsyncFd<Socket>,
    address: Ipv4Addr,
) -> io::Result<Option<MacAddr>> {
    let mut buffer = [0; 128];
    let length = socket
        .async_io(Interest::READABLE, |socket| {
            recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer)
                .map(|(length, _)| length)
                .map_err(io::Error::from)
        })
        .await?;
    Ok(buffer.get(..length).and_then(|frame| answer(frame, address)))
}

/// Returns a broadcast request for `address`.
fn request(mac: MacAddr, own: Ipv4Addr, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac.0);
    frame.extend(ETH_P_ARP.to_be_bytes());
    frame.extend(HEADER);
    frame.extend(REQUEST);
    frame.extend(mac.0);
    frame.extend(own.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

/// Returns the Ethernet address that a frame announces for `address`.
fn answer(frame: &[u8], address: Ipv4Addr) -> Option<MacAddr> {
    claim(frame).filter(|(claimed, _)| *claimed == address).map(|(_, sender)| sender)
}

/// Returns the address that a frame announces, with its Ethernet address. The sender address of the
/// frame must equal the sender in its ARP packet. They differ only in forged frames.
fn claim(frame: &[u8]) -> Option<(Ipv4Addr, MacAddr)> {
    let (ethernet, arp) = frame.split_at_checked(14)?;
    let arp = arp.first_chunk::<LENGTH>()?;
    let is_reply = arp.starts_with(&HEADER) && arp.get(6..8) == Some(&REPLY);
    let sender = <[u8; 6]>::try_from(arp.get(8..14)?).ok()?;
    let is_sender = ethernet.get(6..12) == Some(&sender);
    let address = <[u8; 4]>::try_from(arp.get(14..18)?).ok()?;
    (is_reply && is_sender).then_some((address.into(), MacAddr(sender)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);

    #[test]
    fn arp_reply_counts_only_from_its_ethernet_sender() {
        let mut frame = request(MAC, ADDRESS, Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(answer(&frame, ADDRESS), None, "a request is no answer");
        frame[21] = 2;
        assert_eq!(answer(&frame, ADDRESS), Some(MAC));
        assert_eq!(answer(&frame, Ipv4Addr::new(10, 77, 0, 101)), None, "another address");
        frame[11] ^= 1;
        assert_eq!(answer(&frame, ADDRESS), None, "sent by another machine than it claims");
        assert!((0..42).all(|length| answer(&frame[..length], ADDRESS).is_none()));
    }
}
