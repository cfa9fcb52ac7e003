//! Routes of volumes. `meshd volume add` copies files without the API.

use crate::serve::{
    admin::{
        Plane,
        error::Refused,
        routes::Answer,
        table::{Many, Nothing, One, Routes},
    },
    central::VolumeUseError,
};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use meshd_image::builder::{VolumeError, VolumeInfo, VolumeKind};
use meshd_model::fleet::{AuditContext, Verb};
use meshd_trust::Role;
use meshd_types::{Digest, Timestamp, VmName, VolumeFileName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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

/// The routes of volumes.
pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .see::<Many<VolumeView>, _, _>("/volumes", &[], Role::Viewer, "files of virtual machines", list)
        .order::<Nothing, One<VolumeView>, _, _>(
            "/volumes/{volume}/remove",
            Verb::VolumeRemove,
            "remove a volume that no virtual machine names",
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
