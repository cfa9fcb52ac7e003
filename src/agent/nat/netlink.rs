//! Netlink messages, attributes and expressions of nftables (linux/netfilter/nf_tables.h).

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
    netlink::{NETFILTER, SocketAddrNetlink},
    recv, sendto, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use std::{io, time::Duration};

/// How long the kernel may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

// linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h
const REQUEST: u16 = 1;
const WANTS_ACK: u16 = 4;
const DUMP: u16 = 0x300;
pub const CREATE: u16 = 0x400;
pub const APPEND: u16 = 0x800;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const SUBSYSTEM: u16 = 10;
pub const NEW_TABLE: u16 = SUBSYSTEM << 8;
pub const DELETE_TABLE: u16 = NEW_TABLE | 2;
pub const NEW_CHAIN: u16 = NEW_TABLE | 3;
pub const NEW_RULE: u16 = NEW_TABLE | 6;
const GET_RULE: u16 = NEW_TABLE | 7;
/// Families of tables.
pub const IPV4: u8 = 2;
pub const INET: u8 = 1;
pub const NETDEV: u8 = 5;
const NESTED: u16 = 0x8000;

/// A string of the kernel.
pub fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// One attribute.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).expect("attributes are short");
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// One that holds others.
pub fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, value)
}

fn message(kind: u16, flags: u16, sequence: u32, family: u8, resource: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(20 + body.len()).expect("messages are short");
    let head = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &sequence.to_ne_bytes(), &[0; 4]];
    [&head.concat()[..], &[family, 0], &resource.to_be_bytes(), body].concat()
}

