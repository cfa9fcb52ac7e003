//! Disk writes in progress.

use crate::vm::{
    disks::disk_write::{DiskWrite, WriteProgress},
    failure::refusal,
};
use meshd_proto::vm::{VmFetching, VmRefusal, VmRefusalReason};
use meshd_types::SystemUuid;
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
    pub(super) fn start(&mut self, uuid: SystemUuid, write: DiskWrite) {
        let cancel = CancellationToken::new();
        let progress = write.progress.clone();
        let (open_until_end, ended) = watch::channel(());
        let cancelled = cancel.clone();
        self.tasks.spawn(async move {
            let outcome = match write.run(&cancelled).await {
                _ if cancelled.is_cancelled() => WriteOutcome::Cancelled,
                Ok(()) => WriteOutcome::Written,
                Err(refusal) => WriteOutcome::Failed(refusal),
            };
            drop(open_until_end);
            (uuid, outcome)
        });
        self.running.insert(uuid, DiskWriteTask { progress, cancel, ended });
    }

    /// Returns true if a write for the VM is in progress.
    pub(super) fn has(&self, uuid: SystemUuid) -> bool {
        self.running.contains_key(&uuid)
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
        let bytes = progress.bytes.load(Ordering::Relaxed);
        let total = progress.total.load(Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{CheckRunner, host::config::HostConfig, vm_paths::VmPaths};
    use std::{
        sync::{Mutex, mpsc},
        time::Duration,
    };
    use tokio::time::timeout;

    #[tokio::test]
    async fn cancelled_write_ends_when_its_thread_has_ended() {
        let dir = tempfile::tempdir().expect("a folder");
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let (go_on, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let checks = CheckRunner::new(move || {
            let _ = begun.send(());
            let _ = gate.lock().expect("one user").recv();
            Vec::new()
        });
        let uuid = SystemUuid([7; 16]);
        let volume = serde_json::json!({ "name": "root", "format": "raw", "disk": "slot:eui.1" });
        let volume = serde_json::from_value(volume).expect("a volume");
        let mut writes = DiskWrites::default();
        let write = DiskWrite {
            files: VmPaths::new(dir.path(), uuid),
            config: Arc::new(HostConfig { checks, ..HostConfig::of_root(dir.path()) }),
            volumes: vec![(volume, false)],
            progress: Arc::default(),
        };
        writes.start(uuid, write);
        begins.recv().await.expect("the write begins");
        let mut ended = std::pin::pin!(writes.cancel(uuid));
        let early = timeout(Duration::from_millis(300), &mut ended).await;
        assert!(early.is_err(), "its thread may still write");
        go_on.send(()).expect("the thread waits");
        ended.await;
        assert!(matches!(writes.next().await, (_, WriteOutcome::Cancelled)));
    }
}
