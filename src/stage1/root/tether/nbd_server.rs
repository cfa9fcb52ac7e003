//! Answers the kernel's reads, one after the other.

use super::{
    nbd::{MAX_READ, NbdFailure, NbdRequest, REQUEST, parse_request, reply},
    root_reader::{RootReader, Servers},
};
use std::io::{self, Read, Write};

/// Answers requests until the kernel disconnects. A read that fails is answered with an error,
/// which `report` gets, too.
pub fn answer<S: Servers>(
    stream: &mut (impl Read + Write),
    root: &mut RootReader<S>,
    report: &mut dyn FnMut(&str),
) -> io::Result<()> {
    loop {
        let mut request = [0; REQUEST];
        match stream.read_exact(&mut request) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        match parse_request(&request).map_err(io::Error::other)? {
            NbdRequest::Disconnect => return Ok(()),
            NbdRequest::Other { handle } => {
                stream.write_all(&reply(handle, Some(NbdFailure::Invalid)))?;
            }
            NbdRequest::Read { handle, length, .. } if length > MAX_READ => {
                stream.write_all(&reply(handle, Some(NbdFailure::Invalid)))?;
            }
            NbdRequest::Read { handle, offset, length } => match root.read(offset, length) {
                Ok(bytes) => {
                    stream.write_all(&reply(handle, None))?;
                    stream.write_all(&bytes)?;
                }
                Err(error) => {
                    report(&error.to_string());
                    stream.write_all(&reply(handle, Some(NbdFailure::Io)))?;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::root_reader::tests::{flipped, good, open},
        *,
    };
    use std::io::Cursor;

    /// A kernel that sends requests and keeps the answers.
    struct Kernel {
        requests: Cursor<Vec<u8>>,
        answers: Vec<u8>,
    }

    impl Read for Kernel {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.requests.read(into)
        }
    }

    impl Write for Kernel {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.answers.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn request(kind: u16, offset: u64, length: u32) -> Vec<u8> {
        let magic = 0x2560_9513_u32;
        let head = [magic.to_be_bytes(), u32::from(kind).to_be_bytes(), [0; 4], [0, 0, 0, 7]];
        [head.concat(), offset.to_be_bytes().into(), length.to_be_bytes().into()].concat()
    }

    /// Answers of a root in whose second half a bit is flipped, the reported failures, and whether
    /// the stream ended well.
    fn answered(requests: &[Vec<u8>]) -> (Vec<u8>, Vec<String>, bool) {
        let mut root = open(vec![flipped(200 * 4096)]).expect("opened");
        let requests = Cursor::new(requests.concat());
        let mut kernel = Kernel { requests, answers: Vec::new() };
        let mut failures = Vec::new();
        let outcome =
            answer(&mut kernel, &mut root, &mut |cause| failures.push(cause.to_owned())).is_ok();
        (kernel.answers, failures, outcome)
    }

    fn reply_with(error: u8) -> Vec<u8> {
        vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, error, 0, 0, 0, 0, 0, 0, 0, 7]
    }

    #[test]
    fn reads_are_answered_in_order_and_a_failed_one_ends_nothing() {
        let first = request(0, 4096, 8192);
        let wrong = request(0, 200 * 4096, 4096);
        let trim = request(4, 0, 4096);
        let huge = request(0, 0, MAX_READ + 1);
        let (answers, failures, is_well) = answered(&[first.clone(), wrong, trim, huge, first]);
        let read = [reply_with(0), good()[4096..3 * 4096].to_vec()].concat();
        let expected = [read.clone(), reply_with(5), reply_with(22), reply_with(22), read];
        assert!(answers == expected.concat() && is_well);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with("no server has the right bytes from "), "{failures:?}");
    }

    #[test]
    fn disconnect_ends_it_and_a_malformed_or_cut_request_is_an_error_or_the_end() {
        let read = request(0, 0, 4096);
        assert_eq!(answered(&[request(2, 0, 0), read.clone()]).0, Vec::<u8>::new());
        assert!(!answered(&[request(1, 0, 4096)]).2, "a write");
        assert!(!answered(&[vec![0; REQUEST]]).2, "another protocol");
        let (answers, failures, is_well) = answered(&[read[..20].to_vec()]);
        assert!(answers.is_empty() && failures.is_empty() && is_well, "the kernel is gone");
    }
}
