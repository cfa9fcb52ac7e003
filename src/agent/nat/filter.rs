//! One table of the kernel's packet filter, spoken to by netlink: what leaves the private network leaves with the node's address. `nft` is
//! in no image that has to be small; `nft list table ip meshd-nat` shows the table where it is.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
    netlink::{NETFILTER, SocketAddrNetlink},
    recv, sendto, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use std::{io, net::Ipv4Addr, time::Duration};

/// Name of the table and of its chain.
const TABLE: &str = "meshd-nat";
const CHAIN: &str = "postrouting";
/// How long the kernel may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

// linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h
const REQUEST: u16 = 1;
const WANTS_ACK: u16 = 4;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = NEW_TABLE | 2;
const NEW_CHAIN: u16 = NEW_TABLE | 3;
const NEW_RULE: u16 = NEW_TABLE | 6;
const GET_RULE: u16 = NEW_TABLE | 7;
const IPV4: u8 = 2;
const NESTED: u16 = 0x8000;

/// Puts the table there, in the place of one that was there: all of it or nothing.
///
/// # Errors
/// What the kernel says.
pub fn masquerade(subnet: Ipv4Addr, bits: u8, bridge: &str) -> io::Result<()> {
    let name = attribute(1, &text(TABLE));
    let hook = [attribute(1, &4_u32.to_be_bytes()), attribute(2, &100_u32.to_be_bytes())].concat();
    let chain = [attribute(1, &text(TABLE)), attribute(3, &text(CHAIN)), nested(4, &hook), attribute(7, &text("nat"))];
    commit(&[
        // So that there is one to be deleted.
        (NEW_TABLE, CREATE, name.clone()),
        (DELETE_TABLE, 0, name.clone()),
        (NEW_TABLE, CREATE, name),
        (NEW_CHAIN, CREATE, chain.concat()),
        (NEW_RULE, CREATE | APPEND, rule(subnet, bits, bridge)),
    ])
}

/// Takes the table away, as somebody does who clears all rules.
#[cfg(test)]
pub fn remove() -> io::Result<()> {
    let name = attribute(1, &text(TABLE));
    commit(&[(NEW_TABLE, CREATE, name.clone()), (DELETE_TABLE, 0, name)])
}

/// Whether the rule is there as [`masquerade`] writes it.
///
/// # Errors
/// What the kernel says.
pub fn is_there(subnet: Ipv4Addr, bits: u8, bridge: &str) -> io::Result<bool> {
    let socket = Socket::open()?;
    let asked = [attribute(1, &text(TABLE)), attribute(2, &text(CHAIN))].concat();
    socket.send(&message(GET_RULE, REQUEST | DUMP, 1, IPV4, 0, &asked))?;
    let wanted = mark(subnet, bits, bridge);
    let mut found = Vec::new();
    loop {
        for (kind, body) in messages(&socket.receive()?) {
            match kind {
                DONE => return Ok(found == [wanted]),
                // No table, no chain.
                ERROR if errno(&body) == Some(rustix::io::Errno::NOENT) => return Ok(false),
                ERROR => return Err(errno(&body).map_or(io::ErrorKind::InvalidData.into(), Into::into)),
                NEW_RULE => found.push(attributes(body.get(4..).unwrap_or_default(), 7).unwrap_or_default()),
                _ => {}
            }
        }
    }
}

/// What the rule carries so that it is known again.
fn mark(subnet: Ipv4Addr, bits: u8, bridge: &str) -> Vec<u8> {
    text(&format!("{subnet}/{bits} not to {bridge}"))
}

/// `ip saddr SUBNET oifname != BRIDGE masquerade`.
fn rule(subnet: Ipv4Addr, bits: u8, bridge: &str) -> Vec<u8> {
    let number = |kind: u16, value: u32| attribute(kind, &value.to_be_bytes());
    let data = |kind: u16, value: &[u8]| nested(kind, &attribute(1, value));
    let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
    // The source address, 4 bytes at 12 of the network header, into register 1.
    let source = [number(1, 1), number(2, 1), number(3, 12), number(4, 4)].concat();
    let masked = [number(1, 1), number(2, 1), number(3, 4), data(4, &mask.to_be_bytes()), data(5, &[0; 4])].concat();
    let is_ours = [number(1, 1), number(2, 0), data(3, &subnet.octets())].concat();
    let leaves_by = [number(1, 1), number(2, 7)].concat();
    let mut padded = [0; 16];
    padded.iter_mut().zip(bridge.bytes()).for_each(|(place, byte)| *place = byte);
    let not_bridge = [number(1, 1), number(2, 1), data(3, &padded)].concat();
    let expression = |name: &str, body: &[u8]| nested(1, &[attribute(1, &text(name)), nested(2, body)].concat());
    let expressions = [
        expression("payload", &source),
        expression("bitwise", &masked),
        expression("cmp", &is_ours),
        expression("meta", &leaves_by),
        expression("cmp", &not_bridge),
        expression("masq", &[]),
    ];
    [
        attribute(1, &text(TABLE)),
        attribute(2, &text(CHAIN)),
        nested(4, &expressions.concat()),
        attribute(7, &mark(subnet, bits, bridge)),
    ]
    .concat()
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).expect("attributes are short");
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
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

/// One batch: the kernel does all of it or nothing.
fn commit(orders: &[(u16, u16, Vec<u8>)]) -> io::Result<()> {
    let mut bytes = message(BATCH_BEGIN, REQUEST, 0, 0, SUBSYSTEM, &[]);
    let mut sequence = 0;
    for (kind, flags, body) in orders {
        sequence += 1;
        bytes.extend(message(*kind, REQUEST | WANTS_ACK | flags, sequence, IPV4, 0, body));
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
