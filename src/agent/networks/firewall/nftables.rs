//! Netlink messages, attributes and expressions of nftables (linux/netfilter/nf_tables.h).

use rustix::{
    io::retry_on_intr,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::{NETFILTER, SocketAddrNetlink},
        recv, sendto, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};
use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

// linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
pub const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = NEW_TABLE | 2;
pub const NEW_CHAIN: u16 = NEW_TABLE | 3;
const NEW_RULE: u16 = NEW_TABLE | 6;
const GET_RULE: u16 = NEW_TABLE | 7;
/// Table families.
pub const IPV4: u8 = 2;
pub const INET: u8 = 1;
pub const NETDEV: u8 = 5;
// Hooks and metadata keys (`NFT_META_*`).
pub const FORWARD_HOOK: u32 = 2;
pub const OUTPUT_HOOK: u32 = 3;
pub const INPUT_NAME: u32 = 6;
pub const OUTPUT_NAME: u32 = 7;
pub const SOCKET_USER: u32 = 10;
pub const FAMILY: u32 = 15;
pub const PROTOCOL: u32 = 16;
/// Value of [`FAMILY`].
pub const IPV4_FAMILY: [u8; 1] = [2];
// Values of [`PROTOCOL`].
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
/// Before the chains of the distribution, which therefore cannot accept what is dropped here.
pub const PRIORITY: i32 = -10;
const NESTED: u16 = 0x8000;

/// Encodes a string with its terminating zero.
pub fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).expect("attributes are short");
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, value)
}

fn message(
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    resource: u16,
    body: &[u8],
) -> Vec<u8> {
    let length = u32::try_from(20 + body.len()).expect("messages are short");
    let head = [
        &length.to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &sequence.to_ne_bytes(),
        &[0; 4],
    ];
    [&head.concat()[..], &[family, 0], &resource.to_be_bytes(), body].concat()
}

