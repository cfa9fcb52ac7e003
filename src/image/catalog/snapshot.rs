//! The snapshot of images, bundles, overlays and secrets at one moment.

use super::{
    Bundle, Image, Overlays, Secrets, Stage1Program,
    bundle::{load_bundle, load_layer},
    image::{load_image, load_version},
    read_overlays,
    versions::VersionFolder,
};
use bytes::Bytes;
use meshd_config::{Faults, SecretSource};
use meshd_trust::MarkKey;
use meshd_types::{BundleName, Digest, Hint, ImageName, VarName};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Immutable images and overlays of one moment; a reload creates another snapshot.
#[derive(Clone, Debug)]
pub struct Catalog {
    images: BTreeMap<ImageName, Image>,
    previous: BTreeMap<ImageName, Image>,
    /// Additional versions, for pinned and tethered nodes.
    pinned: Vec<Image>,
    /// Additional bundle layers, for pinned nodes and for boots in progress.
    layers: BTreeMap<Digest, Bytes>,
    unusable: BTreeMap<ImageName, String>,
    bundles: BTreeMap<BundleName, Bundle>,
    unusable_bundles: BTreeMap<BundleName, String>,
    overlays: Overlays,
    overlays_digest: Digest,
    secrets: Secrets,
    /// Stage 1, if an image needs it.
    stage1: Option<Stage1Program>,
}

impl Catalog {
    /// Creates a snapshot from parts.
    pub fn new(images: Vec<Image>, overlays: Overlays) -> Self {
        let overlays_digest = overlays.digest();
        let images = images.into_iter().map(|image| (image.manifest.name.clone(), image)).collect();
        Catalog {
            images,
            previous: BTreeMap::new(),
            pinned: Vec::new(),
            layers: BTreeMap::new(),
            unusable: BTreeMap::new(),
            bundles: BTreeMap::new(),
            unusable_bundles: BTreeMap::new(),
            overlays,
            overlays_digest,
            secrets: Secrets::new(),
            stage1: None,
        }
    }

    /// Reads all overlays and the built images of a list. A missing or damaged image is recorded
    /// with its cause; only machines that need this image are refused.
    pub fn load(
        overlays_dir: &Path,
        blobs_dir: &Path,
        names: &BTreeSet<ImageName>,
    ) -> Result<Self, Faults> {
        let overlays = read_overlays(overlays_dir)?;
        let mut images = Vec::new();
        let mut previous = BTreeMap::new();
        let mut unusable = BTreeMap::new();
        for name in names {
            match load_image(blobs_dir, name) {
                Ok(image) => {
                    previous.extend(
                        load_previous(blobs_dir, &image).map(|image| (name.clone(), image)),
                    );
                    images.push(image);
                }
                Err(error) => {
                    unusable.insert(name.clone(), explain(&error));
                }
            }
        }
        Ok(Catalog { previous, unusable, ..Catalog::new(images, overlays) })
    }

    /// Returns the snapshot with the secrets of a site. Renderings change with the marks of the
    /// secrets.
    #[must_use]
    pub fn with_secrets(
        mut self,
        secrets: Secrets,
        sources: &BTreeMap<VarName, SecretSource>,
        key: &MarkKey,
    ) -> Self {
        let mark = |(name, secret): (&VarName, _)| (name.clone(), key.mark(name.as_str(), secret));
        self.overlays.secret_marks = secrets.iter().map(mark).collect();
        self.overlays.limit_secrets(sources);
        self.overlays_digest = self.overlays.digest();
        self.secrets = secrets;
        self
    }

    /// Returns the secrets, for overlays of admitted nodes only.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Adds the built bundles of a list. A missing or damaged bundle is recorded with its cause.
    pub fn with_bundles(mut self, blobs_dir: &Path, names: &BTreeSet<BundleName>) -> Self {
        for name in names {
            match load_bundle(blobs_dir, name) {
                Ok(bundle) => {
                    self.layers.extend(load_previous_layer(blobs_dir, name));
                    self.bundles.insert(name.clone(), bundle);
                }
                Err(error) => drop(self.unusable_bundles.insert(name.clone(), explain(&error))),
            }
        }
        self
    }

    /// Adds stage 1, the first program of nodes.
    #[must_use]
    pub fn with_stage1(self, stage1: Option<Stage1Program>) -> Self {
        Catalog { stage1, ..self }
    }

    /// Returns stage 1.
    pub fn stage1(&self) -> Option<&Stage1Program> {
        self.stage1.as_ref()
    }

