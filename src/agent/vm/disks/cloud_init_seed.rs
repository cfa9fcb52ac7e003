//! Makes the NoCloud image of cloud-init: an ISO 9660 file system with the label `cidata`. The same
//! input gives the same bytes. Pure.
//!
//! Plain ECMA-119 without extensions: one folder, all times zero. Linux shows the names in lower
//! case.

use meshd_proto::vm::{CloudInit, VmSpec};
use meshd_types::Secret;

const SECTOR: usize = 2048;
/// Sectors before the first descriptor.
const SYSTEM_AREA: usize = 16;
/// Sectors of the path tables and of the folder, and first sector of the files.
const PATHS_LITTLE: u32 = 18;
const PATHS_BIG: u32 = 19;
const FOLDER: u32 = 20;
const FILES: u32 = 21;
/// Bytes of a path table with the root only.
const PATHS_LENGTH: u32 = 10;

/// Beginnings of lines in `meta-data` after which no further key can be appended: other keys, and
/// what ends a document or is none of lines.
const NO_FURTHER_KEY: [&str; 6] =
    ["public-keys", "public_keys", "\"public", "'public", "...", "---"];

/// Returns true if a public key can be appended to the `meta-data` of a VM.
pub fn takes_key(seed: &CloudInit) -> bool {
    let Some(text) = &seed.meta_data else { return true };
    let lines = text.expose().lines().filter(|line| !line.trim_end().is_empty());
    let mut lines = lines.filter(|line| !line.trim_start().starts_with('#')).peekable();
    lines.next_if_eq(&"---");
    let is_mapping = lines.peek().is_some_and(|first| {
        first.starts_with(|c: char| c.is_ascii_alphabetic()) && first.contains(':')
    });
    is_mapping && !lines.any(|line| NO_FURTHER_KEY.iter().any(|part| line.starts_with(part)))
}

/// Makes the image if the specification has cloud-init data. `public_key` is one that the guest
/// accepts for its first user and root, if its `meta-data` has room.
///
/// A key in `user-data` would replace those of the operator.
pub fn image(spec: &VmSpec, public_key: Option<&str>) -> Option<Vec<u8>> {
    let seed = spec.cloud_init.as_ref()?;
    // The secret goes into a file that only the VM's user and root can read.
    let user_data = seed.user_data.expose().as_bytes();
    let host = spec.name.as_str().replace(['_', '.'], "-");
    let default = format!("instance-id: {}\nlocal-hostname: {host}\n", spec.uuid);
    let mut meta_data =
        Secret::new(seed.meta_data.as_ref().map_or(default, |text| text.expose().to_owned()));
    if let Some(key) = public_key.filter(|_| takes_key(seed)) {
        let text = format!("{}\npublic-keys:\n  - \"{key}\"\n", meta_data.expose().trim_end());
        meta_data = Secret::new(text);
    }
    let mut files = vec![("META-DATA", meta_data.expose().as_bytes())];
    if let Some(network) = &seed.network_config {
        files.push(("NETWORK-CONFIG", network.expose().as_bytes()));
    }
    files.push(("USER-DATA", user_data));
    Some(iso("cidata", &files))
}

/// Makes a file system. `files` must be sorted by name.
fn iso(label: &str, files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut folder =
        [record(&[0], FOLDER, SECTOR, true), record(&[1], FOLDER, SECTOR, true)].concat();
    let mut content = Vec::new();
    let mut next = FILES;
    for (name, bytes) in files {
        folder.extend(record(format!("{name}.;1").as_bytes(), next, bytes.len(), false));
        content.extend_from_slice(bytes);
        content.resize(content.len().next_multiple_of(SECTOR), 0);
        next = FILES + sectors(content.len());
    }
    let mut out = vec![0; SYSTEM_AREA * SECTOR];
    let terminator = b"\xffCD001\x01".to_vec();
    let path_tables = [
        paths(FOLDER.to_le_bytes(), 1u16.to_le_bytes()),
        paths(FOLDER.to_be_bytes(), 1u16.to_be_bytes()),
    ];
    for sector in [primary(label, next), terminator].into_iter().chain(path_tables).chain([folder])
    {
        let end = out.len() + SECTOR;
        out.extend(sector);
        out.resize(end, 0);
    }
    out.extend(content);
    out
}

fn sectors(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(SECTOR)).expect("a seed is far below 8 TiB")
}

/// Encodes a number as little endian followed by big endian (7.3.3).
fn both32(number: u32) -> Vec<u8> {
    [number.to_le_bytes(), number.to_be_bytes()].concat()
}

fn both16(number: u16) -> Vec<u8> {
    [number.to_le_bytes(), number.to_be_bytes()].concat()
}

/// Makes a directory record (9.1).
fn record(name: &[u8], sector: u32, length: usize, is_folder: bool) -> Vec<u8> {
    let length = u32::try_from(length).expect("a seed is far below 4 GiB");
    let mut out = vec![0, 0];
    out.extend(both32(sector));
    out.extend(both32(length));
    // 1970-01-01 00:00 UTC.
    out.extend([70, 1, 1, 0, 0, 0, 0]);
    out.extend([if is_folder { 2 } else { 0 }, 0, 0]);
    out.extend(both16(1));
    out.push(u8::try_from(name.len()).expect("the names are short"));
    out.extend(name);
    if out.len() % 2 == 1 {
        out.push(0);
    }
    out[0] = u8::try_from(out.len()).expect("the names are short");
    out
}

