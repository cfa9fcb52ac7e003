//! Device permissions: the user of a VM can open its own devices and no others.

use super::users::GROUP;
use crate::system::Tree;
use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
};

/// Gives IOMMU groups to the user of a VM.
///
/// # Errors
/// The permissions of a group cannot be changed.
pub fn give_groups(tree: &Tree, groups: &[u32], user: u32) -> Result<(), String> {
    for group in groups {
        let device = tree.path(&format!("/dev/vfio/{group}"));
        own(&device, user, 0, 0o600).map_err(|error| format!("{} cannot be given: {error}", device.display()))?;
    }
    if !groups.is_empty() {
        // The container gives no device by itself; the groups do.
        let container = tree.path("/dev/vfio/vfio");
        let opened = fs::set_permissions(&container, fs::Permissions::from_mode(0o666));
        opened.map_err(|error| format!("{} cannot be opened to machines: {error}", container.display()))?;
    }
    Ok(())
}

/// Takes the IOMMU groups back. A missing device is ignored.
pub fn take_groups(tree: &Tree, user: u32) {
    use std::os::unix::fs::MetadataExt as _;
    for entry in fs::read_dir(tree.path("/dev/vfio")).into_iter().flatten().flatten() {
        if entry.metadata().is_ok_and(|found| found.uid() == user)
            && let Err(error) = own(&entry.path(), 0, 0, 0o600)
        {
            tracing::warn!(%error, device = %entry.path().display(), "a VFIO group stays the user's of a machine that ended");
        }
    }
}

/// Lets all VMs open a shared device: `/dev/kvm`, or `/dev/net/tun`, by which a user reaches only its own TAP devices.
///
/// # Errors
/// The permissions of the device cannot be changed.
pub fn share(tree: &Tree, device: &str) -> Result<(), String> {
    let path = tree.path(device);
    // On Debian everybody may open it.
    let is_open = fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o006 == 0o006);
    if is_open {
        return Ok(());
    }
    own(&path, 0, GROUP, 0o660).map_err(|error| format!("{} cannot be opened to machines: {error}", path.display()))
}

/// Makes a file private to a user.
///
/// # Errors
/// The kernel rejects it.
pub fn own(path: &Path, user: u32, group: u32, mode: u32) -> io::Result<()> {
    chown(path, Some(user), Some(group))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
