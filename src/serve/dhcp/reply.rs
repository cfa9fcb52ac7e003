//! Answers, as bytes.

use super::{
    bootfile::BootFile,
    request::{Request, Vendor},
};
use crate::config::Pool;
use crate::fleet::Exchange;
use dhcproto::v4::{
    DhcpOption, DhcpOptions, Encodable, Encoder, Flags, Message, MessageType, Opcode, OptionCode, UnknownOption,
};
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

/// BOOTP clients and some relays drop what is shorter (RFC 1542, 2.1).
const MIN_REPLY: usize = 300;
/// The header's fields, whose last byte stays NUL.
const MAX_FILE: usize = 127;
/// Option 43 of a proxy's offer: PXE_DISCOVERY_CONTROL (6) = 8, "take the boot file, ask nobody else".
const PXE_TAKE_THE_FILE: [u8; 4] = [6, 1, 8, 255];
/// iPXE's own encapsulated options, and among them `no-pxedhcp` (176) = 1: "there is no proxy, do not wait for it".
const IPXE_OPTIONS: u8 = 175;
const IPXE_NO_PROXY_DHCP: [u8; 3] = [176, 1, 1];
/// Ports of RFC 2131.
pub const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;

/// What kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// You may have this address.
    Offer(Ipv4Addr),
    /// You have this address.
    Ack(Ipv4Addr),
    /// Your address is yours; here is the rest.
    InformAck,
    /// No.
    Nak(&'static str),
    /// Another server gives the address; here is the boot file.
    ProxyOffer,
    /// The same, to one that asked on port 4011.
    ProxyAck,
}

/// Who answers.
pub struct Answerer<'a> {
    /// Our address on this segment.
    pub address: Ipv4Addr,
    /// What goes with an address.
    pub pool: Option<&'a Pool>,
}

impl Answerer<'_> {
    /// Builds the packet.
    pub fn build(&self, request: &Request, answer: Answer, boot: &BootFile) -> Vec<u8> {
        let mut message = Message::new_with_id(
            request.xid,
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::UNSPECIFIED,
            request.giaddr,
            &request.mac.0,
        );
        message.set_opcode(Opcode::BootReply).set_flags(Flags::new(request.flags));
        let options = message.opts_mut();
        options.insert(DhcpOption::ServerIdentifier(self.address));
        for option in &request.echoed {
            options.insert(DhcpOption::Unknown(option.clone()));
        }
        self.fill(&mut message, request, answer);
        if !matches!(answer, Answer::Nak(_)) {
            self.boot(&mut message, request, boot);
        }
        encode(&message)
    }

    fn fill(&self, message: &mut Message, request: &Request, answer: Answer) {
        let kind = match answer {
            Answer::Offer(_) | Answer::ProxyOffer => MessageType::Offer,
            Answer::Ack(_) | Answer::InformAck | Answer::ProxyAck => MessageType::Ack,
            Answer::Nak(_) => MessageType::Nak,
        };
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        match answer {
            Answer::Offer(address) | Answer::Ack(address) => {
                message.set_yiaddr(address);
                if matches!(answer, Answer::Ack(_)) {
                    message.set_ciaddr(request.ciaddr);
                }
                if request.exchange == Exchange::Ipxe {
                    // Else iPXE asks again and waits 3 to 5 seconds for the offer of a proxy (seen with its build of 2019).
                    message.opts_mut().insert(DhcpOption::Unknown(UnknownOption::new(
                        OptionCode::Unknown(IPXE_OPTIONS),
                        IPXE_NO_PROXY_DHCP.to_vec(),
                    )));
                }
                if let Some(pool) = self.pool {
                    lease_times(message.opts_mut(), pool.lease);
                    network(message.opts_mut(), pool);
                }
            }
            Answer::InformAck => {
                message.set_ciaddr(request.ciaddr);
                if let Some(pool) = self.pool {
                    network(message.opts_mut(), pool);
                }
            }
            Answer::Nak(reason) => {
                message.opts_mut().insert(DhcpOption::Message(reason.to_owned()));
                // The client has no address; a relay must broadcast this to it (RFC 2131, 4.3.2).
                let flags = message.flags();
                message.set_flags(flags.set_broadcast());
            }
            Answer::ProxyOffer | Answer::ProxyAck => {
                message.set_ciaddr(request.ciaddr);
                // Without option 60 firmware does not take an answer without an address for one.
                if request.vendor != Some(Vendor::Http) {
                    class(message.opts_mut(), b"PXEClient");
                    message.opts_mut().insert(DhcpOption::VendorExtensions(PXE_TAKE_THE_FILE.to_vec()));
                }
            }
        }
    }

    /// Boot file and server, in the header and as options: old firmware reads the one, new the other.
    fn boot(&self, message: &mut Message, request: &Request, boot: &BootFile) {
        let name = match boot {
            BootFile::None | BootFile::Missing(_) => return,
            BootFile::Tftp(name) | BootFile::Http(name) | BootFile::Script(name) => name.as_bytes(),
        };
        let server = self.address.to_string();
        message.set_siaddr(self.address).set_sname_str(&server);
        if name.len() <= MAX_FILE {
            message.set_fname(name);
        }
        let options = message.opts_mut();
        options.insert(DhcpOption::TFTPServerName(server.into_bytes()));
        options.insert(DhcpOption::BootfileName(name.to_vec()));
        if matches!(boot, BootFile::Http(_)) && request.vendor == Some(Vendor::Http) {
            class(options, b"HTTPClient");
        }
    }
}

