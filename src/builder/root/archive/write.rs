//! Writes a tree as one archive for GNU tar: ordered, without device nodes, and no entry is below a
//! symbolic link.

use super::{
    super::{
        contents::{ContentStore, Segment},
        tree::{InodeKind, RootTree},
    },
    sparse::SPARSE,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write},
};

/// Folder whose content a root does not need: kernel and initramfs are parts of the image.
const BOOT: &[u8] = b"boot/";
/// Maximum length of a name in the header of an entry, in bytes; a longer one is a record before
/// it.
const MAX_HEADER_NAME: usize = 100;
/// Size of a header, and unit of contents, in bytes.
const BLOCK: usize = 512;

/// Writes the archive.
pub(in crate::root) fn write(
    tree: &RootTree,
    contents: &ContentStore,
    out: impl Write,
) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    let mut first_names: BTreeMap<usize, &[u8]> = BTreeMap::new();
    for (path, number, inode) in tree.paths().filter(|(path, ..)| !path.starts_with(BOOT)) {
        let mut header = tar::Header::new_ustar();
        let meta = &inode.meta;
        header.set_mode(meta.mode);
        header.set_uid(meta.owner);
        header.set_gid(meta.group);
        header.set_mtime(meta.time);
        header.set_size(0);
        let name = if path.is_empty() { b".".as_slice() } else { path };
        let mut records: Vec<(String, &[u8])> = Vec::new();
        set_name(&mut header.as_old_mut().name, "path", name, &mut records);
        let first = first_names.entry(number).or_insert(path);
        if *first != path {
            header.set_entry_type(tar::EntryType::Link);
            set_name(&mut header.as_old_mut().linkname, "linkpath", first, &mut records);
            append(&mut archive, &mut header, &records, io::empty())?;
            continue;
        }
        let attributes = meta.attributes.iter();
        records.extend(
            attributes.map(|(name, value)| (format!("SCHILY.xattr.{name}"), value.as_slice())),
        );
        match &inode.kind {
            InodeKind::Folder => {
                header.set_entry_type(tar::EntryType::Directory);
                append(&mut archive, &mut header, &records, io::empty())?;
            }
            InodeKind::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                set_name(&mut header.as_old_mut().linkname, "linkpath", target, &mut records);
                append(&mut archive, &mut header, &records, io::empty())?;
            }
            InodeKind::File { content, size } => {
                header.set_entry_type(tar::EntryType::Regular);
                let file = File::open(contents.path(*content))?;
                if let Some(segments) = contents.segments(*content)? {
                    let realsize = size.to_string();
                    records.extend(sparse_records(name, &realsize));
                    append_sparse(
                        &mut archive,
                        &mut header,
                        &records,
                        SparseContent { segments: &segments, file },
                    )?;
                } else {
                    header.set_size(*size);
                    append(&mut archive, &mut header, &records, file)?;
                }
            }
        }
    }
    archive.into_inner()?.flush()
}

/// Sets a name of a header, or adds a record for a long one.
fn set_name<'p>(
    field: &mut [u8; MAX_HEADER_NAME],
    key: &str,
    name: &'p [u8],
    records: &mut Vec<(String, &'p [u8])>,
) {
    let length = name.len().min(MAX_HEADER_NAME);
    field[..length].copy_from_slice(&name[..length]);
    if length < name.len() {
        records.push((key.to_owned(), name));
    }
}

/// Returns the records of a sparse file.
fn sparse_records<'p>(name: &'p [u8], size: &'p str) -> [(String, &'p [u8]); 4] {
    let values: [(&str, &[u8]); 4] =
        [("major", b"1"), ("minor", b"0"), ("name", name), ("realsize", size.as_bytes())];
    values.map(|(key, value)| (format!("{SPARSE}{key}"), value))
}

/// Appends a file with holes, so that GNU tar makes them again: mksquashfs makes none of its own.
fn append_sparse(
    archive: &mut tar::Builder<impl Write>,
    header: &mut tar::Header,
    records: &[(String, &[u8])],
    content: SparseContent<'_>,
) -> io::Result<()> {
    let SparseContent { segments, mut file } = content;
    let lines = segments.iter().map(|segment| format!("{}\n{}\n", segment.offset, segment.length));
    let mut map = format!("{}\n{}", segments.len(), lines.collect::<String>()).into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    let data: u64 = segments.iter().map(|segment| segment.length).sum();
    let size = map.len() as u64 + data;
    header.set_size(size);
    archive.append_pax_extensions(records.iter().map(|(key, value)| (key.as_str(), *value)))?;
    header.set_cksum();
    let out = archive.get_mut();
    out.write_all(header.as_bytes())?;
    out.write_all(&map)?;
    for segment in segments {
        file.seek(SeekFrom::Start(segment.offset))?;
        io::copy(&mut (&mut file).take(segment.length), out)?;
    }
    let end = size.next_multiple_of(BLOCK as u64) - size;
    io::copy(&mut io::repeat(0).take(end), out).map(drop)
}

/// A file, and its bytes that are no hole.
struct SparseContent<'a> {
    segments: &'a [Segment],
    file: File,
}

fn append(
    archive: &mut tar::Builder<impl Write>,
    header: &mut tar::Header,
    records: &[(String, &[u8])],
    content: impl io::Read,
) -> io::Result<()> {
    archive.append_pax_extensions(records.iter().map(|(key, value)| (key.as_str(), *value)))?;
    header.set_cksum();
    archive.append(header, content)
}
