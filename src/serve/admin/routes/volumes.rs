//! Routes of volumes. `meshd volume add` copies files without the API.

use crate::serve::admin::{
    Plane,
    error::Refused,
    routes::Answer,
    table::{Array, Empty, Object, Routes},
};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use meshd_api::VolumeView;
use meshd_central::VolumeUseError;
use meshd_image::builder::VolumeError;
use meshd_model::fleet::{AuditContext, Verb};
use meshd_trust::Role;

/// The routes of volumes.
pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .get::<Array<VolumeView>, _, _>("/volumes", &[], Role::Viewer, "List volumes", list)
        .post::<Empty, Object<VolumeView>, _, _>(
            "/volumes/{volume}/remove",
            Verb::VolumeRemove,
            "Remove a volume that no VM uses",
            remove,
        )
}

impl From<VolumeUseError> for Refused {
    fn from(error: VolumeUseError) -> Self {
        let (status, code) = match &error {
            VolumeUseError::Used { .. } => (StatusCode::CONFLICT, "volume_in_use"),
            VolumeUseError::Files(VolumeError::None(_)) => (StatusCode::NOT_FOUND, "no_volume"),
            VolumeUseError::Files(_) | VolumeUseError::Interrupted => {
                (StatusCode::INTERNAL_SERVER_ERROR, "volume_failed")
            }
        };
        Refused::new(status, code, error.to_string())
    }
}

async fn list(State(Plane { central, .. }): State<Plane>) -> Answer<Vec<VolumeView>> {
    let all = central.workloads.list_volumes().await?;
    Ok(Json(all.into_iter().map(|(info, vms)| VolumeView::new(info, vms)).collect()))
}

async fn remove(
    State(Plane { central, .. }): State<Plane>,
    Path(volume): Path<String>,
    _: AuditContext,
) -> Answer<VolumeView> {
    let info = central.workloads.remove_volume(&volume).await?;
    Ok(Json(VolumeView::new(info, Vec::new())))
}