/// Messages of a datagram, each with its kind and body. Total.
fn messages(bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut rest = bytes;
    let mut found = Vec::new();
    while let Some(head) = rest.first_chunk::<16>() {
        let length = usize::try_from(u32::from_ne_bytes([head[0], head[1], head[2], head[3]])).unwrap_or(usize::MAX);
        let Some(whole) = rest.get(..length).filter(|whole| whole.len() >= 16) else { break };
        found.push((u16::from_ne_bytes([head[4], head[5]]), whole[16..].to_vec()));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// The value of the first attribute of a kind. Total.
fn attributes(bytes: &[u8], wanted: u16) -> Option<Vec<u8>> {
    let mut rest = bytes;
    while let Some(head) = rest.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(4..length)?;
        if u16::from_ne_bytes([head[2], head[3]]) & !NESTED == wanted {
            return Some(value.to_vec());
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// What an error message says; `None` for an acknowledgement.
fn errno(body: &[u8]) -> Option<rustix::io::Errno> {
    let code = i32::from_ne_bytes(*body.first_chunk::<4>()?);
    (code != 0).then(|| rustix::io::Errno::from_raw_os_error(code.saturating_neg()))
}

/// A message of a batch: family, kind, flags, attributes.
pub type Order = (u8, u16, u16, Vec<u8>);

/// One batch: the kernel does all of it or nothing.
///
/// # Errors
/// What the kernel says.
pub fn commit(orders: &[Order]) -> io::Result<()> {
    let mut bytes = message(BATCH_BEGIN, REQUEST, 0, 0, SUBSYSTEM, &[]);
    let mut sequence = 0;
    for (family, kind, flags, body) in orders {
        sequence += 1;
        bytes.extend(message(*kind, REQUEST | WANTS_ACK | flags, sequence, *family, 0, body));
    }
    bytes.extend(message(BATCH_END, REQUEST, sequence + 1, 0, SUBSYSTEM, &[]));
    let socket = Socket::open()?;
    socket.send(&bytes)?;
    let mut left = orders.len();
    while left > 0 {
        for (kind, body) in messages(&socket.receive()?) {
            match (kind, errno(&body)) {
                (ERROR, Some(error)) => return Err(error.into()),
                (ERROR, None) => left = left.saturating_sub(1),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The marks of all rules of a table, or of one chain of it; none where there is no such table.
///
/// # Errors
/// What the kernel says.
pub fn marks(family: u8, table: &str, chain: Option<&str>) -> io::Result<Vec<Vec<u8>>> {
    let socket = Socket::open()?;
    let mut asked = attribute(1, &text(table));
    asked.extend(chain.map(|chain| attribute(2, &text(chain))).unwrap_or_default());
    socket.send(&message(GET_RULE, REQUEST | DUMP, 1, family, 0, &asked))?;
    let mut found = Vec::new();
    loop {
        for (kind, body) in messages(&socket.receive()?) {
            match kind {
                DONE => return Ok(found),
                ERROR if errno(&body) == Some(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
                ERROR => return Err(errno(&body).map_or(io::ErrorKind::InvalidData.into(), Into::into)),
                NEW_RULE => found.push(attributes(body.get(4..).unwrap_or_default(), 7).unwrap_or_default()),
                _ => {}
            }
        }
    }
}

/// One step of a rule; a rule is over where one does not match.
pub mod step {
    use super::{attribute, nested, text};

    /// Where a part of a packet is counted from.
    #[derive(Clone, Copy)]
    pub enum Base {
        /// The Ethernet header.
        Link = 0,
        /// IP, or ARP.
        Network = 1,
        /// TCP, UDP.
        Transport = 2,
    }

    fn expression(name: &str, body: &[u8]) -> Vec<u8> {
        nested(1, &[attribute(1, &text(name)), nested(2, body)].concat())
    }

    fn number(kind: u16, value: u32) -> Vec<u8> {
        attribute(kind, &value.to_be_bytes())
    }

    fn data(kind: u16, value: &[u8]) -> Vec<u8> {
        nested(kind, &attribute(1, value))
    }

    fn length(value: &[u8]) -> u32 {
        u32::try_from(value.len()).unwrap_or(0)
    }

    fn compare(is_equal: bool, value: &[u8]) -> Vec<u8> {
        expression("cmp", &[number(1, 1), number(2, u32::from(!is_equal)), data(3, value)].concat())
    }

    fn load(base: Base, offset: u32, value: &[u8]) -> Vec<u8> {
        let parts = [number(1, 1), number(2, base as u32), number(3, offset), number(4, length(value))];
        expression("payload", &parts.concat())
    }

    fn masked(mask: &[u8]) -> Vec<u8> {
        let none = vec![0; mask.len()];
        let parts = [number(1, 1), number(2, 1), number(3, length(mask)), data(4, mask), data(5, &none)];
        expression("bitwise", &parts.concat())
    }

    /// These bytes of the packet are so.
    pub fn bytes(base: Base, offset: u32, value: &[u8]) -> Vec<u8> {
        [load(base, offset, value), compare(true, value)].concat()
    }

    /// They are not.
    pub fn not_bytes(base: Base, offset: u32, value: &[u8]) -> Vec<u8> {
        [load(base, offset, value), compare(false, value)].concat()
    }

    /// They are so under a mask.
    pub fn bytes_in(base: Base, offset: u32, value: &[u8], mask: &[u8]) -> Vec<u8> {
        [load(base, offset, value), masked(mask), compare(true, value)].concat()
    }

    /// What the kernel knows of the packet (`NFT_META_*`) is so.
    pub fn meta(key: u32, value: &[u8]) -> Vec<u8> {
        [expression("meta", &[number(1, 1), number(2, key)].concat()), compare(true, value)].concat()
    }

    /// The same under a mask.
    pub fn meta_in(key: u32, value: &[u8], mask: &[u8]) -> Vec<u8> {
        [expression("meta", &[number(1, 1), number(2, key)].concat()), masked(mask), compare(true, value)].concat()
    }

    /// The connection is established or related, or is not.
    pub fn known_connection(is: bool) -> Vec<u8> {
        const ESTABLISHED_OR_RELATED: u32 = 6;
        let state = expression("ct", &[number(1, 1), number(2, 0)].concat());
        [state, masked(&ESTABLISHED_OR_RELATED.to_ne_bytes()), compare(!is, &[0; 4])].concat()
    }

    fn verdict(code: u32) -> Vec<u8> {
        expression("immediate", &[number(1, 0), nested(2, &nested(2, &number(1, code)))].concat())
    }

    /// It passes.
    pub fn accept() -> Vec<u8> {
        verdict(1)
    }

    /// It is dropped.
    pub fn drop() -> Vec<u8> {
        verdict(0)
    }
}

struct Socket(rustix::fd::OwnedFd);

impl Socket {
    fn open() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(NETFILTER))?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Socket(socket))
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        sendto(&self.0, bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 64 * 1024];
        let (length, _) = recv(&self.0, &mut bytes[..], RecvFlags::empty())?;
        bytes.truncate(length);
        Ok(bytes)
    }
}
