//! The qcow2 overlay of a disk: what a VM writes, above a base image that it does not change.

use crate::vm::{
    confine::{Confinement, device},
    helper_program,
    spec::argv,
    vm_paths::VmPaths,
};
use meshd_proto::vm::{ByteSize, qcow2};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Creates the overlay of a disk unless it exists. It gets its name when it is complete.
pub async fn create(
    files: &VmPaths,
    index: usize,
    (base, size): (&Path, Option<ByteSize>),
    qemu_img: &Path,
    confined: &Confinement,
) -> Result<(), String> {
    let (place, (user, group)) = (files.layer(index), confined.owner());
    let failed = |error: io::Error| format!("{} cannot be made: {error}", place.display());
    if !place.exists() {
        let fresh = place.with_extension("new");
        empty(&fresh).and_then(|()| device::own(&fresh, user, group, 0o600)).map_err(failed)?;
        let size = virtual_size(base, size).map_err(failed)?;
        let (program, args) = confined.command(false, Vec::new(), qemu_img, &argv::layer(&fresh, base, size));
        helper_program::run(&program, &args).await?;
        fs::rename(&fresh, &place).map_err(failed)?;
    }
    device::own(&place, user, group, 0o600).map_err(failed)
}

/// Size of the disk that the guest sees, in bytes: the wanted one, or that of the base image.
pub fn virtual_size(base: &Path, size: Option<ByteSize>) -> io::Result<u64> {
    let mut header = Vec::new();
    File::open(base)?.take(qcow2::HEADER).read_to_end(&mut header)?;
    let own = qcow2::virtual_size(&header).map_err(io::Error::other)?;
    Ok(size.map_or(own, ByteSize::bytes))
}

fn empty(path: &Path) -> io::Result<()> {
    OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path).map(drop)
}
