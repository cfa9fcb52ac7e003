//! The real image, built anew from the committed recipe and the downloads that `make image` left.

use crate::racks::{Places, from_env};
use meshd_builder::{
    BuildError, BuildRequest, BuildStep, ImageState, Progress, build, list, verify,
};
use meshd_image::catalog::image::{ImageKind, blob_path};
use meshd_model::image_kind::System;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

struct Print;

impl Progress for Print {
    fn begin(&self, step: BuildStep) {
        println!("{step:16} begins");
    }
    fn note(&self, step: BuildStep, text: &str) {
        println!("{step:16} {text}");
    }
    fn end(&self, step: BuildStep, took: Duration) {
        println!("{step:16} {:.1} s", took.as_secs_f32());
    }
}

/// Returns a folder with the recipe of alpine-root, and this package in place of sudo.
fn variant(dir: &Path, images_dir: &Path, package: &str) -> PathBuf {
    let folder = dir.join(package);
    let recipe = folder.join("alpine-root");
    fs::create_dir_all(&recipe).unwrap();
    let text = fs::read_to_string(images_dir.join("alpine-root/image.toml")).unwrap();
    let changed = text.replace("\"sudo\"", &format!("{package:?}"));
    assert_ne!(changed, text);
    fs::write(recipe.join("image.toml"), changed).unwrap();
    let source = folder.join("alpine-lab");
    if !source.exists() {
        symlink(images_dir.join("alpine-lab"), source).unwrap();
    }
    recipe
}

#[test]
fn committed_recipe_builds_and_second_build_is_identical() {
    let _places = Places::wait(1);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let images_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("images");
    let request = BuildRequest {
        recipe_dir: images_dir.join("alpine-lab"),
        name: "alpine-lab".parse().unwrap(),
        blobs_dir: dir.join("blobs"),
        keys_dir: dir.join("keys"),
        cache_dir: from_env("MESHD_E2E_BLOBS", ".lab/blobs").join("cache"),
        work_dir: dir.join("work"),
        promote: true,
        refresh: false,
    };
    let show = |error: BuildError| -> ! {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            text += &format!(": {error}");
            source = error.source();
        }
        panic!("{text}")
    };
    let manifest = build(&request, &Print).unwrap_or_else(|error| show(error));
    println!("{}", serde_json::to_string_pretty(&manifest).unwrap());

    let begun = Instant::now();
    assert_eq!(build(&request, &Print).unwrap_or_else(|error| show(error)), manifest);
    println!("second build: {:?}", begun.elapsed());
    // Another folder of blobs has nothing of the first build; the key of the site is the same.
    let other = BuildRequest { blobs_dir: dir.join("other"), ..request.clone() };
    let rebuilt = build(&other, &Print).unwrap_or_else(|error| show(error));
    assert_eq!(rebuilt.parts, manifest.parts);
    assert_eq!(verify(&request.blobs_dir, &request.name).unwrap(), manifest);
    let listed = list(&request.blobs_dir, &images_dir).unwrap();
    assert!(
        listed.iter().any(|image| image.name == request.name && image.state == ImageState::Built)
    );

    // A root image takes its packages from the image before; one of these adds a user.
    let with = |package: &str, blobs_dir: &Path| {
        let recipe_dir = variant(dir, &images_dir, package);
        let name = "alpine-root".parse().unwrap();
        let blobs_dir = blobs_dir.to_owned();
        build(&BuildRequest { recipe_dir, name, blobs_dir, ..request.clone() }, &Print)
    };
    let [root, other_root] = [&request, &other]
        .map(|request| with("dhcpcd", &request.blobs_dir).unwrap_or_else(|error| show(error)));
    assert_eq!(root.parts, other_root.parts, "equal inputs give equal bytes");
    assert_eq!(root.parts.system(), System::Alpine);
    assert_eq!(root.kernel_package, manifest.kernel_package);
    assert!(root.packages.contains_key("openrc") && !root.packages.contains_key("sudo"));
    let ImageKind::Root(parts) = &root.parts else { panic!("{:?}", root.parts) };
    let blob = blob_path(&request.blobs_dir, &parts.root.digest);
    // adduser writes the day of the build, and keeps the file from before.
    let accounts = Command::new("unsquashfs").arg("-cat").arg(&blob).arg("etc/shadow").output();
    let accounts = String::from_utf8(accounts.unwrap().stdout).unwrap();
    assert!(accounts.lines().any(|line| line.starts_with("dhcpcd:!::")), "{accounts}");
    let backup = Command::new("unsquashfs").arg("-cat").arg(&blob).arg("etc/shadow-").status();
    assert!(!backup.unwrap().success());
    let refused = with("vim", &request.blobs_dir).unwrap_err();
    let cause = std::error::Error::source(&refused).unwrap().to_string();
    assert_eq!(cause, "image alpine-lab has no package vim");

    for part in manifest.parts.parts() {
        assert_eq!(part.blob.size % 4, 0, "{part:?}");
        assert!(blob_path(&request.blobs_dir, &part.blob.digest).is_file(), "{part:?}");
    }
    let key = fs::metadata(request.keys_dir.join("repo.rsa")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    assert!(
        manifest.packages.contains_key("alpine-base")
            && !manifest.packages.contains_key("linux-virt")
    );
    let left: Vec<_> =
        fs::read_dir(&request.work_dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(
        BTreeSet::from_iter(left),
        ["alpine-lab.lock", "alpine-root.lock"].map(Into::into).into()
    );
}
