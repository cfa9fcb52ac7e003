//! What is kept for nodes and profiles outlives new builds, `prune` and a restart, and goes when
//! nobody needs it any more.

use super::{
    done,
    reload::{edit, world},
};
use crate::world::{World, eventually, node::PxeNode};
use meshd_image::catalog::{
    BundleManifest, ImageManifest,
    bundle::FORMAT,
    image::{Blob, ImageKind, blob_path, load_manifest},
    versions::VersionFolder,
};
use meshd_types::{Architecture, BundleName, Digest, ImageName, Timestamp};
use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::PathBuf};

fn blobs(world: &World) -> PathBuf {
    world.path("state/blobs")
}

fn blob(world: &World, bytes: &[u8]) -> Blob {
    let blob = Blob { digest: Digest::of(bytes), size: bytes.len() as u64 };
    fs::create_dir_all(blobs(world).join("sha256")).unwrap();
    fs::write(blob_path(&blobs(world), &blob.digest), bytes).unwrap();
    blob
}

/// Puts a version there and makes it current, as a build does.
pub fn build(shelf: &VersionFolder, number: u64, version: &Digest, manifest: &[u8]) {
    fs::create_dir_all(shelf.moves_dir()).unwrap();
    fs::write(shelf.version_path(version), manifest).unwrap();
    let target = shelf.move_target(number, version);
    let current = shelf.current_path();
    let root = current.parent().unwrap();
    let _ = fs::remove_file(root.join(&target));
    symlink(format!("../{version}.json"), root.join(&target)).unwrap();
    symlink(&target, root.join(".fresh")).unwrap();
    fs::rename(root.join(".fresh"), current).unwrap();
}

fn bundle(world: &World, number: u64) -> Digest {
    let name: BundleName = "tools".parse().unwrap();
    let layer = blob(world, format!("hsqs layer {number}").as_bytes());
    let programs = Vec::new();
    let packages = BTreeMap::new();
    let recipe = Digest::of(b"recipe");
    let built_at = Timestamp::from_millis(i64::try_from(number).unwrap());
    let shelf = VersionFolder::bundle(&blobs(world), &name);
    let manifest = BundleManifest {
        format: FORMAT,
        name,
        arch: Architecture::X86_64,
        recipe,
        layer,
        programs,
        packages,
        built_at,
    };
    build(&shelf, number, &layer.digest, &serde_json::to_vec(&manifest).unwrap());
    layer.digest
}

fn image(world: &World, number: u64) -> ImageManifest {
    image_without(world, number, "")
}

/// A version that lacks a package.
pub fn image_without(world: &World, number: u64, lacks: &str) -> ImageManifest {
    let name: ImageName = "small".parse().unwrap();
    let mut manifest = load_manifest(&blobs(world), &name).unwrap();
    let ImageKind::Alpine(parts) = &mut manifest.parts else { panic!("the kind of the test") };
    parts.kernel = blob(world, format!("kernel {number}").repeat(100).as_bytes());
    manifest.built_at = Timestamp::from_millis(i64::try_from(number).unwrap());
    manifest.packages.remove(lacks);
    let shelf = VersionFolder::image(&blobs(world), &name);
    build(&shelf, number, &manifest.version(), &serde_json::to_vec(&manifest).unwrap());
    manifest
}

fn is_there(world: &World, digest: &Digest) -> bool {
    blob_path(&blobs(world), digest).is_file()
}

fn prune(world: &World, kind: &str) {
    let output = world.meshd(&[kind, "prune", "--keep", "0", "--yes"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn rolled_back_profile_retains_its_image_and_bundles() {
    let mut world = world();
    edit(
        &world,
        "overlays = [\"base\", \"agent\"]",
        "overlays = [\"base\", \"agent\"]\nbundles = [\"tools\"]",
    );
    let first = image(&world, 1);
    let layer = bundle(&world, 1);
    world.start();
    let revisions = || {
        world.json(&["profile", "history", "discovery", "-o", "json"]).as_array().cloned().unwrap()
    };
    let known = |count| {
        eventually("it is kept", || {
            let all = revisions();
            if all.len() == count { Ok(all) } else { Err(format!("{all:?}")) }
        })
    };
    let then = known(1)[0]["generation"].as_str().unwrap().to_owned();
    for number in 2..=4 {
        // One change at a time, or a look of meshd's own would find another revision in between.
        image(&world, number);
        done(&world, &["reload"]);
        bundle(&world, number);
        done(&world, &["reload"]);
    }
    done(&world, &["profile", "rollback", "discovery", "--to", &then]);
    ["image", "bundle"].into_iter().for_each(|kind| prune(&world, kind));
    assert!(
        is_there(&world, &first.parts.part("kernel").unwrap().digest) && is_there(&world, &layer),
        "they are in use"
    );
    world.kill();
    world.start();
    let script = PxeNode::new(&world, 1).power_on().unwrap();
    assert!(
        script.0.contains(&first.parts.part("kernel").unwrap().digest.to_string()),
        "{}",
        script.0
    );
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let mounts = String::from_utf8_lossy(&overlay["etc/meshd/mesh-init.json"].1).into_owned();
    assert!(mounts.contains(&layer.to_string()), "{mounts}");
    assert_eq!(
        machine.get(&format!("http://10.77.0.1:8080/blob/{layer}/bundle")).unwrap().status,
        200
    );
}

#[test]
fn pinned_node_retains_its_bundle_layer_through_rebuild_and_prune() {
    let mut world = world();
    edit(
        &world,
        "overlays = [\"base\", \"agent\"]",
        "overlays = [\"base\", \"agent\"]\nbundles = [\"tools\"]",
    );
    let layer = bundle(&world, 1);
    world.start();
    let machine = PxeNode::new(&world, 1);
    let first = machine.boot();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let generation = eventually("it is kept", || {
        let all = world.json(&["node", "history", &id, "-o", "json"]);
        if all[0]["archived"] == true {
            Ok(all[0]["generation"].as_str().unwrap().to_owned())
        } else {
            Err(all.to_string())
        }
    });
    done(&world, &["node", "pin", &id, "--generation", &generation]);
    for number in 2..=4 {
        bundle(&world, number);
        done(&world, &["reload"]);
    }
    prune(&world, "bundle");
    world.kill();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let again = machine.boot();
    assert_eq!(again["etc/meshd/mesh-init.json"], first["etc/meshd/mesh-init.json"]);
    assert_eq!(
        machine.get(&format!("http://10.77.0.1:8080/blob/{layer}/bundle")).unwrap().status,
        200
    );
    // Let go, it has the newest; the old one goes once nothing of the node names it.
    done(&world, &["node", "pin", &id, "--off"]);
    let now = machine.boot();
    assert_ne!(now["etc/meshd/mesh-init.json"], first["etc/meshd/mesh-init.json"]);
    eventually("the old layer is pruned", || {
        prune(&world, "bundle");
        if is_there(&world, &layer) { Err("it is there".to_owned()) } else { Ok(()) }
    });
}
