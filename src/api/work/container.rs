//! Requests and responses for containers.

use meshd_model::work::container::{Container, ContainerGoal, ReplicaPhase, UNCONFIRMED};
use meshd_proto::container::{
    ContainerRestart, HealthCheck, PublishedPort, ReplicaId, ReplicaMount, ReplicaState,
};
use meshd_types::{ContainerName, Digest, NodeId, Timestamp, VolumeFileName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Body of `POST containers`. What it leaves out follows from the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunContainer {
    pub name: ContainerName,
    /// Name or digest of an imported image.
    pub image: String,
    /// Number of replicas, each on a node of its own: 1 to 64. Default: 1.
    #[serde(default = "one")]
    pub replicas: u16,
    /// Program and arguments, in place of those of the image. meshd starts it without a shell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// Variables in addition to those of the image.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// User ID of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group ID of the program. Default: the user ID, if that is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Limit of CPU time in thousandths of a CPU. Default: 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    /// Limit of memory in MiB, with written files. Default: 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Limit of written files in MiB. They end with the program. Default: 64, or a quarter of the
    /// memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_mib: Option<u32>,
    /// TCP ports of the node that lead to ports of the replica.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PublishedPort>,
    /// Volumes that the replicas see as folders, read-only: at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountVolume>,
    /// Default: always.
    #[serde(default)]
    pub restart: ContainerRestart,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthCheck>,
    /// Seconds between SIGTERM and SIGKILL. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_seconds: Option<u16>,
}

/// A volume to mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountVolume {
    /// Name or digest of a squashfs volume.
    pub volume: String,
    /// Absolute path of a folder in the replica, outside /dev, /proc and /sys. No mount contains
    /// another one.
    pub path: String,
}

fn one() -> u16 {
    1
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContainerView {
    pub name: ContainerName,
    pub desired_state: ContainerGoal,
    /// Number of replicas that run and are not unhealthy.
    pub running: usize,
    /// Name of the image.
    pub image: VolumeFileName,
    /// Digest of the image's squashfs.
    pub digest: Digest,
    /// Program and arguments. Every role sees them.
    pub argv: Vec<String>,
    /// Names of the variables; the values may be secrets.
    pub env: Vec<String>,
    pub working_dir: String,
    pub uid: u32,
    pub gid: u32,
    pub cpu_millis: u32,
    pub memory_mib: u32,
    pub scratch_mib: u32,
    pub ports: Vec<PublishedPort>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<ReplicaMount>,
    pub restart: ContainerRestart,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthCheck>,
    pub stop_seconds: u16,
    /// Caller that ordered it.
    pub owner: String,
    pub created_at: Timestamp,
    pub replicas: Vec<ReplicaView>,
}

/// One replica of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaView {
    /// `NAME.INDEX`.
    #[schema(value_type = String)]
    pub id: ReplicaId,
    pub phase: ReplicaPhase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Number of the last ordered start.
    pub run: u32,
    /// Automatic restarts since then.
    pub restarts: u32,
    /// Time of the last change of state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Last exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    /// Why it failed, leaves its node, has none, or is not ordered to run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl ContainerView {
    /// Creates the view of a container. `is_linked`: a node has a link.
    pub fn new(container: &Container, is_linked: impl Fn(NodeId) -> bool) -> Self {
        let Container { name, image, spec, desired_state, owner, created_at, .. } =
            container.clone();
        let replicas = container.replicas.iter().enumerate();
        let replicas: Vec<ReplicaView> = replicas
            .map(|(index, replica)| {
                let is_linked = replica.node().is_some_and(&is_linked);
                let phase = container.phase_of(replica, is_linked);
                ReplicaView::new(container, index, phase)
            })
            .collect();
        let running = replicas.iter().filter(|replica| replica.runs()).count();
        ContainerView {
            name,
            desired_state,
            running,
            image,
            digest: spec.image,
            argv: spec.argv,
            env: spec.env.into_keys().collect(),
            working_dir: spec.working_dir,
            uid: spec.uid,
            gid: spec.gid,
            cpu_millis: spec.cpu_millis,
            memory_mib: spec.memory_mib,
            scratch_mib: spec.scratch_mib,
            ports: spec.ports,
            mounts: spec.mounts,
            restart: spec.restart,
            health: spec.health,
            stop_seconds: spec.stop_seconds,
            owner,
            created_at,
            replicas,
        }
    }

    /// Returns true if every replica runs, and is healthy if that is checked.
    pub fn is_ready(&self) -> bool {
        let wanted =
            if self.health.is_some() { ReplicaPhase::Healthy } else { ReplicaPhase::Running };
        self.replicas
            .iter()
            .all(|replica| replica.phase == wanted || self.health.is_none() && replica.runs())
    }

    /// Returns true if a replica has exited as its restart policy expects: it is no problem.
    pub fn has_finished(&self, replica: &ReplicaView) -> bool {
        let is_expected = self.restart == ContainerRestart::Never || replica.code == Some(0);
        replica.phase == ReplicaPhase::Exited && is_expected
    }
}

impl ReplicaView {
    fn new(container: &Container, index: usize, phase: ReplicaPhase) -> Self {
        let replica = &container.replicas[index];
        let status = replica.last_report.as_ref();
        let state = status.map(|status| &status.state);
        let code = match state {
            Some(ReplicaState::Waiting { code, .. } | ReplicaState::Exited { code }) => Some(*code),
            _ => None,
        };
        let fault = match state {
            Some(ReplicaState::Fetching { percent }) => Some(format!("{percent} % fetched")),
            _ => container.fault_of(replica),
        };
        let hold = (phase == ReplicaPhase::Unconfirmed).then(|| match &replica.obstacle {
            Some(why) => format!("{why}; {UNCONFIRMED}"),
            None => UNCONFIRMED.to_owned(),
        });
        let detail = hold.or_else(|| replica.leaving.clone()).or(fault);
        let detail = detail.or_else(|| replica.obstacle.clone());
        ReplicaView {
            id: container.replica_id(index),
            phase,
            node: replica.node(),
            run: replica.run,
            restarts: status.map_or(0, |status| status.restarts),
            since: status.map(|status| status.since),
            code,
            detail: detail.unwrap_or_default(),
        }
    }

    /// Returns true if the replica has, or may have, processes.
    pub fn may_run(&self) -> bool {
        use ReplicaPhase::{Exited, Failed, Stopped, Unplaced};
        !matches!(self.phase, Unplaced | Exited | Failed | Stopped)
    }

    /// Returns true if the program runs and is not unhealthy.
    pub fn runs(&self) -> bool {
        matches!(self.phase, ReplicaPhase::Running | ReplicaPhase::Healthy)
    }
}
