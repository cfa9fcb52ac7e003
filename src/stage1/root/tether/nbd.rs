//! Messages of the NBD protocol between the kernel and the process that serves the root: requests
//! of 28 bytes, replies of 16 bytes before their data (`linux/nbd.h`; simple replies of the NBD
//! protocol). Pure and total.

/// Length of a request in bytes.
pub const REQUEST: usize = 28;
/// Length of a reply without its data, in bytes.
pub const REPLY: usize = 16;
/// Maximum length of one read in bytes. The kernel asks for less: `max_sectors_kb` of the device.
pub const MAX_READ: u32 = 32 * 1024 * 1024;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// The low half of the type; the high half has flags.
const READ: u16 = 0;
const DISCONNECT: u16 = 2;

/// The handle with which the kernel recognises the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub [u8; 8]);

/// What the kernel asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdRequest {
    Read {
        handle: Handle,
        offset: u64,
        length: u32,
    },
    Disconnect,
    /// A write, or another request that a read-only device has no answer to.
    Other {
        handle: Handle,
    },
}

/// The bytes are no request: the stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NbdError {
    #[error("a request of the kernel has the magic number {0:#x}")]
    Magic(u32),
    #[error("the kernel writes to a read-only device")]
    Write,
}

/// Error numbers of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdFailure {
    Io = 5,
    Invalid = 22,
}

/// Parses a request.
pub fn parse_request(bytes: &[u8; REQUEST]) -> Result<NbdRequest, NbdError> {
    let magic = u32::from_be_bytes(field(bytes, 0));
    if magic != REQUEST_MAGIC {
        return Err(NbdError::Magic(magic));
    }
    let handle = Handle(field(bytes, 8));
    match u16::from_be_bytes(field(bytes, 6)) {
        READ => {
            let offset = field(bytes, 16);
            let length = field(bytes, 24);
            let offset = u64::from_be_bytes(offset);
            let length = u32::from_be_bytes(length);
            Ok(NbdRequest::Read { handle, offset, length })
        }
        DISCONNECT => Ok(NbdRequest::Disconnect),
        // Its data would be read as the next request.
        1 => Err(NbdError::Write),
        _ => Ok(NbdRequest::Other { handle }),
    }
}

/// Returns a reply without its data.
pub fn reply(handle: Handle, failure: Option<NbdFailure>) -> [u8; REPLY] {
    let mut bytes = [0; REPLY];
    let error = failure.map_or(0, |failure| failure as u32);
    bytes[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&handle.0);
    bytes
}

fn field<const N: usize>(bytes: &[u8; REQUEST], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(kind: u16, handle: u64, offset: u64, length: u32) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[6..8].copy_from_slice(&kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&handle.to_be_bytes());
        bytes[16..24].copy_from_slice(&offset.to_be_bytes());
        bytes[24..].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    #[test]
    fn requests_of_other_kinds_are_told_apart() {
        let handle = Handle(7u64.to_be_bytes());
        assert_eq!(parse_request(&request(2, 7, 0, 0)), Ok(NbdRequest::Disconnect));
        assert_eq!(parse_request(&request(3, 7, 0, 0)), Ok(NbdRequest::Other { handle }));
        assert_eq!(parse_request(&request(1, 7, 0, 512)), Err(NbdError::Write));
        assert_eq!(parse_request(&[0; REQUEST]), Err(NbdError::Magic(0)));
    }

    #[test]
    fn reply_has_the_layout_of_the_kernel() {
        let handle = Handle([1, 2, 3, 4, 5, 6, 7, 8]);
        let good = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(reply(handle, None), good);
        assert_eq!(reply(handle, Some(NbdFailure::Io))[7], 5);
    }

    proptest! {
        #[test]
        fn request_of_any_bytes_never_panics(bytes in any::<[u8; REQUEST]>()) {
            let _ = parse_request(&bytes);
        }

        #[test]
        fn read_is_parsed_as_written(handle: u64, offset: u64, length: u32) {
            let expected =
                NbdRequest::Read { handle: Handle(handle.to_be_bytes()), offset, length };
            prop_assert_eq!(parse_request(&request(0, handle, offset, length)), Ok(expected));
        }
    }
}
