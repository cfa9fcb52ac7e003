//! Reads the archives of a source into a tree.
//!
//! Two readings of one archive: the first applies whiteouts, which concern earlier layers only, and
//! finds archives that are too large before anything is stored; the second adds the entries.

use super::{
    super::{
        contents::ContentStore,
        error::RootFault,
        limits::Limits,
        tree::{Inode, InodeKind, Meta, PathFault, RootTree},
    },
    pax::{HeaderCopy, Records},
    sparse,
};
use crate::command::{CommandError, interrupt::is_interrupted};
use meshd_image::overlay::HeaderLimit;
use meshd_types::Digest;
use sha2::Digest as _;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};
use tar::EntryType;

/// Beginning of the name of a whiteout in a layer (OCI image specification, "Whiteouts").
const WHITEOUT: &[u8] = b".wh.";
/// Name of the whiteout that hides a folder's earlier content.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Beginning of further names that layers reserve.
const RESERVED: &[u8] = b".wh..wh.";
/// Beginning of the record of an extended attribute in an archive.
const ATTRIBUTE: &str = "SCHILY.xattr.";
/// Records with the path, the path of a sparse file, and the target of a link.
const PATHS: [&str; 2] = ["GNU.sparse.name", "path"];
const TARGET: &str = "linkpath";
/// Extended attributes that a root keeps: POSIX ACLs have no place in a squashfs, and `trusted`
/// belongs to the host.
const KEPT_ATTRIBUTES: [&str; 2] = ["security.", "user."];
/// The end of every archive: two blocks of zeros.
const END: u64 = 1024;
/// Zeros behind an archive. umoci 0.4.7 (`umoci insert`) ends a layer with the last byte of its last
/// file: without the rest of the block, and without the end.
const PADDING: u64 = 511 + END;

/// An unpacked archive of a source.
pub(in crate::root) struct Archive {
    pub(in crate::root) path: PathBuf,
    /// Name in errors.
    pub(in crate::root) name: String,
    /// The archive is a layer: it may hide files of earlier layers.
    pub(in crate::root) is_layer: bool,
    /// Digest of the unpacked archive, if the source states it, or if it was read before.
    pub(in crate::root) digest: Option<Digest>,
}

/// Adds archives, one after the other.
pub(in crate::root) struct Reader<'a> {
    pub(in crate::root) tree: &'a mut RootTree,
    pub(in crate::root) contents: &'a mut ContentStore,
    pub(in crate::root) limits: Limits,
    pub(in crate::root) used: Used,
}

/// What all archives so far contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::root) struct Used {
    pub(in crate::root) entries: u64,
    pub(in crate::root) bytes: u64,
    /// Device nodes, pipes and sockets, which are left out.
    pub(in crate::root) left_out: u64,
}

impl Reader<'_> {
    /// Adds an archive and returns its digest.
    pub(in crate::root) fn add(&mut self, archive: &Archive) -> Result<Digest, RootFault> {
        // The digest of another source is that of the file as it is, cut or not.
        let is_proven = archive.is_layer && archive.digest.is_some();
        if !is_proven {
            check_end(archive)?;
        }
        read(archive, |entry| self.prepare(archive, entry))?;
        let digest = read(archive, |entry| self.add_entry(archive, entry))?;
        match archive.digest.filter(|stated| *stated != digest) {
            Some(_) if !archive.is_layer => Err(RootFault::Changed(archive.name.clone())),
            Some(stated) => {
                Err(RootFault::WrongDigest { name: archive.name.clone(), found: digest, stated })
            }
            None => Ok(digest),
        }
    }

    /// Counts an entry, and applies it if it is a whiteout.
    fn prepare(&mut self, archive: &Archive, entry: &mut Entry<'_>) -> Result<(), RootFault> {
        let path = &entry.path;
        self.used.entries += 1;
        self.used.bytes = self.used.bytes.saturating_add(entry.size(archive)?);
        if self.used.entries > self.limits.entries {
            return Err(RootFault::TooMany(self.limits));
        }
        if self.used.bytes > self.limits.bytes {
            return Err(RootFault::TooLarge(self.limits));
        }
        let refused = |why| path_fault(archive, path, why);
        match hidden(archive, path) {
            Some(Hidden::Below(folder)) => self.tree.clear(folder).map_err(refused),
            Some(Hidden::Path(path)) => self.tree.remove(&path).map_err(refused),
            Some(Hidden::Nothing) | None => Ok(()),
        }
    }

    fn add_entry(&mut self, archive: &Archive, entry: &mut Entry<'_>) -> Result<(), RootFault> {
        let path = &entry.path;
        if hidden(archive, path).is_some() {
            return Ok(());
        }
        let refused = |why| path_fault(archive, path, why);
        let kind = match entry.content.header().entry_type() {
            EntryType::Directory => InodeKind::Folder,
            EntryType::Symlink => {
                let target = entry.target();
                let target = target.filter(|target| !target.is_empty() && target.len() < 4096);
                InodeKind::Link(target.ok_or_else(|| refused("is a link without a valid target"))?)
            }
            EntryType::Link => {
                let target = entry.target();
                let target = target.ok_or_else(|| refused("is a hard link without a target"))?;
                return self.tree.link(path, &target).map_err(refused);
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let size = entry.size(archive)?;
                let content = self.store(&mut entry.content, &entry.records, size);
                let content = content.map_err(|error| damaged(archive, &error))?;
                InodeKind::File { content, size }
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                self.used.left_out += 1;
                return self.tree.remove(path).map_err(refused);
            }
            EntryType::XGlobalHeader => return Ok(()),
            _ => return Err(refused("is of an unknown kind")),
        };
        let meta = meta(archive, entry)?;
        self.tree.put(&entry.path, Inode { kind, meta }).map_err(refused)
    }

    /// Stores the content of a file of this size.
    fn store(&mut self, mut content: impl Read, records: &Records, size: u64) -> io::Result<u64> {
        if sparse::real_size(records).map_err(io::Error::other)?.is_none() {
            return self.contents.add(size, content);
        }
        let segments = sparse::read_segments(&mut content, size)?;
        self.contents.add_sparse(size, &segments, content)
    }
}

