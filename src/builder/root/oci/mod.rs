//! Reads an OCI layout (OCI image specification 1.1, "Image Layout"): every blob is verified by its
//! digest and size before it is used.
//!
//! | module | content |
//! | --- | --- |
//! | `container` | imports an image as the image of containers |

pub(super) mod container;

use super::{archive::read::digest_of, error::RootFault};
use meshd_config::files::read_regular;
use meshd_types::{Architecture, Digest};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Maximum size of an index, a manifest or a configuration, in bytes.
const MAX_JSON: u64 = 4 << 20;
/// Maximum number of layers of an image.
const MAX_LAYERS: usize = 256;
/// Maximum depth of indexes inside indexes.
const MAX_DEPTH: usize = 2;
/// Annotation that names an image in an index.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    architecture: String,
}

#[derive(Debug, Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Config {
    architecture: String,
    rootfs: LayerIds,
    config: Option<ImageConfig>,
}

/// What containers of an image run by default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ImageConfig {
    pub(super) user: Option<String>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) cmd: Option<Vec<String>>,
    pub(super) env: Option<Vec<String>>,
    pub(super) working_dir: Option<String>,
}

#[derive(Debug, Deserialize)]
struct LayerIds {
    diff_ids: Vec<String>,
}

/// A layer of an image: a verified, perhaps compressed archive.
#[derive(Debug)]
pub(super) struct OciLayer {
    pub(super) path: PathBuf,
    pub(super) digest: Digest,
    /// Digest of the unpacked archive.
    pub(super) unpacked: Digest,
}

/// An image of a layout.
#[derive(Debug)]
pub(super) struct OciImage {
    /// Digest of its manifest.
    pub(super) manifest: Digest,
    /// Layers, the lowest first.
    pub(super) layers: Vec<OciLayer>,
    pub(super) config: ImageConfig,
}

/// A layout in a folder.
pub(super) struct Layout<'a> {
    pub(super) folder: &'a Path,
    /// Name in errors.
    pub(super) name: String,
    pub(super) arch: Architecture,
}

impl Layout<'_> {
    /// Returns the digest of an image's manifest without reading its layers.
    pub(super) fn manifest_digest(&self, tag: Option<&str>) -> Result<Digest, RootFault> {
        self.digest(&self.find(tag)?)
    }

    /// Reads and verifies the image with a tag, or the only image.
    pub(super) fn image(&self, tag: Option<&str>) -> Result<OciImage, RootFault> {
        let descriptor = self.find(tag)?;
        let manifest: Manifest = self.json(&descriptor)?;
        let config: Config = self.json(&manifest.config)?;
        let expected = self.arch.facts().debian_name;
        if config.architecture != expected {
            let what = self.name.clone();
            let found = config.architecture;
            return Err(RootFault::Architecture { what, found, expected: self.arch });
        }
        let ids = config.rootfs.diff_ids;
        if manifest.layers.len() > MAX_LAYERS || manifest.layers.len() != ids.len() {
            let counts = (manifest.layers.len(), ids.len());
            return Err(self.fault(format!("it has {} layers and {} diff_ids", counts.0, counts.1)));
        }
        let layers = manifest.layers.iter().zip(&ids).map(|(layer, id)| {
            let digest = self.digest(layer)?;
            let path = self.blob(&digest);
            self.verify(layer, &digest, &path)?;
            Ok(OciLayer { path, digest, unpacked: self.parse_digest(id)? })
        });
        Ok(OciImage {
            manifest: self.digest(&descriptor)?,
            layers: layers.collect::<Result<_, _>>()?,
            config: config.config.unwrap_or_default(),
        })
    }

    /// Finds the descriptor of a manifest.
    fn find(&self, tag: Option<&str>) -> Result<Descriptor, RootFault> {
        let path = self.folder.join("index.json");
        let text = read_regular(&path, MAX_JSON)
            .map_err(|source| RootFault::Read { name: path.display().to_string(), source })?;
        let mut index: Index = serde_json::from_slice(&text)
            .map_err(|error| self.fault(format!("index.json: {error}")))?;
        if let Some(tag) = tag {
            let name = |one: &Descriptor| one.annotations.get(REF_NAME).cloned();
            let known: Vec<String> = index.manifests.iter().filter_map(name).collect();
            index.manifests.retain(|one| name(one).as_deref() == Some(tag));
            if index.manifests.is_empty() {
                let known = if known.is_empty() { "no tag".to_owned() } else { known.join(", ") };
                let name = self.name.clone();
                return Err(RootFault::NoTag { name, tag: tag.to_owned(), known });
            }
        }
        for _ in 0..=MAX_DEPTH {
            let expected = self.arch.facts().debian_name;
            let fits = |one: &Descriptor| {
                one.platform.as_ref().is_none_or(|platform| platform.architecture == expected)
            };
            index.manifests.retain(fits);
            let count = index.manifests.len();
            let [one] = &index.manifests[..] else {
                return Err(RootFault::Images { name: self.name.clone(), count, arch: self.arch });
            };
            if !one.media_type.contains("index") && !one.media_type.contains("manifest.list") {
                return Ok(one.clone());
            }
            index = self.json(one)?;
        }
        Err(self.fault(format!("it has indexes more than {MAX_DEPTH} deep")))
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, descriptor: &Descriptor) -> Result<T, RootFault> {
        let digest = self.digest(descriptor)?;
        let path = self.blob(&digest);
        if descriptor.size > MAX_JSON {
            return Err(self.fault(format!("{digest} has more than {MAX_JSON} bytes")));
        }
        self.verify(descriptor, &digest, &path)?;
        let text = read_regular(&path, MAX_JSON)
            .map_err(|source| RootFault::Read { name: path.display().to_string(), source })?;
        serde_json::from_slice(&text).map_err(|error| self.fault(format!("{digest}: {error}")))
    }

    fn verify(&self, stated: &Descriptor, digest: &Digest, path: &Path) -> Result<(), RootFault> {
        let name = format!("blob {} of {}", digest.short(), self.name);
        let found = fs::metadata(path)
            .map_err(|source| RootFault::Read { name: name.clone(), source })?
            .len();
        if found != stated.size {
            return Err(RootFault::WrongSize { name, found, stated: stated.size });
        }
        match digest_of(path, &name)? {
            found if found == *digest => Ok(()),
            found => Err(RootFault::WrongDigest { name, found, stated: *digest }),
        }
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs/sha256").join(digest.to_string())
    }

    fn digest(&self, descriptor: &Descriptor) -> Result<Digest, RootFault> {
        self.parse_digest(&descriptor.digest)
    }

    fn parse_digest(&self, text: &str) -> Result<Digest, RootFault> {
        let digest = text.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
        digest.ok_or_else(|| {
            let shown: String = text.chars().take(100).collect();
            self.fault(format!("`{shown}` is no digest with SHA-256"))
        })
    }

    fn fault(&self, why: String) -> RootFault {
        RootFault::Oci { name: self.name.clone(), why }
    }
}
