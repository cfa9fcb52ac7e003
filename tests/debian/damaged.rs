//! Images with damage, and how a node reports that it refuses one.

use crate::racks::{BOOT, OrEnd, SOON, count};
use meshd_lab::{Rack, Wait};
use meshd_types::Digest;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A byte of the superblock of the squashfs: the first block that the kernel reads.
const FLIPPED: usize = 96;

fn manifest(blobs: &Path, image: &str) -> PathBuf {
    blobs.join("images").join(image).with_extension("json")
}

/// Returns the manifest of a built image.
pub fn manifest_of(blobs: &Path, image: &str) -> Vec<u8> {
    fs::read(manifest(blobs, image)).expect("the image is built")
}

/// Replaces the manifest of a built image before its rack is up.
pub fn write_manifest(blobs: &Path, image: &str, content: &[u8]) {
    fs::write(manifest(blobs, image), content).expect("written");
}

pub fn replace_manifest(rack: &Rack, image: &str, content: &[u8]) {
    write_manifest(&rack.site().blobs_dir, image, content);
    rack.run_cli(&["reload"]).or_end();
}

/// Copies built images.
pub fn copy_images(from: &Path, to: &Path) {
    for folder in ["images", "sha256"] {
        fs::create_dir_all(to.join(folder)).expect("made");
        for entry in fs::read_dir(from.join(folder)).expect("images are built") {
            let path = entry.expect("readable").path();
            // Beside each image's current manifest is the folder of its versions.
            if path.is_file() {
                let name = path.file_name().expect("named");
                fs::copy(&path, to.join(folder).join(name)).expect("copied");
            }
        }
    }
}

/// Manifests of one image.
pub struct Manifests {
    /// Its root has a flipped bit and the digest of its new content, and the root hash of its tree.
    pub flipped: Vec<u8>,
    pub intact: Vec<u8>,
}

/// Adds a root with a flipped bit beside that of an image.
pub fn flip(blobs: &Path, image: &str) -> Manifests {
    let intact = manifest_of(blobs, image);
    let mut changed: Value = serde_json::from_slice(&intact).expect("JSON");
    let root = &mut changed["parts"]["root"];
    let digest = root["digest"].as_str().expect("a digest").to_owned();
    let mut bytes = fs::read(blobs.join("sha256").join(digest)).expect("the blob is there");
    bytes[FLIPPED] ^= 1;
    let digest = Digest::of(&bytes).to_string();
    fs::write(blobs.join("sha256").join(&digest), bytes).expect("written");
    root["digest"] = digest.into();
    Manifests { flipped: serde_json::to_vec(&changed).expect("JSON"), intact }
}

/// dm-verity refuses the block of the flipped bit.
pub fn is_refused_for_its_bit(rack: &Rack, place: u8) {
    is_refused(rack, place, "mount squashfs at ");
}

/// Stage 1 reports this cause, and nothing of the root runs.
pub fn is_refused(rack: &Rack, place: u8, cause: &str) {
    let id = rack.id(place).to_string();
    let timeline = rack.wait(BOOT, "the report of stage 1", |rack| {
        let Ok(timeline) = rack.query(&["node", "timeline", &id]) else {
            return Ok(Wait::NotYet("no boot".to_owned()));
        };
        let is_reported = timeline["failure"].is_string();
        Ok(Wait::some(is_reported.then_some(timeline), "no failure"))
    });
    let timeline = timeline.or_end();
    let reason = timeline["failure"].as_str().unwrap_or_default();
    assert!(reason.starts_with(cause), "{timeline}");
    let session = timeline["session"].as_str().expect("a boot");
    let expected = format!("stage1: FAILED: {reason}\n");
    // The log follows the record of the failure.
    rack.wait(SOON, "the reason in the log of the boot", |rack| {
        let log = rack.run_cli(&["node", "logs", &id, "--session", session]);
        let is_there = log.as_ref().is_ok_and(|log| *log == expected);
        Ok(Wait::on(is_there, format!("{log:?}")))
    })
    .or_end();
    assert_eq!(count(rack, place, "certificate_issued"), 0);
    assert!(!rack.serial(place).contains("systemd[1]"), "nothing of the root ran");
}