type Input = io::Chain<HashingReader<BufReader<File>>, io::Take<io::Repeat>>;

/// An entry of an archive.
struct Entry<'a> {
    content: tar::Entry<'a, HeaderLimit<Input>>,
    records: Records,
    path: Vec<u8>,
}

impl Entry<'_> {
    /// Returns the size of the file with its holes.
    fn size(&self, archive: &Archive) -> Result<u64, RootFault> {
        let size = sparse::real_size(&self.records);
        let size = size.map_err(|why| path_fault(archive, &self.path, why))?;
        Ok(size.unwrap_or_else(|| self.content.size()))
    }

    /// Returns the target of a link.
    fn target(&self) -> Option<Vec<u8>> {
        let stated = self.records.get(TARGET).cloned();
        stated.or_else(|| self.content.link_name_bytes().map(std::borrow::Cow::into_owned))
    }
}

/// Reads an archive once and returns its digest.
fn read(
    archive: &Archive,
    mut each: impl FnMut(&mut Entry<'_>) -> Result<(), RootFault>,
) -> Result<Digest, RootFault> {
    let broken = |error: io::Error| damaged(archive, &error);
    let file = open(archive)?;
    let headers = HeaderCopy::default();
    let input = HashingReader::new(BufReader::new(file), headers.clone());
    let (input, budget) = HeaderLimit::new(input.chain(io::repeat(0).take(PADDING)));
    let mut reader = tar::Archive::new(input);
    let mut entries = reader.entries().map_err(broken)?;
    loop {
        budget.begin_headers();
        headers.begin();
        let Some(content) = entries.next() else { break };
        let content = content.map_err(broken)?;
        budget.begin_content();
        let records = headers.records();
        let records = records.ok_or_else(|| broken(io::Error::other("malformed pax records")))?;
        let path = PATHS.iter().find_map(|key| records.get(*key).cloned());
        let path = path.unwrap_or_else(|| content.path_bytes().into_owned());
        let mut entry = Entry { content, records, path };
        each(&mut entry)?;
        io::copy(&mut entry.content, &mut io::sink()).map_err(broken)?;
    }
    budget.begin_content();
    let mut rest = reader.into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(broken)?;
    let (input, _) = rest.into_inner().into_inner();
    Ok(Digest(input.hash.finalize().into()))
}

struct HashingReader<R> {
    input: R,
    hash: sha2::Sha256,
    headers: HeaderCopy,
}

impl<R> HashingReader<R> {
    fn new(input: R, headers: HeaderCopy) -> Self {
        HashingReader { input, hash: sha2::Sha256::new(), headers }
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if is_interrupted() {
            return Err(io::Error::other(CommandError::Interrupted));
        }
        let count = self.input.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.headers.add(&buffer[..count]);
        Ok(count)
    }
}

/// An archive that was cut between two entries reads like a complete one, unless a digest proves
/// that it is complete.
fn check_end(archive: &Archive) -> Result<(), RootFault> {
    let mut file = open(archive)?;
    let mut end = Vec::new();
    let length = file.metadata().map_err(|error| damaged(archive, &error))?.len();
    let read = io::Seek::seek(&mut file, io::SeekFrom::Start(length.saturating_sub(END)))
        .and_then(|_| file.read_to_end(&mut end));
    read.map_err(|error| damaged(archive, &error))?;
    match length >= END && end.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(RootFault::Archive {
            name: archive.name.clone(),
            why: "its end is missing".to_owned(),
        }),
    }
}

