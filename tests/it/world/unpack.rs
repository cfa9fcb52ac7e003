//! Opens an overlay as the node would: a gzip-compressed cpio that holds an archive of several gzip
//! members, an apkovl or the overlay of stage 1.

use flate2::read::{GzDecoder, MultiGzDecoder};
use std::{collections::BTreeMap, io::Read as _};

/// Archive of the overlay for each kind of image.
const ARCHIVES: [&str; 2] = ["apkovl.tar.gz", "meshd/overlay.tar.gz"];

/// Files of the overlay: path, mode and content.
pub fn overlay(initrd: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
    files_of(&apkovl(initrd))
}

/// The archive of the overlay, of either kind of image.
pub fn apkovl(initrd: &[u8]) -> Vec<u8> {
    let cpio = unpacked(initrd);
    let archive = ARCHIVES.iter().find_map(|name| file_of_cpio(&cpio, name));
    archive.expect("an archive").to_vec()
}

/// The configuration of stage 1, and the files of the overlay, of the overlay initrd of a root
/// image.
pub fn stage1(initrd: &[u8]) -> (serde_json::Value, BTreeMap<String, (u32, Vec<u8>)>) {
    let cpio = unpacked(initrd);
    let config = file_of_cpio(&cpio, "meshd/stage1.json").expect("a configuration");
    (serde_json::from_slice(config).unwrap(), overlay(initrd))
}

/// The program of stage 1 in the overlay initrd of a root image.
pub fn stage1_program(initrd: &[u8]) -> Vec<u8> {
    file_of_cpio(&unpacked(initrd), "meshd/stage1").expect("a program").to_vec()
}

fn unpacked(initrd: &[u8]) -> Vec<u8> {
    let mut cpio = Vec::new();
    GzDecoder::new(initrd).read_to_end(&mut cpio).unwrap();
    cpio
}

fn files_of(apkovl: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(MultiGzDecoder::new(apkovl)).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().trim_end_matches('/').to_owned();
        let mode = entry.header().mode().unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        files.insert(path, (mode, content));
    }
    files
}

/// A file of a "newc" archive (Linux, buffer-format.rst).
fn file_of_cpio<'a>(cpio: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    let padded = |length: usize| length.next_multiple_of(4);
    let mut at = 0;
    loop {
        let field = |index: usize| {
            let start = at + 6 + index * 8;
            usize::from_str_radix(std::str::from_utf8(&cpio[start..start + 8]).unwrap(), 16)
                .unwrap()
        };
        assert_eq!(&cpio[at..at + 6], b"070701");
        let size = field(6);
        let name_size = field(11);
        let name = std::str::from_utf8(&cpio[at + 110..at + 110 + name_size - 1]).unwrap();
        let start = padded(at + 110 + name_size);
        if name.trim_start_matches('/') == wanted {
            return Some(&cpio[start..start + size]);
        }
        if name == "TRAILER!!!" {
            return None;
        }
        at = padded(start + size);
    }
}
