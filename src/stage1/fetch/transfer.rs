//! A file that arrives in one or several responses: position, size and digest. Pure.

use super::response::ResponseHead;
use meshd_types::Digest;
use sha2::{Digest as _, Sha256};

/// A file of known size and digest, as far as it has arrived.
pub struct Transfer {
    size: u64,
    digest: Digest,
    received: u64,
    hasher: Sha256,
}

/// A response, or the complete file, is not the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("it answers with status {0}")]
    Status(u16),
    #[error("it sends a file of {sent} bytes, not of {expected}")]
    Size { sent: u64, expected: u64 },
    #[error("it sends bytes from {sent} on, not from {expected}")]
    Position { sent: u64, expected: u64 },
    #[error("it sends more than {0} bytes")]
    TooLong(u64),
    #[error("its SHA-256 is {actual}, not {expected}: it was changed on its way or in the store")]
    Digest { actual: Digest, expected: Digest },
}

impl TransferError {
    /// Returns true if the server has no such file (RFC 9110, sections 15.5.5 and 15.5.11), or a
    /// file of another size. Other statuses pass: a server that is busy or restarts has them.
    pub fn is_without_file(self) -> bool {
        matches!(self, TransferError::Status(404 | 410) | TransferError::Size { .. })
    }
}

impl Transfer {
    pub fn new(size: u64, digest: Digest) -> Self {
        Transfer { size, digest, received: 0, hasher: Sha256::new() }
    }

    /// Number of bytes that have arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn is_complete(&self) -> bool {
        self.received == self.size
    }

    /// Forgets all bytes.
    pub fn restart(&mut self) {
        *self = Transfer::new(self.size, self.digest);
    }

    /// Checks that the body of a response continues the file at its position. A server without
    /// ranges sends the file from its first byte again: then the transfer restarts.
    pub fn accept(&mut self, head: &ResponseHead) -> Result<(), TransferError> {
        let (sent, size) = match (head.status, head.range) {
            (206, Some(range)) => (range.first, Some(range.size)),
            (200, _) => (0, head.length),
            (status, _) => return Err(TransferError::Status(status)),
        };
        if let Some(size) = size.filter(|size| *size != self.size) {
            return Err(TransferError::Size { sent: size, expected: self.size });
        }
        if head.status == 200 {
            self.restart();
        }
        if sent == self.received {
            return Ok(());
        }
        Err(TransferError::Position { sent, expected: self.received })
    }

    /// Adds bytes of a body.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        let received = self.received.saturating_add(bytes.len() as u64);
        if received > self.size {
            return Err(TransferError::TooLong(self.size));
        }
        self.received = received;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Checks the digest of a complete file.
    pub fn verify(&self) -> Result<(), TransferError> {
        let actual = Digest(self.hasher.clone().finalize().into());
        if actual == self.digest {
            return Ok(());
        }
        Err(TransferError::Digest { actual, expected: self.digest })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::response::ContentRange, *};
    use proptest::prelude::*;

    fn head(status: u16, length: u64, first: Option<u64>) -> ResponseHead {
        let range = first.map(|first| ContentRange { first, size: 10 });
        ResponseHead { status, length: Some(length), range }
    }

    fn half() -> Transfer {
        let mut transfer = Transfer::new(10, Digest::of(b"0123456789"));
        transfer.accept(&head(200, 10, None)).expect("the beginning");
        transfer.add(b"01234").expect("a part");
        transfer
    }

    #[test]
    fn file_in_two_responses_is_verified() {
        let mut transfer = half();
        transfer.accept(&head(206, 5, Some(5))).expect("continues");
        transfer.add(b"56789").expect("the rest");
        assert!(transfer.is_complete());
        assert_eq!(transfer.verify(), Ok(()));
    }

    #[test]
    fn server_without_ranges_restarts_the_file() {
        let mut transfer = half();
        transfer.accept(&head(200, 10, None)).expect("from the first byte");
        transfer.add(b"0123456789").expect("all");
        assert_eq!(transfer.verify(), Ok(()));
    }

    #[test]
    fn response_with_another_position_size_or_status_is_refused() {
        use TransferError::{Position, Size, Status, TooLong};
        assert_eq!(half().accept(&head(206, 4, Some(6))), Err(Position { sent: 6, expected: 5 }));
        assert_eq!(half().accept(&head(200, 11, None)), Err(Size { sent: 11, expected: 10 }));
        assert_eq!(half().accept(&head(404, 0, None)), Err(Status(404)));
        assert_eq!(half().accept(&head(206, 5, None)), Err(Status(206)), "no Content-Range");
        assert_eq!(half().add(b"567890"), Err(TooLong(10)));
        assert!(
            [Status(404), Status(410), Size { sent: 11, expected: 10 }]
                .iter()
                .all(|e| e.is_without_file())
        );
        assert!(![Status(503), Status(206), TooLong(10)].iter().any(|e| e.is_without_file()));
    }

    proptest! {
        #[test]
        fn flipped_bit_is_refused(at in 0usize..10, bit in 0u8..8) {
            let mut bytes = *b"0123456789";
            bytes[at] ^= 1 << bit;
            let mut transfer = Transfer::new(10, Digest::of(b"0123456789"));
            transfer.add(&bytes).expect("as long");
            let is_refused = matches!(transfer.verify(), Err(TransferError::Digest { .. }));
            prop_assert!(is_refused);
        }
    }
}