/// Makes the path table (9.4) with the root only, whose name is one zero byte.
fn paths(sector: [u8; 4], parent: [u8; 2]) -> Vec<u8> {
    [&[1, 0][..], &sector, &parent, &[0, 0]].concat()
}

/// Makes the primary volume descriptor (8.4).
fn primary(label: &str, sectors: u32) -> Vec<u8> {
    let mut out = vec![0; SECTOR];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x01CD001\x01");
    // Unused identifiers are blanks; unspecified dates are digits zero.
    put(8, &[b' '; 64]);
    put(40, label.as_bytes());
    put(80, &both32(sectors));
    put(120, &both16(1));
    put(124, &both16(1));
    put(128, &both16(2048));
    put(132, &both32(PATHS_LENGTH));
    put(140, &PATHS_LITTLE.to_le_bytes());
    put(148, &PATHS_BIG.to_be_bytes());
    put(156, &record(&[0], FOLDER, SECTOR, true));
    put(190, &[b' '; 623]);
    for date in [813, 830, 847, 864] {
        put(date, &[b'0'; 16]);
    }
    put(881, &[1]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::fixtures;

    /// Finds a file like the kernel: descriptor, root, record, bytes.
    fn find(image: &[u8], name: &str) -> Option<Vec<u8>> {
        let word = |at: usize| {
            u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes")) as usize
        };
        let descriptor = SYSTEM_AREA * SECTOR;
        assert_eq!(&image[descriptor..descriptor + 6], b"\x01CD001");
        assert_eq!(word(descriptor + 80) * SECTOR, image.len(), "the size in the descriptor");
        let mut at = word(descriptor + 156 + 2) * SECTOR;
        while image[at] != 0 {
            let length = usize::from(image[at + 32]);
            let found = &image[at + 33..at + 33 + length];
            if found == format!("{name}.;1").as_bytes() {
                let start = word(at + 2) * SECTOR;
                let bytes = word(at + 10);
                return Some(image[start..start + bytes].to_vec());
            }
            at += usize::from(image[at]);
        }
        None
    }

    #[test]
    fn files_are_found_by_their_names() {
        let long = vec![7; 5000];
        let image =
            iso("cidata", &[("META-DATA", b"id"), ("NETWORK-CONFIG", &[]), ("USER-DATA", &long)]);
        assert_eq!(find(&image, "META-DATA"), Some(b"id".to_vec()));
        assert_eq!(find(&image, "NETWORK-CONFIG"), Some(Vec::new()));
        assert_eq!(find(&image, "USER-DATA"), Some(long));
        assert_eq!(find(&image, "OTHER"), None);
        assert_eq!(image[SYSTEM_AREA * SECTOR + 40..][..7], *b"cidata ");
    }

    #[test]
    fn default_meta_data_has_the_uuid_and_the_name() {
        let cloud_init = serde_json::json!({ "user_data": "#cloud-config\n" });
        let spec =
            fixtures::spec(serde_json::json!({ "name": "train_7", "cloud_init": cloud_init }));
        let image = super::image(&spec, None).expect("an image");
        let meta = find(&image, "META-DATA").expect("a file");
        assert_eq!(
            String::from_utf8(meta).expect("text"),
            "instance-id: 11223344-5566-7788-99aa-bbccddeeff00\nlocal-hostname: train-7\n"
        );
        assert_eq!(find(&image, "USER-DATA"), Some(b"#cloud-config\n".to_vec()));
        assert_eq!(super::image(&VmSpec { cloud_init: None, ..spec }, Some("key")), None);
    }

    #[test]
    fn public_key_is_appended_to_meta_data_that_has_room() {
        let meta_data = |own: Option<&str>| {
            let seed = serde_json::json!({ "user_data": "", "meta_data": own });
            let spec = fixtures::spec(serde_json::json!({ "cloud_init": seed }));
            let image = super::image(&spec, Some("ssh-ed25519 AAAA x")).expect("an image");
            String::from_utf8(find(&image, "META-DATA").expect("a file")).expect("text")
        };
        let end = "\npublic-keys:\n  - \"ssh-ed25519 AAAA x\"\n";
        let default = meta_data(None);
        assert!(default.starts_with("instance-id: 11223344") && default.ends_with(end));
        for own in ["a: 1", "---\n# of ours\nlocal-hostname: x\ntags:\n  - public-keys\n\n"] {
            assert_eq!(meta_data(Some(own)), format!("{}{end}", own.trim_end()));
        }
        for own in
            ["", "{a: 1}", "a: 1\npublic-keys: []", "\"public-keys\": x\n", "a: 1\n...\n", "- a"]
        {
            assert_eq!(meta_data(Some(own)), own, "unchanged");
        }
    }
}
