//! Device permissions: the user of a VM can open its own devices and no others.

use super::users::GROUP;
use crate::system::Tree;
use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
};

/// Assigns IOMMU groups to the user of a VM.
pub fn assign_groups(tree: &Tree, groups: &[u32], user: u32) -> Result<(), String> {
    for group in groups {
        let device = tree.path(&format!("/dev/vfio/{group}"));
        set_owner(&device, user, 0, 0o600)
            .map_err(|error| format!("cannot assign {}: {error}", device.display()))?;
    }
    if !groups.is_empty() {
        // The container grants no access to a device; the groups do.
        let container = tree.path("/dev/vfio/vfio");
        let opened = fs::set_permissions(&container, fs::Permissions::from_mode(0o666));
        opened.map_err(|error| format!("cannot open {} to VMs: {error}", container.display()))?;
    }
    Ok(())
}

/// Returns the IOMMU groups of a user to root.
pub fn reclaim_groups(tree: &Tree, user: u32) {
    use std::os::unix::fs::MetadataExt as _;
    for entry in fs::read_dir(tree.path("/dev/vfio")).into_iter().flatten().flatten() {
        if entry.metadata().is_ok_and(|found| found.uid() == user)
            && let Err(error) = set_owner(&entry.path(), 0, 0, 0o600)
        {
            tracing::warn!(%error, device = %entry.path().display(), "cannot return a VFIO group of a VM to root");
        }
    }
}

/// Lets all VMs open a shared device: `/dev/kvm`, or `/dev/net/tun`, which gives a user only its
/// own TAP devices.
pub fn share(tree: &Tree, device: &str) -> Result<(), String> {
    let path = tree.path(device);
    // On Debian every user may open it.
    let is_open =
        fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o006 == 0o006);
    if is_open {
        return Ok(());
    }
    set_owner(&path, 0, GROUP, 0o660)
        .map_err(|error| format!("cannot open {} to VMs: {error}", path.display()))
}

/// Sets owner and mode of a file.
pub fn set_owner(path: &Path, user: u32, group: u32, mode: u32) -> io::Result<()> {
    chown(path, Some(user), Some(group))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
