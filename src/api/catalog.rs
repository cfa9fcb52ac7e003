//! Images, overlays and volumes, as `meshd image list`, `meshd overlay list` and
//! `meshd volume list` print them.

use meshd_builder::{ImageState, Listed, Version, VolumeInfo, VolumeKind};
use meshd_config::{Profile, Site};
use meshd_image::{
    catalog::{
        ImageManifest, Overlay, Overlays,
        overlay::{OverlayEntry, Source, Variable},
    },
    overlay::{Kind, RenderedFile},
};
use meshd_types::{
    ContainerName, Digest, ImageName, ProfileName, SafePath, Timestamp, VarName, VarValue, VmName,
    VolumeFileName,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io};
use utoipa::ToSchema;

/// An entry in the list of images.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ImageView {
    /// Recipe, versions and current version of the image.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub image: Listed,
    /// Profiles that boot the image.
    pub profiles: Vec<ProfileName>,
}

impl ImageView {
    /// Returns all images with a recipe or a manifest, then the images that only profiles name.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn all(site: &Site) -> io::Result<Vec<Self>> {
        let mut all = meshd_builder::list(&site.blobs_dir, &site.images_dir)?;
        for name in site.profiles.values().map(|profile| &profile.image) {
            if all.iter().all(|listed| listed.name != *name) {
                all.push(Listed::unknown(name.clone()));
            }
        }
        let profiles = |name: &ImageName| {
            let uses = site.profiles.values().filter(|profile| profile.image == *name);
            uses.map(|profile| profile.name.clone()).collect()
        };
        Ok(all
            .into_iter()
            .map(|image| ImageView { profiles: profiles(&image.name), image })
            .collect())
    }

    /// Returns the state as text for operators.
    pub fn state(&self) -> &'static str {
        match self.image.state {
            ImageState::Built => "built",
            ImageState::Stale => "stale: the recipe has changed",
            ImageState::NotBuilt => "not built",
            ImageState::Broken => "broken",
            ImageState::NoRecipe => "built, without recipe",
        }
    }

    /// Returns the manifest of the current version, which nodes boot.
    pub fn manifest(&self) -> Option<&ImageManifest> {
        self.image.manifest.as_ref()
    }

    /// Returns all versions except the current one.
    pub fn others(&self) -> impl Iterator<Item = &Version> {
        self.image.versions.iter().filter(|version| !version.current)
    }
}

/// An entry in the list of overlays.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OverlayView {
    /// Name of the overlay; `nodes/ID` for the overlay of a single node.
    pub name: String,
    /// Description from `overlay.toml`.
    pub description: String,
    /// SHA-256 of all inputs of the rendering of the overlay.
    pub digest: Digest,
    /// Number of files in the overlay.
    pub files: usize,
    /// Packages that the overlay requires.
    pub packages: Vec<String>,
    /// Services that the overlay enables, by runlevel.
    pub services: BTreeMap<String, Vec<String>>,
    /// Units of systemd that the overlay enables.
    #[serde(default)]
    pub units: Vec<String>,
    /// Systems that the overlay supports: `alpine`, `systemd`.
    #[serde(default)]
    pub systems: Vec<String>,
    /// Names of the variables that the overlay declares.
    pub variables: Vec<String>,
    /// Profiles that use the overlay.
    pub profiles: Vec<ProfileName>,
}

impl OverlayView {
    /// Creates the view of an overlay.
    pub fn new(overlay: &Overlay, site: &Site) -> Self {
        let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (service, (level, _)) in &overlay.services.enabled {
            services.entry(level.to_string()).or_default().push(service.clone());
        }
        let uses = |profile: &&Profile| {
            profile.overlays.iter().any(|name| name.as_str() == overlay.name.to_string())
        };
        OverlayView {
            name: overlay.name.to_string(),
            description: overlay.description.clone(),
            digest: overlay.digest,
            files: overlay.entries.len(),
            packages: overlay.packages.iter().cloned().collect(),
            services,
            units: overlay.units.enabled.keys().cloned().collect(),
            systems: overlay.systems.iter().map(ToString::to_string).collect(),
            variables: overlay.variables.keys().map(ToString::to_string).collect(),
            profiles: site
                .profiles
                .values()
                .filter(uses)
                .map(|profile| profile.name.clone())
                .collect(),
        }
    }

