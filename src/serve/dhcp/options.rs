//! The options of a packet as they came: total, and without a copy.

use dhcproto::v4::{OptionCode, UnknownOption};
use meshd_model::fleet::RelayPort;
use meshd_types::hex;
use std::net::Ipv4Addr;

/// Header and magic cookie.
pub(super) const HEADER: usize = 240;
/// Options of one packet that are looked at; firmware sends fewer than thirty.
const MAX_OPTIONS: usize = 96;
/// RFC 2132: neither has a length byte.
const PAD: u8 = 0;
const END: u8 = 255;

/// Raw options; the first of each code counts. What makes no sense ends the list, and what came before it counts.
pub(super) struct Options<'a>(Vec<(u8, &'a [u8])>);

impl<'a> Options<'a> {
    /// Reads what follows the header of a packet.
    pub(super) fn read(packet: &'a [u8]) -> Self {
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

    pub(super) fn get(&self, code: OptionCode) -> Option<&'a [u8]> {
        let code = u8::from(code);
        self.0.iter().find(|(known, _)| *known == code).map(|(_, data)| *data)
    }

    pub(super) fn address(&self, code: OptionCode) -> Option<Ipv4Addr> {
        address(self.get(code)?)
    }

    /// The option to be sent back as it came.
    pub(super) fn echo(&self, code: OptionCode) -> Option<UnknownOption> {
        let data = self.get(code).filter(|data| !data.is_empty())?;
        Some(UnknownOption::new(code, data.to_vec()))
    }

    /// What the relay says in option 82 (RFC 3046).
    pub(super) fn agent(&self) -> Agent {
        let mut agent = Agent::default();
        let mut rest = self.get(OptionCode::RelayAgentInformation).unwrap_or_default();
        while let [code, length, more @ ..] = rest {
            let Some((data, more)) = more.split_at_checked(usize::from(*length)) else { break };
            match *code {
                LINK_SELECTION => agent.link = agent.link.or(address(data)),
                SERVER_OVERRIDE => agent.server = agent.server.or(address(data)),
                CIRCUIT_ID | REMOTE_ID => {
                    let port = agent.port.get_or_insert(RelayPort { circuit_id: None, remote_id: None });
                    let id = if *code == CIRCUIT_ID { &mut port.circuit_id } else { &mut port.remote_id };
                    id.get_or_insert_with(|| hex(data));
                }
                _ => {}
            }
            rest = more;
        }
        agent
    }
}

/// Sub-options 1 and 2 of option 82 (RFC 3046).
const CIRCUIT_ID: u8 = 1;
const REMOTE_ID: u8 = 2;
/// Sub-option 5 of option 82 (RFC 3527).
const LINK_SELECTION: u8 = 5;
/// Sub-option 11 of option 82 (RFC 5107).
const SERVER_OVERRIDE: u8 = 11;

/// What a relay asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agent {
    /// The network of the client, where giaddr is only the address to answer to.
    pub link: Option<Ipv4Addr>,
    /// The server identifier that the client shall see, so that its renewals pass the relay.
    pub server: Option<Ipv4Addr>,
    /// Where the client is plugged in.
    pub port: Option<RelayPort>,
}

fn address(data: &[u8]) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = data.try_into().ok()?;
    Some(Ipv4Addr::from(octets)).filter(|address| !address.is_unspecified())
}
