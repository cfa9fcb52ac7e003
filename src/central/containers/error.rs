//! Errors of orders about containers.

use super::MAX_SITE_CONTAINERS;
use crate::vms::VolumeUseError;
use meshd_model::work::container::NoReplicaPlacement;
use meshd_proto::{container::ReplicaId, vm::SpecFault};
use meshd_store::StoreError;
use meshd_types::{ContainerName, NodeId, ParseError, VolumeFileName};

/// Why an order about a container is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error("there is no container `{0}`")]
    None(String),
    #[error("cannot run container `{0}`: the name is taken")]
    NameTaken(ContainerName),
    #[error("cannot run container `{0}`: the name reads like that of a replica")]
    ReplicaName(ContainerName),
    #[error("cannot run a container: the site has {MAX_SITE_CONTAINERS}")]
    TooMany,
    #[error("invalid container `{name}`: {}: {}", fault.key, fault.message)]
    Unsound { name: ContainerName, fault: SpecFault },
    #[error("cannot run container `{name}`: volume {volume} is no image of a container")]
    NoImage { name: ContainerName, volume: VolumeFileName },
    #[error("cannot run container `{name}`: volume {volume} has no files to mount")]
    NoFiles { name: ContainerName, volume: VolumeFileName },
    #[error("cannot run container `{name}`: {source}")]
    Replicas { name: ContainerName, source: ParseError },
    #[error("cannot run container: {0}")]
    NoPlacement(NoReplicaPlacement),
    #[error("cannot start container `{name}`: node {node} also runs replica {replica}")]
    Elsewhere { name: ContainerName, replica: ReplicaId, node: NodeId },
    #[error("container `{0}` is being deleted")]
    Releasing(ContainerName),
    #[error(transparent)]
    Volume(#[from] VolumeUseError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(ContainerError {
    ContainerError::None(_) => "`meshd container list` lists all containers";
    ContainerError::NameTaken(name) => "use another name, or delete that one: meshd container delete {name}";
    ContainerError::ReplicaName(_) => "use a name that does not end in a point and digits";
    ContainerError::TooMany => "delete some";
    ContainerError::Unsound { fault, .. } => "{}", fault.hint;
    ContainerError::NoImage { .. } => "import one: meshd image import NAME --container oci:DIR";
    ContainerError::NoFiles { .. } => "add a squashfs: mksquashfs DIR FILE, then meshd volume add FILE";
    ContainerError::Elsewhere { replica, node, .. } => "{}", end_of_copy(replica, *node);
    ContainerError::NoPlacement(why) => "{}", why.remedy();
    ContainerError::Releasing(_) => "retry after it disappears from `meshd container list`";
    @source ContainerError::Replicas { source, .. } => source;
    @source ContainerError::Volume(source) => source;
    @source ContainerError::Store(source) => source;
});

/// Says how to end a copy of a replica, also on a node that does not answer.
pub(super) fn end_of_copy(replica: &ReplicaId, node: NodeId) -> String {
    format!(
        "end that copy first: meshd container delete {replica}; if the node does not answer: \
         meshd node fence {node}; if it is gone: meshd node remove {node}"
    )
}
