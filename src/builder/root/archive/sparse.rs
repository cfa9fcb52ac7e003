//! Sparse files of the format pax (GNU tar manual, "PAX Format, Version 1.0"): the content begins
//! with a list of segments, as decimal numbers in lines, which ends at a full block.

use super::{
    super::{contents::Segment, tree::PathFault},
    pax::Records,
};
use std::io::{self, Read};

/// Beginning of the records of a sparse file.
pub(super) const SPARSE: &str = "GNU.sparse.";
/// Size of the blocks that the list fills, in bytes.
const BLOCK: usize = 512;
/// Maximum number of segments of a file: their list is kept in memory.
const MAX_SEGMENTS: u64 = 1 << 20;
/// Maximum number of digits of a number.
const MAX_DIGITS: usize = 20;

/// Returns the size of a sparse file with its holes; `None` if the file is not sparse.
pub(super) fn real_size(records: &Records) -> Result<Option<u64>, PathFault> {
    if !records.keys().any(|key| key.starts_with(SPARSE)) {
        return Ok(None);
    }
    let number = |key: &str| -> Option<u64> {
        let value = records.get(&format!("{SPARSE}{key}"))?;
        std::str::from_utf8(value).ok()?.parse().ok()
    };
    match (number("major"), number("minor"), number("realsize")) {
        (Some(1), Some(0), Some(size)) => Ok(Some(size)),
        _ => Err("is sparse in an old format; archive it with `tar --sparse-version=1.0`"),
    }
}

/// Reads the list of segments of a file of this size, up to the first segment.
pub(super) fn read_segments(content: impl Read, size: u64) -> io::Result<Vec<Segment>> {
    let mut numbers = Numbers { content, block: [0; BLOCK], at: BLOCK };
    let count = numbers.read()?;
    if count > MAX_SEGMENTS {
        let why = format!("a sparse file has more than {MAX_SEGMENTS} segments");
        return Err(io::Error::other(why));
    }
    let mut segments = Vec::new();
    let mut end = 0;
    for _ in 0..count {
        let segment = Segment { offset: numbers.read()?, length: numbers.read()? };
        let next = segment.offset.checked_add(segment.length).filter(|next| *next <= size);
        end = next.filter(|_| segment.offset >= end).ok_or_else(malformed)?;
        segments.push(segment);
    }
    Ok(segments)
}

/// Reads numbers, a block at a time.
struct Numbers<R> {
    content: R,
    block: [u8; BLOCK],
    /// Position of the next byte in the block.
    at: usize,
}

impl<R: Read> Numbers<R> {
    fn read(&mut self) -> io::Result<u64> {
        let mut digits = String::new();
        loop {
            if self.at == BLOCK {
                self.content.read_exact(&mut self.block)?;
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return digits.parse().map_err(|_| malformed()),
                b'0'..=b'9' if digits.len() < MAX_DIGITS => digits.push(char::from(byte)),
                _ => return Err(malformed()),
            }
        }
    }
}

fn malformed() -> io::Error {
    io::Error::other("the segments of a sparse file are malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_list_of_segments_is_refused() {
        let read = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
            read_segments(&bytes[..], 100).map_err(|error| error.to_string())
        };
        let all = Segment { offset: 0, length: 100 };
        assert_eq!((read("0\n"), read("1\n0\n100\n")), (Ok(vec![]), Ok(vec![all])));
        let overflow = format!("1\n{}\n2\n", u64::MAX);
        let cases = ["1\n0\n101\n", "2\n50\n10\n40\n10\n", "-1\n", "1\n\n1\n", &overflow];
        for text in cases.into_iter().chain(["000000000000000000001\n", "2\n0\n1\n"]) {
            let refused = read(text).expect_err(text);
            assert!(refused.contains("segments"), "{text}: {refused}");
        }
        assert!(read("1048577\n").unwrap_err().contains("more than"), "its list is not read");
    }
}
