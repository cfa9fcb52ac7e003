//! Built images: a manifest that names blobs by SHA-256.
//!
//! ```text
//! blobs_dir/sha256/<hex>           a blob, padded with zeros to a multiple of 4 bytes
//! blobs_dir/images/<name>.json     the current manifest; renamed into place last, so all blobs that it names exist
//! ```
//!
//! [`crate::catalog`] reads the output of the image builder. A blob with a wrong digest is never
//! served. [`super::versions`] describes the storage of several versions.

use super::versions::VersionFolder;
use bytes::Bytes;
pub use meshd_model::image_kind::{AlpineParts, Blob, ImageKind, RootParts};
use meshd_types::{Architecture, Digest, ImageName, Timestamp};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
};

/// Manifest format of this release.
pub const FORMAT: u16 = 1;
/// Maximum manifest size, in bytes.
const MAX_MANIFEST: u64 = 1 << 20;
/// Maximum size of a blob in memory, in bytes.
const MAX_BLOB: u64 = 2 << 30;

/// Content and origin of a built image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageManifest {
    /// [`FORMAT`].
    pub format: u16,
    /// Name of the folder under `images_dir`.
    pub name: ImageName,
    pub arch: Architecture,
    /// Digest of the recipe folder.
    pub recipe: Digest,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel_release: String,
    /// Origin of the kernel: `package=version`.
    pub kernel_package: String,
    /// Release of the userland, such as `3.23.6` of Alpine.
    #[serde(alias = "alpine_release")]
    pub os_release: String,
    /// The kind of the image, with its parts.
    pub parts: ImageKind,
    /// Packages in the repository: name -> version.
    pub packages: BTreeMap<String, String>,
    /// End of the build.
    pub built_at: Timestamp,
    #[serde(default)]
    pub contents: Contents,
}

/// Content that overlays may require in addition to packages. Empty if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    /// OpenRC services of its packages.
    pub services: BTreeSet<String>,
    /// Modules of its kernel, built in or not, with `_` for `-`.
    pub modules: BTreeSet<String>,
}

impl ImageManifest {
    /// Returns the digest that names this version, over everything that a node boots. It excludes
    /// build time and recipe, so two builds with equal bytes are one version.
    pub fn version(&self) -> Digest {
        let parts = self.parts.parts();
        let digests = parts.iter().map(|part| part.blob.digest.0.as_slice());
        Digest::of_fields(digests.chain([self.kernel_release.as_bytes()]))
    }

    /// Returns the size of all parts in bytes.
    pub fn size(&self) -> u64 {
        self.parts.parts().iter().map(|part| part.blob.size).sum()
    }
}

/// A built image in memory with verified blobs.
#[derive(Clone)]
pub struct Image {
    pub manifest: ImageManifest,
    /// The content of each part.
    blobs: BTreeMap<Digest, Bytes>,
    /// Digest of `manifest.parts`.
    parts_digest: Digest,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image has no manifest.
    #[error("image `{name}` is not built ({} does not exist)", .path.display())]
    NotBuilt {
        name: ImageName,
        /// Expected path.
        path: PathBuf,
    },
    /// The manifest is invalid.
    #[error("manifest {} of image `{name}` is unusable", .path.display())]
    Manifest { name: ImageName, path: PathBuf, source: Box<dyn Error + Send + Sync> },
    /// A blob is missing or unreadable.
    #[error("cannot read the {part} of image `{name}`, blob {}", .path.display())]
    Blob { name: ImageName, part: &'static str, path: PathBuf, source: io::Error },
    /// The content of a blob does not match its digest.
    #[error(
        "the {part} of image `{name}` is damaged: {} has {found}", .path.display()
    )]
    Damaged {
        name: ImageName,
        part: &'static str,
        path: PathBuf,
        /// Actual length or digest.
        found: String,
    },
}

meshd_types::hints!(ImageError {
    ImageError::NotBuilt { name, .. } => "run `meshd image build {name}`";
    ImageError::Manifest { name, .. } => "run `meshd image build {name}` to make it again";
    ImageError::Blob { name, .. } => "run `meshd image build {name}` to make it again";
    ImageError::Damaged { name, .. } => "run `meshd image build {name}` to make it again, `meshd image verify {name}` to check it";
});

/// Returns the path of a blob.
pub fn blob_path(blobs_dir: &Path, digest: &Digest) -> PathBuf {
    blobs_dir.join("sha256").join(digest.to_string())
}

/// Returns the path of an image's current manifest.
pub fn manifest_path(blobs_dir: &Path, name: &ImageName) -> PathBuf {
    VersionFolder::image(blobs_dir, name).current_path()
}

