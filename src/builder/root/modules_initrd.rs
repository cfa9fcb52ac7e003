//! Makes the initramfs of a root: kernel modules and their firmware, without a program.

use super::{
    error::RootFault,
    inspect::{Root, RootKernel},
    sources::limited,
};
use crate::{
    command::ToolCommand,
    error::{BuildError, failed, io_error},
    parts::{
        contents::module_names,
        cpio,
        modules::{parse_dependencies, select},
        recipe::{Algorithm, Compression},
    },
    work_folder::BuildFolder,
};
use meshd_model::image_kind::NicDrivers;
use meshd_types::SafePath;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// Modules with which stage 1 mounts a root and gets a lease.
const REQUIRED: [&str; 5] = ["af_packet", "dm_verity", "loop", "overlay", "squashfs"];
/// The module with which stage 1 serves a tethered root, if the kernel has it.
const TETHER: &str = "nbd";
/// The driver of a virtio NIC. Its device on PCI belongs to `virtio_pci`.
const VIRTIO_NET: &str = "virtio_net";
/// Lists that depmod reads.
const LISTS: [&str; 3] = ["modules.order", "modules.builtin", "modules.builtin.modinfo"];
/// Endings of compressed modules and firmware, and the program that unpacks each.
const PACKED: [(&str, &str); 3] = [(".xz", "xz"), (".zst", "zstd"), (".gz", "gzip")];
const COMPRESSION: Compression = Compression { algorithm: Algorithm::Zstd, level: 15 };
const FIRMWARE: &str = "lib/firmware";
/// Maximum size of all modules and firmware, unpacked, in bytes.
const MAX_BYTES: u64 = 2 << 30;

/// The initramfs of a root.
#[derive(Debug)]
pub(super) struct ModulesInitrd {
    pub file: PathBuf,
    pub nic_drivers: NicDrivers,
}

/// Makes the initramfs with the modules at or below `keep`, those that every node needs, and their
/// dependencies. `date` is the time of all files in seconds.
pub(super) fn make(
    root: &Root<'_>,
    kernel: &RootKernel,
    keep: &[SafePath],
    date: u64,
    work: &BuildFolder,
) -> Result<ModulesInitrd, BuildError> {
    let mut stage = Stage { root, folder: work.folder("modules-initrd")?, bytes: 0 };
    let modules = format!("lib/modules/{}", kernel.release);
    let text = |list: &str| root.text(&format!("{modules}/{list}"));
    let dependencies = text("modules.dep")?.unwrap_or_default();
    let dependencies = parse_dependencies(&dependencies).map_err(BuildError::Modules)?;
    let mut selected = select(&dependencies, keep).map_err(BuildError::Modules)?;
    let builtin: BTreeSet<String> =
        module_names(&text("modules.builtin")?.unwrap_or_default()).collect();
    for name in REQUIRED.into_iter().chain([TETHER]) {
        let is = |path: &&&str| module_names(path).any(|module| module == name);
        match dependencies.keys().find(is) {
            Some(path) => {
                selected.insert(path);
                selected.extend(&dependencies[path]);
            }
            None if builtin.contains(name) || name == TETHER => {}
            None => return Err(RootFault::NoModule(name).into()),
        }
    }
    let has_virtio_net = builtin.contains(VIRTIO_NET)
        || selected.iter().any(|path| module_names(path).any(|name| name == VIRTIO_NET));
    let mut files = Vec::new();
    for module in selected {
        let path = format!("{modules}/{module}");
        let to = stage.put(&path, &path)?.ok_or_else(|| RootFault::Read {
            name: format!("/{path}, which modules.dep names"),
            source: ErrorKind::NotFound.into(),
        })?;
        files.push(to);
    }
    for list in LISTS {
        let path = format!("{modules}/{list}");
        stage.put(&path, &path)?;
    }
    stage.add_firmware(&files)?;
    ToolCommand::new("depmod")
        .arg("-b")
        .arg(&stage.folder)
        .arg(&kernel.release)
        .run()
        .map_err(failed("list the modules of the initramfs"))?;
    let out = work.path("modules");
    cpio::pack(&stage.folder, &stage.paths()?, date, COMPRESSION, &work.path(""), &out)?;
    let loadable = stage.read_list(&format!("{modules}/modules.alias"))?;
    let built_in = stage.read_list(&format!("{modules}/modules.builtin.modinfo"))?;
    let aliases = loadable_aliases(&loadable).chain(builtin_aliases(&built_in));
    Ok(ModulesInitrd { file: out, nic_drivers: NicDrivers::from_aliases(aliases, has_virtio_net) })
}

