//! Answers, as bytes.

use super::{
    bootfile::BootFile,
    request::{Request, Vendor},
};
use dhcproto::v4::{
    DhcpOption, DhcpOptions, Encodable, Encoder, Flags, Message, MessageType, Opcode, OptionCode, UnknownOption,
};
use meshd_config::Pool;
use meshd_model::fleet::DhcpExchange;
use meshd_types::ClientArch;
use std::{net::Ipv4Addr, time::Duration};

/// BOOTP clients and some relays drop what is shorter (RFC 1542, 2.1).
const MIN_REPLY: usize = 300;
/// The header's fields, whose last byte stays NUL.
const MAX_FILE: usize = 127;
/// Option 43 of a proxy's offer: PXE_DISCOVERY_CONTROL (6) = 8, "take the boot file, ask nobody else".
const PXE_TAKE_THE_FILE: [u8; 4] = [6, 1, 8, 255];
/// iPXE's own encapsulated options, and among them `no-pxedhcp` (176) = 1: "there is no proxy, do not wait for it".
const IPXE_OPTIONS: u8 = 175;
const IPXE_NO_PROXY_DHCP: [u8; 3] = [176, 1, 1];

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
    /// Where this client finds the boot services.
    pub address: Ipv4Addr,
    /// What it shall send in option 54: that address, or what its relay wants (RFC 5107).
    pub identifier: Ipv4Addr,
    /// What goes with an address.
    pub pool: Option<&'a Pool>,
    /// What the client is called, where that is known.
    pub host: Option<&'a str>,
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
        options.insert(DhcpOption::ServerIdentifier(self.identifier));
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
                if request.exchange == DhcpExchange::Ipxe {
                    // Quirk::WaitsForProxy
                    message.opts_mut().insert(DhcpOption::Unknown(UnknownOption::new(
                        OptionCode::Unknown(IPXE_OPTIONS),
                        IPXE_NO_PROXY_DHCP.to_vec(),
                    )));
                }
                if let Some(pool) = self.pool {
                    lease_times(message.opts_mut(), pool.lease);
                    self.network(message.opts_mut(), pool);
                }
            }
            Answer::InformAck => {
                message.set_ciaddr(request.ciaddr);
                if let Some(pool) = self.pool {
                    self.network(message.opts_mut(), pool);
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
                // Quirk::ProxyNeedsClass
                if request.vendor != Some(Vendor::Http) {
                    class(message.opts_mut(), b"PXEClient");
                }
                // Quirk::LooksForBootServers, and Quirk::StumblesOverMenu
                if request.exchange == DhcpExchange::Firmware && request.boot_arch() == ClientArch::BIOS {
                    message.opts_mut().insert(DhcpOption::VendorExtensions(PXE_TAKE_THE_FILE.to_vec()));
                }
            }
        }
    }

    fn network(&self, options: &mut DhcpOptions, pool: &Pool) {
        options.insert(DhcpOption::SubnetMask(Ipv4Addr::from(pool.mask())));
        options.insert(DhcpOption::BroadcastAddr(pool.broadcast()));
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
        if let Some(host) = self.host {
            // No underline in a host name (RFC 1123, 2.1).
            options.insert(DhcpOption::Hostname(host.replace('_', "-")));
        }
    }

    /// Boot file and server, in the header and as options: old firmware reads the one, new the other.
    fn boot(&self, message: &mut Message, request: &Request, boot: &BootFile) {
        let name = match boot {
            BootFile::None | BootFile::Missing(_) => return,
            BootFile::Tftp(name) => name.as_bytes(),
            BootFile::Http(name) | BootFile::Script(name) => name.as_bytes(),
        };
        let server = self.address.to_string();
        message.set_siaddr(self.address).set_sname_str(&server);
        if name.len() <= MAX_FILE {
            message.set_fname(name);
        }
        let options = message.opts_mut();
        options.insert(DhcpOption::TFTPServerName(server.into_bytes()));
        options.insert(DhcpOption::BootfileName(name.to_vec()));
        // Quirk::UrlNeedsClass
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

fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MIN_REPLY * 2);
    message.encode(&mut Encoder::new(&mut bytes)).expect("header fields fit, and long options are split");
    if bytes.len() < MIN_REPLY {
        bytes.resize(MIN_REPLY, 0);
    }
    bytes
}
