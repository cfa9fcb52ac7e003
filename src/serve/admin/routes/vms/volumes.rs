//! Routes of volumes. `meshd volume add` copies files without the API.

use crate::admin::{bind_handlers::Binder, error::Refused, routes::Answer};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use meshd_api::{VolumeView, routes as api};
use meshd_builder::VolumeError;
use meshd_central::{Shared, VolumeUseError, VolumeUsers};
use meshd_model::fleet::AuditContext;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder.get(&api::LIST_VOLUMES, list).post(&api::REMOVE_VOLUME, remove)
}

impl From<VolumeUseError> for Refused {
    fn from(error: VolumeUseError) -> Self {
        let (status, code) = match &error {
            VolumeUseError::Used { .. } | VolumeUseError::Files(VolumeError::Foreign { .. }) => {
                (StatusCode::CONFLICT, "volume_in_use")
            }
            VolumeUseError::Files(VolumeError::None(_)) => (StatusCode::NOT_FOUND, "no_volume"),
            VolumeUseError::Files(_) | VolumeUseError::Interrupted => {
                (StatusCode::INTERNAL_SERVER_ERROR, "volume_failed")
            }
        };
        Refused::of(status, code, &error)
    }
}

async fn list(State(central): State<Shared>) -> Answer<Vec<VolumeView>> {
    let all = central.vms.list_volumes().await?;
    let view = |(info, users): (_, VolumeUsers)| VolumeView::new(info, users.vms, users.containers);
    Ok(Json(all.into_iter().map(view).collect()))
}

async fn remove(
    State(central): State<Shared>,
    Path(volume): Path<String>,
    _: AuditContext,
) -> Answer<VolumeView> {
    let info = central.vms.remove_volume(&volume).await?;
    Ok(Json(VolumeView::new(info, Vec::new(), Vec::new())))
}