/// Reads the current manifest of an image, without its blobs.
pub fn load_manifest(blobs_dir: &Path, name: &ImageName) -> Result<ImageManifest, ImageError> {
    read_manifest(manifest_path(blobs_dir, name), name)
}

/// Reads the manifest of a version, without its blobs.
pub fn load_version(
    blobs_dir: &Path,
    name: &ImageName,
    version: &Digest,
) -> Result<ImageManifest, ImageError> {
    let path = VersionFolder::image(blobs_dir, name).version_path(version);
    let manifest = read_manifest(path.clone(), name)?;
    let found = manifest.version();
    if found != *version {
        let source = format!("it describes version {}", found.short()).into();
        return Err(ImageError::Manifest { name: name.clone(), path, source });
    }
    Ok(manifest)
}

fn read_manifest(path: PathBuf, name: &ImageName) -> Result<ImageManifest, ImageError> {
    let unusable = |source| ImageError::Manifest { name: name.clone(), path: path.clone(), source };
    let Some(manifest) = parse_manifest::<ImageManifest>(&path).map_err(unusable)? else {
        return Err(ImageError::NotBuilt { name: name.clone(), path });
    };
    if manifest.format != FORMAT {
        return Err(unusable(
            format!("its format is {}, this program knows {FORMAT}", manifest.format).into(),
        ));
    }
    if manifest.name != *name {
        return Err(unusable(format!("it describes image `{}`", manifest.name).into()));
    }
    Ok(manifest)
}

/// Parses the manifest of an image or bundle; `None` if the file does not exist.
pub(super) fn parse_manifest<M: DeserializeOwned>(
    path: &Path,
) -> Result<Option<M>, Box<dyn Error + Send + Sync>> {
    match read_bounded(path, MAX_MANIFEST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => Ok(Some(serde_json::from_slice(&text?)?)),
    }
}

/// Reads the current version of an image and verifies every blob.
pub fn load_image(blobs_dir: &Path, name: &ImageName) -> Result<Image, ImageError> {
    Image::load(blobs_dir, load_manifest(blobs_dir, name)?)
}

impl Image {
    /// Reads and verifies the blobs of a manifest.
    pub fn load(blobs_dir: &Path, manifest: ImageManifest) -> Result<Self, ImageError> {
        Self::load_sharing(blobs_dir, manifest, &BTreeMap::new())
    }

    /// Reads the blobs of a manifest that another version does not have in memory.
    pub(super) fn load_with(
        blobs_dir: &Path,
        manifest: ImageManifest,
        other: &Image,
    ) -> Result<Self, ImageError> {
        Self::load_sharing(blobs_dir, manifest, &other.blobs)
    }

    fn load_sharing(
        blobs_dir: &Path,
        manifest: ImageManifest,
        loaded: &BTreeMap<Digest, Bytes>,
    ) -> Result<Self, ImageError> {
        let mut blobs = BTreeMap::new();
        for part in manifest.parts.parts() {
            let bytes = match loaded.get(&part.blob.digest) {
                Some(bytes) => bytes.clone(),
                None => load_blob(blobs_dir, &manifest.name, part.name, part.blob)?,
            };
            blobs.insert(part.blob.digest, bytes);
        }
        Ok(Image::from_parts(manifest, blobs))
    }

    /// Returns an image with the content of its parts, without a check of their digests.
    pub fn from_parts(manifest: ImageManifest, blobs: BTreeMap<Digest, Bytes>) -> Self {
        let parts = serde_json::to_vec(&manifest.parts).expect("parts have text keys only");
        Image { manifest, blobs, parts_digest: Digest::of(&parts) }
    }

    /// Returns the digest of what the manifest says of its parts. Two manifests of one version can
    /// differ in it: the NICs that an initramfs drives are no bytes of a part.
    pub fn parts_digest(&self) -> Digest {
        self.parts_digest
    }

    /// Returns the bytes of a part, by its digest.
    pub fn part(&self, digest: &Digest) -> Option<&Bytes> {
        self.blobs.get(digest)
    }
}

fn load_blob(
    blobs_dir: &Path,
    name: &ImageName,
    part: &'static str,
    blob: Blob,
) -> Result<Bytes, ImageError> {
    let path = blob_path(blobs_dir, &blob.digest);
    let unreadable =
        |source| ImageError::Blob { name: name.clone(), part, path: path.clone(), source };
    let bytes = read_bounded(&path, MAX_BLOB).map_err(unreadable)?;
    match differs(&bytes, blob) {
        Some(found) => Err(ImageError::Damaged { name: name.clone(), part, path, found }),
        None => Ok(bytes.into()),
    }
}

