//! Files of VMs and images of containers: which node may fetch them, and when they may be removed.

use crate::vms::Vms;
use meshd_builder::{VolumeError, VolumeInfo, Volumes};
use meshd_model::work::{
    Vm, VmDesiredState,
    container::{Container, ContainerGoal},
};
use meshd_store::Model;
use meshd_types::{ContainerName, Digest, NodeId, VmName, failpoint};
use std::{collections::BTreeSet, path::PathBuf};

/// The machines that name a volume, and the containers that use it as image or mount it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUsers {
    pub vms: Vec<VmName>,
    pub containers: Vec<ContainerName>,
}

impl VolumeUsers {
    fn names(&self) -> Vec<String> {
        let vms = self.vms.iter().map(|name| format!("VM {name}"));
        vms.chain(self.containers.iter().map(|name| format!("container {name}"))).collect()
    }
}

/// Why a volume is not removed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeUseError {
    #[error("cannot remove volume {volume}: used by {}", users.names().join(", "))]
    Used { volume: String, users: VolumeUsers },
    #[error(transparent)]
    Files(#[from] VolumeError),
    #[error("the removal was interrupted")]
    Interrupted,
}

meshd_types::hints!(VolumeUseError {
    VolumeUseError::Used { .. } => "delete them first";
    VolumeUseError::Interrupted => "retry";
    @source VolumeUseError::Files(source) => source;
});

fn uses_file(vm: &Vm, digest: &Digest) -> bool {
    vm.request.spec.files().any(|(_, file)| file == *digest)
}

fn needs_file(container: &Container, digest: &Digest) -> bool {
    container.spec.files().any(|(file, _)| file == *digest)
}

fn users(model: &Model, digest: &Digest) -> VolumeUsers {
    let vms = model.vms().filter(|vm| uses_file(vm, digest)).map(|vm| vm.name().clone());
    let containers = model.containers().filter(|container| needs_file(container, digest));
    let containers = containers.map(|container| container.name.clone());
    VolumeUsers { vms: vms.collect(), containers: containers.collect() }
}

impl Vms {
    pub(crate) fn volumes(&self) -> Volumes {
        Volumes::new(&self.env.site().blobs_dir)
    }

    /// Returns the path of a volume, if a VM placed on the node names it, or a container there uses
    /// it.
    pub fn volume_for(&self, node: NodeId, digest: &Digest) -> Option<PathBuf> {
        let is_allowed = self.env.store.read(|model| {
            let has_vm = model
                .vms_of(node)
                .any(|vm| vm.desired_state != VmDesiredState::Release && uses_file(vm, digest));
            has_vm
                || model.replicas_of(node).any(|(container, _)| {
                    container.desired_state != ContainerGoal::Release
                        && needs_file(container, digest)
                })
        });
        (is_allowed || !failpoint::defends("volume-node")).then(|| self.volumes().path(digest))
    }

    /// Finds a volume by its name or digest.
    pub(crate) async fn find_volume(&self, text: &str) -> Result<VolumeInfo, VolumeUseError> {
        let volumes = self.volumes();
        let text = text.to_owned();
        let found = tokio::task::spawn_blocking(move || volumes.find(&text)).await;
        Ok(found.map_err(|_| VolumeUseError::Interrupted)??)
    }

    /// Keeps all volumes until the guard is dropped.
    pub(crate) async fn keep_volumes(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.volume_use.read().await
    }

    pub(crate) fn has_volume(&self, digest: &Digest) -> bool {
        self.volumes().path(digest).is_file()
    }

    /// All volumes, with their users.
    pub async fn list_volumes(&self) -> Result<Vec<(VolumeInfo, VolumeUsers)>, VolumeUseError> {
        let volumes = self.volumes();
        let all = tokio::task::spawn_blocking(move || volumes.list()).await;
        let all = all.map_err(|_| VolumeUseError::Interrupted)??;
        Ok(self.env.store.read(|model| {
            all.into_iter()
                .map(|info| (users(model, &info.digest), info))
                .map(|(users, info)| (info, users))
                .collect()
        }))
    }

    /// Declares the volumes in use, if they changed since the last declaration: a VM is gone,
    /// or meshd started. A failed declaration is repeated at the next call.
    pub(crate) async fn declare_changed_volumes(&self) {
        // A VM that is being created has declared its volumes, and is not on record.
        let _alone = self.volume_use.write().await;
        let used = self.used_volumes();
        if self.declared_volumes.lock().as_ref() != Some(&used) {
            self.declare_volumes(used).await;
        }
    }

    fn used_volumes(&self) -> BTreeSet<Digest> {
        let files = |vm: &Vm| vm.request.spec.files().map(|(_, digest)| digest).collect::<Vec<_>>();
        self.env.store.read(|model| {
            let containers = model.containers().flat_map(|container| container.spec.files());
            let containers = containers.map(|(file, _)| file);
            model.vms().flat_map(files).chain(containers).collect()
        })
    }

    /// Tells other sites that share the folder of blobs which volumes the VMs of this site use, and
    /// those of a VM that is not on record yet.
    pub(crate) async fn declare_volumes_with(&self, new: BTreeSet<Digest>) {
        let mut used = self.used_volumes();
        used.extend(new);
        self.declare_volumes(used).await;
    }

    async fn declare_volumes(&self, used: BTreeSet<Digest>) {
        let volumes = self.volumes();
        let env = self.env.clone();
        let declared = tokio::task::spawn_blocking(move || {
            let owner = env.list_owner().map_err(|error| VolumeError::Owners(error.to_string()))?;
            volumes.declare(&owner, &used).map(|()| used)
        });
        let declared =
            declared.await.map_err(|_| VolumeUseError::Interrupted).and_then(|done| Ok(done?));
        if let Err(error) = &declared {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "cannot tell other sites which volumes are in use"
            );
        }
        *self.declared_volumes.lock() = declared.ok();
    }

    /// Removes a volume that no machine names, by its name or digest.
    pub async fn remove_volume(&self, text: &str) -> Result<VolumeInfo, VolumeUseError> {
        let volumes = self.volumes();
        let text = text.to_owned();
        let found =
            tokio::task::spawn_blocking(move || volumes.find(&text).map(|info| (volumes, info)))
                .await;
        let (volumes, info) = found.map_err(|_| VolumeUseError::Interrupted)??;
        let _alone = self.volume_use.write().await;
        let users = self.env.store.read(|model| users(model, &info.digest));
        if users != VolumeUsers::default() {
            return Err(VolumeUseError::Used { volume: info.name.to_string(), users });
        }
        let env = self.env.clone();
        let removed = tokio::task::spawn_blocking(move || {
            let owner = env.list_owner().map_err(|error| VolumeError::Owners(error.to_string()))?;
            volumes.remove(&owner, &info).map(|()| info)
        });
        let removed = removed.await;
        Ok(removed.map_err(|_| VolumeUseError::Interrupted)??)
    }
}
