//! Records of extended headers (POSIX pax). The crate tar splits them at newlines, which file
//! capabilities, attributes and names may contain; their lengths say where they end.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};
use tar::EntryType;

/// Size of a header, and unit of the size of what follows it, in bytes.
const BLOCK: usize = 512;

/// Records of an entry: key -> value.
pub(super) type Records = BTreeMap<String, Vec<u8>>;

/// The headers of the current entry, as they passed the reader of an archive.
#[derive(Clone, Default)]
pub(super) struct HeaderCopy(Rc<RefCell<Copied>>);

#[derive(Default)]
struct Copied {
    /// Bytes of the archive that were read.
    position: usize,
    /// Position of the headers in the archive, and their bytes so far.
    headers: Option<(usize, Vec<u8>)>,
}

impl HeaderCopy {
    /// Begins a copy: the headers of the next entry follow, at the next full block.
    pub(super) fn begin(&self) {
        let mut copied = self.0.borrow_mut();
        copied.headers = Some((copied.position, Vec::new()));
    }

    /// Adds bytes that were read.
    pub(super) fn add(&self, bytes: &[u8]) {
        let mut copied = self.0.borrow_mut();
        copied.position += bytes.len();
        if let Some((_, headers)) = &mut copied.headers {
            headers.extend_from_slice(bytes);
        }
    }

    /// Ends the copy. Returns the records of the entry, or `None` if they are malformed.
    pub(super) fn records(&self) -> Option<Records> {
        let (start, headers) = self.0.borrow_mut().headers.take()?;
        let mut rest = headers.get(start.next_multiple_of(BLOCK) - start..)?;
        let mut records = Records::new();
        while let Some((block, after)) = rest.split_at_checked(BLOCK) {
            let header = tar::Header::from_byte_slice(block);
            let kind = header.entry_type();
            let is_before_entry = matches!(
                kind,
                EntryType::XHeader | EntryType::GNULongName | EntryType::GNULongLink
            );
            if !is_before_entry && block.iter().any(|byte| *byte != 0) {
                break;
            }
            let size = match is_before_entry {
                true => usize::try_from(header.entry_size().ok()?).ok()?,
                false => 0,
            };
            let content = after.get(..size)?;
            if kind == EntryType::XHeader {
                parse(content, &mut records)?;
            }
            rest = after.get(size.checked_next_multiple_of(BLOCK)?..)?;
        }
        Some(records)
    }
}

/// Parses records: `LENGTH KEY=VALUE` and a newline, with the length of all of it. A later record
/// replaces an earlier one with its key.
fn parse(mut bytes: &[u8], records: &mut Records) -> Option<()> {
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
        let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        if let Ok(key) = std::str::from_utf8(&record[..equals]) {
            records.insert(key.to_owned(), record[equals + 1..].to_vec());
        }
        bytes = &bytes[length..];
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_ends_where_its_length_says() {
        let read = |bytes: &[u8]| {
            let mut records = Records::new();
            parse(bytes, &mut records).map(|()| records)
        };
        let expected = [("a".to_owned(), b"x\n6 b=y".to_vec()), ("c".to_owned(), Vec::new())];
        assert_eq!(read(b"13 a=x\n6 b=y\n5 c=\n"), Some(expected.into()));
        for bytes in
            ["6 a=b", "7 a=b\n", "0 \n", "x a=b\n", " a=b\n", "5 a=b\n", "99 a=b\n", "5 ab\n"]
        {
            assert_eq!(read(bytes.as_bytes()), None, "{bytes:?}");
        }
    }
}
