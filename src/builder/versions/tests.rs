//! Tests of versions: atomic promotion, and pruning that keeps versions in use.

use super::*;
use meshd_image::catalog::{
    bundle,
    image::{AlpineParts, Contents, FORMAT, ImageKind, load_image, manifest_path},
    versions::IN_USE,
};
use meshd_types::{Architecture, Hint as _, Timestamp};
use std::{collections::BTreeMap, path::PathBuf};

fn prune_request(kind: ArtifactKind, keep: usize) -> Prune {
    Prune { kind, name: None, keep, in_use: BTreeSet::new(), dry_run: false }
}

struct TestImages {
    dir: tempfile::TempDir,
    name: ImageName,
}

impl TestImages {
    fn new() -> Self {
        TestImages { dir: tempfile::tempdir().unwrap(), name: "lab".parse().unwrap() }
    }

    fn blobs(&self) -> &Path {
        self.dir.path()
    }

    /// Makes a version whose kernel holds `text`; the other parts are shared by all.
    fn manifest(&self, text: &str, built_at: i64) -> ImageManifest {
        let put = |text: &str| {
            let file = self.blobs().join("in");
            fs::write(&file, text).unwrap();
            store::put_blob(self.blobs(), &file).unwrap()
        };
        let parts = ImageKind::Alpine(AlpineParts {
            kernel: put(text),
            initramfs: put("initramfs"),
            modloop: put("modloop"),
            packages: put("packages"),
        });
        ImageManifest {
            format: FORMAT,
            name: self.name.clone(),
            arch: Architecture::X86_64,
            recipe: Digest::of(text.as_bytes()),
            kernel_release: "6.1".into(),
            kernel_package: "linux=6.1".into(),
            os_release: "3.23.0".into(),
            parts,
            packages: BTreeMap::new(),
            contents: Contents::default(),
            built_at: Timestamp::from_millis(built_at),
        }
    }

    fn add(&self, text: &str, built_at: i64) -> Digest {
        store::finish(self.blobs(), &self.manifest(text, built_at), true).unwrap().version()
    }

    fn current(&self) -> Digest {
        load_image(self.blobs(), &self.name).unwrap().manifest.version()
    }

    fn prune(&self, keep: usize) -> Result<Pruned, VersionError> {
        prune(self.blobs(), &prune_request(ArtifactKind::Images, keep))
    }

    fn declare(&self, versions: &[Digest]) {
        let owner = ListOwner::read_or_create(&self.blobs().join("state"), "rack", [1; 8]).unwrap();
        owner
            .declare(self.blobs(), ListKind::Versions, &versions.iter().copied().collect())
            .unwrap();
    }

    fn blob(&self, version: &Digest) -> PathBuf {
        let manifest = load_version(self.blobs(), &self.name, version).unwrap();
        blob_path(self.blobs(), &manifest.parts.part("kernel").unwrap().digest)
    }
}

#[test]
fn version_is_promoted_by_prefix_and_rollback_swaps_versions() {
    let images = TestImages::new();
    let a = images.add("kernel a", 1);
    let b = images.add("kernel b", 2);
    let c = images.add("kernel c", 3);
    assert_eq!(images.current(), c);
    promote(images.blobs(), &images.name, &a.to_string()[..6]).unwrap();
    assert_eq!(images.current(), a);
    assert_eq!(rollback(images.blobs(), &images.name).unwrap().version(), c);
    assert_eq!(rollback(images.blobs(), &images.name).unwrap().version(), a);
    let all = versions(images.blobs(), &images.name).unwrap();
    let seen: Vec<_> =
        all.iter().map(|version| (version.version, version.current, version.previous)).collect();
    assert_eq!(seen, [(c, false, true), (b, false, false), (a, true, false)]);
}

#[test]
fn invalid_version_is_refused_and_current_version_stays() {
    let images = TestImages::new();
    let first = images.add("kernel a", 1);
    let error = rollback(images.blobs(), &images.name).unwrap_err().to_string();
    assert!(error.contains("no version before"), "{error}");
    let second = images.add("kernel b", 2);
    for wrong in ["", &first.to_string()[..3], "zzzz", &"0".repeat(64)] {
        let error = promote(images.blobs(), &images.name, wrong).unwrap_err();
        let error = error.hint().unwrap_or_default();
        assert!(error.contains(&first.short()) && error.contains(&second.short()), "{error}");
    }
    fs::write(images.blob(&first), "kernel X").unwrap();
    let error = promote(images.blobs(), &images.name, &first.to_string()).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
    assert!(rollback(images.blobs(), &images.name).is_err());
    assert_eq!(images.current(), second);
}