fn open(archive: &Archive) -> Result<File, RootFault> {
    meshd_config::files::open_regular(&archive.path)
        .map_err(|source| RootFault::Read { name: archive.name.clone(), source })
}

fn damaged(archive: &Archive, error: &io::Error) -> RootFault {
    RootFault::Archive { name: archive.name.clone(), why: error.to_string() }
}

fn path_fault(archive: &Archive, path: &[u8], why: PathFault) -> RootFault {
    let path: String = String::from_utf8_lossy(path).escape_debug().take(200).collect();
    RootFault::Path { name: archive.name.clone(), path, why }
}

/// What a whiteout hides.
enum Hidden<'p> {
    Path(Vec<u8>),
    /// Everything below a folder.
    Below(&'p [u8]),
    Nothing,
}

/// Returns what an entry hides if it is a whiteout.
fn hidden<'p>(archive: &Archive, path: &'p [u8]) -> Option<Hidden<'p>> {
    let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let (folder, name) = path.split_at(at);
    let hidden = name.strip_prefix(WHITEOUT).filter(|_| archive.is_layer)?;
    if name == OPAQUE {
        return Some(Hidden::Below(folder));
    }
    if name.starts_with(RESERVED) {
        return Some(Hidden::Nothing);
    }
    Some(Hidden::Path([folder, hidden].concat()))
}

/// Reads what an entry states about its inode.
fn meta(archive: &Archive, entry: &Entry<'_>) -> Result<Meta, RootFault> {
    let broken = |error: io::Error| damaged(archive, &error);
    let mut attributes = BTreeMap::new();
    for (key, value) in &entry.records {
        let name = key.strip_prefix(ATTRIBUTE);
        let name = name.filter(|name| KEPT_ATTRIBUTES.iter().any(|kept| name.starts_with(kept)));
        if let Some(name) = name {
            attributes.insert(name.to_owned(), value.clone());
        }
    }
    let header = entry.content.header();
    Ok(Meta {
        mode: header.mode().map_err(broken)? & 0o7777,
        owner: header.uid().map_err(broken)?,
        group: header.gid().map_err(broken)?,
        // A squashfs has 32 bits for it.
        time: header.mtime().map_err(broken)?.min(u32::MAX.into()),
        attributes,
    })
}

/// Returns the digest of a file.
pub(in crate::root) fn digest_of(path: &Path, name: &str) -> Result<Digest, RootFault> {
    let unreadable = |source| RootFault::Read { name: name.to_owned(), source };
    let file = meshd_config::files::open_regular(path).map_err(unreadable)?;
    let mut reader = HashingReader::new(file, HeaderCopy::default());
    let mut piece = vec![0; 1 << 20];
    while reader.read(&mut piece).map_err(unreadable)? > 0 {}
    Ok(Digest(reader.hash.finalize().into()))
}

#[cfg(test)]
mod tests {
    use crate::root::tests::{archive, file, listing, merge, merge_archives};
    use meshd_types::Digest;

    #[test]
    fn truncated_or_foreign_archive_is_refused() {
        let whole = archive(&[file("a", b"content"), file("b", b"content")]);
        for length in [0, 511, 1024, 1300, whole.len() - 512] {
            let refused = merge(&[&whole[..length]]).map(|merged| listing(&merged));
            let refused = refused.expect_err("it is cut").to_string();
            assert!(refused.contains("layer 0 is not an archive"), "{length}: {refused}");
        }
        let mut noise = vec![b'x'; 4096];
        noise.resize(8192, 0);
        assert!(merge(&[&noise]).is_err());
        let stated = Digest::of(b"another archive");
        let refused = merge_archives(&[&whole], Some(stated)).map(|merged| listing(&merged));
        assert!(refused.unwrap_err().to_string().contains(&stated.to_string()));
        assert!(merge_archives(&[&whole], Some(Digest::of(&whole))).is_ok());
    }

    #[test]
    fn layer_of_umoci_without_an_end_is_read_if_its_digest_is_stated() {
        let whole = archive(&[file("a", b"content"), file("b", b"content")]);
        // `umoci insert` ends with the last byte of the last file: the headers are blocks 0 and 2.
        let layer = &whole[..3 * 512 + b"content".len()];
        let merged = merge_archives(&[layer], Some(Digest::of(layer))).unwrap();
        assert_eq!(listing(&merged), listing(&merge(&[&whole]).unwrap()));
        let of_whole = merge_archives(&[layer], Some(Digest::of(&whole)));
        assert!(of_whole.is_err(), "it is cut, as its digest shows");
        assert!(merge(&[layer]).is_err(), "nothing shows that it is whole");
    }
}