fn class(options: &mut DhcpOptions, name: &[u8]) {
    options.insert(DhcpOption::ClassIdentifier(name.to_vec()));
}

/// Options 51, 58 and 59: renew at half, rebind at seven eighths (RFC 2131, 4.4.5).
fn lease_times(options: &mut DhcpOptions, lease: Duration) {
    let seconds = u32::try_from(lease.as_secs()).unwrap_or(u32::MAX);
    options.insert(DhcpOption::AddressLeaseTime(seconds));
    options.insert(DhcpOption::Renewal(seconds / 2));
    options.insert(DhcpOption::Rebinding(seconds - seconds / 8));
}

fn network(options: &mut DhcpOptions, pool: &Pool) {
    let mask = netmask(pool.prefix_len);
    options.insert(DhcpOption::SubnetMask(Ipv4Addr::from(mask)));
    options.insert(DhcpOption::BroadcastAddr(Ipv4Addr::from(u32::from(pool.first) | !mask)));
    if let Some(router) = pool.router {
        options.insert(DhcpOption::Router(vec![router]));
    }
    if !pool.dns.is_empty() {
        options.insert(DhcpOption::DomainNameServer(pool.dns.clone()));
    }
    if let Some(domain) = &pool.domain {
        options.insert(DhcpOption::DomainName(domain.clone()));
    }
    if !pool.ntp.is_empty() {
        options.insert(DhcpOption::NtpServers(pool.ntp.clone()));
    }
}

/// The mask of a prefix, as a number.
pub fn netmask(prefix_len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix_len.min(32))).unwrap_or(0)
}

fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MIN_REPLY * 2);
    message.encode(&mut Encoder::new(&mut bytes)).expect("header fields fit, and long options are split");
    if bytes.len() < MIN_REPLY {
        bytes.resize(MIN_REPLY, 0);
    }
    bytes
}

/// Where an answer goes (RFC 2131, 4.1). A client without an address gets a broadcast whatever its flag says: a unicast would
/// need its neighbour entry made by hand.
pub fn destination(request: &Request, answer: Answer, source: SocketAddrV4) -> SocketAddrV4 {
    if answer == Answer::ProxyAck {
        return source;
    }
    if request.is_relayed() {
        return SocketAddrV4::new(request.giaddr, SERVER_PORT);
    }
    if request.ciaddr.is_unspecified() || matches!(answer, Answer::Nak(_)) {
        return SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT);
    }
    SocketAddrV4::new(request.ciaddr, CLIENT_PORT)
}
