//! Makes the modloop: a squashfs of the kernel's modules.

use super::{
    kernel::UnpackedKernel,
    recipe::{Algorithm, Compression},
};
use crate::{
    command::ToolCommand,
    error::{BuildError, failed},
};
use std::path::Path;

/// Creates the modloop.
pub(crate) fn make(
    kernel: &UnpackedKernel,
    how: Compression,
    date: u64,
    out: &Path,
) -> Result<(), BuildError> {
    let algorithm = match how.algorithm {
        Algorithm::Gzip => "gzip",
        Algorithm::Zstd => "zstd",
    };
    ToolCommand::new("mksquashfs")
        .arg(&kernel.modloop)
        .arg(out)
        .args([
            "-all-root",
            "-noappend",
            "-no-progress",
            "-quiet",
            "-no-xattrs",
            "-comp",
            algorithm,
        ])
        .args(["-Xcompression-level".to_owned(), how.level.to_string()])
        .args(["-mkfs-time".to_owned(), date.to_string(), "-all-time".to_owned(), date.to_string()])
        .run()
        .map_err(failed("make the modloop"))
}
