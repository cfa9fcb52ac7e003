//! `kill -9` at any instant of a promotion leaves the old version or the new one, whole.

use meshd_builder::versions;
use meshd_image::catalog::{
    image::{
        AlpineParts, Blob, Contents, FORMAT, ImageKind, ImageManifest, blob_path, load_image,
        manifest_path,
    },
    versions::VersionFolder,
};
use meshd_types::{Architecture, Digest, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

/// Promotions that are killed, each a little later than the one before.
const TRIES: u32 = 60;
/// How often all of that at most, each time slower.
const ROUNDS: u32 = 8;

fn manifest(blobs: &Path, text: &str) -> ImageManifest {
    let put = |text: &str| {
        let digest = Digest::of(text.as_bytes());
        fs::create_dir_all(blobs.join("sha256")).unwrap();
        fs::write(blob_path(blobs, &digest), text).unwrap();
        Blob { digest, size: text.len() as u64 }
    };
    ImageManifest {
        contents: Contents::default(),
        format: FORMAT,
        name: "lab".parse().unwrap(),
        arch: Architecture::X86_64,
        recipe: Digest::of(text.as_bytes()),
        kernel_release: "6.1".into(),
        kernel_package: "linux=6.1".into(),
        os_release: "3.23.0".into(),
        parts: ImageKind::Alpine(AlpineParts {
            kernel: put(text),
            initramfs: put("initramfs"),
            modloop: put("modloop"),
            packages: put("packages"),
        }),
        packages: BTreeMap::new(),
        built_at: Timestamp::from_millis(1),
    }
}

#[test]
fn killed_promotion_leaves_the_old_or_the_new_version() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = dir.path().join("blobs");
    let site = dir.path().join("site.toml");
    let text = fs::read_to_string("site.toml").unwrap();
    let text = text.replace("\nimages_dir", &format!("\nblobs_dir = {blobs:?}\nimages_dir"));
    fs::write(&site, text).unwrap();
    let name = "lab".parse().unwrap();
    let both = ["kernel a", "kernel b"].map(|text| manifest(&blobs, text));
    let shelf = VersionFolder::image(&blobs, &name);
    fs::create_dir_all(shelf.folder()).unwrap();
    for manifest in &both {
        fs::write(shelf.version_path(&manifest.version()), serde_json::to_vec(manifest).unwrap())
            .unwrap();
    }
    fs::write(manifest_path(&blobs, &name), serde_json::to_vec(&both[0]).unwrap()).unwrap();

    let promote = |version: Digest| {
        let mut promote = Command::new(env!("CARGO_BIN_EXE_meshd"));
        promote.arg("--site").arg(&site).args(["image", "promote", "lab", &version.to_string()]);
        promote.stdout(Stdio::null()).stderr(Stdio::null());
        promote
    };
    // How long one takes that nobody kills: the last tries come after its end.
    let begun = Instant::now();
    let first = promote(both[1].version()).stderr(Stdio::piped()).output().unwrap();
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let step = begun.elapsed() * 3 / 2 / TRIES;

    let mut moved = BTreeSet::new();
    // A machine that is busier than at the first one takes longer; then there are more tries,
    // further apart.
    for at in 0..ROUNDS * TRIES {
        if at >= TRIES && moved.len() == 2 {
            break;
        }
        let before = load_image(&blobs, &name).unwrap().manifest.version();
        let other =
            both.iter().map(ImageManifest::version).find(|version| *version != before).unwrap();
        let mut child = promote(other).spawn().unwrap();
        let kill_at = Instant::now() + step * (at % TRIES) * (1 + at / TRIES);
        while Instant::now() < kill_at && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let _ = child.kill();
        child.wait().unwrap();
        let after = load_image(&blobs, &name).unwrap().manifest.version();
        assert!(after == before || after == other);
        moved.insert(after == other);
        let pointer = shelf.pointer().unwrap();
        if after == other {
            assert_eq!(
                (pointer.current, pointer.previous),
                (Some(other), Some(before)),
                "try {at}"
            );
        }
    }
    // Nothing of all this keeps the next one from working.
    let done = Command::new(env!("CARGO_BIN_EXE_meshd"))
        .arg("--site")
        .arg(&site)
        .args(["image", "rollback", "lab"])
        .output();
    let done = done.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(versions(&blobs, &name).unwrap().len(), 2);
    assert_eq!(moved.len(), 2, "some are killed before they could do anything, some after");
}