/// Splits a datagram into messages: kind and body.
fn messages(bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut rest = bytes;
    let mut found = Vec::new();
    while let Some(head) = rest.first_chunk::<16>() {
        let length = usize::try_from(u32::from_ne_bytes([head[0], head[1], head[2], head[3]]))
            .unwrap_or(usize::MAX);
        let Some(whole) = rest.get(..length).filter(|whole| whole.len() >= 16) else { break };
        found.push((u16::from_ne_bytes([head[4], head[5]]), whole[16..].to_vec()));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Returns the first attribute of a kind.
fn find_attribute(bytes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let mut rest = bytes;
    while let Some(head) = rest.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(4..length)?;
        if u16::from_ne_bytes([head[2], head[3]]) & !NESTED == kind {
            return Some(value.to_vec());
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// Parses an error message; `None` for an acknowledgement.
fn errno(body: &[u8]) -> Option<rustix::io::Errno> {
    let code = i32::from_ne_bytes(*body.first_chunk::<4>()?);
    (code != 0).then(|| rustix::io::Errno::from_raw_os_error(code.saturating_neg()))
}

/// A message of a batch: family, kind, flags, attributes.
pub type BatchMessage = (u8, u16, u16, Vec<u8>);

/// Returns the messages that replace a table by an empty one. Creating the table first makes its
/// deletion succeed.
pub fn replace_table(family: u8, table: &str) -> [BatchMessage; 3] {
    let name = attribute(1, &text(table));
    [
        (family, NEW_TABLE, CREATE, name.clone()),
        (family, DELETE_TABLE, 0, name.clone()),
        (family, NEW_TABLE, CREATE, name),
    ]
}

/// Returns the message that appends a rule with a fingerprint in its user data.
pub fn append_rule(
    family: u8,
    table: &str,
    chain: &str,
    expressions: &[u8],
    fingerprint: &[u8],
) -> BatchMessage {
    let parts = [
        attribute(1, &text(table)),
        attribute(2, &text(chain)),
        nested(4, expressions),
        attribute(7, fingerprint),
    ];
    (family, NEW_RULE, CREATE | APPEND, parts.concat())
}

/// Pads an interface name to the kernel's 16 bytes.
pub fn interface(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    padded.iter_mut().zip(name.bytes()).for_each(|(slot, byte)| *slot = byte);
    padded
}

/// Sends a batch, which the kernel applies atomically.
pub fn commit(batch: &[BatchMessage]) -> io::Result<()> {
    let mut bytes = message(BATCH_BEGIN, REQUEST, 0, 0, SUBSYSTEM, &[]);
    let mut sequence = 0;
    for (family, kind, flags, body) in batch {
        sequence += 1;
        bytes.extend(message(*kind, REQUEST | ACK | flags, sequence, *family, 0, body));
    }
    bytes.extend(message(BATCH_END, REQUEST, sequence + 1, 0, SUBSYSTEM, &[]));
    let socket = NetlinkSocket::open()?;
    socket.send(&bytes)?;
    let mut missing_acks = batch.len();
    while missing_acks > 0 {
        for (kind, body) in messages(&socket.receive()?) {
            match (kind, errno(&body)) {
                (ERROR, Some(error)) => return Err(error.into()),
                (ERROR, None) => missing_acks = missing_acks.saturating_sub(1),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Reads the fingerprints of the rules of a table or chain; empty if there is no such table.
pub fn fingerprints(family: u8, table: &str, chain: Option<&str>) -> io::Result<Vec<Vec<u8>>> {
    let socket = NetlinkSocket::open()?;
    let mut filter = attribute(1, &text(table));
    filter.extend(chain.map(|chain| attribute(2, &text(chain))).unwrap_or_default());
    socket.send(&message(GET_RULE, REQUEST | DUMP, 1, family, 0, &filter))?;
    let mut found = Vec::new();
    loop {
        for (kind, body) in messages(&socket.receive()?) {
            match kind {
                DONE => return Ok(found),
                ERROR if errno(&body) == Some(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
                ERROR => {
                    return Err(errno(&body).map_or(io::ErrorKind::InvalidData.into(), Into::into));
                }
                NEW_RULE => found
                    .push(find_attribute(body.get(4..).unwrap_or_default(), 7).unwrap_or_default()),
                _ => {}
            }
        }
    }
}

/// Expressions of a rule. Evaluation stops at the first mismatch.
pub mod expr {
    use super::{attribute, nested, text};

    /// Base of an offset in a packet.
    #[derive(Clone, Copy)]
    pub enum Base {
        /// Ethernet header.
        Link = 0,
        /// Network header (IP, ARP).
        Network = 1,
        /// Transport header.
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
        let parts =
            [number(1, 1), number(2, base as u32), number(3, offset), number(4, length(value))];
        expression("payload", &parts.concat())
    }

    fn masked(mask: &[u8]) -> Vec<u8> {
        let none = vec![0; mask.len()];
        let parts =
            [number(1, 1), number(2, 1), number(3, length(mask)), data(4, mask), data(5, &none)];
        expression("bitwise", &parts.concat())
    }

    /// Matches if these bytes are equal.
    pub fn bytes(base: Base, offset: u32, value: &[u8]) -> Vec<u8> {
        [load(base, offset, value), compare(true, value)].concat()
    }

    /// Matches if these bytes differ.
    pub fn not_bytes(base: Base, offset: u32, value: &[u8]) -> Vec<u8> {
        [load(base, offset, value), compare(false, value)].concat()
    }

    /// Matches if these bytes are equal under a mask.
    pub fn bytes_in(base: Base, offset: u32, value: &[u8], mask: &[u8]) -> Vec<u8> {
        [load(base, offset, value), masked(mask), compare(true, value)].concat()
    }

    /// Matches if these bytes differ under a mask.
    pub fn not_bytes_in(base: Base, offset: u32, value: &[u8], mask: &[u8]) -> Vec<u8> {
        [load(base, offset, value), masked(mask), compare(false, value)].concat()
    }

    fn load_meta(key: u32) -> Vec<u8> {
        expression("meta", &[number(1, 1), number(2, key)].concat())
    }

    /// Matches if the metadata (`NFT_META_*`) is equal.
    pub fn meta(key: u32, value: &[u8]) -> Vec<u8> {
        [load_meta(key), compare(true, value)].concat()
    }

    /// Matches if the metadata differs.
    pub fn not_meta(key: u32, value: &[u8]) -> Vec<u8> {
        [load_meta(key), compare(false, value)].concat()
    }

    /// Matches if the metadata is equal under a mask.
    pub fn meta_in(key: u32, value: &[u8], mask: &[u8]) -> Vec<u8> {
        [load_meta(key), masked(mask), compare(true, value)].concat()
    }

    /// Matches if the metadata, a number in the byte order of the machine, is at least `value`.
    pub fn meta_at_least(key: u32, value: u32) -> Vec<u8> {
        const GREATER_OR_EQUAL: u32 = 5;
        let to_big_endian = [number(1, 1), number(2, 1), number(3, 1), number(4, 4), number(5, 4)];
        let at_least = [number(1, 1), number(2, GREATER_OR_EQUAL), data(3, &value.to_be_bytes())];
        [
            load_meta(key),
            expression("byteorder", &to_big_endian.concat()),
            expression("cmp", &at_least.concat()),
        ]
        .concat()
    }

    /// Matches established and related connections, or all others.
    pub fn known_connection(is_known: bool) -> Vec<u8> {
        const ESTABLISHED_OR_RELATED: u32 = 6;
        let state = expression("ct", &[number(1, 1), number(2, 0)].concat());
        [state, masked(&ESTABLISHED_OR_RELATED.to_ne_bytes()), compare(!is_known, &[0; 4])].concat()
    }

    fn verdict(code: u32) -> Vec<u8> {
        expression("immediate", &[number(1, 0), nested(2, &nested(2, &number(1, code)))].concat())
    }

    pub fn accept() -> Vec<u8> {
        verdict(1)
    }

    pub fn drop() -> Vec<u8> {
        verdict(0)
    }

    /// Replaces the source address by the one of the outgoing interface.
    pub fn masquerade() -> Vec<u8> {
        expression("masq", &[])
    }
}

/// The first use of nftables loads the module nf_tables. Another use fails with EINVAL meanwhile:
/// the kernel asks modprobe again, and that of Alpine takes a module that is loading for loaded. So
/// uses wait for each other.
static IN_USE: Mutex<()> = Mutex::new(());

struct NetlinkSocket(
    rustix::fd::OwnedFd,
    #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>,
);

impl NetlinkSocket {
    fn open() -> io::Result<Self> {
        let in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(NETFILTER),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_TIMEOUT))?;
        Ok(NetlinkSocket(socket, in_use))
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        sendto(&self.0, bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 64 * 1024];
        // The kernel does not restart a read with a timeout when a program of the agent ends.
        let (length, _) = retry_on_intr(|| recv(&self.0, &mut bytes[..], RecvFlags::empty()))?;
        bytes.truncate(length);
        Ok(bytes)
    }
}