#[test]
fn unpromoted_build_is_not_current_unless_it_is_the_first() {
    let images = TestImages::new();
    let first =
        store::finish(images.blobs(), &images.manifest("kernel a", 1), false).unwrap().version();
    assert_eq!(images.current(), first, "without any version the first one is it");
    let second =
        store::finish(images.blobs(), &images.manifest("kernel b", 2), false).unwrap().version();
    assert_eq!(images.current(), first);
    promote(images.blobs(), &images.name, &second.short()).unwrap();
    assert_eq!(images.current(), second);
}

#[test]
fn prune_keeps_current_previous_newest_and_used_versions() {
    let images = TestImages::new();
    let made: Vec<Digest> = (0..7).map(|at| images.add(&format!("kernel {at}"), at)).collect();
    promote(images.blobs(), &images.name, &made[1].to_string()).unwrap();
    // Now 1 is current and 6 was so before.
    images.declare(&[made[0]]);
    let gone = [images.blob(&made[2]), images.blob(&made[4])];
    let in_use = BTreeSet::from([made[3]]);
    let request = Prune { in_use, dry_run: true, ..prune_request(ArtifactKind::Images, 2) };
    let planned = prune(images.blobs(), &request).unwrap();
    assert!(gone.iter().all(|path| path.exists()), "a dry run removes no files");
    let pruned = prune(images.blobs(), &Prune { dry_run: false, ..request }).unwrap();
    assert_eq!((pruned.blobs, pruned.bytes), (planned.blobs, planned.bytes));
    let dropped: BTreeSet<Digest> = pruned.versions.iter().map(|version| version.version).collect();
    assert_eq!((dropped, pruned.blobs), (BTreeSet::from([made[2], made[4]]), 2));
    assert!(gone.iter().all(|path| !path.exists()));
    for kept in [0, 1, 3, 5, 6] {
        promote(images.blobs(), &images.name, &made[kept].to_string()).unwrap();
    }
}

#[test]
fn prune_deletes_nothing_while_an_in_use_list_is_invalid() {
    let images = TestImages::new();
    let made: Vec<Digest> = (0..4).map(|at| images.add(&format!("kernel {at}"), at)).collect();
    fs::create_dir(images.blobs().join(IN_USE)).unwrap();
    fs::write(images.blobs().join(IN_USE).join("rack"), "invalid\n").unwrap();
    assert!(matches!(images.prune(0), Err(VersionError::InUse(_))));
    assert!(images.blob(&made[0]).exists());
    fs::remove_file(images.blobs().join(IN_USE).join("rack")).unwrap();
    assert_eq!(images.prune(0).unwrap().versions.len(), 2, "current and previous stay even so");
}

#[test]
fn prune_of_one_image_keeps_other_images_and_unreadable_ones() {
    let images = TestImages::new();
    let other = TestImages { dir: images.dir, name: "other".parse().unwrap() };
    let theirs: Vec<Digest> = (0..4).map(|at| other.add(&format!("their {at}"), at)).collect();
    let images = TestImages { dir: other.dir, name: "lab".parse().unwrap() };
    for at in 0..4 {
        images.add(&format!("our {at}"), at);
    }
    // A manifest of a later release, and the blob that it names.
    let later = images.manifest("from the future", 9).parts.part("kernel").unwrap();
    let manifest = format!("{{\"format\": 99, \"kernel\": \"{}\"}}", later.digest);
    fs::write(manifest_path(images.blobs(), &"later".parse().unwrap()), manifest).unwrap();
    let request =
        Prune { name: Some(images.name.to_string()), ..prune_request(ArtifactKind::Images, 0) };
    assert_eq!(prune(images.blobs(), &request).unwrap().versions.len(), 2);
    assert!(blob_path(images.blobs(), &later.digest).exists());
    let other: ImageName = "other".parse().unwrap();
    for version in theirs {
        promote(images.blobs(), &other, &version.to_string()).unwrap();
    }
}

