//! Builds replies.

use super::{client_class::VendorClass, request::ClientMessage};
use crate::{boot_file::BootFile, config::Subnet, effect::ClientKind};
use dhcproto::v4::{
    DhcpOption, DhcpOptions, Encodable, Encoder, Flags, Message, MessageType, Opcode, OptionCode, UnknownOption,
};
use meshd_types::ClientArch;
use std::{net::Ipv4Addr, time::Duration};

/// Shortest reply in bytes: BOOTP clients and some relays drop shorter packets (RFC 1542, 2.1; `Quirk::NoShortReply`).
const MIN_REPLY: usize = 300;
/// Longest file name in the header, in bytes; the last byte of the field is NUL. `Quirk::HeaderOnly` clients read only the header.
const MAX_FILE: usize = 127;
/// Option 43 of a proxy's offer: PXE_DISCOVERY_CONTROL (6) = 8, "take the boot file, ask nobody else".
const PXE_DISCOVERY_CONTROL_USE_BOOT_FILE: [u8; 4] = [6, 1, 8, 255];
/// iPXE's own encapsulated options, and among them `no-pxedhcp` (176) = 1: "there is no proxy, do not wait for it".
const IPXE_OPTIONS: u8 = 175;
const IPXE_NO_PROXY_DHCP: [u8; 3] = [176, 1, 1];

/// The content of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyContent {
    /// DHCPOFFER of this address.
    Offer(Ipv4Addr),
    /// DHCPACK for this address.
    Ack(Ipv4Addr),
    /// DHCPACK to a DHCPINFORM: options without an address.
    InformAck,
    /// DHCPNAK with its reason.
    Nak(&'static str),
    /// DHCPOFFER of a proxy: a boot file without an address.
    ProxyOffer,
    /// DHCPACK of a proxy on port 4011.
    ProxyAck,
}

/// Builds the replies to one client.
pub struct ReplyBuilder<'a> {
    /// The address of the boot services.
    pub address: Ipv4Addr,
    /// Option 54: that address, or the one that the relay requests (RFC 5107).
    pub identifier: Ipv4Addr,
    /// The options of a lease.
    pub subnet: Option<&'a Subnet>,
    /// The host name of the client.
    pub host: Option<&'a str>,
}

impl ReplyBuilder<'_> {
    /// Builds the packet.
    pub fn build(&self, request: &ClientMessage, answer: ReplyContent, boot: &BootFile) -> Vec<u8> {
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
        if !matches!(answer, ReplyContent::Nak(_)) {
            self.boot(&mut message, request, boot);
        }
        encode(&message)
    }

    fn fill(&self, message: &mut Message, request: &ClientMessage, answer: ReplyContent) {
        let kind = match answer {
            ReplyContent::Offer(_) | ReplyContent::ProxyOffer => MessageType::Offer,
            ReplyContent::Ack(_) | ReplyContent::InformAck | ReplyContent::ProxyAck => MessageType::Ack,
            ReplyContent::Nak(_) => MessageType::Nak,
        };
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        match answer {
            ReplyContent::Offer(address) | ReplyContent::Ack(address) => {
                message.set_yiaddr(address);
                if matches!(answer, ReplyContent::Ack(_)) {
                    message.set_ciaddr(request.ciaddr);
                }
                if request.client == ClientKind::Ipxe {
                    // Quirk::WaitsForProxy
                    message.opts_mut().insert(DhcpOption::Unknown(UnknownOption::new(
                        OptionCode::Unknown(IPXE_OPTIONS),
                        IPXE_NO_PROXY_DHCP.to_vec(),
                    )));
                }
                if let Some(subnet) = self.subnet {
                    lease_times(message.opts_mut(), subnet.lease);
                    self.network(message.opts_mut(), subnet);
                }
            }
            ReplyContent::InformAck => {
                message.set_ciaddr(request.ciaddr);
                if let Some(subnet) = self.subnet {
                    self.network(message.opts_mut(), subnet);
                }
            }
            ReplyContent::Nak(reason) => {
                message.opts_mut().insert(DhcpOption::Message(reason.to_owned()));
                // The client has no address, so a relay must broadcast the reply (RFC 2131, 4.3.2).
                let flags = message.flags();
                message.set_flags(flags.set_broadcast());
            }
            ReplyContent::ProxyOffer | ReplyContent::ProxyAck => {
                message.set_ciaddr(request.ciaddr);
                // Quirk::ProxyNeedsClass
                if request.vendor != Some(VendorClass::Http) {
                    class(message.opts_mut(), b"PXEClient");
                }
                // Quirk::LooksForBootServers, and Quirk::Option43OpensMenu
                if request.client == ClientKind::Firmware && request.boot_arch() == ClientArch::BIOS {
                    message
                        .opts_mut()
                        .insert(DhcpOption::VendorExtensions(PXE_DISCOVERY_CONTROL_USE_BOOT_FILE.to_vec()));
                }
            }
        }
    }

    fn network(&self, options: &mut DhcpOptions, subnet: &Subnet) {
        options.insert(DhcpOption::SubnetMask(Ipv4Addr::from(subnet.mask())));
        options.insert(DhcpOption::BroadcastAddr(subnet.broadcast()));
        if let Some(router) = subnet.router {
            options.insert(DhcpOption::Router(vec![router]));
        }
        if !subnet.dns.is_empty() {
            options.insert(DhcpOption::DomainNameServer(subnet.dns.clone()));
        }
        if let Some(domain) = &subnet.domain {
            options.insert(DhcpOption::DomainName(domain.clone()));
        }
        if !subnet.ntp.is_empty() {
            options.insert(DhcpOption::NtpServers(subnet.ntp.clone()));
        }
        if let Some(host) = self.host {
            // A host name has no underscore (RFC 1123, 2.1).
            options.insert(DhcpOption::Hostname(host.replace('_', "-")));
        }
    }

    /// Sets boot file and server in the header and as options: old firmware reads the header, new firmware the options.
    fn boot(&self, message: &mut Message, request: &ClientMessage, boot: &BootFile) {
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
        if matches!(boot, BootFile::Http(_)) && request.vendor == Some(VendorClass::Http) {
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
