//! Reads and writes concatenated gzip members and the tar archives in them. All sizes are limited,
//! because the mirror is not trusted. Only this module and `overlay/archive` use tar and flate2.

use flate2::{
    Compression, GzBuilder,
    bufread::{GzDecoder, MultiGzDecoder},
};
use std::{
    fs,
    io::{self, BufReader, Read as _, Write as _},
    path::Path,
};

/// Maximum size of an archive in memory, in bytes. Alpine's largest index has about 10 MB.
const MAX_UNPACKED: u64 = 256 << 20;
/// `OS` byte of a gzip header that means "unknown" (RFC 1952): the same on every machine.
const GZIP_OS_UNKNOWN: u8 = 255;
/// Size of the two empty blocks that end a tar archive, in bytes.
const END_OF_ARCHIVE: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// Returns the first gzip member, unpacked, and the remaining bytes.
///
/// # Errors
/// The bytes are not gzip, are damaged, or exceed the limit.
pub fn unpack_first(bytes: &[u8]) -> io::Result<(Vec<u8>, &[u8])> {
    unpack_first_within(bytes, MAX_UNPACKED)
}

/// As [`unpack_first`], with a given limit in bytes.
pub fn unpack_first_within(bytes: &[u8], limit: u64) -> io::Result<(Vec<u8>, &[u8])> {
    let mut decoder = GzDecoder::new(bytes);
    let mut unpacked = Vec::new();
    decoder.by_ref().take(limit + 1).read_to_end(&mut unpacked)?;
    if unpacked.len() as u64 > limit {
        return Err(too_large(limit));
    }
    Ok((unpacked, decoder.into_inner()))
}

/// Unpacks all members.
pub fn unpack_all(mut bytes: &[u8], limit: u64) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    while !bytes.is_empty() {
        let (unpacked, rest) = unpack_first_within(bytes, limit - whole.len() as u64)?;
        whole.extend(unpacked);
        bytes = rest;
    }
    Ok(whole)
}

/// Unpacks all gzip members of a file into another file.
///
/// # Errors
/// The file is damaged, or unpacks to more than `limit` bytes.
pub fn unpack_file(packed: &Path, to: &Path, limit: u64) -> io::Result<()> {
    let decoder = MultiGzDecoder::new(BufReader::new(fs::File::open(packed)?));
    let size = io::copy(&mut decoder.take(limit + 1), &mut fs::File::create(to)?)?;
    if size > limit {
        return Err(too_large(limit));
    }
    Ok(())
}

fn too_large(limit: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("unpacks to more than {limit} bytes"))
}

/// Returns the regular files of a tar archive; the end of archive may be missing.
pub fn files(tar: &[u8]) -> io::Result<Vec<File>> {
    let mut archive = tar::Archive::new(tar);
    let mut files = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            files.push(File { name, bytes });
        }
    }
    Ok(files)
}

/// Packs files as a gzip member, with or without the end of the archive. The output is
/// deterministic.
pub fn pack(files: &[File], ends: bool) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for file in files {
        let mut header = tar::Header::new_ustar();
        // Every number field is written, because apk treats an entry with an empty number as the
        // end of the archive.
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(file.bytes.len() as u64);
        builder
            .append_data(&mut header, &file.name, &file.bytes[..])
            .expect("memory takes everything");
    }
    let mut tar = builder.into_inner().expect("memory takes everything");
    if !ends {
        tar.truncate(tar.len() - END_OF_ARCHIVE);
    }
    gzip(&tar)
}

/// Compresses bytes as one gzip member; the output is deterministic.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder =
        GzBuilder::new().operating_system(GZIP_OS_UNKNOWN).write(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(name: &str, bytes: &[u8]) -> File {
        File { name: name.into(), bytes: bytes.into() }
    }

    #[test]
    fn gzip_members_are_split_at_their_ends() {
        let a = file("a", b"one");
        let b = file("b", b"two");
        let first_member = pack(std::slice::from_ref(&a), false);
        let second = pack(std::slice::from_ref(&b), true);
        let row = [&first_member[..], &second[..]].concat();
        let (unpacked, rest) = unpack_first(&row).unwrap();
        assert_eq!((files(&unpacked).unwrap(), rest), (vec![a.clone()], &second[..]));
        assert_eq!(files(&unpack_all(&row, 1 << 20).unwrap()).unwrap(), [a, b]);
    }

    #[test]
    fn file_that_unpacks_beyond_its_limit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let packed = dir.path().join("packed");
        let to = dir.path().join("to");
        fs::write(&packed, [gzip(&[0; 4096]), gzip(&[1; 4096])].concat()).unwrap();
        unpack_file(&packed, &to, 8192).unwrap();
        assert_eq!(fs::metadata(&to).unwrap().len(), 8192);
        assert_eq!(
            unpack_file(&packed, &to, 8191).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        assert_eq!(fs::metadata(&to).unwrap().len(), 8192, "nothing beyond the limit is written");
    }

    #[test]
    fn truncated_altered_or_large_package_is_refused() {
        let good = pack(&[file("a", &[7; 4096])], true);
        assert!(unpack_first(&good[..good.len() - 1]).is_err());
        let mut bad = good.clone();
        let middle = bad.len() - 6;
        bad[middle] ^= 1;
        assert!(unpack_first(&bad).is_err());
        assert!(unpack_all(&good, 100).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = unpack_first(&bytes).and_then(|(unpacked, _)| files(&unpacked));
            let _ = files(&bytes);
        }
    }
}
