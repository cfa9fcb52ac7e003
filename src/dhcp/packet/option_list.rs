//! The options of a reply, in the order in which they are sent.
//!
//! Old firmware reads the message type only as the first option and few options behind it. The
//! caller therefore adds the options in the order of dnsmasq; a map by code would sort them.

use dhcproto::v4::OptionCode;
use std::net::Ipv4Addr;

/// Longest value of one option, in bytes. A longer value continues in another option of the same
/// code (RFC 3396).
pub(super) const MAX_VALUE: usize = 255;
const END: u8 = 255;

/// Encoded options.
#[derive(Debug, Default)]
pub(super) struct OptionList(Vec<u8>);

impl OptionList {
    /// Appends an option.
    pub(super) fn put(&mut self, code: OptionCode, value: &[u8]) -> &mut Self {
        let code = u8::from(code);
        for part in value.chunks(MAX_VALUE) {
            self.0.extend([code, u8::try_from(part.len()).unwrap_or(u8::MAX)]);
            self.0.extend(part);
        }
        self
    }

    /// Appends a number of seconds.
    pub(super) fn put_seconds(&mut self, code: OptionCode, seconds: u32) -> &mut Self {
        self.put(code, &seconds.to_be_bytes())
    }

    /// Appends addresses; nothing without any.
    pub(super) fn put_addresses(&mut self, code: OptionCode, addresses: &[Ipv4Addr]) -> &mut Self {
        let octets: Vec<u8> = addresses.iter().flat_map(|address| address.octets()).collect();
        self.put(code, &octets)
    }

    /// Appends text with a NUL behind it. Readers that take the value for a C string would read the
    /// next option as text without it.
    pub(super) fn put_c_string(&mut self, code: OptionCode, text: &[u8]) -> &mut Self {
        self.put(code, &[text, &[0]].concat())
    }

    /// Returns the bytes with the end mark.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.push(END);
        self.0
    }
}
