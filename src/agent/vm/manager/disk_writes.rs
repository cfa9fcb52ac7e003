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

/// The outcome of a disk write.
#[derive(Debug)]
pub enum WriteOutcome {
    /// All images are written.
    Written,
    /// An image was not written.
    Failed(VmRefusal),
    /// The write was cancelled.
    GivenUp,
}

/// Disk writes in progress, at most one for each VM.
#[derive(Debug, Default)]
pub struct DiskWrites {
    under_way: BTreeMap<SystemUuid, DiskWriteTask>,
    tasks: JoinSet<(SystemUuid, WriteOutcome)>,
}

#[derive(Debug)]
struct DiskWriteTask {
    progress: Arc<WriteProgress>,
    cancel: CancellationToken,
    /// Closed at the end of the write.
    ended: watch::Receiver<()>,
}

impl DiskWrites {
    fn begin(&mut self, uuid: SystemUuid, task: DiskWrite) {
        let (cancel, progress) = (CancellationToken::new(), task.progress.clone());
        let (alive, ended) = watch::channel(());
        let cancelled = cancel.clone();
        self.tasks.spawn(async move {
            let ended = tokio::select! {
                written = task.run() => written.map_or_else(WriteOutcome::Failed, |()| WriteOutcome::Written),
                () = cancelled.cancelled() => WriteOutcome::GivenUp,
            };
            drop(alive);
            (uuid, ended)
        });
        self.under_way.insert(uuid, DiskWriteTask { progress, cancel, ended });
    }

    /// Cancels a write. The returned future completes when the write has ended.
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

    /// Returns the progress of a write.
    pub fn progress(&self, uuid: SystemUuid) -> Option<VmFetching> {
        let DiskWriteTask { progress, .. } = self.under_way.get(&uuid)?;
        let (bytes, of) = (progress.bytes.load(Ordering::Relaxed), progress.of.load(Ordering::Relaxed));
        Some(VmFetching { bytes, of, writing: true, obstacle: None })
    }

    /// Waits for the end of a write; pending if there is none. Cancel-safe.
    pub async fn next(&mut self) -> (SystemUuid, WriteOutcome) {
        loop {
            match self.tasks.join_next().await {
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
    /// Returns the volumes that a VM needs and that are not fetched.
    pub(super) fn missing(&self, spec: &VmSpec) -> Vec<Digest> {
        let needed = ownership_marker::needed(&self.vms.files(spec.uuid), spec);
        needed.into_iter().filter(|digest| !self.volumes.has(digest)).collect()
    }

    /// Starts the disk writes of a VM. Returns `None` if the VM waits for them.
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
                let (config, progress) = (self.vms.config(), Arc::default());
                self.writes.begin(uuid, DiskWrite { files, config, volumes, progress });
                self.waiting.insert(run);
                None
            }
            Err(StartError::Refused { refusals, .. }) => {
                self.waiting.remove(uuid);
                self.refuse(&run.spec, run.start, &refusals).await;
                None
            }
            // The start refuses it for the same reason.
            Err(_) => Some(run),
        }
    }

    pub(super) async fn written(&mut self, uuid: SystemUuid, ended: WriteOutcome) {
        let run = self.waiting.get(uuid).cloned();
        match (ended, run) {
            (WriteOutcome::Written | WriteOutcome::GivenUp, Some(run)) => self.start(run).await,
            (WriteOutcome::Failed(refusal), Some(run)) => {
                self.waiting.remove(uuid);
                self.vms.cancel_reservation(uuid);
                self.refuse(&run.spec, run.start, &[refusal]).await;
            }
            // Its release holds its resources.
            (_, None) if self.releasing_vms.contains(&uuid) => {}
            (_, None) => self.vms.cancel_reservation(uuid),
        }
        self.prune();
    }
}
