//! Makes the block device of a connected socket, by the generic netlink family `nbd`
//! (`linux/nbd-netlink.h`, `linux/genetlink.h` of Linux 6.1). Messages are pure.
//!
//! The device has no timeout: the kernel waits for a reply, and prints each 30 s that it
//! does. How long a read waits is decided where it is answered.

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// The device: the module makes it when it is loaded.
pub const DEVICE: &str = "/dev/nbd0";
const INDEX: u32 = 0;
const MAX_ANSWER: usize = 8192;

const ERROR: u16 = 2;
/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID` and `CTRL_ATTR_FAMILY_NAME`.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `NBD_CMD_CONNECT`, and attributes.
const CONNECT: u8 = 1;
const ATTR_INDEX: u16 = 1;
const ATTR_SIZE: u16 = 2;
const ATTR_BLOCK_SIZE: u16 = 3;
const ATTR_SERVER_FLAGS: u16 = 5;
const ATTR_SOCKETS: u16 = 7;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;
/// `NBD_FLAG_HAS_FLAGS | NBD_FLAG_READ_ONLY`.
const READ_ONLY: u64 = 1 | 2;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const REQUEST: u16 = 1 | 4;
/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;
/// Length of the headers of netlink and of generic netlink.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// Connects [`DEVICE`] with a stream socket whose other end answers. `size` and `block_size` are
/// in bytes.
pub fn connect(stream: BorrowedFd<'_>, size: u64, block_size: u64) -> io::Result<()> {
    let socket = Socket::new(NETLINK_GENERIC)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let name = attribute(FAMILY_NAME, b"nbd\0");
    let family = request(&socket, &message(CONTROLLER, GET_FAMILY, &name))?;
    let family = family.and_then(|answer| family_id(&answer));
    let family =
        family.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it names no family"))?;
    let attributes = connect_attributes(stream.as_raw_fd(), size, block_size);
    request(&socket, &message(family, CONNECT, &attributes))?;
    Ok(())
}

fn connect_attributes(stream: i32, size: u64, block_size: u64) -> Vec<u8> {
    let item = attribute(SOCKET_FD, &stream.to_ne_bytes());
    let item = attribute(SOCKET_ITEM | NESTED, &item);
    [
        attribute(ATTR_INDEX, &INDEX.to_ne_bytes()),
        attribute(ATTR_SIZE, &size.to_ne_bytes()),
        attribute(ATTR_BLOCK_SIZE, &block_size.to_ne_bytes()),
        attribute(ATTR_SERVER_FLAGS, &READ_ONLY.to_ne_bytes()),
        attribute(ATTR_SOCKETS | NESTED, &item),
    ]
    .concat()
}

/// Sends a request. Returns the answer before its acknowledgement, if there is one.
fn request(socket: &Socket, message: &[u8]) -> io::Result<Option<Vec<u8>>> {
    socket.send(message, 0)?;
    let mut answer = None;
    loop {
        let mut bytes = Vec::with_capacity(MAX_ANSWER);
        socket.recv(&mut bytes, 0)?;
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the answer is malformed");
        let kind = field::<2>(&bytes, 4).map(u16::from_ne_bytes).ok_or_else(malformed)?;
        if kind != ERROR {
            answer = Some(bytes);
            continue;
        }
        let code = field::<4>(&bytes, HEADER).map(i32::from_ne_bytes).ok_or_else(malformed)?;
        return match code {
            0 => Ok(answer),
            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        };
    }
}

fn message(kind: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let length = HEADER + GENERIC_HEADER + attributes.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&(length as u32).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST.to_ne_bytes());
    // Sequence number and port: one request at a time, and the kernel knows the socket.
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[command, 1, 0, 0]);
    bytes.extend_from_slice(attributes);
    bytes
}

/// An attribute, padded to 4 bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = Vec::with_capacity(length.next_multiple_of(4));
    bytes.extend_from_slice(&(length as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

/// The number of a family, in the answer to [`GET_FAMILY`].
pub fn family_id(answer: &[u8]) -> Option<u16> {
    let mut rest = answer.get(HEADER + GENERIC_HEADER..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(field(rest, 0)?));
        let kind = u16::from_ne_bytes(field(rest, 2)?);
        if kind == FAMILY_ID {
            return field(rest.get(..length)?, 4).map(u16::from_ne_bytes);
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn number_of_a_family_is_read_from_the_real_kernel() {
        let socket = Socket::new(NETLINK_GENERIC).expect("a socket");
        socket.connect(&SocketAddr::new(0, 0)).expect("the kernel");
        let name = attribute(FAMILY_NAME, b"nlctrl\0");
        let answer = request(&socket, &message(CONTROLLER, GET_FAMILY, &name)).expect("known");
        assert_eq!(family_id(&answer.expect("an answer")), Some(CONTROLLER));
        let name = attribute(FAMILY_NAME, b"no-such\0");
        let unknown = request(&socket, &message(CONTROLLER, GET_FAMILY, &name));
        assert_eq!(unknown.expect_err("unknown").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn device_is_described_in_the_layout_of_the_kernel() {
        let bytes = connect_attributes(5, 40960, 4096);
        assert_eq!(bytes.len(), 8 + 12 * 3 + 16);
        assert_eq!(bytes[..8], [8, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..20], [12, 0, 2, 0, 0, 0xa0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[44..], [16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 5, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn answer_of_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = family_id(&bytes);
        }
    }
}
