//! Unpacks the kernel package, prunes its modules, and makes initramfs and modloop.

use super::{
    modules,
    plan::patched,
    recipe::{Algorithm, Compression, Initramfs, Recipe},
};
use crate::builder::{
    command::ToolCommand,
    error::{BuildError, failed, io_error},
};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

pub(crate) struct UnpackedKernel {
    /// `uname -r`.
    pub(crate) release: String,
    pub(crate) vmlinuz: PathBuf,
    /// Folder that contains only `modules/<release>`.
    pub(crate) modloop: PathBuf,
}

/// Unpacks the kernel package and copies the recipe's modules to the modloop's folder and to the tree.
pub(crate) fn unpack(deb: &Path, recipe: &Recipe, work: &Path) -> Result<UnpackedKernel, BuildError> {
    let root = work.join("kernel");
    ToolCommand::new("dpkg-deb").arg("-x").arg(deb).arg(&root).run().map_err(failed("unpack the kernel"))?;
    let all = root.join("lib/modules");
    let release = only_entry(&all)?;
    ToolCommand::new("depmod")
        .arg("-b")
        .arg(&root)
        .arg(&release)
        .run()
        .map_err(failed("list the modules of the kernel"))?;
    let from = all.join(&release);
    let listing = from.join("modules.dep");
    let text = fs::read_to_string(&listing).map_err(io_error("read", &listing))?;
    let dependencies = modules::parse_dependencies(&text);
    let selected = modules::select(&dependencies, &recipe.modules).map_err(BuildError::Modules)?;
    // The initramfs uses the modules of the modloop.
    modules::select(&dependencies, &recipe.initramfs.modules).map_err(BuildError::Modules)?;

    let pruned = work.join("pruned");
    let to = pruned.join("lib/modules").join(&release);
    for module in selected.iter().copied().chain(["modules.order", "modules.builtin", "modules.builtin.modinfo"]) {
        let target = to.join(module);
        let folder = target.parent().expect("a module lies in a folder");
        fs::create_dir_all(folder).map_err(io_error("make the folder", folder))?;
        fs::hard_link(from.join(module), &target).map_err(io_error("link", &target))?;
    }
    ToolCommand::new("depmod")
        .arg("-b")
        .arg(&pruned)
        .arg(&release)
        .run()
        .map_err(failed("list the modules that are kept"))?;
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

/// Creates the modloop.
pub(crate) fn modloop(kernel: &UnpackedKernel, how: Compression, date: u64, out: &Path) -> Result<(), BuildError> {
    let algorithm = match how.algorithm {
        Algorithm::Gzip => "gzip",
        Algorithm::Zstd => "zstd",
    };
    ToolCommand::new("mksquashfs")
        .arg(&kernel.modloop)
        .arg(out)
        .args(["-all-root", "-noappend", "-no-progress", "-quiet", "-no-xattrs", "-comp", algorithm])
        .args(["-Xcompression-level".to_owned(), how.level.to_string()])
        .args(["-mkfs-time".to_owned(), date.to_string(), "-all-time".to_owned(), date.to_string()])
        .run()
        .map_err(failed("make the modloop"))
}

/// Folder of meshd's files for mkinitfs, in the tree.
const SCRATCH: &str = "tmp/meshd";

/// Adds meshd's feature, the recipe's files and the patched init to the tree, for mkinitfs.
pub(crate) fn furnish_initramfs(recipe_dir: &Path, recipe: &Initramfs, tree: &Path) -> Result<(), BuildError> {
    let scratch = tree.join(SCRATCH);
    let features = scratch.join("features");
    fs::create_dir_all(&features).map_err(io_error("make the folder", &features))?;
    let write = |path: PathBuf, text: String| fs::write(&path, text).map_err(io_error("write", &path));
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
    let text = patched(text, &recipe.patches).map_err(|(times, find)| BuildError::Patch { times, find })?;
    write(scratch.join("init"), text)
}

/// Creates the initramfs with the tree's mkinitfs, after [`furnish_initramfs`].
pub(crate) fn initramfs(
    recipe: &Initramfs,
    tree: &Path,
    release: &str,
    date: u64,
    out: &Path,
) -> Result<(), BuildError> {
    let wanted = recipe.features.iter().map(String::as_str).chain(["meshd"]).collect::<Vec<_>>().join(" ");
    let inside = |name: &str| format!("/{SCRATCH}/{name}");
    ToolCommand::inside(tree, "/sbin/mkinitfs")
        .args(["-q", "-C", "none", "-i", &inside("init"), "-P", &inside("features"), "-F", &wanted])
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
    let mode = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(io_error("set the mode of", to))
}

/// Compresses an archive deterministically.
pub(crate) fn compress(from: &Path, how: Compression, out: &Path) -> Result<(), BuildError> {
    let run = match how.algorithm {
        Algorithm::Gzip => ToolCommand::new("gzip").args(["-n", "-c"]),
        Algorithm::Zstd => ToolCommand::new("zstd").args(["-q", "-c", "-T0"]),
    };
    let input = File::open(from).map_err(io_error("open", from))?;
    let output = File::create(out).map_err(io_error("make", out))?;
    run.arg(format!("-{}", how.level)).input(input).into_file(output).map_err(failed("compress an archive"))
}
