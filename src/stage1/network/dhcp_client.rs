//! DHCP client (RFC 2131) without I/O: from DISCOVER to the first acknowledgement. Pure; the
//! caller supplies time, randomness and packets.

use super::{
    lease::{Lease, prefix_of},
    options::Options,
};
use dhcproto::v4::{
    DhcpOption, Encodable as _, Encoder, Flags, Message, MessageType, Opcode, OptionCode, borrowed,
};
use meshd_types::MacAddr;
use std::{net::Ipv4Addr, time::Duration};

/// First delay until a packet is repeated; it doubles up to [`LONGEST_DELAY`] (RFC 2131, 4.1).
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(16);
/// Number of REQUESTs for one offer before the client discovers again.
const MAX_REQUESTS: u32 = 4;
/// Maximum size of a packet that the client accepts, in bytes.
const MAX_MESSAGE: u16 = 1500;
/// Maximum number of name servers that are kept.
const MAX_DNS: usize = 4;
/// Maximum length of a domain name.
const MAX_DOMAIN: usize = 253;
/// Hardware type of Ethernet in a client identifier.
const ETHERNET: u8 = 1;
/// Smallest MTU that IPv4 permits (RFC 791).
const MIN_MTU: u16 = 576;

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DhcpStep {
    /// Broadcast a packet to port 67, then wait until the time.
    Send(Vec<u8>, Duration),
    /// Wait for a packet until the time.
    Wait(Duration),
    Bound(Lease),
}

/// A client of one NIC.
#[derive(Debug)]
pub struct DhcpClient {
    mac: MacAddr,
    xid: u32,
    began: Duration,
    state: ClientState,
    /// Packets since the state began.
    sent: u32,
    due: Duration,
}

#[derive(Clone, Debug)]
enum ClientState {
    Discovering,
    Requesting { address: Ipv4Addr, server: Ipv4Addr },
    Bound(Lease),
}

impl DhcpClient {
    /// Begins at a time since any origin. `xid` is a random number.
    pub fn new(mac: MacAddr, xid: u32, now: Duration) -> Self {
        DhcpClient { mac, xid, began: now, state: ClientState::Discovering, sent: 0, due: now }
    }

    /// Returns the next step at a time.
    pub fn step(&mut self, now: Duration) -> DhcpStep {
        if let ClientState::Bound(lease) = &self.state {
            return DhcpStep::Bound(lease.clone());
        }
        if now < self.due {
            return DhcpStep::Wait(self.due);
        }
        let is_requesting = matches!(self.state, ClientState::Requesting { .. });
        if is_requesting && self.sent >= MAX_REQUESTS {
            self.enter(ClientState::Discovering, now);
        }
        let factor = 2u32.saturating_pow(self.sent.min(16));
        self.due = now + FIRST_DELAY.saturating_mul(factor).min(LONGEST_DELAY);
        self.sent += 1;
        DhcpStep::Send(self.packet(now), self.due)
    }

    /// Processes a packet from port 67. Total: ignores all that is no answer to this client.
    pub fn receive(&mut self, packet: &[u8], now: Duration) {
        let Ok(header) = borrowed::Message::new(packet) else { return };
        let Some(options) = Options::read(packet) else { return };
        let is_ours = header.opcode() == Opcode::BootReply
            && header.xid() == self.xid
            && usize::from(header.hlen()) == self.mac.0.len()
            && header.chaddr() == self.mac.0;
        let kind = options.number::<1>(OptionCode::MessageType);
        let server = options.addresses(OptionCode::ServerIdentifier).next();
        let (Some(kind), Some(server), true) = (kind, server, is_ours) else { return };
        let kind = MessageType::from(u8::try_from(kind).unwrap_or_default());
        let offered = lease(header.yiaddr(), &options, server);
        match (&self.state, kind) {
            (ClientState::Discovering, MessageType::Offer) => {
                if let Some(lease) = offered {
                    let address = lease.address;
                    self.enter(ClientState::Requesting { address, server }, now);
                }
            }
            (ClientState::Requesting { address, server: asked }, MessageType::Ack) => {
                let granted = offered.filter(|it| it.address == *address && server == *asked);
                if let Some(lease) = granted {
                    self.enter(ClientState::Bound(lease), now);
                }
            }
            (ClientState::Requesting { server: asked, .. }, MessageType::Nak)
                if server == *asked =>
            {
                self.enter(ClientState::Discovering, now);
            }
            _ => {}
        }
    }

    fn enter(&mut self, state: ClientState, now: Duration) {
        // A client that was refused waits, so that two machines do not fill the network.
        let is_restart = matches!(state, ClientState::Discovering);
        self.due = if is_restart { now + FIRST_DELAY } else { now };
        self.state = state;
        self.sent = 0;
    }

    fn packet(&self, now: Duration) -> Vec<u8> {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message = Message::new_with_id(self.xid, none, none, none, none, &self.mac.0);
        // The NIC has no address yet, so the kernel would drop a unicast answer.
        message.set_flags(Flags::default().set_broadcast());
        let seconds = now.saturating_sub(self.began).as_secs();
        message.set_secs(u16::try_from(seconds).unwrap_or(u16::MAX));
        let options = message.opts_mut();
        let identifier = [&[ETHERNET][..], &self.mac.0].concat();
        options.insert(DhcpOption::ClientIdentifier(identifier));
        options.insert(DhcpOption::MaxMessageSize(MAX_MESSAGE));
        options.insert(DhcpOption::ParameterRequestList(vec![
            OptionCode::SubnetMask,
            OptionCode::Router,
            OptionCode::DomainNameServer,
            OptionCode::DomainName,
            OptionCode::InterfaceMtu,
        ]));
        match &self.state {
            ClientState::Requesting { address, server } => {
                options.insert(DhcpOption::MessageType(MessageType::Request));
                options.insert(DhcpOption::RequestedIpAddress(*address));
                options.insert(DhcpOption::ServerIdentifier(*server));
            }
            _ => options.insert(DhcpOption::MessageType(MessageType::Discover)).map_or((), drop),
        }
        let mut bytes = Vec::new();
        message
            .encode(&mut Encoder::new(&mut bytes))
            .expect("a message of constant options is encoded into memory");
        bytes
    }
}

/// Reads a lease. `None` if it has no usable address, netmask or duration.
fn lease(address: Ipv4Addr, options: &Options<'_>, server: Ipv4Addr) -> Option<Lease> {
    if address.is_unspecified() || address.is_broadcast() || address.is_multicast() {
        return None;
    }
    let mask = options.number::<4>(OptionCode::SubnetMask)?;
    let domain = options.bytes(OptionCode::DomainName).and_then(|name| {
        let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
        is_domain(name).then(|| name.to_owned())
    });
    let mtu = options.number::<2>(OptionCode::InterfaceMtu);
    let mtu = mtu.and_then(|mtu| u16::try_from(mtu).ok()).filter(|mtu| *mtu >= MIN_MTU);
    Some(Lease {
        address,
        prefix: prefix_of(Ipv4Addr::from(mask))?,
        server,
        router: options.addresses(OptionCode::Router).next(),
        dns: options.addresses(OptionCode::DomainNameServer).take(MAX_DNS).collect(),
        domain,
        mtu,
        lease_s: options.number::<4>(OptionCode::AddressLeaseTime)?,
    })
}

fn is_domain(name: &str) -> bool {
    let is_permitted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    (1..=MAX_DOMAIN).contains(&name.len()) && name.bytes().all(is_permitted)
}

#[cfg(test)]
#[path = "dhcp_client_tests.rs"]
mod tests;
