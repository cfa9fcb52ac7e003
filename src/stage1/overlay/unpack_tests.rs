//! Archives that are unpacked, and archives that would write outside.

use super::*;
use flate2::{Compression, write::GzEncoder};
use rustix::process::{getgid, getuid};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, symlink},
};
use tar::{Builder, EntryType, Header};

/// One member: path, type, link target or content, mode.
type Row<'a> = (&'a str, EntryType, &'a str, u32);

/// A gzip member without end of archive, as the central node makes them.
fn gzip(rows: &[Row<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, kind, text, mode) in rows {
        let mut header = Header::new_gnu();
        // Unchecked, so that a test can write any path.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_uid(getuid().as_raw().into());
        header.set_gid(getgid().as_raw().into());
        header.set_mtime(0);
        let content = if *kind == EntryType::Regular { *text } else { "" };
        header.set_size(content.len() as u64);
        if *kind == EntryType::Symlink {
            header.set_link_name_literal(text).expect("short");
        }
        header.set_cksum();
        builder.append(&header, content.as_bytes()).expect("appended");
    }
    let tar = std::mem::take(builder.get_mut());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&tar).expect("written");
    encoder.finish().expect("finished")
}

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;
const FOLDER: EntryType = EntryType::Directory;

/// A root with the merged `/bin` of Debian, and a folder outside.
struct Sample {
    folder: tempfile::TempDir,
}

impl Sample {
    fn new() -> Self {
        let sample = Sample { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir_all(sample.path("root/usr/bin")).expect("made");
        fs::create_dir_all(sample.path("root/etc")).expect("made");
        fs::create_dir(sample.path("outside")).expect("made");
        symlink("usr/bin", sample.path("root/bin")).expect("linked");
        sample
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join(path)
    }

    fn unpack(&self, archive: &[u8]) -> Result<usize, UnpackError> {
        unpack(archive, &self.path("root"))
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).expect("is there")
    }

    fn mode(&self, path: &str) -> u32 {
        fs::symlink_metadata(self.path(path)).expect("is there").mode() & 0o7777
    }
}

#[test]
fn members_of_several_gzip_streams_are_unpacked_with_modes() {
    let sample = Sample::new();
    let first = gzip(&[
        ("etc/meshd/", FOLDER, "", 0o750),
        ("etc/meshd/a", FILE, "one", 0o640),
        ("bin/tool", FILE, "tool", 0o4755),
        ("etc/link", LINK, "/run/target", 0o777),
    ]);
    let second = gzip(&[("etc/new/deep/b", FILE, "two", 0o600), ("etc/meshd/a", FILE, "1", 0o600)]);
    assert_eq!(sample.unpack(&[first, second].concat()).expect("unpacked"), 6);
    assert_eq!(sample.text("root/usr/bin/tool"), "tool", "through the link of the root");
    assert_eq!(sample.text("root/etc/new/deep/b"), "two");
    assert_eq!(sample.text("root/etc/meshd/a"), "1", "the later member counts");
    let link = fs::read_link(sample.path("root/etc/link")).expect("a link");
    assert_eq!(link, Path::new("/run/target"));
    for (path, mode) in [
        ("root/etc/meshd", 0o750),
        ("root/etc/meshd/a", 0o600),
        ("root/usr/bin/tool", 0o4755),
        ("root/etc/new", 0o755),
    ] {
        assert_eq!(sample.mode(path), mode, "{path}");
    }
}

#[test]
fn file_replaces_a_link_and_not_its_target() {
    let sample = Sample::new();
    fs::write(sample.path("root/etc/target"), "old").expect("written");
    symlink("target", sample.path("root/etc/conf")).expect("linked");
    sample.unpack(&gzip(&[("etc/conf", FILE, "new", 0o644)])).expect("unpacked");
    assert_eq!(sample.text("root/etc/conf"), "new");
    assert_eq!(sample.text("root/etc/target"), "old");
}

#[test]
fn archive_that_leads_outside_writes_nothing_there() {
    for rows in [
        vec![("../outside/a", FILE, "x", 0o644)],
        vec![("/outside/a", FILE, "x", 0o644)],
        vec![("way", LINK, "../outside", 0o777), ("way/a", FILE, "x", 0o644)],
        vec![
            ("way", LINK, "../../../../../../../../../tmp", 0o777),
            ("way/meshd-x", FILE, "x", 0o644),
        ],
        vec![("etc/node", EntryType::Char, "", 0o644)],
        vec![("etc/hard", EntryType::Link, "", 0o644)],
    ] {
        let sample = Sample::new();
        // A link out of the root is resolved below the root, where its target does not exist.
        let _ = sample.unpack(&gzip(&rows));
        let outside = fs::read_dir(sample.path("outside")).expect("there").count();
        assert_eq!(outside, 0, "{rows:?}");
        assert!(!Path::new("/tmp/meshd-x").exists(), "{rows:?}");
        assert!(!sample.path("root/etc/node").exists() && !sample.path("root/etc/hard").exists());
    }
}

#[test]
fn absolute_link_leads_below_the_root() {
    let sample = Sample::new();
    let rows = [("way", LINK, "/etc", 0o777), ("way/a", FILE, "x", 0o644)];
    sample.unpack(&gzip(&rows)).expect("unpacked");
    assert_eq!(sample.text("root/etc/a"), "x");
}

#[test]
fn damaged_archive_and_replaced_folder_are_refused() {
    let sample = Sample::new();
    let whole = gzip(&[("etc/a", FILE, "content", 0o644)]);
    assert!(sample.unpack(&whole[..whole.len() - 9]).is_err(), "truncated");
    assert!(sample.unpack(b"no gzip").is_err());
    let error = sample.unpack(&gzip(&[("usr", FILE, "x", 0o644)])).expect_err("a folder");
    assert!(error.to_string().starts_with("unpack /usr of the overlay: "), "{error}");
}
