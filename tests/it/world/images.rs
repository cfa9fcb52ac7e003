//! Images of a world, which no machine could run.

use super::World;
use crate::nodes::generations::retention;
use meshd_image::catalog::{
    image::{AlpineParts, Blob, FORMAT, ImageKind, ImageManifest, RootParts, blob_path},
    versions::VersionFolder,
};
use meshd_model::image_kind::System;
use meshd_proto::stage1::VeritySpec;
use meshd_types::{Architecture, Digest, Timestamp};
use std::{collections::BTreeMap, fs, path::PathBuf};

/// What the overlays that ship ask for; the image says that it has them.
const IMAGE_PACKAGES: [&str; 9] = [
    "alpine-base",
    "alpine-baselayout",
    "busybox",
    "openrc",
    "busybox-openrc",
    "busybox-mdev-openrc",
    "kmod",
    "ifupdown-ng",
    "openssh-server",
];

impl World {
    /// An image that no machine could run, with parts of odd sizes.
    pub fn write_image(&self) {
        self.write_alpine_image(vec![4; 50_000]);
    }

    /// As [`World::write_image`], with this modloop.
    pub fn write_alpine_image(&self, modloop: Vec<u8>) {
        let parts = ImageKind::Alpine(AlpineParts {
            kernel: self.blob(1, 300_000),
            initramfs: self.blob(2, 200_004),
            packages: self.blob(3, 100_000),
            modloop: self.store(modloop),
        });
        self.write_manifest("small", parts, &IMAGE_PACKAGES);
    }

    /// An image of kind `root` that no machine could run.
    pub fn write_root_image(&self, name: &str) {
        let verity = VeritySpec {
            root_hash: Digest::of(b"tree"),
            salt: String::new(),
            hash_offset: 4096,
            block_size: 4096,
            data_blocks: 1,
        };
        let parts = ImageKind::Root(RootParts {
            kernel: self.blob(5, 300_000),
            modules: self.blob(6, 20_000),
            root: self.blob(7, 8192),
            verity,
            system: System::Systemd,
            sources: BTreeMap::new(),
            nic_drivers: serde_json::from_str(r#"["1af4:*"]"#).unwrap(),
        });
        self.write_manifest(name, parts, &[]);
    }

    fn blobs(&self) -> PathBuf {
        self.path("state/blobs")
    }

    fn blob(&self, fill: u8, size: usize) -> Blob {
        self.store(vec![fill; size])
    }

    fn store(&self, bytes: Vec<u8>) -> Blob {
        let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
        let path = blob_path(&self.blobs(), &blob.digest);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        blob
    }

    fn write_manifest(&self, name: &str, parts: ImageKind, packages: &[&str]) {
        let packages =
            packages.iter().map(|package| ((*package).to_owned(), "1-r0".to_owned())).collect();
        let manifest = ImageManifest {
            format: FORMAT,
            name: name.parse().unwrap(),
            arch: Architecture::X86_64,
            recipe: Digest::of(b"recipe"),
            kernel_release: "6.1.0".to_owned(),
            kernel_package: "linux=6.1".to_owned(),
            os_release: "3.23".to_owned(),
            parts,
            packages,
            built_at: Timestamp::from_millis(0),
            contents: Default::default(),
        };
        let shelf = VersionFolder::image(&self.blobs(), &manifest.name);
        retention::build(&shelf, 0, &manifest.version(), &serde_json::to_vec(&manifest).unwrap());
    }
}
