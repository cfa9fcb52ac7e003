//! Disk writes in progress; a VM starts when its write is complete.

use super::{Reconciler, vms::StartError, waiting_vms::PendingStart};
use crate::vm::disks::{
    disk_write::{DiskWrite, WriteProgress},
    ownership_marker,
};
use meshd_proto::vm::{VmFetching, VmRefusal, VmRefusalReason, VmSpec};
use meshd_types::{Digest, SystemUuid};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// How a write ended.
#[derive(Debug)]
pub enum WriteOutcome {
    /// All is on the disks.
    Written,
    /// It could not be.
    Failed(VmRefusal),
    /// Nobody wants it any more.
    GivenUp,
}

/// Writes that are under way, one for each machine.
#[derive(Debug, Default)]
pub struct DiskWrites {
    under_way: BTreeMap<SystemUuid, DiskWriteTask>,
    jobs: JoinSet<(SystemUuid, WriteOutcome)>,
}

#[derive(Debug)]
struct DiskWriteTask {
    progress: Arc<WriteProgress>,
    cancel: CancellationToken,
    /// Closed when it has ended.
    ended: watch::Receiver<()>,
}

impl DiskWrites {
    fn begin(&mut self, uuid: SystemUuid, job: DiskWrite) {
        let (cancel, progress) = (CancellationToken::new(), job.progress.clone());
        let (alive, ended) = watch::channel(());
        let cancelled = cancel.clone();
        self.jobs.spawn(async move {
            let ended = tokio::select! {
                written = job.run() => written.map_or_else(WriteOutcome::Failed, |()| WriteOutcome::Written),
                () = cancelled.cancelled() => WriteOutcome::GivenUp,
            };
            drop(alive);
            (uuid, ended)
        });
        self.under_way.insert(uuid, DiskWriteTask { progress, cancel, ended });
    }

    /// Gives one up; what is given back ends when it has.
    pub fn cancel(&self, uuid: SystemUuid) -> impl Future<Output = ()> + Send + use<> {
        let write = self.under_way.get(&uuid);
        let ended = write.map(|write| {
            write.cancel.cancel();
            write.ended.clone()
        });
        async move {
            if let Some(mut ended) = ended {
                while ended.changed().await.is_ok() {}
            }
        }
    }

    /// How far one is.
    pub fn progress(&self, uuid: SystemUuid) -> Option<VmFetching> {
        let DiskWriteTask { progress, .. } = self.under_way.get(&uuid)?;
        let (bytes, of) = (progress.bytes.load(Ordering::Relaxed), progress.of.load(Ordering::Relaxed));
        Some(VmFetching { bytes, of, writing: true, trouble: None })
    }

    /// The next that has ended; pending while there is none. Cancel-safe.
    pub async fn next(&mut self) -> (SystemUuid, WriteOutcome) {
        loop {
            match self.jobs.join_next().await {
                Some(Ok((uuid, ended))) => {
                    self.under_way.remove(&uuid);
                    return (uuid, ended);
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "a write failed");
                    let gone = self.under_way.iter().find(|(_, write)| write.ended.has_changed().is_err());
                    if let Some(uuid) = gone.map(|(uuid, _)| *uuid) {
                        self.under_way.remove(&uuid);
                        let detail = error.to_string();
                        let refusal = VmRefusal { reason: VmRefusalReason::DiskWriteFailed, detail };
                        return (uuid, WriteOutcome::Failed(refusal));
                    }
                }
                None => std::future::pending().await,
            }
        }
    }
}

impl Reconciler {
    /// Files of the central node that a machine still needs and that are not here.
    pub(super) fn missing(&self, spec: &VmSpec) -> Vec<Digest> {
        let needed = ownership_marker::needed(&self.vms.files(spec.uuid), spec);
        needed.into_iter().filter(|digest| !self.volumes.has(digest)).collect()
    }

    /// Begins to write what is to be on a machine's disks before it starts; `None` if it waits for that now.
    pub(super) async fn write(&mut self, run: PendingStart) -> Option<PendingStart> {
        let uuid = run.spec.uuid;
        let files = self.vms.files(uuid);
        let volumes = ownership_marker::unwritten(&files, &run.spec);
        if volumes.is_empty() {
            return Some(run);
        }
        if self.writes.under_way.contains_key(&uuid) {
            self.waiting.insert(run);
            return None;
        }
        match self.vms.reserve(&run.spec).await {
            Ok(()) => {
                let (places, progress) = (self.vms.places(), Arc::default());
                self.writes.begin(uuid, DiskWrite { files, places, volumes, progress });
                self.waiting.insert(run);
                None
            }
            Err(StartError::Refused { refusals, .. }) => {
                self.waiting.remove(uuid);
                self.refuse(&run.spec, run.start, &refusals).await;
                None
            }
            // It is refused where it would be begun, for the same reason.
            Err(_) => Some(run),
        }
    }

    pub(super) async fn written(&mut self, uuid: SystemUuid, ended: WriteOutcome) {
        let run = self.waiting.get(uuid).cloned();
        match (ended, run) {
            (WriteOutcome::Written | WriteOutcome::GivenUp, Some(run)) => self.start(run).await,
            (WriteOutcome::Failed(refusal), Some(run)) => {
                self.waiting.remove(uuid);
                self.vms.give_up(uuid);
                self.refuse(&run.spec, run.start, &[refusal]).await;
            }
            // What it holds is held by its release.
            (_, None) if self.leaving.contains(&uuid) => {}
            (_, None) => self.vms.give_up(uuid),
        }
        self.prune();
    }
}
