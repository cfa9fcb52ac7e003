//! Images, overlays and volumes, as `meshd image list`, `meshd overlay list` and `meshd volume list` print them.

use meshd_config::{Profile, Site};
use meshd_image::{
    builder::{self, ImageState, Listed, Version, VolumeInfo, VolumeKind},
    catalog::{ImageManifest, Overlay, Overlays},
    overlay::{Kind, RenderedFile},
};
use meshd_types::{Digest, ImageName, ProfileName, Timestamp, VmName, VolumeFileName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io};
use utoipa::ToSchema;

/// One image in a listing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ImageView {
    /// Its recipe, its versions, and which version nodes get.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub image: Listed,
    /// The profiles that boot it.
    #[schema(value_type = Vec<String>)]
    pub profiles: Vec<ProfileName>,
}

impl ImageView {
    /// All images that have a recipe or a manifest, then those that only a profile names.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn all(site: &Site) -> io::Result<Vec<Self>> {
        let mut all = builder::list(&site.blobs_dir, &site.images_dir)?;
        for name in site.profiles.values().map(|profile| &profile.image) {
            if all.iter().all(|listed| listed.name != *name) {
                all.push(Listed::unknown(name.clone()));
            }
        }
        let profiles = |name: &ImageName| {
            let uses = site.profiles.values().filter(|profile| profile.image == *name);
            uses.map(|profile| profile.name.clone()).collect()
        };
        Ok(all.into_iter().map(|image| ImageView { profiles: profiles(&image.name), image }).collect())
    }

    /// The state for people.
    pub fn state(&self) -> &'static str {
        match self.image.state {
            ImageState::Built => "built",
            ImageState::Stale => "stale: the recipe has changed",
            ImageState::NotBuilt => "not built",
            ImageState::Broken => "broken",
            ImageState::NoRecipe => "built, without recipe",
        }
    }

    /// The manifest of the version that nodes get.
    pub fn manifest(&self) -> Option<&ImageManifest> {
        self.image.manifest.as_ref()
    }

    /// The versions that nodes do not get.
    pub fn others(&self) -> impl Iterator<Item = &Version> {
        self.image.versions.iter().filter(|version| !version.current)
    }
}

/// One overlay in a listing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OverlayView {
    /// Its name; `nodes/ID` for the overlay of a single node.
    pub name: String,
    /// What its author says of it.
    pub description: String,
    /// Over all that it brings.
    #[schema(value_type = String)]
    pub digest: Digest,
    /// How many files it brings.
    pub files: usize,
    /// Packages that it needs.
    pub packages: Vec<String>,
    /// Services that it enables, by runlevel.
    pub services: BTreeMap<String, Vec<String>>,
    /// Variables that it declares.
    pub variables: Vec<String>,
    /// Profiles that use it.
    #[schema(value_type = Vec<String>)]
    pub profiles: Vec<ProfileName>,
}

impl OverlayView {
    /// An overlay of a site.
    pub fn new(overlay: &Overlay, site: &Site) -> Self {
        let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (service, (level, _)) in &overlay.services.enabled {
            services.entry(level.to_string()).or_default().push(service.clone());
        }
        let uses = |profile: &&Profile| profile.overlays.iter().any(|name| name.as_str() == overlay.name.to_string());
        OverlayView {
            name: overlay.name.to_string(),
            description: overlay.description.clone(),
            digest: overlay.digest,
            files: overlay.entries.len(),
            packages: overlay.packages.iter().cloned().collect(),
            services,
            variables: overlay.variables.keys().map(ToString::to_string).collect(),
            profiles: site.profiles.values().filter(uses).map(|profile| profile.name.clone()).collect(),
        }
    }

    /// All overlays of a site.
    pub fn all(overlays: &Overlays, site: &Site) -> Vec<Self> {
        overlays.all().map(|overlay| OverlayView::new(overlay, site)).collect()
    }
}

/// One file, link or folder of a node's overlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverlayFileView {
    /// Its path on the node.
    pub path: String,
    /// `file`, `link` or `directory`.
    pub kind: String,
    /// Permission bits in octal: `0644`.
    pub mode: String,
    /// User and group number: `0:0`.
    pub owner: String,
    /// Bytes of its content.
    pub size: u64,
    /// Of its content, or of a link's target.
    #[schema(value_type = String)]
    pub digest: Digest,
    /// The overlays that bring it; `(meshd)` for what is made from their declarations.
    pub origin: String,
    /// It contains secrets. They are not shown.
    pub secret: bool,
    /// Target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its beginning as text, if a path was asked for; placeholders stand for secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl OverlayFileView {
    /// Most bytes of a content that are shown.
    pub const MAX_TEXT: usize = 64 << 10;

    /// A rendered file, without its text.
    pub fn new(file: &RenderedFile) -> Self {
        let (user, group) = file.owner;
        let target = match &file.kind {
            Kind::Link(target) => Some(target.clone()),
            _ => None,
        };
        OverlayFileView {
            path: file.path.to_string(),
            kind: file.kind.to_string(),
            mode: format!("{:04o}", file.mode),
            owner: format!("{user}:{group}"),
            size: file.size,
            digest: file.digest,
            origin: file.origin(),
            secret: matches!(file.kind, Kind::Secret(_)),
            target,
            text: None,
        }
    }

    /// The same with its text.
    pub fn with_text(file: &RenderedFile) -> Self {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes.get(..Self::MAX_TEXT).unwrap_or(bytes)).into_owned();
        OverlayFileView { text: file.content().map(|bytes| shown(bytes)), ..OverlayFileView::new(file) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    /// What people call it.
    #[schema(value_type = String)]
    pub name: VolumeFileName,
    /// What a vm.toml calls it.
    #[schema(value_type = String)]
    pub digest: Digest,
    #[schema(value_type = String)]
    pub kind: VolumeKind,
    /// Bytes of the file.
    pub size: u64,
    /// Bytes that a guest sees.
    pub virtual_size: u64,
    /// When it was added.
    #[schema(value_type = String)]
    pub added_at: Timestamp,
    /// The virtual machines that name it.
    #[schema(value_type = Vec<String>)]
    pub vms: Vec<VmName>,
}

impl VolumeView {
    /// Of a volume and those that name it.
    pub fn new(info: VolumeInfo, vms: Vec<VmName>) -> Self {
        let VolumeInfo { name, digest, kind, size, virtual_size, added_at } = info;
        VolumeView { name, digest, kind, size, virtual_size, added_at, vms }
    }
}