/// Every state that a kill can leave behind: the steps of a promotion, done one after the other.
#[test]
fn promotion_succeeds_after_interrupted_promotion() {
    let images = TestImages::new();
    let a = images.add("kernel a", 1);
    let b = images.add("kernel b", 2);
    let version_folder = VersionFolder::image(images.blobs(), &images.name);
    let root = images.blobs().join(IMAGES);
    let before = version_folder.pointer().unwrap();
    assert_eq!((before.current, before.previous), (Some(b), Some(a)));
    std::os::unix::fs::symlink(
        format!("../{a}.json"),
        root.join(version_folder.move_target(3, &a)),
    )
    .unwrap();
    assert_eq!(version_folder.pointer().unwrap(), before, "a move alone changes nothing");
    std::os::unix::fs::symlink(version_folder.move_target(3, &a), root.join(".lab.json.4194305"))
        .unwrap();
    assert_eq!(
        version_folder.pointer().unwrap(),
        before,
        "nor does the link that is not in place yet"
    );
    assert_eq!(images.current(), b);
    let c = images.add("kernel c", 3);
    let after = version_folder.pointer().unwrap();
    assert_eq!((after.moves, after.current, after.previous), (3, Some(c), Some(b)));
    images.prune(0).unwrap();
    assert!(!root.join(".lab.json.4194305").exists(), "a leftover is removed");
}

#[test]
fn promotion_history_is_bounded() {
    let images = TestImages::new();
    let a = images.add("kernel a", 1);
    let b = images.add("kernel b", 2);
    (0..40).for_each(|_| drop(rollback(images.blobs(), &images.name).unwrap()));
    let version_folder = VersionFolder::image(images.blobs(), &images.name);
    assert!(version_folder.moves().unwrap().len() <= 17);
    assert_eq!(
        version_folder.pointer().unwrap(),
        meshd_image::catalog::versions::Pointer { moves: 42, current: Some(b), previous: Some(a) }
    );
}

#[test]
fn version_with_edited_manifest_is_refused() {
    let images = TestImages::new();
    let (a, _) = (images.add("kernel a", 1), images.add("kernel b", 2));
    let path = VersionFolder::image(images.blobs(), &images.name).version_path(&a);
    let mut manifest = load_version(images.blobs(), &images.name, &a).unwrap();
    let ImageKind::Alpine(parts) = &mut manifest.parts else { panic!("the kind of the test") };
    parts.kernel = parts.modloop;
    fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    assert!(matches!(rollback(images.blobs(), &images.name), Err(VersionError::Image(_))));
}

#[test]
fn prune_of_bundles_keeps_current_previous_last_built_and_used_layers() {
    let images = TestImages::new();
    let name: BundleName = "mpi".parse().unwrap();
    let version_folder = VersionFolder::bundle(images.blobs(), &name);
    let add = |at: i64| {
        let file = images.blobs().join("in");
        fs::write(&file, format!("layer {at}")).unwrap();
        let layer = store::put_blob(images.blobs(), &file).unwrap();
        let programs = Vec::new();
        let packages = BTreeMap::new();
        let built_at = Timestamp::from_millis(at);
        let format = bundle::FORMAT;
        let arch = Architecture::X86_64;
        let recipe = Digest::of(b"recipe");
        let manifest = BundleManifest {
            format,
            name: name.clone(),
            arch,
            recipe,
            layer,
            programs,
            packages,
            built_at,
        };
        store::put_version(&version_folder, &layer.digest, &manifest).unwrap();
        store::set_current(&version_folder, &layer.digest).unwrap();
        layer.digest
    };
    let image = images.add("kernel", 1);
    let made: Vec<Digest> = (0..6).map(add).collect();
    images.declare(&[made[1]]);
    let prune = |kind, keep| {
        prune(images.blobs(), &prune_request(kind, keep))
            .unwrap()
            .versions
            .into_iter()
            .map(|version| version.version)
            .collect::<Vec<_>>()
    };
    assert_eq!(prune(ArtifactKind::Images, 0), [], "one of images leaves bundles alone");
    let gone: BTreeSet<Digest> = prune(ArtifactKind::Bundles, 3).into_iter().collect();
    assert_eq!(gone, BTreeSet::from([made[0], made[2]]), "5, 4 and 3 were built last, 1 is in use");
    assert_eq!(prune(ArtifactKind::Bundles, 0), [made[3]], "5 is current, and 4 was so before");
    for (at, version) in made.iter().enumerate() {
        assert_eq!(
            bundle::load_layer(images.blobs(), version).is_ok(),
            [1, 4, 5].contains(&at),
            "{at}"
        );
    }
    assert_eq!(
        (
            bundle::load_bundle(images.blobs(), &name).unwrap().manifest.layer.digest,
            images.current()
        ),
        (made[5], image)
    );
}
