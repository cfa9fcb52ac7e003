//! Packets of TFTP as bytes: RFC 1350, and the options of RFC 2347 to 2349 and 7440. Pure and total.

use bytes::Bytes;

/// The smallest block that RFC 2348 allows, in bytes.
const MIN_BLOCK: u16 = 8;
/// The largest, in bytes.
const LARGEST_BLOCK: u16 = 65464;
/// The longest request that is read, in bytes; RFC 2347 allows 512.
pub(super) const MAX_REQUEST: usize = 512;
/// Opcode and number in front of each block of data, in bytes.
pub(super) const HEADER: usize = 4;

const RRQ: u16 = 1;
const WRQ: u16 = 2;
const DATA: u16 = 3;
const ACK: u16 = 4;
const ERROR: u16 = 5;
const OACK: u16 = 6;

/// What a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Read(Request<'a>),
    Write,
    Ack(u16),
    /// The client wants no more. What it says beside the code is not kept.
    Error(u16),
    /// DATA and OACK: right as packets, but only a server sends them to a reader.
    Stray,
}

/// A read request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// As the client wrote it.
    pub(super) name: &'a str,
    pub(super) mode: Mode,
    pub(super) asked: RequestedOptions,
}

/// How bytes shall travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Octet,
    /// netascii, mail, or anything else.
    Other,
}

/// The options of a request that are well-formed; the rest is left unanswered, as RFC 2347 says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RequestedOptions {
    /// RFC 2348, in bytes.
    pub(super) block: Option<u16>,
    /// RFC 2349, in seconds.
    pub(super) timeout: Option<u8>,
    /// RFC 2349: it wants to know the size.
    pub(super) size: bool,
    /// RFC 7440, in blocks.
    pub(super) window: Option<u16>,
}

/// What a server refuses with (RFC 1350).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Undefined = 0,
    NotFound = 1,
    AccessViolation = 2,
    IllegalOperation = 4,
}

/// Reads a packet; nothing if it is none.
pub(super) fn parse(bytes: &[u8]) -> Option<Packet<'_>> {
    let (opcode, body) = bytes.split_first_chunk::<2>()?;
    let number = || body.first_chunk::<2>().copied().map(u16::from_be_bytes);
    match u16::from_be_bytes(*opcode) {
        RRQ => request(body).map(Packet::Read),
        WRQ => Some(Packet::Write),
        ACK => number().map(Packet::Ack),
        ERROR => number().map(Packet::Error),
        DATA | OACK => Some(Packet::Stray),
        _ => None,
    }
}

fn request(body: &[u8]) -> Option<Request<'_>> {
    if body.len() + 2 > MAX_REQUEST {
        return None;
    }
    let mut words = Words(body);
    let name = std::str::from_utf8(words.next()?).ok()?;
    let mode = if words.next()?.eq_ignore_ascii_case(b"octet") { Mode::Octet } else { Mode::Other };
    let mut asked = RequestedOptions::default();
    // Firmware that pads its request with NULs ends here too: an option has a name.
    while let (Some(option @ [_, ..]), Some(value)) = (words.next(), words.next()) {
        asked.read(option, value);
    }
    Some(Request { name, mode, asked })
}

/// Words that end in NUL; what is not ended is none.
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
    /// The first of two values counts: RFC 2347 allows an option once.
    fn read(&mut self, option: &[u8], value: &[u8]) {
        let within = |least, most| decimal(value).filter(|number| (least..=most).contains(number));
        if option.eq_ignore_ascii_case(b"blksize") {
            self.block = self.block.or(within(MIN_BLOCK, LARGEST_BLOCK));
        } else if option.eq_ignore_ascii_case(b"timeout") {
            self.timeout = self.timeout.or(within(1, 255).and_then(|seconds| u8::try_from(seconds).ok()));
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

/// The header of a block.
pub(super) fn data_header(number: u16) -> [u8; HEADER] {
    let [high, low] = number.to_be_bytes();
    [0, DATA as u8, high, low]
}

/// Acknowledges options, in the order given.
pub(super) fn option_ack(options: impl IntoIterator<Item = (&'static str, u64)>) -> Bytes {
    let mut packet = OACK.to_be_bytes().to_vec();
    for (name, value) in options {
        for word in [name, &value.to_string()] {
            packet.extend_from_slice(word.as_bytes());
            packet.push(0);
        }
    }
    packet.into()
}

/// A refusal.
pub(super) fn error(code: Code, message: &str) -> Bytes {
    let mut packet = ERROR.to_be_bytes().to_vec();
    packet.extend_from_slice(&(code as u16).to_be_bytes());
    packet.extend_from_slice(message.as_bytes());
    packet.push(0);
    packet.into()
}
