//! The snapshot: everything that a boot can be made of, read and checked at one moment.

use super::{Faults, Image, ImageError, Overlay, image::load_image, read_overlays};
use crate::id::{Digest, ImageName, OverlayName};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Images and overlays as they were when it was made. Never changes; a reload makes another one.
#[derive(Debug)]
pub struct Catalog {
    images: BTreeMap<ImageName, Image>,
    unusable: BTreeMap<ImageName, String>,
    overlays: BTreeMap<OverlayName, Overlay>,
    overlays_digest: Digest,
}

impl Catalog {
    /// Puts a snapshot together from parts that were read already.
    pub fn new(images: Vec<Image>, overlays: BTreeMap<OverlayName, Overlay>) -> Self {
        let digests: Vec<[u8; 32]> = overlays.values().map(|overlay| overlay.digest.0).collect();
        let overlays_digest = Digest::of_fields(digests.iter().map(<[u8; 32]>::as_slice));
        let images = images.into_iter().map(|image| (image.manifest.name.clone(), image)).collect();
        Catalog { images, unusable: BTreeMap::new(), overlays, overlays_digest }
    }

    /// Reads all overlays, and those of the named images that are built. An image that is not there or damaged is left out
    /// with the reason, and machines that want it are told so; it does not keep the others from booting.
    ///
    /// # Errors
    /// Every fault of every overlay.
    pub fn load(overlays_dir: &Path, blobs_dir: &Path, names: &BTreeSet<ImageName>) -> Result<Self, Faults> {
        let overlays = read_overlays(overlays_dir)?;
        let mut images = Vec::new();
        let mut unusable = BTreeMap::new();
        for name in names {
            match load_image(blobs_dir, name) {
                Ok(image) => images.push(image),
                Err(error) => {
                    unusable.insert(name.clone(), explain(&error));
                }
            }
        }
        Ok(Catalog { unusable, ..Catalog::new(images, overlays) })
    }

    /// An image, if it can be served.
    pub fn image(&self, name: &ImageName) -> Option<&Image> {
        self.images.get(name)
    }

    /// All images that can be served.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.images.values()
    }

    /// The images that cannot be served, with the reason.
    pub fn unusable(&self) -> &BTreeMap<ImageName, String> {
        &self.unusable
    }

    /// All overlays.
    pub fn overlays(&self) -> &BTreeMap<OverlayName, Overlay> {
        &self.overlays
    }

    /// One digest over all overlays.
    pub fn overlays_digest(&self) -> Digest {
        self.overlays_digest
    }

    /// The bytes of a part of any image, by its digest.
    pub fn blob(&self, digest: &Digest) -> Option<Bytes> {
        self.images.values().find_map(|image| {
            let parts = &image.manifest.parts;
            [
                (parts.kernel.digest, &image.kernel),
                (parts.initramfs.digest, &image.initramfs),
                (parts.packages.digest, &image.packages),
                (parts.modloop.digest, &image.modloop),
            ]
            .into_iter()
            .find_map(|(part, bytes)| (part == *digest).then(|| bytes.clone()))
        })
    }
}

fn explain(error: &ImageError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
