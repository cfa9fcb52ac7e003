//! The qcow2 layer of a volume: the guest writes to the layer, and the base image stays unchanged.

use crate::{
    files,
    vm::{
        confine::{Confinement, device},
        helper_program,
        spec::argv,
        vm_paths::VmPaths,
    },
};
use meshd_proto::vm::{ByteSize, qcow2};
use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Creates the layer of a volume unless it exists. A temporary name protects against incomplete
/// layers.
pub async fn create(
    files: &VmPaths,
    index: usize,
    base: &Path,
    size: Option<ByteSize>,
    qemu_img: &Path,
    confined: &Confinement,
) -> Result<(), String> {
    let (path, (user, group)) = (files.layer(index), confined.owner());
    let failed = |error: io::Error| format!("cannot make {}: {error}", path.display());
    if !path.exists() {
        let new = path.with_extension("new");
        let empty =
            OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new);
        empty.and_then(|_| device::set_owner(&new, user, group, 0o600)).map_err(failed)?;
        let size = virtual_size(base, size).map_err(failed)?;
        let (program, args) =
            confined.command(false, Vec::new(), qemu_img, &argv::layer(&new, base, size));
        helper_program::run(&program, &args).await?;
        fs::rename(&new, &path).map_err(failed)?;
    }
    device::set_owner(&path, user, group, 0o600).map_err(failed)
}

/// Returns the size that the guest sees, in bytes: the configured size, or the size of the base
/// image.
pub fn virtual_size(base: &Path, size: Option<ByteSize>) -> io::Result<u64> {
    let base_size = qcow2::virtual_size(&files::read_beginning(base, qcow2::HEADER)?)
        .map_err(io::Error::other)?;
    Ok(size.map_or(base_size, ByteSize::bytes))
}
