//! Unpacks the kernel package and prunes its modules.

use super::{modules, recipe::Recipe};
use crate::{
    command::ToolCommand,
    error::{BuildError, failed, io_error},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) struct UnpackedKernel {
    /// `uname -r`.
    pub(crate) release: String,
    pub(crate) vmlinuz: PathBuf,
    /// Folder that contains only `modules/<release>`.
    pub(crate) modloop: PathBuf,
}

/// Unpacks the kernel package and copies the recipe's modules to the modloop's folder and to the
/// tree.
pub(crate) fn unpack(
    deb: &Path,
    recipe: &Recipe,
    work: &Path,
) -> Result<UnpackedKernel, BuildError> {
    let root = work.join("kernel");
    ToolCommand::new("dpkg-deb")
        .arg("-x")
        .arg(deb)
        .arg(&root)
        .run()
        .map_err(failed("unpack the kernel"))?;
    let all = root.join("lib/modules");
    let release = only_entry(&all)?;
    let depmod =
        |folder: &Path| ToolCommand::new("depmod").arg("-b").arg(folder).arg(&release).run();
    depmod(&root).map_err(failed("list the modules of the kernel"))?;
    let from = all.join(&release);
    let listing = from.join("modules.dep");
    let text = fs::read_to_string(&listing).map_err(io_error("read", &listing))?;
    let dependencies = modules::parse_dependencies(&text).map_err(BuildError::Modules)?;
    let selected = modules::select(&dependencies, &recipe.modules).map_err(BuildError::Modules)?;
    // The initramfs uses the modules of the modloop.
    modules::select(&dependencies, &recipe.initramfs.modules).map_err(BuildError::Modules)?;

    let pruned = work.join("pruned");
    let to = pruned.join("lib/modules").join(&release);
    for module in selected.iter().copied().chain([
        "modules.order",
        "modules.builtin",
        "modules.builtin.modinfo",
    ]) {
        let target = to.join(module);
        let folder = target.parent().expect("a module lies in a folder");
        fs::create_dir_all(folder).map_err(io_error("make the folder", folder))?;
        fs::hard_link(from.join(module), &target).map_err(io_error("link", &target))?;
    }
    depmod(&pruned).map_err(failed("list the modules that are kept"))?;
    Ok(UnpackedKernel {
        vmlinuz: root.join("boot").join(format!("vmlinuz-{release}")),
        modloop: pruned.join("lib"),
        release,
    })
}

fn only_entry(folder: &Path) -> Result<String, BuildError> {
    let entries = fs::read_dir(folder).map_err(io_error("read", folder))?;
    let names: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.file_name()).collect();
    match &names[..] {
        [name] => Ok(name.to_string_lossy().into_owned()),
        _ => Err(BuildError::Kernel {
            package: folder.display().to_string(),
            why: format!("it holds {} sets of modules instead of one", names.len()),
        }),
    }
}
