//! Option 82: information that a relay adds to a request (RFC 3046).

use super::options::{Options, address};
use crate::nic_records::RelayPort;
use dhcproto::v4::OptionCode;
use meshd_types::{failpoint, hex};
use std::{collections::BTreeSet, net::Ipv4Addr};

/// Sub-options 1 and 2 of option 82 (RFC 3046).
const CIRCUIT_ID: u8 = 1;
const REMOTE_ID: u8 = 2;
/// Sub-option 5 of option 82 (RFC 3527).
const LINK_SELECTION: u8 = 5;
/// Sub-option 11 of option 82 (RFC 5107).
const SERVER_ID_OVERRIDE: u8 = 11;
/// Sub-option 19 of option 82 (RFC 8357).
const SOURCE_PORT: u8 = 19;

/// The content of option 82.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayInformation {
    /// An address of the client's network; giaddr is then only the address to reply to.
    pub link_selection: Option<Ipv4Addr>,
    /// The server identifier for the client, so that its renewals pass the relay.
    pub server_id_override: Option<Ipv4Addr>,
    /// The relay sends from a port of its choice and expects replies there.
    pub has_source_port: bool,
    /// The port of the client, without the relay.
    pub port: Option<RelayPort>,
}

impl Options<'_> {
    /// Parses option 82 (RFC 3046). A relay that appends to the option of a client, instead of
    /// replacing it, forwards what the client wrote: contradicting content is
    /// nobody's.
    pub(crate) fn relay_information(&self) -> RelayInformation {
        let is_refused = failpoint::defends("dhcp-relay-repeated");
        if is_refused && self.has_other_value(OptionCode::RelayAgentInformation) {
            return RelayInformation::default();
        }
        let mut information = RelayInformation::default();
        let mut seen = BTreeSet::new();
        let option = self.long_value(OptionCode::RelayAgentInformation);
        let mut rest = option.as_slice();
        while let [code, length, more @ ..] = rest {
            let Some((data, more)) = more.split_at_checked(usize::from(*length)) else { break };
            rest = more;
            if !seen.insert(*code) {
                if is_refused {
                    return RelayInformation::default();
                }
                continue;
            }
            match *code {
                LINK_SELECTION => information.link_selection = address(data),
                SERVER_ID_OVERRIDE => information.server_id_override = address(data),
                CIRCUIT_ID => information.port.get_or_insert_default().circuit_id = Some(hex(data)),
                REMOTE_ID => information.port.get_or_insert_default().remote_id = Some(hex(data)),
                SOURCE_PORT => information.has_source_port = true,
                _ => {}
            }
        }
        information
    }
}
