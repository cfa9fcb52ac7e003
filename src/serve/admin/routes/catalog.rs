//! Routes of images and overlays.

use crate::serve::admin::{
    Plane,
    binder::Binder,
    error::Refused,
    routes::{Answer, gone, node_settings},
};
use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use meshd_api::{
    GENERATION_HEADER, ImageView, OverlayDetail, OverlayFileView, OverlaySourceView, OverlayView, PROFILE_HEADER,
    SettingView, routes as api,
};
use meshd_central::Rendered;
use meshd_config::Site;
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

async fn images(State(Plane { central, .. }): State<Plane>) -> Answer<Vec<ImageView>> {
    let site = central.site();
    let read = tokio::task::spawn_blocking(move || ImageView::all(&site)).await;
    let read =
        read.map_err(|_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "interrupted", "reading was interrupted"))?;
    read.map(Json).map_err(|error| Refused::internal(format!("cannot list images: {error}")))
}

async fn overlays(State(Plane { central, .. }): State<Plane>) -> Json<Vec<OverlayView>> {
    let snapshot = central.env.snapshot();
    Json(OverlayView::all(snapshot.catalog.overlays(), &snapshot.site))
}

fn no_overlay(name: &str) -> Refused {
    let name: String = name.chars().take(80).collect();
    Refused::not_found(format!("there is no overlay `{name}`; see `meshd overlay list`"))
}

async fn show_overlay(State(Plane { central, .. }): State<Plane>, Path(name): Path<String>) -> Answer<OverlayDetail> {
    let snapshot = central.env.snapshot();
    let overlay = snapshot.catalog.overlays().all().find(|overlay| overlay.name.to_string() == name);
    Ok(Json(OverlayDetail::new(overlay.ok_or_else(|| no_overlay(&name))?, &snapshot.site)))
}

/// Path of one file on the node.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceQuery {
    path: Option<String>,
}

/// Returns files as of the last reload. The handler reads nothing from disk, so no path or link leads out of the overlay.
async fn source_files(
    State(Plane { central, .. }): State<Plane>,
    Path(name): Path<String>,
    query: Result<Query<SourceQuery>, QueryRejection>,
) -> Answer<Vec<OverlaySourceView>> {
    let Query(query) = query.map_err(|error| Refused::bad_request(error.body_text()))?;
    let snapshot = central.env.snapshot();
    let overlay = snapshot.catalog.overlays().all().find(|overlay| overlay.name.to_string() == name);
    let overlay = overlay.ok_or_else(|| no_overlay(&name))?;
    let Some(path) = query.path else {
        let entries = overlay.entries.iter();
        return Ok(Json(entries.map(|(path, entry)| OverlaySourceView::new(path, entry, overlay)).collect()));
    };
    let path = SafePath::new(&path).map_err(|error| Refused::bad_request(error.to_string()))?;
    let entry = overlay.entries.get(&path);
    let entry = entry.ok_or_else(|| Refused::not_found(format!("overlay {name} has no file {path}")))?;
    Ok(Json(vec![OverlaySourceView::with_text(&path, entry, overlay)]))
}

async fn settings(State(Plane { central, .. }): State<Plane>, Path(name): Path<String>) -> Answer<Vec<SettingView>> {
    let (named, site) = (node_settings::profile(&name)?, central.site());
    let profile = site.profiles.get(&named).ok_or_else(|| no_profile(&name, &site))?;
    Ok(Json(profile.settings.iter().cloned().map(Into::into).collect()))
}

fn no_profile(name: &str, site: &Site) -> Refused {
    let hint = meshd_config::suggest(name, site.profiles.keys().map(ProfileName::as_str));
    Refused::not_found(format!("there is no profile `{name}`; {hint}"))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverlayQuery {
    /// Overrides the node's profile.
    profile: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverlayFilesQuery {
    /// Overrides the node's profile.
    profile: Option<String>,
    /// Selects one file, with its text.
    path: Option<String>,
}

/// Renders the node's current boot, or its boot with another profile.
async fn rendered(plane: Plane, node: &str, profile: Option<String>) -> Result<Rendered, Refused> {
    let Plane { central, boot_address, .. } = plane;
    let id = central.nodes.resolve(node)?;
    let mut node = central.store().read(|model| model.node(id).cloned()).ok_or_else(|| gone(id))?;
    if let Some(text) = profile {
        let named = node_settings::profile(&text)?;
        let site = central.site();
        if !site.profiles.contains_key(&named) {
            return Err(no_profile(&text, &site));
        }
        (node.profile, node.pinned, node.once) = (Some(named), None, None);
    }
    Ok(central.generations.render(&node, central.env.endpoint(boot_address)).await?)
}

/// Returns the public part of an overlay.
async fn overlay(
    State(plane): State<Plane>,
    Path(node): Path<String>,
    query: Result<Query<OverlayQuery>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(query) = query.map_err(|error| Refused::bad_request(error.body_text()))?;
    let Rendered { generation, what, overlay, .. } = rendered(plane, &node, query.profile).await?;
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

/// Returns the files of an overlay, or one file with its text.
async fn overlay_files(
    State(plane): State<Plane>,
    Path(node): Path<String>,
    query: Result<Query<OverlayFilesQuery>, QueryRejection>,
) -> Answer<Vec<OverlayFileView>> {
    let Query(query) = query.map_err(|error| Refused::bad_request(error.body_text()))?;
    let overlay = rendered(plane, &node, query.profile).await?.overlay;
    let Some(path) = query.path else { return Ok(Json(overlay.files.iter().map(OverlayFileView::new).collect())) };
    let file = overlay.files.iter().find(|file| file.path.to_string() == path);
    let file = file.ok_or_else(|| Refused::not_found(format!("the overlay of {node} has no file {path}")))?;
    Ok(Json(vec![OverlayFileView::with_text(file)]))
}
