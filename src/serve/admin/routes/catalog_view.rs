//! Images and overlays in JSON, also printed by `meshd image list` and `meshd overlay list`.

use crate::serve::{
    admin::{
        Plane,
        error::Refused,
        routes::{Answer, gone, orders},
        view::{GENERATION_HEADER, PROFILE_HEADER},
    },
    central::Rendered,
};
use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use meshd_config::{Profile, Site};
use meshd_image::{
    builder::{self, ImageState, Listed, Version},
    catalog::{ImageManifest, Overlay, Overlays},
};
use meshd_types::{Digest, ImageName, ProfileName};
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

pub(crate) async fn images(State(Plane { central, .. }): State<Plane>) -> Answer<Vec<ImageView>> {
    let site = central.site();
    let read = tokio::task::spawn_blocking(move || ImageView::all(&site)).await;
    let read =
        read.map_err(|_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "interrupted", "reading was interrupted"))?;
    read.map(Json).map_err(|error| Refused::internal(format!("cannot list images: {error}")))
}

pub(crate) async fn overlays(State(Plane { central, .. }): State<Plane>) -> Json<Vec<OverlayView>> {
    let live = central.env.live();
    Json(OverlayView::all(live.catalog.overlays(), &live.site))
}

/// What an overlay is rendered for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichOverlay {
    /// Another profile than the node's.
    profile: Option<String>,
}

/// The public part of what a node would boot now, or would boot if another profile were assigned to it.
pub(crate) async fn overlay(
    State(plane): State<Plane>,
    Path(node): Path<String>,
    which: Result<Query<WhichOverlay>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(which) = which.map_err(|error| Refused::bad_request(error.body_text()))?;
    let Plane { central, told, .. } = plane;
    let id = central.nodes.resolve(&node)?;
    let mut node = central.store().read(|model| model.node(id).cloned()).ok_or_else(|| gone(id))?;
    if let Some(text) = which.profile {
        let named = orders::profile(&text)?;
        let site = central.site();
        if !site.profiles.contains_key(&named) {
            let hint = meshd_config::suggest(&text, site.profiles.keys().map(ProfileName::as_str));
            return Err(Refused::not_found(format!("there is no profile `{named}`; {hint}")));
        }
        (node.profile, node.pinned, node.once) = (Some(named), None, None);
    }
    let rendered = central.generations.render(&node, central.env.endpoint(told)).await?;
    let Rendered { generation, what, overlay, .. } = rendered;
    let packed = tokio::task::spawn_blocking(move || overlay.to_targz());
    let interrupted = |_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "interrupted", "packing was interrupted");
    let bytes = packed.await.map_err(interrupted)?;
    let headers = [
        (CONTENT_TYPE.as_str(), "application/gzip".to_owned()),
        (GENERATION_HEADER, generation.to_string()),
        (PROFILE_HEADER, what.profile.to_string()),
    ];
    Ok((headers, bytes).into_response())
}
