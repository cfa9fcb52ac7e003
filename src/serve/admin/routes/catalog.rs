//! Routes of images and overlays.

use crate::admin::{
    ApiState,
    bind_handlers::Binder,
    error::Refused,
    extract::{QueryOf, profile_name},
    routes::{Answer, blocking, nodes::detail::node_removed},
};
use axum::{
    Json,
    extract::{Path, State},
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};
use meshd_api::{
    GENERATION_HEADER, ImageView, OverlayDetail, OverlayFileView, OverlaySourceView, OverlayView,
    PROFILE_HEADER, SettingView, routes as api,
};
use meshd_central::{Rendered, Shared};
use meshd_config::Site;
use meshd_image::catalog::{Overlay, Overlays};
use meshd_types::{ProfileName, SafePath};
use serde::Deserialize;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_IMAGES, images)
        .get(&api::LIST_OVERLAYS, overlays)
        .get(&api::GET_OVERLAY, show_overlay)
        .get(&api::LIST_OVERLAY_FILES, source_files)
        .get(&api::LIST_PROFILE_SETTINGS, settings)
        .get(&api::RENDER_NODE_OVERLAY, overlay)
        .get(&api::LIST_NODE_OVERLAY_FILES, overlay_files)
}

async fn images(State(central): State<Shared>) -> Answer<Vec<ImageView>> {
    let site = central.site();
    let read = blocking("reading", move || ImageView::all(&site)).await?;
    read.map(Json).map_err(|error| Refused::internal(format!("cannot list images: {error}")))
}

async fn overlays(State(central): State<Shared>) -> Json<Vec<OverlayView>> {
    let snapshot = central.env.snapshot();
    Json(OverlayView::all(snapshot.catalog.overlays(), &snapshot.site))
}

fn find_overlay<'a>(overlays: &'a Overlays, name: &str) -> Result<&'a Overlay, Refused> {
    overlays.all().find(|overlay| overlay.name.to_string() == name).ok_or_else(|| {
        let name: String = name.chars().take(80).collect();
        Refused::not_found(format!("there is no overlay `{name}`"))
            .with_hint("see `meshd overlay list`")
    })
}

async fn show_overlay(
    State(central): State<Shared>,
    Path(name): Path<String>,
) -> Answer<OverlayDetail> {
    let snapshot = central.env.snapshot();
    Ok(Json(OverlayDetail::new(find_overlay(snapshot.catalog.overlays(), &name)?, &snapshot.site)))
}

/// Path of one file on the node.
#[derive(Debug, Deserialize)]
pub(crate) struct SourceQuery {
    path: Option<String>,
}

/// Returns files as of the last reload. The handler reads nothing from disk, so no path or link
/// leads out of the overlay.
async fn source_files(
    State(central): State<Shared>,
    Path(name): Path<String>,
    QueryOf(query): QueryOf<SourceQuery>,
) -> Answer<Vec<OverlaySourceView>> {
    let snapshot = central.env.snapshot();
    let overlay = find_overlay(snapshot.catalog.overlays(), &name)?;
    let Some(path) = query.path else {
        let entries = overlay.entries.iter();
        return Ok(Json(
            entries.map(|(path, entry)| OverlaySourceView::new(path, entry, overlay)).collect(),
        ));
    };
    let path = SafePath::new(&path).map_err(|error| Refused::unreadable(&error))?;
    let entry = overlay.entries.get(&path);
    let entry =
        entry.ok_or_else(|| Refused::not_found(format!("overlay {name} has no file {path}")))?;
    Ok(Json(vec![OverlaySourceView::with_text(&path, entry, overlay)]))
}

async fn settings(
    State(central): State<Shared>,
    Path(name): Path<String>,
) -> Answer<Vec<SettingView>> {
    let named = profile_name(&name)?;
    let site = central.site();
    let profile = site.profiles.get(&named).ok_or_else(|| no_profile(&name, &site))?;
    Ok(Json(profile.settings.iter().cloned().map(Into::into).collect()))
}

fn no_profile(name: &str, site: &Site) -> Refused {
    let hint = meshd_config::suggest(name, site.profiles.keys().map(ProfileName::as_str));
    Refused::not_found(format!("there is no profile `{name}`")).with_hint(hint)
}

#[derive(Debug, Deserialize)]
pub(crate) struct OverlayQuery {
    /// Overrides the node's profile.
    profile: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OverlayFilesQuery {
    /// Overrides the node's profile.
    profile: Option<String>,
    /// Selects one file, with its text.
    path: Option<String>,
}

/// Renders the node's current boot, or its boot with another profile.
async fn rendered(
    state: ApiState,
    node: &str,
    profile: Option<String>,
) -> Result<Rendered, Refused> {
    let endpoint = state.central.env.endpoint(state.boot_address());
    let central = state.central;
    let id = central.nodes.resolve(node)?;
    let mut node = central.nodes.node(id).ok_or_else(|| node_removed(id))?;
    if let Some(text) = profile {
        let named = profile_name(&text)?;
        let site = central.site();
        if !site.profiles.contains_key(&named) {
            return Err(no_profile(&text, &site));
        }
        (node.profile, node.pinned, node.boot_override) = (Some(named), None, None);
    }
    Ok(central.generations.render(&node, endpoint).await?)
}

/// Returns the public part of an overlay.
async fn overlay(
    State(state): State<ApiState>,
    Path(node): Path<String>,
    QueryOf(query): QueryOf<OverlayQuery>,
) -> Result<Response, Refused> {
    let Rendered { generation, contents, overlay, .. } =
        rendered(state, &node, query.profile).await?;
    let bytes = blocking("packing", move || overlay.to_targz()).await?;
    let headers = [
        (CONTENT_TYPE.as_str(), "application/gzip".to_owned()),
        (GENERATION_HEADER, generation.to_string()),
        (PROFILE_HEADER, contents.profile.to_string()),
    ];
    Ok((headers, bytes).into_response())
}

/// Returns the files of an overlay, or one file with its text.
async fn overlay_files(
    State(state): State<ApiState>,
    Path(node): Path<String>,
    QueryOf(query): QueryOf<OverlayFilesQuery>,
) -> Answer<Vec<OverlayFileView>> {
    let overlay = rendered(state, &node, query.profile).await?.overlay;
    let Some(path) = query.path else {
        return Ok(Json(overlay.files.iter().map(OverlayFileView::new).collect()));
    };
    let file = overlay.files.iter().find(|file| file.path.to_string() == path);
    let file = file
        .ok_or_else(|| Refused::not_found(format!("the overlay of {node} has no file {path}")))?;
    Ok(Json(vec![OverlayFileView::with_text(file)]))
}
