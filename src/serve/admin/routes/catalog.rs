//! Routes of images and overlays.

use crate::serve::admin::{
    Plane,
    error::Refused,
    routes::{Answer, gone, orders},
};
use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use meshd_api::{GENERATION_HEADER, ImageView, OverlayView, PROFILE_HEADER};
use meshd_central::Rendered;
use meshd_types::ProfileName;
use serde::Deserialize;

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
