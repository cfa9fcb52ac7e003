//! Images, overlays and volumes, as `meshd image list`, `meshd overlay list` and `meshd volume list` print them.

use meshd_config::{Profile, Site};
use meshd_image::{
    builder::{self, ImageState, Listed, Version, VolumeInfo, VolumeKind},
    catalog::{
        ImageManifest, Overlay, Overlays,
        overlay::{OverlayEntry, Source, Variable},
    },
    overlay::{Kind, RenderedFile},
};
use meshd_types::{Digest, ImageName, ProfileName, SafePath, Timestamp, VarName, VarValue, VmName, VolumeFileName};
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

/// An overlay with the variables that it declares.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OverlayDetail {
    #[serde(flatten)]
    pub overlay: OverlayView,
    pub declares: Vec<VariableView>,
    /// The paths of earlier overlays that it removes.
    pub removes: Vec<String>,
}

impl OverlayDetail {
    /// An overlay of a site.
    pub fn new(overlay: &Overlay, site: &Site) -> Self {
        let declares = overlay.variables.iter().map(|(name, variable)| VariableView::new(name, variable)).collect();
        let removes = overlay.removed.keys().map(ToString::to_string).collect();
        OverlayDetail { overlay: OverlayView::new(overlay, site), declares, removes }
    }
}

/// A variable that an overlay declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VariableView {
    #[schema(value_type = String)]
    pub name: VarName,
    /// `bool`, `integer`, `text` or `list`.
    pub r#type: String,
    /// Absent for a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    pub default: Option<VarValue>,
    /// Without a value, the overlay is not rendered.
    pub required: bool,
    /// Its value is in a file of the central node and never shown.
    pub secret: bool,
    /// The permitted texts; any if empty.
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

/// One file, link or folder of an overlay, before it is rendered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverlaySourceView {
    /// Its path on the node.
    pub path: String,
    /// `file`, `template`, `agent`, `link` or `directory`.
    pub kind: String,
    /// Permission bits in octal: `0644`.
    pub mode: String,
    /// User and group number: `0:0`.
    pub owner: String,
    /// Bytes of its content.
    pub size: u64,
    /// It is appended to the file of earlier overlays.
    pub append: bool,
    /// It uses secrets, or only its owner may read it on the node. Its content is not shown.
    pub secret: bool,
    /// Target of a link. Links are not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its beginning, if a path was named and it is UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Why there is no text: `secret`, `binary` or `invalid_utf8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<String>,
}

impl OverlaySourceView {
    /// An entry of an overlay, without its content.
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

    /// The same with its content, at most [`OverlayFileView::MAX_TEXT`] bytes.
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
