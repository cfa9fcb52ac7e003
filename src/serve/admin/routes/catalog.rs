//! Routes of images and overlays.

use crate::serve::admin::{
    Plane,
    error::Refused,
    routes::{Answer, gone, orders},
    table::{Array, Gzip, Routes},
};
use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use meshd_api::{GENERATION_HEADER, ImageView, OverlayFileView, OverlayView, PROFILE_HEADER};
use meshd_central::Rendered;
use meshd_trust::Role;
use meshd_types::ProfileName;
use serde::Deserialize;

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .get::<Array<ImageView>, _, _>("/images", &[], Role::Viewer, "List images and their versions", images)
        .get::<Array<OverlayView>, _, _>("/overlays", &[], Role::Viewer, "List overlays", overlays)
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
            let hint = meshd_config::suggest(&text, site.profiles.keys().map(ProfileName::as_str));
            return Err(Refused::not_found(format!("there is no profile `{named}`; {hint}")));
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
