//! TFTP packets as bytes: RFC 1350 and the options of RFC 2347 to 2349 and 7440. Pure; accepts any
//! input.

use bytes::Bytes;

/// The smallest block that RFC 2348 allows, in bytes.
const MIN_BLOCK: u16 = 8;
/// The largest block that RFC 2348 allows, in bytes.
const LARGEST_BLOCK: u16 = 65464;
/// The longest request (RFC 2347), in bytes.
pub(crate) const MAX_REQUEST: usize = 512;
/// Length of the header of a DATA packet (opcode and block number), in bytes.
pub(crate) const HEADER: usize = 4;

const RRQ: u16 = 1;
const WRQ: u16 = 2;
const DATA: u16 = 3;
const ACK: u16 = 4;
const ERROR: u16 = 5;
const OACK: u16 = 6;

/// A packet of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet<'a> {
    Read(Request<'a>),
    Write,
    /// A request that cannot be read, or an unknown operation.
    Illegal,
    Ack(u16),
    /// The client aborts the transfer. The message beside the code is ignored.
    Error(u16),
    /// DATA or OACK: valid packets that only a server sends.
    Unexpected,
}

/// A read request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub(crate) name: &'a str,
    pub(crate) mode: Mode,
    pub(crate) options: RequestedOptions,
}

/// Transfer mode (RFC 1350).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Octet,
    /// netascii, mail, or anything else.
    Other,
}

/// The valid options of a request. The server does not acknowledge the others (RFC 2347).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RequestedOptions {
    /// RFC 2348, in bytes.
    pub(crate) block: Option<u16>,
    /// RFC 2349, in seconds.
    pub(crate) timeout: Option<u8>,
    /// RFC 2349: the client asks for the file size.
    pub(crate) size: bool,
    /// RFC 7440, in blocks.
    pub(crate) window: Option<u16>,
}

/// Error codes (RFC 1350).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Undefined = 0,
    NotFound = 1,
    AccessViolation = 2,
    IllegalOperation = 4,
}

/// Parses a packet; `None` if it is not a TFTP packet.
pub(crate) fn parse(bytes: &[u8]) -> Option<Packet<'_>> {
    let (opcode, body) = bytes.split_first_chunk::<2>()?;
    let number = || body.first_chunk::<2>().copied().map(u16::from_be_bytes);
    match u16::from_be_bytes(*opcode) {
        RRQ => Some(request(body).map_or(Packet::Illegal, Packet::Read)),
        WRQ => Some(Packet::Write),
        ACK => number().map(Packet::Ack),
        ERROR => number().map(Packet::Error),
        DATA | OACK => Some(Packet::Unexpected),
        _ => Some(Packet::Illegal),
    }
}

fn request(body: &[u8]) -> Option<Request<'_>> {
    if body.len() + 2 > MAX_REQUEST {
        return None;
    }
    let mut words = Words(body);
    let name = std::str::from_utf8(words.next()?).ok()?;
    let mode = if words.next()?.eq_ignore_ascii_case(b"octet") { Mode::Octet } else { Mode::Other };
    let mut options = RequestedOptions::default();
    // Padding of some firmware (NULs after the request) ends the loop: an option has a name.
    while let (Some(option @ [_, ..]), Some(value)) = (words.next(), words.next()) {
        options.read(option, value);
    }
    Some(Request { name, mode, options })
}

/// NUL-terminated words; an unterminated rest is ignored.
struct Words<'a>(&'a [u8]);

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (word, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(word)
    }
}

impl RequestedOptions {
    /// Reads one option. The first value counts, because RFC 2347 allows an option once.
    fn read(&mut self, option: &[u8], value: &[u8]) {
        let within = |least, most| decimal(value).filter(|number| (least..=most).contains(number));
        if option.eq_ignore_ascii_case(b"blksize") {
            self.block = self.block.or(within(MIN_BLOCK, LARGEST_BLOCK));
        } else if option.eq_ignore_ascii_case(b"timeout") {
            self.timeout =
                self.timeout.or(within(1, 255).and_then(|seconds| u8::try_from(seconds).ok()));
        } else if option.eq_ignore_ascii_case(b"tsize") {
            self.size = true;
        } else if option.eq_ignore_ascii_case(b"windowsize") {
            self.window = self.window.or(within(1, u16::MAX));
        }
    }
}

fn decimal(text: &[u8]) -> Option<u16> {
    let digits = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// Returns the header of a DATA packet.
pub(crate) fn data_header(number: u16) -> [u8; HEADER] {
    let [high, low] = number.to_be_bytes();
    [0, DATA as u8, high, low]
}

/// Returns an OACK with options in this order.
pub(crate) fn option_ack(options: impl IntoIterator<Item = (&'static str, u64)>) -> Bytes {
    let mut packet = OACK.to_be_bytes().to_vec();
    for (name, value) in options {
        for word in [name, &value.to_string()] {
            packet.extend_from_slice(word.as_bytes());
            packet.push(0);
        }
    }
    packet.into()
}

/// Returns an ERROR.
pub(crate) fn error(code: Code, message: &str) -> Bytes {
    let mut packet = ERROR.to_be_bytes().to_vec();
    packet.extend_from_slice(&(code as u16).to_be_bytes());
    packet.extend_from_slice(message.as_bytes());
    packet.push(0);
    packet.into()
}
