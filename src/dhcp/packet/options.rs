//! Raw options of a packet: parsed without copies; accepts any input. Overloaded header fields
//! (option 52) are not supported: no boot client overloads a request.

use super::option_list::MAX_VALUE;
use dhcproto::v4::{OptionCode, UnknownOption};
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
                    let Some((data, more)) = more.split_at_checked(usize::from(*length)) else {
                        break;
                    };
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

    /// Returns the value of an option that may be longer than 255 bytes; empty if it is missing.
    ///
    /// Another option of the same code continues a full one (RFC 3396). It repeats a shorter one:
    /// there are relays that send their option twice.
    pub(crate) fn long_value(&self, code: OptionCode) -> Vec<u8> {
        let code = u8::from(code);
        let mut value = Vec::new();
        for (_, part) in self.0.iter().filter(|(known, _)| *known == code) {
            value.extend_from_slice(part);
            if part.len() < MAX_VALUE {
                break;
            }
        }
        value
    }

    /// Returns true if another option of this code contradicts the value of [`Self::long_value`].
    pub(crate) fn has_other_value(&self, code: OptionCode) -> bool {
        let value = self.long_value(code);
        let mut rest = value.as_slice();
        let known = u8::from(code);
        let mut parts = self.0.iter().filter(|(code, _)| *code == known);
        parts.any(|(_, part)| match rest.strip_prefix(*part) {
            Some(more) if !rest.is_empty() => {
                rest = more;
                false
            }
            _ => *part != value,
        })
    }

    /// Returns an option to send back unchanged.
    pub(crate) fn echo(&self, code: OptionCode) -> Option<UnknownOption> {
        let data = self.long_value(code);
        (!data.is_empty()).then(|| UnknownOption::new(code, data))
    }
}

pub(super) fn address(data: &[u8]) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = data.try_into().ok()?;
    Some(Ipv4Addr::from(octets)).filter(|address| !address.is_unspecified())
}
