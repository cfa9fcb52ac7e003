//! Releases the disks of a VM: checks that they are idle, and wipes them if the specification says
//! so, before another VM may get them (GP-13).

use super::{disk_write::blocking, ownership_marker};
use crate::{
    disks::{self, wipe},
    system::Tree,
    vm::{host::config::HostConfig, reservations::Reservations, vm_paths::VmPaths},
};
use meshd_proto::{
    DiskFacts,
    vm::{ReleasedDisk, VmSpec},
};
use meshd_types::SystemUuid;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Timeout of a survey of the disks; a disk that hangs is not idle.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the disks of a VM. The report of the central node about a disk takes precedence.
pub fn disks_of(
    files: &VmPaths,
    spec: Option<&VmSpec>,
    reported: Vec<ReleasedDisk>,
) -> Vec<ReleasedDisk> {
    let Some(spec) = spec else { return reported };
    let states = ownership_marker::states(files, spec);
    let own = spec.volumes.iter().filter_map(|volume| {
        let disk = volume.source.disk()?.identity()?.clone();
        Some(ReleasedDisk {
            disk,
            wipe: volume.source.is_wiped(),
            used: states.contains_key(&volume.name),
        })
    });
    let mut disks: Vec<ReleasedDisk> = own.collect();
    for report in reported {
        match disks.iter_mut().find(|own| own.disk == report.disk) {
            // The central node may not know yet that the VM used the disk.
            Some(own) => (own.wipe, own.used) = (report.wipe, own.used || report.used),
            None => disks.push(report),
        }
    }
    disks
}

/// Checks that every disk is idle, and wipes it if requested. The disks stay reserved meanwhile.
pub async fn release(
    config: Arc<HostConfig>,
    reservations: Reservations,
    uuid: SystemUuid,
    disks: Vec<ReleasedDisk>,
) -> Result<(), String> {
    if disks.is_empty() {
        return Ok(());
    }
    let _reserved = reservations.hold_disks(uuid, disks.iter().map(|left| &left.disk));
    let release = Arc::new(DiskRelease { config, reservations, uuid });
    let check = release.clone();
    let all = disks.clone();
    let never = CancellationToken::new();
    let checks =
        blocking(&never, move |_| all.iter().try_for_each(|left| check.idle_disk(left).map(drop)));
    match timeout(SURVEY_TIMEOUT, checks).await {
        Ok(result) => result??,
        Err(_) => {
            return Err(format!(
                "cannot check its disks: timeout after {} s",
                SURVEY_TIMEOUT.as_secs()
            ));
        }
    }
    for left in disks.into_iter().filter(|left| left.wipe && left.used) {
        let release = release.clone();
        tracing::info!(disk = %left.disk, "wiping a disk");
        blocking(&never, move |cancelled| release.wipe(&left, cancelled)).await??;
    }
    Ok(())
}

struct DiskRelease {
    config: Arc<HostConfig>,
    reservations: Reservations,
    uuid: SystemUuid,
}

impl DiskRelease {
    /// Returns the disk if it exists, is idle and belongs to no other VM.
    fn idle_disk(&self, left: &ReleasedDisk) -> Result<Option<DiskFacts>, String> {
        let tree = Tree::new(&self.config.root);
        let all = disks::survey(&tree, &self.config.data_disks);
        let Some(found) = find_disk(&all, left)? else { return Ok(None) };
        self.reservations.check_disk_is_free(self.uuid, found)?;
        wipe::check_idle(&tree, found, &left.disk).map(|()| Some(found.clone()))
    }

    fn wipe(&self, left: &ReleasedDisk, cancelled: &CancellationToken) -> Result<(), String> {
        let Some(found) = self.idle_disk(left)? else { return Ok(()) };
        wipe::wipe(&Tree::new(&self.config.root), &found, || self.config.checks.run(), cancelled)
            .map_err(|reason| format!("cannot wipe disk {}: {reason}", left.disk))
    }
}

/// Finds a disk by identity. A missing disk is an error only if it must be wiped.
fn find_disk<'a>(
    all: &'a [DiskFacts],
    left: &ReleasedDisk,
) -> Result<Option<&'a DiskFacts>, String> {
    let found = wipe::find(all, &left.disk)?;
    if found.is_none() && left.wipe && left.used {
        return Err(format!(
            "cannot wipe disk {}: it is missing; insert it, or delete with --force",
            left.disk
        ));
    }
    Ok(found)
}

#[cfg(test)]
#[path = "tests/leave.rs"]
mod tests;
