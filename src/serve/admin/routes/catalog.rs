//! Routes of images and overlays.

use crate::serve::admin::{
    Plane,
    error::Refused,
    routes::{Answer, gone, orders},
    table::{Array, Gzip, Object, Routes},
};
use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use meshd_api::{
    GENERATION_HEADER, ImageView, OverlayDetail, OverlayFileView, OverlaySourceView, OverlayView, PROFILE_HEADER,
    SettingView,
};
use meshd_central::Rendered;
use meshd_config::Site;
use meshd_trust::Role;
use meshd_types::{ProfileName, SafePath};
use serde::Deserialize;

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .get::<Array<ImageView>, _, _>("/images", &[], Role::Viewer, "List images and their versions", images)
        .get::<Array<OverlayView>, _, _>("/overlays", &[], Role::Viewer, "List overlays", overlays)
        .get::<Object<OverlayDetail>, _, _>(
            "/overlays/{name}",
            &[],
            Role::Viewer,
            "Show an overlay and the variables that it declares",
            show_overlay,
        )
        .get::<Array<OverlaySourceView>, _, _>(
            "/overlays/{name}/files",
            &["path"],
            Role::Viewer,
            "List the files of an overlay, or show one with its text, without secrets",
            source_files,
        )
        .get::<Array<SettingView>, _, _>(
            "/profiles/{name}/settings",
            &[],
            Role::Viewer,
            "List the values of a profile with the profile that set each",
            settings,
        )
        .get::<Gzip, _, _>(
            "/overlay/{node}",
            &["profile"],
            Role::Operator,
            "Render the overlay of a node without secrets, with its own or another profile",
            overlay,
        )
        .get::<Array<OverlayFileView>, _, _>(
            "/overlay/{node}/files",
            &["profile", "path"],
            Role::Operator,
            "List the files of a node's overlay, or show one with its text, without secrets",
            overlay_files,
        )
}

async fn images(State(Plane { central, .. }): State<Plane>) -> Answer<Vec<ImageView>> {
    let site = central.site();
    let read = tokio::task::spawn_blocking(move || ImageView::all(&site)).await;
    let read =
        read.map_err(|_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "interrupted", "reading was interrupted"))?;
    read.map(Json).map_err(|error| Refused::internal(format!("cannot list images: {error}")))
}

async fn overlays(State(Plane { central, .. }): State<Plane>) -> Json<Vec<OverlayView>> {
    let live = central.env.snapshot();
    Json(OverlayView::all(live.catalog.overlays(), &live.site))
}

fn no_overlay(name: &str) -> Refused {
    let name: String = name.chars().take(80).collect();
    Refused::not_found(format!("there is no overlay `{name}`; see `meshd overlay list`"))
}

async fn show_overlay(State(Plane { central, .. }): State<Plane>, Path(name): Path<String>) -> Answer<OverlayDetail> {
    let live = central.env.snapshot();
    let overlay = live.catalog.overlays().all().find(|overlay| overlay.name.to_string() == name);
    Ok(Json(OverlayDetail::new(overlay.ok_or_else(|| no_overlay(&name))?, &live.site)))
}

/// The path of one file on the node.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichSource {
    path: Option<String>,
}

/// Files are those of the last reload: nothing is read from disk, so no path or link leads out of the overlay.
async fn source_files(
    State(Plane { central, .. }): State<Plane>,
    Path(name): Path<String>,
    which: Result<Query<WhichSource>, QueryRejection>,
) -> Answer<Vec<OverlaySourceView>> {
    let Query(which) = which.map_err(|error| Refused::bad_request(error.body_text()))?;
    let live = central.env.snapshot();
    let overlay = live.catalog.overlays().all().find(|overlay| overlay.name.to_string() == name);
    let overlay = overlay.ok_or_else(|| no_overlay(&name))?;
    let Some(path) = which.path else {
        let entries = overlay.entries.iter();
        return Ok(Json(entries.map(|(path, entry)| OverlaySourceView::new(path, entry, overlay)).collect()));
    };
    let path = SafePath::new(&path).map_err(|error| Refused::bad_request(error.to_string()))?;
    let entry = overlay.entries.get(&path);
    let entry = entry.ok_or_else(|| Refused::not_found(format!("overlay {name} has no file {path}")))?;
    Ok(Json(vec![OverlaySourceView::with_text(&path, entry, overlay)]))
}

async fn settings(State(Plane { central, .. }): State<Plane>, Path(name): Path<String>) -> Answer<Vec<SettingView>> {
    let (named, site) = (orders::profile(&name)?, central.site());
    let profile = site.profiles.get(&named).ok_or_else(|| no_profile(&name, &site))?;
    Ok(Json(profile.settings.iter().cloned().map(Into::into).collect()))
}

fn no_profile(name: &str, site: &Site) -> Refused {
    let hint = meshd_config::suggest(name, site.profiles.keys().map(ProfileName::as_str));
    Refused::not_found(format!("there is no profile `{name}`; {hint}"))
}

/// What an overlay is rendered for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichOverlay {
    /// Another profile than the node's.
    profile: Option<String>,
}

/// What is asked of the files of an overlay.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichFiles {
    /// Another profile than the node's.
    profile: Option<String>,
    /// This file alone, with its text.
    path: Option<String>,
}

/// What a node would boot now, or would boot if another profile were assigned to it.
async fn rendered(plane: Plane, node: &str, profile: Option<String>) -> Result<Rendered, Refused> {
    let Plane { central, told, .. } = plane;
    let id = central.nodes.resolve(node)?;
    let mut node = central.store().read(|model| model.node(id).cloned()).ok_or_else(|| gone(id))?;
    if let Some(text) = profile {
        let named = orders::profile(&text)?;
        let site = central.site();
        if !site.profiles.contains_key(&named) {
            return Err(no_profile(&text, &site));
        }
        (node.profile, node.pinned, node.once) = (Some(named), None, None);
    }
    Ok(central.generations.render(&node, central.env.endpoint(told)).await?)
}

/// The public part of an overlay.
async fn overlay(
    State(plane): State<Plane>,
    Path(node): Path<String>,
    which: Result<Query<WhichOverlay>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(which) = which.map_err(|error| Refused::bad_request(error.body_text()))?;
    let Rendered { generation, what, overlay, .. } = rendered(plane, &node, which.profile).await?;
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

/// The files of an overlay, or one of them with its text.
async fn overlay_files(
    State(plane): State<Plane>,
    Path(node): Path<String>,
    which: Result<Query<WhichFiles>, QueryRejection>,
) -> Answer<Vec<OverlayFileView>> {
    let Query(which) = which.map_err(|error| Refused::bad_request(error.body_text()))?;
    let overlay = rendered(plane, &node, which.profile).await?.overlay;
    let Some(path) = which.path else { return Ok(Json(overlay.files.iter().map(OverlayFileView::new).collect())) };
    let file = overlay.files.iter().find(|file| file.path.to_string() == path);
    let file = file.ok_or_else(|| Refused::not_found(format!("the overlay of {node} has no file {path}")))?;
    Ok(Json(vec![OverlayFileView::with_text(file)]))
}
