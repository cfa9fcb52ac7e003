//! Built bundles: squashfs layers named by SHA-256.
//!
//! ```text
//! blobs_dir/sha256/<hex>            the layer
//! blobs_dir/bundles/<name>.json     its manifest; [`super::versions`] describes the storage of several versions
//! ```

use super::{
    image::{Blob, blob_path, parse_manifest, read_blob, read_bounded},
    versions::VersionFolder,
};
use bytes::Bytes;
use meshd_types::{Architecture, BundleName, Digest, Timestamp};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

/// Manifest format of this release.
pub const FORMAT: u16 = 1;
/// Maximum layer size, in bytes: a node stores it in memory.
pub const MAX_LAYER: u64 = 512 << 20;

/// Content and origin of a built bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleManifest {
    /// [`FORMAT`].
    pub format: u16,
    /// Name of the folder under `images_dir/bundles`.
    pub name: BundleName,
    pub arch: Architecture,
    /// Digest of the recipe folder.
    pub recipe: Digest,
    /// Layer; its digest names the version.
    pub layer: Blob,
    /// Commands of the bundle.
    pub programs: Vec<String>,
    /// Debian packages of the bundle: name -> version.
    pub packages: BTreeMap<String, String>,
    /// End of the build.
    pub built_at: Timestamp,
}

/// A built bundle in memory with a verified layer.
#[derive(Clone)]
pub struct Bundle {
    pub manifest: BundleManifest,
    pub layer: Bytes,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The bundle has no manifest.
    #[error("bundle `{name}` is not built ({} does not exist)", .path.display())]
    NotBuilt {
        name: BundleName,
        /// Expected path.
        path: PathBuf,
    },
    /// The manifest is invalid.
    #[error("manifest {} of bundle `{name}` is unusable", .path.display())]
    Manifest { name: BundleName, path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the layer of bundle `{name}`, blob {}, {why}", .path.display())]
    Layer { name: BundleName, path: PathBuf, why: String },
}

meshd_types::hints!(BundleError {
    BundleError::NotBuilt { name, .. } => "run `meshd bundle build {name}`";
    BundleError::Manifest { name, .. } => "run `meshd bundle build {name}` to make it again";
    BundleError::Layer { name, .. } => "run `meshd bundle build {name}` to make it again";
});

/// Reads a bundle's manifest, without its layer.
pub fn load_bundle_manifest(
    blobs_dir: &Path,
    name: &BundleName,
) -> Result<BundleManifest, BundleError> {
    let path = VersionFolder::bundle(blobs_dir, name).current_path();
    let unusable =
        |source| BundleError::Manifest { name: name.clone(), path: path.clone(), source };
    let Some(manifest) = parse_manifest::<BundleManifest>(&path).map_err(unusable)? else {
        return Err(BundleError::NotBuilt { name: name.clone(), path });
    };
    if manifest.format != FORMAT || manifest.name != *name {
        let format = manifest.format;
        let name = &manifest.name;
        let what =
            format!("it is of bundle `{name}` in format {format}, this program knows {FORMAT}");
        return Err(unusable(what.into()));
    }
    Ok(manifest)
}

/// Reads a bundle and verifies its layer.
pub fn load_bundle(blobs_dir: &Path, name: &BundleName) -> Result<Bundle, BundleError> {
    let manifest = load_bundle_manifest(blobs_dir, name)?;
    let path = blob_path(blobs_dir, &manifest.layer.digest);
    let layer = read_blob(&path, manifest.layer, MAX_LAYER);
    let layer = layer.map_err(|why| BundleError::Layer { name: name.clone(), path, why })?;
    Ok(Bundle { manifest, layer })
}

/// Reads and verifies a layer by its digest, which names a version of a bundle.
pub fn load_layer(blobs_dir: &Path, digest: &Digest) -> Result<Bytes, String> {
    let path = blob_path(blobs_dir, digest);
    let bytes = read_bounded(&path, MAX_LAYER)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    if Digest::of(&bytes) != *digest {
        return Err(format!("{} is damaged", path.display()));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, Overlays};
    use meshd_types::Hint as _;
    use std::{collections::BTreeSet, fs};

    fn manifest_path(dir: &Path, name: &BundleName) -> PathBuf {
        VersionFolder::bundle(dir, name).current_path()
    }

    fn write(dir: &Path, name: &str) -> BundleManifest {
        let layer = b"hsqs...";
        let manifest = BundleManifest {
            format: FORMAT,
            name: name.parse().unwrap(),
            arch: Architecture::X86_64,
            recipe: Digest::of(b"recipe"),
            layer: Blob { digest: Digest::of(layer), size: layer.len() as u64 },
            programs: vec!["mpiexec".into()],
            packages: BTreeMap::new(),
            built_at: Timestamp::from_millis(1),
        };
        for folder in ["sha256", "bundles"] {
            fs::create_dir_all(dir.join(folder)).unwrap();
        }
        fs::write(blob_path(dir, &manifest.layer.digest), layer).unwrap();
        fs::write(manifest_path(dir, &manifest.name), serde_json::to_vec(&manifest).unwrap())
            .unwrap();
        manifest
    }

    #[test]
    fn bundle_layer_is_served_by_digest_and_unbuilt_bundle_reported() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = write(dir.path(), "mpi");
        let names: BTreeSet<BundleName> = ["mpi", "qemu"].map(|name| name.parse().unwrap()).into();
        let catalog =
            Catalog::new(Vec::new(), Overlays::default()).with_bundles(dir.path(), &names);
        assert_eq!(catalog.bundle(&manifest.name).unwrap().manifest, manifest);
        assert_eq!(catalog.blob(&manifest.layer.digest).unwrap(), &b"hsqs..."[..]);
        let older = b"hsqs of before";
        let digest = Digest::of(older);
        assert!(catalog.layer(&digest).is_none() && load_layer(dir.path(), &digest).is_err());
        fs::write(blob_path(dir.path(), &digest), older).unwrap();
        let catalog =
            catalog.with_pinned(Vec::new(), [(digest, load_layer(dir.path(), &digest).unwrap())]);
        assert_eq!(catalog.blob(&digest).unwrap(), &older[..]);
        let error = &catalog.unusable_bundles()[&"qemu".parse().unwrap()];
        assert!(error.contains("meshd bundle build qemu"), "{error}");
    }

    #[test]
    fn changed_layer_or_foreign_manifest_is_never_served() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = write(dir.path(), "mpi");
        fs::write(blob_path(dir.path(), &manifest.layer.digest), b"hsqs..X").unwrap();
        let error = load_bundle(dir.path(), &manifest.name).unwrap_err();
        assert!(error.message().contains("damaged"), "{error}");
        assert!(error.hint().unwrap().contains("meshd bundle build mpi"), "{error:?}");
        let other = "other".parse().unwrap();
        fs::copy(manifest_path(dir.path(), &manifest.name), manifest_path(dir.path(), &other))
            .unwrap();
        assert!(matches!(load_bundle(dir.path(), &other), Err(BundleError::Manifest { .. })));
    }
}
