//! Disk writes in progress; a VM starts when its write is complete.

use super::{reconciler::Reconciler, vms::StartError, waiting_vms::PendingStart};
use crate::vm::{
    disks::{
        disk_write::{DiskWrite, WriteProgress},
        ownership_marker,
    },
    failure::refusal,
};
use meshd_proto::vm::{VmFetching, VmRefusal, VmRefusalReason, VmSpec};
use meshd_types::{Digest, SystemUuid};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub enum WriteOutcome {
    Written,
    /// An image was not written.
    Failed(VmRefusal),
    Cancelled,
}

/// Disk writes in progress, at most one for each VM.
#[derive(Debug, Default)]
pub struct DiskWrites {
    running: BTreeMap<SystemUuid, DiskWriteTask>,
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
    fn start(&mut self, uuid: SystemUuid, write: DiskWrite) {
        let (cancel, progress) = (CancellationToken::new(), write.progress.clone());
        let (open_until_end, ended) = watch::channel(());
        let cancelled = cancel.clone();
        self.tasks.spawn(async move {
            let outcome = tokio::select! {
                result = write.run() => result.map_or_else(WriteOutcome::Failed, |()| WriteOutcome::Written),
                () = cancelled.cancelled() => WriteOutcome::Cancelled,
            };
            drop(open_until_end);
            (uuid, outcome)
        });
        self.running.insert(uuid, DiskWriteTask { progress, cancel, ended });
    }

    /// Cancels a write. The returned future completes when the write has ended.
    pub fn cancel(&self, uuid: SystemUuid) -> impl Future<Output = ()> + Send + use<> {
        let ended = self.running.get(&uuid).map(|write| {
            write.cancel.cancel();
            write.ended.clone()
        });
        async move {
            if let Some(mut ended) = ended {
                while ended.changed().await.is_ok() {}
            }
        }
    }

    pub fn progress(&self, uuid: SystemUuid) -> Option<VmFetching> {
        let progress = &self.running.get(&uuid)?.progress;
        let (bytes, total) =
            (progress.bytes.load(Ordering::Relaxed), progress.total.load(Ordering::Relaxed));
        Some(VmFetching { bytes, total, writing: true, obstacle: None })
    }

    /// Waits for the end of a write; pending if there is none. Cancel-safe.
    pub async fn next(&mut self) -> (SystemUuid, WriteOutcome) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((uuid, outcome))) => {
                    self.running.remove(&uuid);
                    return (uuid, outcome);
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "a disk write failed");
                    let ended =
                        self.running.iter().find(|(_, write)| write.ended.has_changed().is_err());
                    if let Some(uuid) = ended.map(|(uuid, _)| *uuid) {
                        self.running.remove(&uuid);
                        let refusal = refusal(VmRefusalReason::DiskWriteFailed, error.to_string());
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
    pub(super) fn missing_volumes(&self, spec: &VmSpec) -> Vec<Digest> {
        let needed = ownership_marker::needed_volumes(&self.vms.files(spec.uuid), spec);
        needed.into_iter().filter(|digest| !self.volumes.has(digest)).collect()
    }

    /// Starts the disk writes of a VM. Returns `None` if the VM waits for them.
    pub(super) async fn write_disks(&mut self, pending: PendingStart) -> Option<PendingStart> {
        let uuid = pending.spec.uuid;
        let files = self.vms.files(uuid);
        let volumes = ownership_marker::unwritten_volumes(&files, &pending.spec);
        if volumes.is_empty() {
            return Some(pending);
        }
        if self.disk_writes.running.contains_key(&uuid) {
            self.waiting.insert(pending);
            return None;
        }
        match self.vms.reserve(&pending.spec).await {
            Ok(()) => {
                let (config, progress) = (self.vms.config(), Arc::default());
                self.disk_writes.start(uuid, DiskWrite { files, config, volumes, progress });
                self.waiting.insert(pending);
                None
            }
            Err(StartError::Refused { refusals, .. }) => {
                self.waiting.remove(uuid);
                self.refuse(&pending.spec, pending.start, &refusals);
                None
            }
            // The start fails for the same reason.
            Err(_) => Some(pending),
        }
    }

    pub(super) async fn disk_write_ended(&mut self, uuid: SystemUuid, outcome: WriteOutcome) {
        let pending = self.waiting.get(uuid).cloned();
        match (outcome, pending) {
            (WriteOutcome::Written | WriteOutcome::Cancelled, Some(pending)) => {
                self.start(pending).await
            }
            (WriteOutcome::Failed(refusal), Some(pending)) => {
                self.waiting.remove(uuid);
                self.vms.cancel_reservation(uuid);
                self.refuse(&pending.spec, pending.start, &[refusal]);
            }
            // The release in progress holds the resources of the VM.
            (_, None) if self.releasing_vms.contains(&uuid) => {}
            (_, None) => self.vms.cancel_reservation(uuid),
        }
        self.prune();
    }
}
