//! Releases the disks of a VM: checks that they are idle, and wipes them if the specification says so, before another VM may get them
//! (GP-13).

use super::{
    disk_write::{blocking, doctor_blocks},
    exclusive_disk::ExclusiveDisk,
    ownership_marker,
};
use crate::{
    disks,
    system::Tree,
    vm::{host::config::HostConfig, reservations::Reservations},
};
use meshd_proto::{
    DiskFacts,
    vm::{DiskIdentity, LeftDisk, VmSpec},
};
use meshd_types::SystemUuid;
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio::time::timeout;

/// Timeout of a survey of the disks; a disk that hangs is not idle.
const LOOK_PATIENCE: Duration = Duration::from_secs(30);

/// Returns the disks of a VM. What the central node says about a disk takes precedence.
pub fn disks_of(files: &crate::vm::vm_paths::VmPaths, spec: Option<&VmSpec>, said: Vec<LeftDisk>) -> Vec<LeftDisk> {
    let Some(spec) = spec else { return said };
    let used = ownership_marker::of(files, spec);
    let own = spec.volumes.iter().filter_map(|volume| {
        let disk = volume.source.disk()?.identity()?.clone();
        Some(LeftDisk { disk, wipe: volume.source.is_wiped(), used: used.contains_key(&volume.name) })
    });
    let mut left: Vec<LeftDisk> = own.collect();
    for said in said {
        match left.iter_mut().find(|own| own.disk == said.disk) {
            // The central node may not know yet that the VM used the disk.
            Some(own) => (own.wipe, own.used) = (said.wipe, own.used || said.used),
            None => left.push(said),
        }
    }
    left
}

/// Checks that every disk is idle, and wipes it if requested. The disks stay reserved meanwhile.
///
/// # Errors
/// The first disk that is not released, and why.
pub async fn leave(
    config: Arc<HostConfig>,
    reservations: Reservations,
    uuid: SystemUuid,
    left: Vec<LeftDisk>,
) -> Result<(), String> {
    if left.is_empty() {
        return Ok(());
    }
    let _until_it_left = reservations.leaving(uuid, left.iter().map(|left| &left.disk));
    let (look, all, own) = (config.clone(), left.clone(), reservations.clone());
    let looking = blocking(move |_| all.iter().try_for_each(|left| look_at(&look, &own, uuid, left).map(drop)));
    match timeout(LOOK_PATIENCE, looking).await {
        Ok(looked) => looked??,
        Err(_) => return Err(format!("its disks could not be looked at within {} s", LOOK_PATIENCE.as_secs())),
    }
    for left in left.into_iter().filter(|left| left.wipe && left.used) {
        let (config, own) = (config.clone(), reservations.clone());
        tracing::info!(disk = %left.disk, "a disk is wiped");
        blocking(move |is_over| wipe(&config, &own, uuid, &left, is_over)).await??;
    }
    Ok(())
}

/// Returns the disk if it exists, is idle and belongs to no other VM.
fn look_at(
    config: &HostConfig,
    reservations: &Reservations,
    uuid: SystemUuid,
    left: &LeftDisk,
) -> Result<Option<DiskFacts>, String> {
    let tree = Tree::new(&config.root);
    let all = disks::survey(&tree, &config.data_disks);
    let Some(found) = called(&all, left)? else { return Ok(None) };
    reservations.is_free(uuid, found)?;
    idle(&left.disk, disks::user(&tree, &found.name))?;
    Ok(Some(found.clone()))
}

fn wipe(
    config: &HostConfig,
    reservations: &Reservations,
    uuid: SystemUuid,
    left: &LeftDisk,
    is_over: &AtomicBool,
) -> Result<(), String> {
    let disk = &left.disk;
    let Some(found) = look_at(config, reservations, uuid, left)? else { return Ok(()) };
    if let Some(why) = found.blocked.clone().or_else(|| doctor_blocks(&config.checks.run())) {
        return Err(format!("disk {disk} is not wiped: {why}"));
    }
    let wiped = ExclusiveDisk::hold(&Tree::new(&config.root), &found).and_then(|block| block.wipe(is_over));
    wiped.map_err(|why| format!("disk {disk} is not wiped: {why}"))
}

/// Finds a disk by identity. A missing disk is an error only if it must be wiped.
fn called<'a>(all: &'a [DiskFacts], left: &LeftDisk) -> Result<Option<&'a DiskFacts>, String> {
    let LeftDisk { disk, .. } = left;
    let found: Vec<&DiskFacts> = all.iter().filter(|one| one.names().any(|name| name == disk.as_str())).collect();
    match found.as_slice() {
        [one] => Ok(Some(one)),
        [] if !left.wipe || !left.used => Ok(None),
        [] => Err(format!("disk {disk} is to be wiped and is not there; put it back, or delete with --force")),
        _ => Err(format!("{} disks are called {disk}", found.len())),
    }
}

fn idle(disk: &DiskIdentity, busy: Option<String>) -> Result<(), String> {
    busy.map_or(Ok(()), |why| Err(format!("disk {disk} is not idle: {why}")))
}

#[cfg(test)]
#[path = "tests/leave.rs"]
mod tests;
