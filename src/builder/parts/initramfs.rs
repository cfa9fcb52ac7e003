//! Makes the initramfs with the image's own mkinitfs.

use super::{
    cpio::{compress, set_mode},
    plan::apply_patches,
    recipe::Initramfs,
};
use crate::{
    command::ToolCommand,
    error::{BuildError, failed, io_error},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Folder of meshd's files for mkinitfs, in the tree.
const SCRATCH: &str = "tmp/meshd";

/// Adds meshd's feature, the recipe's files and the patched init to the tree, for mkinitfs.
pub(crate) fn prepare(
    recipe_dir: &Path,
    recipe: &Initramfs,
    tree: &Path,
) -> Result<(), BuildError> {
    let scratch = tree.join(SCRATCH);
    let features = scratch.join("features");
    fs::create_dir_all(&features).map_err(io_error("make the folder", &features))?;
    let write =
        |path: PathBuf, text: String| fs::write(&path, text).map_err(io_error("write", &path));
    let modules = recipe.modules.iter().map(|path| format!("kernel/{}\n", path.relative()));
    write(features.join("meshd.modules"), modules.collect())?;
    let added = recipe.add.iter().map(|add| add.to.to_string());
    let files = recipe.files.iter().cloned().chain(added).map(|file| file + "\n");
    write(features.join("meshd.files"), files.collect())?;
    for add in &recipe.add {
        add_file(&recipe_dir.join(add.from.relative()), &tree.join(add.to.relative()))?;
    }
    let init = tree.join("usr/share/mkinitfs/initramfs-init");
    let text = fs::read_to_string(&init).map_err(io_error("read", &init))?;
    let text = apply_patches(text, &recipe.patches)
        .map_err(|(times, find)| BuildError::Patch { times, find })?;
    write(scratch.join("init"), text)
}

/// Creates the initramfs with the tree's mkinitfs, after [`prepare`].
pub(crate) fn make(
    recipe: &Initramfs,
    tree: &Path,
    release: &str,
    date: u64,
    out: &Path,
) -> Result<(), BuildError> {
    let features =
        recipe.features.iter().map(String::as_str).chain(["meshd"]).collect::<Vec<_>>().join(" ");
    let inside = |name: &str| format!("/{SCRATCH}/{name}");
    ToolCommand::inside(tree, "/sbin/mkinitfs")
        .args([
            "-q",
            "-C",
            "none",
            "-i",
            &inside("init"),
            "-P",
            &inside("features"),
            "-F",
            &features,
        ])
        .args(["-o", &inside("initramfs"), release])
        .env("SOURCE_DATE_EPOCH", date.to_string())
        .run()
        .map_err(failed("make the initramfs"))?;
    compress(&tree.join(SCRATCH).join("initramfs"), recipe.compression, out)
}

/// Copies a file of the recipe into the tree and keeps its executable bit.
fn add_file(from: &Path, to: &Path) -> Result<(), BuildError> {
    let mode = fs::metadata(from).map_err(io_error("read", from))?.permissions().mode();
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(io_error("make the folder", folder))?;
    }
    fs::copy(from, to).map_err(io_error("copy to", to))?;
    set_mode(to, if mode & 0o100 == 0 { 0o644 } else { 0o755 })
}
