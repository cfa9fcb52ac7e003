//! Streams files to and from a gzip-compressed tar.

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use meshd_types::{SafePath, failpoint};
use std::{
    cell::Cell,
    io::{self, Read, Write},
    rc::Rc,
};

/// Maximum size of the headers of one entry, in bytes: the tar crate keeps long names and
/// attributes in memory.
const MAX_HEADERS: u64 = 64 << 10;

/// Writes a gzip-compressed tar.
pub struct Packer<W: Write>(tar::Builder<GzEncoder<W>>);

/// Content of an archive entry.
pub enum Unpacked<'a> {
    File(&'a mut dyn Read),
    /// A symbolic link to this target.
    Link(String),
    Folder,
}

impl<W: Write> Packer<W> {
    /// Creates an archive that is written to `out`.
    pub fn new(out: W) -> Self {
        Packer(tar::Builder::new(GzEncoder::new(out, Compression::fast())))
    }

    /// Appends a file of `size` bytes.
    ///
    /// # Errors
    /// `content` cannot be read or is shorter than `size`, or the archive cannot be written.
    pub fn file(
        &mut self,
        path: &SafePath,
        mode: u32,
        size: u64,
        content: impl Read,
    ) -> io::Result<()> {
        let mut header = header(tar::EntryType::Regular, mode, size);
        self.0.append_data(&mut header, path.relative(), ExactReader { rest: size, content })
    }

    /// Appends a symbolic link.
    pub fn link(&mut self, path: &SafePath, target: &str) -> io::Result<()> {
        self.0.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), path.relative(), target)
    }

    pub fn folder(&mut self, path: &SafePath, mode: u32) -> io::Result<()> {
        let mut header = header(tar::EntryType::Directory, mode, 0);
        self.0.append_data(&mut header, format!("{}/", path.relative()), io::empty())
    }

    /// Writes the end of the archive and returns the output.
    pub fn finish(self) -> io::Result<W> {
        self.0.into_inner()?.finish()
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

/// Reads an exact number of bytes; fewer bytes are an error.
struct ExactReader<R> {
    rest: u64,
    content: R,
}

impl<R: Read> Read for ExactReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.rest).unwrap_or(usize::MAX));
        let count = self.content.read(&mut buffer[..most])?;
        if count == 0 && most > 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was read",
            ));
        }
        self.rest -= count as u64;
        Ok(count)
    }
}

/// Calls `each` with every entry of an archive and its permission bits. Reads the archive to its
/// end.
///
/// # Errors
/// The archive is invalid or truncated, or `each` fails.
pub fn unpack(
    input: impl Read,
    mut each: impl FnMut(SafePath, u32, Unpacked<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let (limited, budget) = HeaderLimit::new(GzDecoder::new(input));
    let mut archive = tar::Archive::new(limited);
    let mut entries = archive.entries()?;
    loop {
        budget.begin_headers();
        let Some(entry) = entries.next() else { break };
        let mut entry = entry?;
        budget.begin_content();
        let mode = entry.header().mode()?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).trim_end_matches('/').to_owned();
        let path = SafePath::new(&path).map_err(io::Error::other)?;
        let unpacked = match entry.header().entry_type() {
            tar::EntryType::Directory => Unpacked::Folder,
            tar::EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                Unpacked::Link(String::from_utf8_lossy(&target).into_owned())
            }
            tar::EntryType::Regular => Unpacked::File(&mut entry),
            kind => return Err(io::Error::other(format!("{path} is a {kind:?}"))),
        };
        each(path, mode, unpacked)?;
        io::copy(&mut entry, &mut io::sink())?;
    }
    let mut decoder = archive.into_inner().into_inner();
    io::copy(&mut decoder, &mut io::sink())?;
    io::copy(&mut decoder.into_inner(), &mut io::sink())?;
    Ok(())
}

/// Limits the bytes between the contents of two entries.
pub struct HeaderLimit<R> {
    input: R,
    left: Rc<Cell<u64>>,
}

/// Says whether a [`HeaderLimit`] reads headers or contents.
pub struct HeaderBudget(Rc<Cell<u64>>);

impl<R> HeaderLimit<R> {
    pub fn new(input: R) -> (Self, HeaderBudget) {
        let left = Rc::new(Cell::new(0));
        (HeaderLimit { input, left: Rc::clone(&left) }, HeaderBudget(left))
    }

    pub fn into_inner(self) -> R {
        self.input
    }
}

impl HeaderBudget {
    /// The headers of one entry follow.
    pub fn begin_headers(&self) {
        self.0.set(MAX_HEADERS);
    }

    /// The content of an entry follows, of any length.
    pub fn begin_content(&self) {
        self.0.set(u64::MAX);
    }
}

impl<R: Read> Read for HeaderLimit<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        match self.left.get().checked_sub(count as u64) {
            Some(left) => self.left.set(left),
            None if failpoint::defends("archive-headers") => {
                return Err(io::Error::other(format!(
                    "the headers of an entry have more than {MAX_HEADERS} bytes"
                )));
            }
            None => {}
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_name_of_an_archive_entry_is_refused_unread() {
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let size = 16 << 20;
        let mut name = header(tar::EntryType::GNULongName, 0o644, size);
        name.set_cksum();
        builder.append(&name, io::repeat(b'a').take(size)).expect("memory takes everything");
        let mut file = header(tar::EntryType::Regular, 0o644, 0);
        builder.append_data(&mut file, "file", io::empty()).expect("memory takes everything");
        let archive =
            builder.into_inner().and_then(GzEncoder::finish).expect("memory takes everything");
        let refused = unpack(&archive[..], |_, _, _| Ok(())).expect_err("no path is this long");
        assert!(refused.to_string().contains("headers"), "{refused}");
    }
}