    /// Returns all overlays of a site.
    pub fn all(overlays: &Overlays, site: &Site) -> Vec<Self> {
        overlays.all().map(|overlay| OverlayView::new(overlay, site)).collect()
    }
}

/// An overlay with the variables that it declares.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OverlayDetail {
    #[serde(flatten)]
    pub overlay: OverlayView,
    pub declares: Vec<VariableView>,
    /// Paths from earlier overlays that this overlay removes.
    pub removes: Vec<String>,
}

impl OverlayDetail {
    /// Creates the details of an overlay.
    pub fn new(overlay: &Overlay, site: &Site) -> Self {
        let declares = overlay
            .variables
            .iter()
            .map(|(name, variable)| VariableView::new(name, variable))
            .collect();
        let removes = overlay.removed.keys().map(ToString::to_string).collect();
        OverlayDetail { overlay: OverlayView::new(overlay, site), declares, removes }
    }
}

/// A variable that an overlay declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VariableView {
    pub name: VarName,
    /// `bool`, `integer`, `text` or `list`.
    pub r#type: String,
    /// Default value; absent for a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<VarValue>,
    /// True if the variable needs a value. Without a value, meshd does not render the overlay.
    pub required: bool,
    /// True for a secret: the value is in a file of the central node and no response contains it.
    pub secret: bool,
    /// Permitted values; an empty list permits any text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    pub description: String,
}

impl VariableView {
    fn new(name: &VarName, variable: &Variable) -> Self {
        VariableView {
            name: name.clone(),
            r#type: variable.kind.as_str().to_owned(),
            default: variable.default.clone().filter(|_| !variable.secret),
            required: variable.required,
            secret: variable.secret,
            choices: variable.choices.clone(),
            description: variable.description.clone(),
        }
    }
}

/// A file, link or folder of an overlay before rendering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverlaySourceView {
    /// Absolute path on the node.
    pub path: String,
    /// `file`, `template`, `agent`, `link` or `directory`.
    pub kind: String,
    /// Permission bits in octal, such as `0644`.
    pub mode: String,
    /// Numeric user and group IDs, such as `0:0`.
    pub owner: String,
    /// Size of the content, in bytes.
    pub size: u64,
    /// True if the content is appended to the file of earlier overlays.
    pub append: bool,
    /// True if the file uses secrets or is readable only by its owner on the node. No response
    /// contains its content.
    pub secret: bool,
    /// Target of a link. meshd does not follow links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// First 64 KiB of the content; present if the request names a path and the content is UTF-8
    /// text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Reason for the absence of `text`: `secret`, `binary` or `invalid_utf8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<String>,
}

impl OverlaySourceView {
    /// Creates the view of an overlay entry without its content.
    pub fn new(path: &SafePath, entry: &OverlayEntry, overlay: &Overlay) -> Self {
        let (kind, content, target) = match &entry.source {
            Source::File(bytes) => ("file", bytes.as_ref(), None),
            Source::Template { text, .. } => ("template", text.as_bytes(), None),
            Source::Agent => ("agent", [].as_slice(), None),
            Source::Link(target) => ("link", [].as_slice(), Some(target.clone())),
            Source::Directory => ("directory", [].as_slice(), None),
        };
        let is_private = matches!(kind, "file" | "template") && entry.mode & 0o004 == 0;
        let (user, group) = entry.owner;
        OverlaySourceView {
            path: path.to_string(),
            kind: kind.to_owned(),
            mode: format!("{:04o}", entry.mode),
            owner: format!("{user}:{group}"),
            size: content.len() as u64,
            append: entry.append,
            secret: is_private || entry.source.secret(&overlay.variables).is_some(),
            target,
            text: None,
            hidden: None,
        }
    }

