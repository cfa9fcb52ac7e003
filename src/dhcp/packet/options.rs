//! Raw options of a packet: parsed without copies; accepts any input.

use crate::machines::RelayPort;
use dhcproto::v4::{OptionCode, UnknownOption};
use meshd_types::hex;
use std::net::Ipv4Addr;

/// Length of the header with its magic cookie, in bytes.
pub(crate) const HEADER: usize = 240;
/// Most options of a packet; firmware sends fewer than thirty.
const MAX_OPTIONS: usize = 96;
/// Options without a length byte (RFC 2132).
const PAD: u8 = 0;
const END: u8 = 255;

/// Raw options. The first option of each code counts. A malformed option ends the list.
pub(crate) struct Options<'a>(Vec<(u8, &'a [u8])>);

impl<'a> Options<'a> {
    /// Parses the options behind the header of a packet.
    pub(crate) fn read(packet: &'a [u8]) -> Self {
        let mut options = Vec::with_capacity(24);
        let mut rest = packet.get(HEADER..).unwrap_or_default();
        while options.len() < MAX_OPTIONS {
            rest = match rest {
                [] | [END, ..] | [_] => break,
                [PAD, more @ ..] => more,
                [code, length, more @ ..] => {
                    let Some((data, more)) = more.split_at_checked(usize::from(*length)) else { break };
                    options.push((*code, data));
                    more
                }
            };
        }
        Options(options)
    }

    pub(crate) fn get(&self, code: OptionCode) -> Option<&'a [u8]> {
        let code = u8::from(code);
        self.0.iter().find(|(known, _)| *known == code).map(|(_, data)| *data)
    }

    pub(crate) fn address(&self, code: OptionCode) -> Option<Ipv4Addr> {
        address(self.get(code)?)
    }

    /// Returns an option to send back unchanged.
    pub(crate) fn echo(&self, code: OptionCode) -> Option<UnknownOption> {
        let data = self.get(code).filter(|data| !data.is_empty())?;
        Some(UnknownOption::new(code, data.to_vec()))
    }

    /// Parses option 82 (RFC 3046).
    pub(crate) fn relay_information(&self) -> RelayInformation {
        let mut information = RelayInformation::default();
        let mut rest = self.get(OptionCode::RelayAgentInformation).unwrap_or_default();
        while let [code, length, more @ ..] = rest {
            let Some((data, more)) = more.split_at_checked(usize::from(*length)) else { break };
            match *code {
                LINK_SELECTION => information.link = information.link.or(address(data)),
                SERVER_OVERRIDE => information.server = information.server.or(address(data)),
                CIRCUIT_ID | REMOTE_ID => {
                    let port = information.port.get_or_insert(RelayPort { circuit_id: None, remote_id: None });
                    let id = if *code == CIRCUIT_ID { &mut port.circuit_id } else { &mut port.remote_id };
                    id.get_or_insert_with(|| hex(data));
                }
                _ => {}
            }
            rest = more;
        }
        information
    }
}

/// Sub-options 1 and 2 of option 82 (RFC 3046).
const CIRCUIT_ID: u8 = 1;
const REMOTE_ID: u8 = 2;
/// Sub-option 5 of option 82 (RFC 3527).
const LINK_SELECTION: u8 = 5;
/// Sub-option 11 of option 82 (RFC 5107).
const SERVER_OVERRIDE: u8 = 11;

/// The content of option 82.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayInformation {
    /// An address of the client's network; giaddr is then only the address to reply to.
    pub link: Option<Ipv4Addr>,
    /// The server identifier for the client, so that its renewals pass the relay.
    pub server: Option<Ipv4Addr>,
    /// The port of the client.
    pub port: Option<RelayPort>,
}

fn address(data: &[u8]) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = data.try_into().ok()?;
    Some(Ipv4Addr::from(octets)).filter(|address| !address.is_unspecified())
}