/// Returns the aliases of `modules.alias`: `alias pci:v00008086d... e1000`.
fn loadable_aliases(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("alias ")?.split(' ').next())
}

/// Returns the aliases of `modules.builtin.modinfo`: `e1000.alias=pci:v00008086d...`, each with a
/// zero at its end.
fn builtin_aliases(text: &str) -> impl Iterator<Item = &str> {
    text.split('\0').filter_map(|entry| Some(entry.split_once(".alias=")?.1))
}

/// The folder with the files of the initramfs.
struct Stage<'a> {
    root: &'a Root<'a>,
    folder: PathBuf,
    /// Size of all files, unpacked.
    bytes: u64,
}

impl Stage<'_> {
    /// Copies a file of the root, unpacked. `None` if the root has no such file.
    fn put(&mut self, from: &str, to: &str) -> Result<Option<PathBuf>, BuildError> {
        let Some(content) = self.root.content(from) else { return Ok(None) };
        let packed =
            PACKED.iter().find_map(|(ending, program)| Some((to.strip_suffix(ending)?, program)));
        let to = self.folder.join(packed.map_or(to, |(plain, _)| plain));
        let parent = to.parent().expect("it lies in a folder");
        fs::create_dir_all(parent).map_err(io_error("make the folder", parent))?;
        let rest = MAX_BYTES.saturating_sub(self.bytes);
        let path = self.root.contents.path(content);
        let done = match packed {
            None => {
                self.root.contents.copy(content, &to).map_err(io_error("write", &to))?;
                Ok(())
            }
            // One byte more shows that a file is too large.
            Some((_, program)) => limited(program, rest + 1)
                .arg("-dc")
                .input(File::open(&path).map_err(io_error("open", &path))?)
                .into_file(File::create(&to).map_err(io_error("make", &to))?),
        };
        let size = fs::metadata(&to).map_err(io_error("read", &to))?.len();
        if size > rest {
            return Err(RootFault::ModulesTooLarge(MAX_BYTES).into());
        }
        done.map_err(failed("unpack a kernel module"))?;
        self.bytes += size;
        Ok(Some(to))
    }

    /// Adds the firmware that modules name, as far as the root has it.
    fn add_firmware(&mut self, modules: &[PathBuf]) -> Result<(), BuildError> {
        let named = ToolCommand::new("modinfo").args(["-F", "firmware"]).args(modules).output();
        let named = named.map_err(failed("list the firmware of the modules"))?;
        for name in named.lines().collect::<BTreeSet<_>>() {
            // A name is text of a module: it must not lead out of the folder.
            if name.parse::<SafePath>().is_err() {
                continue;
            }
            let path = format!("{FIRMWARE}/{name}");
            if self.put(&path, &path)?.is_some() {
                continue;
            }
            for (ending, _) in PACKED {
                self.put(&format!("{path}{ending}"), &format!("{path}{ending}"))?;
            }
        }
        Ok(())
    }

    /// Reads a list of the modules; empty if the kernel has no such list.
    fn read_list(&self, path: &str) -> Result<String, BuildError> {
        let path = self.folder.join(path);
        match fs::read(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(io_error("read", &path)(error)),
        }
    }

    /// Returns all paths, each after its folder.
    fn paths(&self) -> Result<Vec<String>, BuildError> {
        let mut paths = Vec::new();
        list(&self.folder, "", &mut paths)?;
        Ok(paths)
    }
}

fn list(folder: &Path, prefix: &str, paths: &mut Vec<String>) -> Result<(), BuildError> {
    let unreadable = || io_error("read", folder);
    let entries = fs::read_dir(folder).map_err(unreadable())?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(unreadable())?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        paths.push(path.clone());
        if entry.file_type().map_err(unreadable())?.is_dir() {
            list(&entry.path(), &format!("{path}/"), paths)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_of_loadable_and_builtin_modules_are_read() {
        let loadable =
            "# Aliases extracted from modules themselves.\nalias pci:v1 e1000\nalias x y\n";
        assert_eq!(loadable_aliases(loadable).collect::<Vec<_>>(), ["pci:v1", "x"]);
        let builtin = "igb.alias=pci:v2\0igb.license=GPL\0igb.file=drivers/net/igb\0";
        assert_eq!(builtin_aliases(builtin).collect::<Vec<_>>(), ["pci:v2"]);
    }
}
