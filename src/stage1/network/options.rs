//! Options of a DHCP packet, as bytes. dhcproto's parser of values panics on some lengths, so only
//! its view of the header is used for packets of the network. Pure and total.

use dhcproto::v4::{MAGIC, OptionCode};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Length of the header with its magic cookie, in bytes.
const HEADER: usize = 240;
/// Options without a length byte (RFC 2132).
const PAD: u8 = 0;
const END: u8 = 255;

/// Options by code. The first option of each code counts; a cut option ends the list.
pub struct Options<'a>(BTreeMap<u8, &'a [u8]>);

impl<'a> Options<'a> {
    /// Reads the options of a packet. `None` if it is no DHCP packet.
    pub fn read(packet: &'a [u8]) -> Option<Self> {
        if packet.get(HEADER - MAGIC.len()..HEADER)? != MAGIC {
            return None;
        }
        let mut options = BTreeMap::new();
        let mut rest = &packet[HEADER..];
        loop {
            rest = match rest {
                [] | [END, ..] | [_] => break,
                [PAD, more @ ..] => more,
                [code, length, more @ ..] => {
                    let Some((data, more)) = more.split_at_checked(usize::from(*length)) else {
                        break;
                    };
                    options.entry(*code).or_insert(data);
                    more
                }
            };
        }
        Some(Options(options))
    }

    pub fn bytes(&self, code: OptionCode) -> Option<&'a [u8]> {
        self.0.get(&u8::from(code)).copied()
    }

    /// Returns the number of an option of exactly `N` bytes, most significant first.
    pub fn number<const N: usize>(&self, code: OptionCode) -> Option<u32> {
        let bytes: [u8; N] = self.bytes(code)?.try_into().ok()?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    /// Returns the addresses of an option; bytes behind the last complete one are ignored.
    pub fn addresses(&self, code: OptionCode) -> impl Iterator<Item = Ipv4Addr> + 'a {
        let bytes = self.bytes(code).unwrap_or_default();
        bytes.as_chunks::<4>().0.iter().map(|octets| Ipv4Addr::from(*octets))
    }
}