    /// Returns a bundle that can be served.
    pub fn bundle(&self, name: &BundleName) -> Option<&Bundle> {
        self.bundles.get(name)
    }

    /// Returns the bundles that cannot be served, with the causes.
    pub fn unusable_bundles(&self) -> &BTreeMap<BundleName, String> {
        &self.unusable_bundles
    }

    /// Returns an image that can be served.
    pub fn image(&self, name: &ImageName) -> Option<&Image> {
        self.images.get(name)
    }

    /// Returns all images that can be served.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.images.values()
    }

    /// Returns the images that cannot be served, with the causes.
    pub fn unusable(&self) -> &BTreeMap<ImageName, String> {
        &self.unusable
    }

    pub fn overlays(&self) -> &Overlays {
        &self.overlays
    }

    /// Returns the previously served version of an image, because a boot in progress still fetches
    /// its parts.
    pub fn previous(&self, name: &ImageName) -> Option<&Image> {
        self.previous.get(name)
    }

    /// Returns the snapshot with further versions of images and layers of bundles, for pinned and
    /// tethered nodes.
    pub fn with_pinned(
        mut self,
        pinned: Vec<Image>,
        layers: impl IntoIterator<Item = (Digest, Bytes)>,
    ) -> Self {
        self.layers.extend(layers);
        Catalog { pinned, ..self }
    }

    /// Returns a current or additional layer of a bundle.
    pub fn layer(&self, digest: &Digest) -> Option<&Bytes> {
        let mut current =
            self.bundles.values().filter(|bundle| bundle.manifest.layer.digest == *digest);
        current.next().map(|bundle| &bundle.layer).or_else(|| self.layers.get(digest))
    }

    /// Returns the additional versions, without current and previous versions.
    pub fn pinned(&self) -> &[Image] {
        &self.pinned
    }

    /// Returns all versions of images whose parts can be fetched.
    pub fn served(&self) -> impl Iterator<Item = &Image> {
        self.images.values().chain(self.previous.values()).chain(&self.pinned)
    }

    /// Returns a version of an image whose parts can be fetched.
    pub fn version(&self, version: &Digest) -> Option<&Image> {
        self.served().find(|image| image.manifest.version() == *version)
    }

    /// Returns the bytes of an image part or bundle layer, by digest.
    pub fn blob(&self, digest: &Digest) -> Option<Bytes> {
        self.served().find_map(|image| image.part(digest)).or_else(|| self.layer(digest)).cloned()
    }

    /// Returns whether both snapshots serve the same overlays and versions.
    pub fn is_same(&self, other: &Catalog) -> bool {
        let contents = |image: &Image| (image.manifest.version(), image.parts_digest());
        let versions = |catalog: &Catalog| catalog.served().map(contents).collect::<BTreeSet<_>>();
        let current = |catalog: &Catalog| catalog.images.values().map(contents).collect::<Vec<_>>();
        let layers = |catalog: &Catalog| -> Vec<(BundleName, Digest)> {
            let layer = |(name, bundle): (&BundleName, &Bundle)| {
                (name.clone(), bundle.manifest.layer.digest)
            };
            catalog.bundles.iter().map(layer).collect()
        };
        let stage1 = |catalog: &Catalog| catalog.stage1().map(|program| program.digest);
        self.overlays_digest == other.overlays_digest
            && stage1(self) == stage1(other)
            && self.unusable == other.unusable
            && self.unusable_bundles == other.unusable_bundles
            && layers(self) == layers(other)
            && current(self) == current(other)
            && versions(self) == versions(other)
    }
}

/// Loads the previous version, sharing blobs with the current one. Only boots in progress need it,
/// so a damaged one is omitted.
fn load_previous(blobs_dir: &Path, image: &Image) -> Option<Image> {
    let name = &image.manifest.name;
    let version = VersionFolder::image(blobs_dir, name).pointer().ok()?.previous?;
    let manifest = load_version(blobs_dir, name, &version).ok()?;
    Image::load_with(blobs_dir, manifest, image).ok()
}

/// Loads the previous layer of a bundle. Only boots in progress need it, so a damaged layer is
/// omitted.
fn load_previous_layer(blobs_dir: &Path, name: &BundleName) -> Option<(Digest, Bytes)> {
    let previous = VersionFolder::bundle(blobs_dir, name).pointer().ok()?.previous?;
    Some((previous, load_layer(blobs_dir, &previous).ok()?))
}

/// Returns an error with its hint, for the log.
fn explain(error: &impl Hint) -> String {
    match error.hint() {
        Some(hint) => format!("{}; {hint}", error.message()),
        None => error.message(),
    }
}
