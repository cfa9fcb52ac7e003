//! Starts a VM when its disks are written.

use super::{
    disk_write_queue::WriteOutcome, pending_starts::PendingStart, reconciler::Reconciler,
    vms::StartError,
};
use crate::vm::disks::{disk_write::DiskWrite, ownership_marker};
use meshd_proto::vm::VmSpec;
use meshd_types::{Digest, SystemUuid};
use std::sync::Arc;

impl Reconciler {
    /// Returns the volumes that a VM needs and that are not fetched.
    pub(super) fn missing_volumes(&self, spec: &VmSpec) -> Vec<Digest> {
        let needed = ownership_marker::needed_volumes(&self.vms.files(spec.uuid), spec);
        needed.into_iter().filter(|digest| !self.volumes.has(digest)).collect()
    }

    /// Starts the disk writes of a VM. Returns `None` if the VM waits for them. Nothing is
    /// overwritten for a VM that the node refuses, so its resources are reserved before; the start
    /// surveys the node again, because a write takes minutes.
    pub(super) async fn write_disks(&mut self, pending: PendingStart) -> Option<PendingStart> {
        let uuid = pending.spec.uuid;
        let files = self.vms.files(uuid);
        let volumes = ownership_marker::unwritten_volumes(&files, &pending.spec);
        if volumes.is_empty() {
            return Some(pending);
        }
        if self.disk_writes.has(uuid) {
            self.pending_starts.insert(pending);
            return None;
        }
        match self.vms.reserve_for_disk_write(&pending.spec).await {
            Ok(()) => {
                let config = self.vms.config();
                let progress = Arc::default();
                self.disk_writes.start(uuid, DiskWrite { files, config, volumes, progress });
                self.pending_starts.insert(pending);
                None
            }
            Err(StartError::Refused(refusals)) => {
                self.pending_starts.remove(uuid);
                self.refuse(&pending.spec, pending.start, &refusals);
                None
            }
            // The start fails for the same reason.
            Err(_) => Some(pending),
        }
    }

    pub(super) async fn disk_write_ended(&mut self, uuid: SystemUuid, outcome: WriteOutcome) {
        let pending = self.pending_starts.get(uuid).cloned();
        match (outcome, pending) {
            (WriteOutcome::Written | WriteOutcome::Cancelled, Some(pending)) => {
                self.start(pending).await
            }
            (WriteOutcome::Failed(refusal), Some(pending)) => {
                self.pending_starts.remove(uuid);
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
