//! Disks that a VM uses, used before, or leaves on a node.

use super::record::Vm;
use meshd_proto::{
    DiskIdentity, DiskUse,
    vm::{OnRelease, ReleasedDisk, Volume, VolumeName, VolumeSource},
};
use meshd_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

impl Vm {
    /// Returns the disks that the VM leaves on its node.
    pub(super) fn left_disks(&self) -> Vec<ReleasedDisk> {
        let left = |volume: Volume| {
            let disk = volume.source.disk()?.identity()?.clone();
            Some(ReleasedDisk {
                disk,
                wipe: volume.source.is_wiped(),
                used: self.disks.contains_key(&volume.name),
            })
        };
        self.volumes().filter_map(left).collect()
    }

    /// Returns the disks that the node has wiped when it confirms the release.
    pub fn wiped_disks(&self, node: NodeId) -> BTreeSet<DiskIdentity> {
        if let Some(owed) = self.pending_wipes.get(&node) {
            return owed.clone();
        }
        let own = self
            .left_disks()
            .into_iter()
            .filter(|left| left.wipe && left.used && self.node() == Some(node));
        own.map(|left| left.disk).collect()
    }

    /// Records the disks of a node that stopped without confirming the release. The disks must be
    /// wiped before another VM receives them.
    pub fn record_pending_wipes(&mut self) {
        let owed: BTreeSet<DiskIdentity> = self
            .left_disks()
            .into_iter()
            .filter(|left| left.wipe && left.used)
            .map(|left| left.disk)
            .collect();
        if let Some(node) = self.node().filter(|_| !owed.is_empty()) {
            self.stray_nodes.insert(node);
            self.pending_wipes.insert(node, owed);
        }
    }

    /// Cancels all pending wipes.
    pub fn cancel_wipes(&mut self) {
        for volume in &mut self.request.spec.volumes {
            if let VolumeSource::Raw { on_release, .. } = &mut volume.source {
                *on_release = Some(OnRelease::Keep);
            }
        }
        for node in std::mem::take(&mut self.pending_wipes).into_keys() {
            self.stray_nodes.remove(&node);
        }
    }

    /// Records that a former node confirmed the release. Returns false if no confirmation was
    /// pending.
    pub fn confirm_release(&mut self, node: NodeId) -> bool {
        self.pending_wipes.remove(&node);
        self.stray_nodes.remove(&node)
    }

    /// Adds the disk states that the node reports.
    pub(super) fn apply_disk_uses(&mut self, reported: BTreeMap<VolumeName, DiskUse>) {
        for (name, disk_use) in reported {
            if self.request.spec.volumes.iter().any(|volume| volume.name == name) {
                let disk = self.disks.entry(name).or_insert(disk_use);
                *disk = disk_use.max(*disk);
            }
        }
    }
}
