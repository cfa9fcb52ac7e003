//! Images as the builder never makes them.

use meshd_types::Digest;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Copies built Alpine images with initramfs and packages of odd length. The builder pads every blob, but
/// an imported one may be as it is; UEFI puts initrds one after the other without padding, and the
/// kernel must still find each.
pub fn odd(blobs: &Path, dir: &Path) -> PathBuf {
    let odd = dir.join("odd-blobs");
    let images = blobs.join("images");
    fs::create_dir_all(odd.join("images")).expect("made");
    fs::create_dir_all(odd.join("sha256")).expect("made");
    for entry in fs::read_dir(images).expect("the image is built") {
        let entry = entry.expect("readable");
        // Beside each image's current manifest stands the folder of its versions.
        if entry.path().extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let mut manifest: Value =
            serde_json::from_slice(&fs::read(entry.path()).expect("readable")).expect("JSON");
        // Another test may have built a root image, which has other parts.
        if manifest["parts"]["packages"].is_null() {
            continue;
        }
        for part in ["kernel", "initramfs", "modloop", "packages"] {
            let digest = manifest["parts"][part]["digest"].as_str().expect("a digest").to_owned();
            let mut bytes = fs::read(blobs.join("sha256").join(digest)).expect("the blob is there");
            if part == "initramfs" || part == "packages" {
                // Zeros after a compressed archive are padding to the kernel, one as well as three.
                bytes.push(0);
                assert_eq!(bytes.len() % 4, 1, "{part}");
            }
            let digest = Digest::of(&bytes);
            manifest["parts"][part] = json!({ "digest": digest, "size": bytes.len() });
            fs::write(odd.join("sha256").join(digest.to_string()), bytes).expect("written");
        }
        let text = serde_json::to_vec(&manifest).expect("JSON");
        fs::write(odd.join("images").join(entry.file_name()), text).expect("written");
    }
    odd
}
