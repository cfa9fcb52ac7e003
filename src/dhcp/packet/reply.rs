//! Builds replies.

use super::{
    client_class::{ClientKind, VendorClass},
    option_list::OptionList,
    request::ClientMessage,
};
use crate::boot_file::BootFile;
use dhcproto::v4::{Encodable, Encoder, Flags, Message, MessageType, Opcode, OptionCode};
use meshd_types::{ClientArch, Subnet};
use std::{net::Ipv4Addr, time::Duration};

/// Shortest reply in bytes: BOOTP clients and some relays drop shorter packets (RFC 1542, 2.1;
/// `Quirk::NoShortReply`).
const MIN_REPLY: usize = 300;
/// Longest file name in the header, in bytes; the last byte of the field is NUL.
/// `Quirk::HeaderOnly` clients read only the header.
const MAX_FILE: usize = 127;
/// Option 43 of a proxy's offer: PXE_DISCOVERY_CONTROL (6) = 8, "take the boot file, ask nobody
/// else".
const PXE_DISCOVERY_CONTROL_USE_BOOT_FILE: [u8; 4] = [6, 1, 8, 255];
/// iPXE's own encapsulated options, and among them `no-pxedhcp` (176) = 1: "there is no proxy, do
/// not wait for it".
const IPXE_OPTIONS: OptionCode = OptionCode::Unknown(175);
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
    /// Builds the packet. Message type, server and boot file come first, and the relay's option
    /// last (RFC 3046, 2.1).
    pub fn build(&self, request: &ClientMessage, answer: ReplyContent, boot: &BootFile) -> Vec<u8> {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message =
            Message::new_with_id(request.xid, none, none, none, request.giaddr, request.chaddr());
        message
            .set_opcode(Opcode::BootReply)
            .set_htype(request.link.htype())
            .set_flags(Flags::new(request.flags));
        let mut options = OptionList::default();
        options.put(OptionCode::MessageType, &[message_type(answer).into()]);
        options.put(OptionCode::ServerIdentifier, &self.identifier.octets());
        if let (ReplyContent::Offer(_) | ReplyContent::Ack(_), Some(subnet)) = (answer, self.subnet)
        {
            options.put_seconds(OptionCode::AddressLeaseTime, seconds(subnet.lease));
        }
        if !matches!(answer, ReplyContent::Nak(_)) {
            self.boot(&mut message, &mut options, request, boot);
        }
        self.fill(&mut message, &mut options, request, answer);
        for option in &request.echoed {
            options.put(option.code(), option.data());
        }
        encode(&message, options)
    }

    fn fill(
        &self,
        message: &mut Message,
        options: &mut OptionList,
        request: &ClientMessage,
        answer: ReplyContent,
    ) {
        match answer {
            ReplyContent::Offer(address) | ReplyContent::Ack(address) => {
                message.set_yiaddr(address);
                if matches!(answer, ReplyContent::Ack(_)) {
                    message.set_ciaddr(request.ciaddr);
                }
                if let Some(subnet) = self.subnet {
                    renewal_times(options, subnet.lease);
                    self.network(options, subnet);
                }
                if request.client == ClientKind::Ipxe {
                    // Quirk::WaitsForProxy
                    options.put(IPXE_OPTIONS, &IPXE_NO_PROXY_DHCP);
                }
            }
            ReplyContent::InformAck => {
                message.set_ciaddr(request.ciaddr);
                if let Some(subnet) = self.subnet {
                    self.network(options, subnet);
                }
            }
            ReplyContent::Nak(reason) => {
                options.put(OptionCode::Message, reason.as_bytes());
                // The client has no address, so a relay must broadcast the reply (RFC 2131, 4.3.2).
                let flags = message.flags();
                message.set_flags(flags.set_broadcast());
            }
            ReplyContent::ProxyOffer | ReplyContent::ProxyAck => {
                message.set_ciaddr(request.ciaddr);
                // Quirk::ProxyNeedsClass
                if request.vendor != Some(VendorClass::Http) {
                    options.put(OptionCode::ClassIdentifier, b"PXEClient");
                }
                // Quirk::LooksForBootServers, and Quirk::Option43OpensMenu
                if request.client == ClientKind::Firmware && request.arch == Some(ClientArch::BIOS)
                {
                    options.put(OptionCode::VendorExtensions, &PXE_DISCOVERY_CONTROL_USE_BOOT_FILE);
                }
            }
        }
    }

    fn network(&self, options: &mut OptionList, subnet: &Subnet) {
        options.put(OptionCode::SubnetMask, &subnet.mask().to_be_bytes());
        options.put(OptionCode::BroadcastAddr, &subnet.broadcast().octets());
        options.put_addresses(OptionCode::Router, subnet.router.as_slice());
        options.put_addresses(OptionCode::DomainNameServer, &subnet.dns);
        if let Some(domain) = &subnet.domain {
            options.put(OptionCode::DomainName, domain.as_bytes());
        }
        if let Some(host) = self.host {
            // A host name has no underscore (RFC 1123, 2.1).
            options.put(OptionCode::Hostname, host.replace('_', "-").as_bytes());
        }
        options.put_addresses(OptionCode::NtpServers, &subnet.ntp);
    }

    /// Sets boot file and server in the header and as options: old firmware reads the header, new
    /// firmware the options.
    fn boot(
        &self,
        message: &mut Message,
        options: &mut OptionList,
        request: &ClientMessage,
        boot: &BootFile,
    ) {
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
        // Quirk::UrlNeedsClass
        if matches!(boot, BootFile::Http(_)) && request.vendor == Some(VendorClass::Http) {
            options.put(OptionCode::ClassIdentifier, b"HTTPClient");
        }
        // Quirk::ReadsCStrings
        options.put_c_string(OptionCode::TFTPServerName, server.as_bytes());
        options.put_c_string(OptionCode::BootfileName, name);
    }
}

fn message_type(answer: ReplyContent) -> MessageType {
    match answer {
        ReplyContent::Offer(_) | ReplyContent::ProxyOffer => MessageType::Offer,
        ReplyContent::Ack(_) | ReplyContent::InformAck | ReplyContent::ProxyAck => MessageType::Ack,
        ReplyContent::Nak(_) => MessageType::Nak,
    }
}

fn seconds(lease: Duration) -> u32 {
    u32::try_from(lease.as_secs()).unwrap_or(u32::MAX)
}

/// Options 58 and 59: renew at half, rebind at seven eighths (RFC 2131, 4.4.5).
fn renewal_times(options: &mut OptionList, lease: Duration) {
    let seconds = seconds(lease);
    options.put_seconds(OptionCode::Renewal, seconds / 2);
    options.put_seconds(OptionCode::Rebinding, seconds - seconds / 8);
}

/// Encodes the header, which has no options of its own, and the options behind it.
fn encode(message: &Message, options: OptionList) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MIN_REPLY * 2);
    message.encode(&mut Encoder::new(&mut bytes)).expect("header fields fit");
    bytes.extend(options.finish());
    if bytes.len() < MIN_REPLY {
        bytes.resize(MIN_REPLY, 0);
    }
    bytes
}