/// Returns the actual length or digest if it differs.
fn differs(bytes: &[u8], blob: Blob) -> Option<String> {
    if bytes.len() as u64 != blob.size {
        return Some(format!("{} bytes instead of {}", bytes.len(), blob.size));
    }
    let found = Digest::of(bytes);
    (found != blob.digest).then(|| format!("SHA-256 {found}"))
}

/// Reads and verifies a blob; the error is its cause.
pub(super) fn read_blob(path: &Path, blob: Blob, limit: u64) -> Result<Bytes, String> {
    let bytes = read_bounded(path, limit).map_err(|error| format!("cannot be read: {error}"))?;
    differs(&bytes, blob)
        .map_or_else(|| Ok(bytes.into()), |found| Err(format!("is damaged: it has {found}")))
}

pub(super) fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    meshd_config::files::read_regular(path, limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Hint as _;
    use std::fs;

    fn blob(dir: &Path, bytes: &[u8]) -> Blob {
        let digest = Digest::of(bytes);
        fs::create_dir_all(dir.join("sha256")).unwrap();
        fs::write(blob_path(dir, &digest), bytes).unwrap();
        Blob { digest, size: bytes.len() as u64 }
    }

    fn write_image(dir: &Path) -> ImageManifest {
        let manifest = ImageManifest {
            format: FORMAT,
            name: "lab".parse().unwrap(),
            arch: Architecture::X86_64,
            recipe: Digest::of(b"recipe"),
            kernel_release: "6.1.0-1-amd64".into(),
            kernel_package: "linux-image-6.1.0-1-amd64=6.1.1-1".into(),
            os_release: "3.23.6".into(),
            parts: ImageKind::Alpine(AlpineParts {
                kernel: blob(dir, b"kernel!!"),
                initramfs: blob(dir, b"initramfs..."),
                modloop: blob(dir, b"modloop."),
                packages: blob(dir, b"packages"),
            }),
            packages: BTreeMap::from([("musl".into(), "1.2.5-r23".into())]),
            built_at: Timestamp::from_millis(1),
            contents: Contents::default(),
        };
        fs::create_dir_all(dir.join("images")).unwrap();
        fs::write(manifest_path(dir, &manifest.name), serde_json::to_vec(&manifest).unwrap())
            .unwrap();
        manifest
    }

    #[test]
    fn intact_image_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = write_image(dir.path());
        let image = load_image(dir.path(), &manifest.name).unwrap();
        let initramfs = image.part(&Digest::of(b"initramfs...")).unwrap();
        assert_eq!((&image.manifest, &initramfs[..]), (&manifest, b"initramfs...".as_slice()));
    }

    #[test]
    fn flipped_bit_in_any_part_is_reported_with_part_and_blob() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = write_image(dir.path());
        for part in manifest.parts.parts() {
            let path = blob_path(dir.path(), &part.blob.digest);
            let good = fs::read(&path).unwrap();
            let mut bad = good.clone();
            bad[3] ^= 1;
            fs::write(&path, bad).unwrap();
            let error = load_image(dir.path(), &manifest.name).unwrap_err();
            let text = error.message();
            assert!(
                text.contains(part.name) && text.contains(&part.blob.digest.to_string()),
                "{text}"
            );
            assert!(error.hint().unwrap().contains("meshd image build lab"), "{error:?}");
            fs::write(&path, good).unwrap();
        }
    }

    #[test]
    fn missing_or_truncated_blob_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = write_image(dir.path());
        let path = blob_path(dir.path(), &manifest.parts.part("modloop").unwrap().digest);
        fs::write(&path, b"mod").unwrap();
        assert!(matches!(
            load_image(dir.path(), &manifest.name),
            Err(ImageError::Damaged { part: "modloop", .. })
        ));
        fs::remove_file(&path).unwrap();
        assert!(matches!(
            load_image(dir.path(), &manifest.name),
            Err(ImageError::Blob { part: "modloop", .. })
        ));
    }

    #[test]
    fn missing_foreign_or_invalid_manifest_is_an_error_with_hint() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = write_image(dir.path());
        let other: ImageName = "other".parse().unwrap();
        assert!(matches!(load_manifest(dir.path(), &other), Err(ImageError::NotBuilt { .. })));
        fs::copy(manifest_path(dir.path(), &manifest.name), manifest_path(dir.path(), &other))
            .unwrap();
        assert!(matches!(load_manifest(dir.path(), &other), Err(ImageError::Manifest { .. })));
        fs::write(manifest_path(dir.path(), &other), b"{").unwrap();
        let hint = load_manifest(dir.path(), &other).unwrap_err().hint().unwrap();
        assert!(hint.contains("meshd image build other"), "{hint}");
    }
}
