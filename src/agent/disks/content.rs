//! Determines whether a disk is empty: libblkid finds no signature, and the first and last MiB are
//! zero.

use crate::system::{Tree, holders::BLKID_ARGUMENTS};
use meshd_types::failpoint;
use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
    process::{Command, Stdio},
};

/// Bytes at both ends that are zero on an empty disk: file systems and partition tables have their
/// signatures there.
const EDGE: u64 = 1 << 20;
/// Bytes of one read.
const CHUNK: usize = 64 * 1024;
/// Maximum bytes of the program's output.
const MAX_OUTPUT: usize = 16 * 1024;
/// Maximum length of a value of blkid, in characters.
const MAX_VALUE: usize = 32;
/// Paths of blkid: the bundle `qemu`, and util-linux of Alpine and Debian.
const BLKID: [&str; 3] = ["/opt/bundles/qemu/bin/blkid", "/sbin/blkid", "/usr/sbin/blkid"];
/// The blkid of BusyBox does not know `-p`.
const BUSYBOX: &str = "busybox";
/// Exit codes of `blkid -p`: found, not found, ambivalent.
const FOUND: i32 = 0;
const NOT_FOUND: i32 = 2;
const AMBIVALENT: i32 = 8;
const UNRECOGNISED: &str = "unrecognised data";
const AMBIVALENT_CONTENT: &str = "several signatures";

/// Returns the content of a whole disk; empty for an empty disk. Blocks as long as the disk does.
pub fn of_disk(tree: &Tree, node: &str) -> Result<Vec<String>, String> {
    let path = tree.path(node);
    let is_zero =
        has_zero_edges(&path).map_err(|error| format!("cannot read the disk: {error}"))?;
    let mut found = probe(&path)?;
    if found.is_empty() && !is_zero && failpoint::defends("disk-unrecognised-data") {
        found.push(UNRECOGNISED.to_owned());
    }
    Ok(found)
}

/// Returns the recognised content of a partition. Its disk is not empty anyway.
pub fn of_partition(tree: &Tree, node: &str) -> Vec<String> {
    probe(&tree.path(node)).unwrap_or_else(|error| vec![error])
}

/// Returns true if the first and the last MiB are zero.
fn has_zero_edges(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let bytes = file.seek(SeekFrom::End(0))?;
    let mut is_zero = true;
    for start in [0, bytes.saturating_sub(EDGE)] {
        file.seek(SeekFrom::Start(start))?;
        // Read the whole edge to detect unreadable sectors.
        is_zero &= is_zero_for(&mut file, EDGE.min(bytes))?;
    }
    Ok(is_zero)
}

fn is_zero_for(file: &mut File, mut remaining: u64) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK];
    let mut is_zero = true;
    while remaining > 0 {
        let length = chunk.len().min(usize::try_from(remaining).unwrap_or(CHUNK));
        file.read_exact(&mut chunk[..length])?;
        is_zero &= chunk[..length].iter().all(|byte| *byte == 0);
        remaining -= length as u64;
    }
    Ok(is_zero)
}

fn probe(path: &Path) -> Result<Vec<String>, String> {
    let is_util_linux = |program: &&str| {
        Path::new(program).canonicalize().is_ok_and(|real| !real.ends_with(BUSYBOX))
    };
    let program = BLKID.into_iter().find(is_util_linux);
    let program = program
        .ok_or("blkid of util-linux is not installed; add the package blkid, or the bundle qemu")?;
    let mut command = Command::new(program);
    command.args(BLKID_ARGUMENTS).arg(path).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    let text =
        String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(MAX_OUTPUT)]).into_owned();
    match output.status.code() {
        Some(FOUND) => Ok(parse_signatures(&text)),
        Some(NOT_FOUND) => Ok(Vec::new()),
        Some(AMBIVALENT) => Ok(vec![AMBIVALENT_CONTENT.to_owned()]),
        _ => Err(format!("{program} failed: {}", output.status)),
    }
}

/// Parses `blkid -o export`. Unknown output still counts as content. Pure.
fn parse_signatures(text: &str) -> Vec<String> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        let value: String = line.chars().filter(|c| c.is_ascii_graphic()).take(MAX_VALUE).collect();
        (!value.is_empty()).then_some(value)
    };
    let kind = value("TYPE");
    let usage = value("USAGE");
    let table = value("PTTYPE");
    let kind = kind.map(|kind| match (kind.as_str(), usage.as_deref()) {
        ("swap", _) => "swap space".to_owned(),
        (_, Some("filesystem")) => format!("{kind} file system"),
        _ => kind,
    });
    let all: Vec<String> =
        kind.into_iter().chain(table.map(|table| format!("{table} partition table"))).collect();
    if all.is_empty() { vec![UNRECOGNISED.to_owned()] } else { all }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    /// A disk image in a file.
    fn disk(write: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let mut bytes = vec![0; 4 * MIB];
        write(&mut bytes);
        std::fs::write(dir.path().join("sda"), bytes).expect("written");
        of_disk(&Tree::new(dir.path()), "/sda")
    }

    #[test]
    fn disk_with_zeroes_at_both_ends_and_no_signature_is_empty() {
        assert_eq!(disk(|_| {}), Ok(vec![]));
        assert_eq!(disk(|bytes| bytes[2 * MIB] = 1), Ok(vec![]), "no signature is stored there");
    }

    #[test]
    fn disk_with_unrecognised_data_is_not_empty() {
        for at in [0, MIB - 1, 3 * MIB, 4 * MIB - 1] {
            assert_eq!(disk(|bytes| bytes[at] = 1), Ok(vec![UNRECOGNISED.to_owned()]), "{at}");
        }
    }

    #[test]
    fn signature_of_libblkid_is_found() {
        let bitlocker = |bytes: &mut Vec<u8>| bytes[..11].copy_from_slice(b"\xeb\x58\x90-FVE-FS-");
        assert!(disk(bitlocker).is_ok_and(|found| !found.is_empty()));
        let luks2 = |bytes: &mut Vec<u8>| bytes[..8].copy_from_slice(b"LUKS\xba\xbe\x00\x02");
        assert_eq!(disk(luks2), Ok(vec!["crypto_LUKS".to_owned()]));
    }

    #[test]
    fn unreadable_disk_is_not_empty() {
        let dir = tempfile::tempdir().expect("a folder");
        let missing = of_disk(&Tree::new(dir.path()), "/sda").expect_err("it is not there");
        assert!(missing.starts_with("cannot read the disk: "), "{missing}");
        std::fs::create_dir(dir.path().join("sdb")).expect("made");
        assert!(of_disk(&Tree::new(dir.path()), "/sdb").is_err());
    }

    #[test]
    fn blkid_output_becomes_descriptions() {
        assert_eq!(
            parse_signatures("DEVNAME=/dev/x\nTYPE=ext4\nUSAGE=filesystem\n"),
            ["ext4 file system"]
        );
        assert_eq!(parse_signatures("TYPE=swap\nUSAGE=other\n"), ["swap space"]);
        assert_eq!(parse_signatures("PTUUID=1\nPTTYPE=gpt\n"), ["gpt partition table"]);
        assert_eq!(parse_signatures("TYPE=LVM2_member\nUSAGE=raid\n"), ["LVM2_member"]);
        assert_eq!(parse_signatures("DEVNAME=/dev/x\n"), [UNRECOGNISED]);
    }

    proptest! {
        #[test]
        fn arbitrary_output_never_panics(text: String) {
            let _ = parse_signatures(&text);
        }
    }
}
