//! What services of OpenRC would do in some seconds of an emulated boot, each with a shell.

use super::error::BootError;
use crate::{network, root};
use rustix::system::sethostname;
use std::{fs, path::Path};

const HOST_NAME: &str = "etc/hostname";

/// Mounts the file systems below `/dev`, sets the host name, and sets the loopback interface up, to
/// which the kernel gives its address.
pub(super) fn prepare_openrc(root: &Path) -> Result<(), BootError> {
    root::mount_device_folders()?;
    let loopback = "lo";
    network::set_up(loopback).map_err(|cause| BootError::Link {
        operation: "set up",
        interface: loopback.to_owned(),
        cause,
    })?;
    if let Ok(name) = fs::read_to_string(root.join(HOST_NAME)) {
        sethostname(name.trim().as_bytes()).map_err(|error| BootError::HostName(error.into()))?;
    }
    Ok(())
}