    /// Creates the view of an overlay entry with at most [`OverlayFileView::MAX_TEXT`] bytes of its
    /// content.
    pub fn with_text(path: &SafePath, entry: &OverlayEntry, overlay: &Overlay) -> Self {
        let view = OverlaySourceView::new(path, entry, overlay);
        let content = match &entry.source {
            Source::File(bytes) => bytes.as_ref(),
            Source::Template { text, .. } => text.as_bytes(),
            Source::Agent | Source::Link(_) | Source::Directory => return view,
        };
        let (text, hidden) = match std::str::from_utf8(content) {
            _ if view.secret => (None, Some("secret")),
            _ if content.contains(&0) => (None, Some("binary")),
            Err(_) => (None, Some("invalid_utf8")),
            Ok(text) => {
                let mut ends = (0..=text.len().min(OverlayFileView::MAX_TEXT)).rev();
                let end = ends.find(|end| text.is_char_boundary(*end)).unwrap_or(0);
                (Some(text[..end].to_owned()), None)
            }
        };
        OverlaySourceView { text, hidden: hidden.map(str::to_owned), ..view }
    }
}

/// A file, link or folder of the rendered overlay of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverlayFileView {
    /// Absolute path on the node.
    pub path: String,
    /// `file`, `link` or `directory`.
    pub kind: String,
    /// Permission bits in octal, such as `0644`.
    pub mode: String,
    /// Numeric user and group IDs, such as `0:0`.
    pub owner: String,
    /// Size of the content, in bytes.
    pub size: u64,
    /// SHA-256 of the content, or of the target of a link.
    pub digest: Digest,
    /// Overlays from which the file comes; `(meshd)` for a file that meshd generates from
    /// declarations.
    pub origin: String,
    /// True if the file contains secrets. The response omits them.
    pub secret: bool,
    /// Target of a link. meshd does not follow links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// First 64 KiB of the content as text, if the request names a path. Placeholders replace
    /// secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl OverlayFileView {
    /// Maximum number of content bytes in a response.
    pub const MAX_TEXT: usize = 64 << 10;

    /// Creates the view of a rendered file without its text.
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

    /// Creates the view of a rendered file with its text.
    pub fn with_text(file: &RenderedFile) -> Self {
        let shown = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes.get(..Self::MAX_TEXT).unwrap_or(bytes)).into_owned()
        };
        OverlayFileView {
            text: file.content().map(|bytes| shown(bytes)),
            ..OverlayFileView::new(file)
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    /// Name of the volume.
    pub name: VolumeFileName,
    /// SHA-256 of the file, by which a `vm.toml` refers to the volume.
    pub digest: Digest,
    pub kind: VolumeKind,
    /// Size of the file, in bytes.
    pub size: u64,
    /// Size of the disk that a guest sees, in bytes.
    pub virtual_size: u64,
    /// Time at which the volume was added.
    pub added_at: Timestamp,
    /// VMs that use the volume.
    pub vms: Vec<VmName>,
    /// Containers that use the volume as image or mount it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerName>,
    /// True for the image of a container. Containers mount other squashfs volumes.
    #[serde(default)]
    pub container_image: bool,
}

impl VolumeView {
    /// Creates the view of a volume and of those that use it.
    pub fn new(info: VolumeInfo, vms: Vec<VmName>, containers: Vec<ContainerName>) -> Self {
        let VolumeInfo { name, digest, kind, size, virtual_size, added_at, container } = info;
        VolumeView {
            name,
            digest,
            kind,
            size,
            virtual_size,
            added_at,
            vms,
            containers,
            container_image: container.is_some(),
        }
    }
}
