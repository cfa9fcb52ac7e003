//! What a root contains: kernel, init, release and packages.

use super::{
    contents::ContentStore,
    error::RootFault,
    tree::{Inode, InodeKind, RootTree},
};
use crate::{
    error::{BuildError, io_error},
    import::kernel,
    parts::{contents::module_names, installed},
};
use meshd_image::catalog::image::Contents;
use meshd_model::image_kind::System;
use meshd_types::Architecture;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// Beginning of the name of a kernel.
const KERNEL: &str = "vmlinuz-";
/// First bytes of an ELF program, and of a script.
const ELF: &[u8] = b"\x7fELF";
const SCRIPT: &[u8] = b"#!";
/// Folders of service files, and the ending of a name that is a service.
const SERVICES: [(&str, &str); 4] = [
    ("etc/init.d", ""),
    ("etc/systemd/system", ".service"),
    ("lib/systemd/system", ".service"),
    ("usr/lib/systemd/system", ".service"),
];

/// Databases of apk; a merged `/usr` has the first alone.
const APK_DATABASES: [&str; 2] = ["usr/lib/apk/db/installed", "lib/apk/db/installed"];

/// A complete tree with its contents.
pub(super) struct Root<'a> {
    pub(super) tree: &'a RootTree,
    pub(super) contents: &'a ContentStore,
    pub(super) arch: Architecture,
}

/// The kernel of a root.
pub(super) struct RootKernel {
    /// `uname -r`.
    pub(super) release: String,
    /// The kernel, as a file outside the root.
    pub(super) file: PathBuf,
}

impl Root<'_> {
    /// Returns the content of a file as a process in the root reads it; `None` if there is no such
    /// file.
    pub(super) fn read(&self, path: &str) -> Result<Option<Vec<u8>>, BuildError> {
        let Some(number) = self.content(path) else { return Ok(None) };
        let file = self.contents.path(number);
        self.contents.read(number).map(Some).map_err(io_error("read", file))
    }

    pub(super) fn text(&self, path: &str) -> Result<Option<String>, BuildError> {
        Ok(self.read(path)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Returns the number of a file's content.
    pub(super) fn content(&self, path: &str) -> Option<u64> {
        match self.tree.resolve(path)? {
            (_, Inode { kind: InodeKind::File { content, .. }, .. }) => Some(*content),
            _ => None,
        }
    }

    /// Finds the kernel, and checks that it is for the architecture of the recipe and has modules.
    pub(super) fn kernel(&self) -> Result<RootKernel, BuildError> {
        let names = self.tree.names_in("boot");
        let files = names.into_iter().filter(|name| name.starts_with(KERNEL));
        let files: Vec<&str> =
            files.filter(|name| self.content(&format!("boot/{name}")).is_some()).collect();
        let file = match files[..] {
            [] => return Err(RootFault::NoKernel.into()),
            [file] => file,
            _ => {
                let files = files.into_iter().map(str::to_owned).collect();
                return Err(RootFault::SeveralKernels(files).into());
            }
        };
        let number = self.content(&format!("boot/{file}")).expect("it was found");
        let path = self.contents.path(number);
        let bytes = self.contents.read(number).map_err(io_error("read", &path))?;
        let facts =
            kernel(&bytes).map_err(|why| RootFault::Kernel { file: file.to_owned(), why })?;
        if facts.arch != self.arch {
            return Err(self.foreign(format!("the kernel /boot/{file}"), facts.arch.to_string()));
        }
        let release = file.trim_start_matches(KERNEL);
        if facts.release != release {
            let why = format!("says that its release is {}", facts.release);
            return Err(RootFault::Kernel { file: file.to_owned(), why }.into());
        }
        if self.content(&format!("lib/modules/{release}/modules.dep")).is_none() {
            return Err(RootFault::NoModules(release.to_owned()).into());
        }
        Ok(RootKernel { release: release.to_owned(), file: path })
    }

    /// Checks that the root has a first program for the architecture of the recipe. The
    /// architecture of a script is that of the shell.
    pub(super) fn check_init(&self) -> Result<(), BuildError> {
        let is_program = |(_, inode): (_, &Inode)| inode.meta.mode & 0o111 != 0;
        let init = self.read("sbin/init")?;
        let init = init.filter(|_| self.tree.resolve("sbin/init").is_some_and(is_program));
        let mut program = init.ok_or(RootFault::NoInit)?;
        if program.starts_with(SCRIPT) {
            program = self.read("bin/sh")?.ok_or(RootFault::NoInit)?;
        }
        let machine = program.get(18..20).filter(|_| program.starts_with(ELF));
        let machine = machine.map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        let machine = machine.ok_or(RootFault::NoInit)?;
        match Architecture::from_elf(machine) {
            Some(found) if found == self.arch => Ok(()),
            Some(found) => Err(self.foreign("/sbin/init".to_owned(), found.to_string())),
            None => Err(self.foreign("/sbin/init".to_owned(), format!("ELF machine {machine}"))),
        }
    }

    fn foreign(&self, what: String, found: String) -> BuildError {
        RootFault::Architecture { what, found, expected: self.arch }.into()
    }

    /// Returns the name of the system and its release.
    pub(super) fn os_release(&self) -> Result<String, BuildError> {
        let text = self.text("etc/os-release")?.unwrap_or_default();
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.map(|value| value.trim().trim_matches(['"', '\'']).to_owned())
        };
        let name = value("PRETTY_NAME").or_else(|| value("ID")).unwrap_or_default();
        let name: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
        Ok(if name.is_empty() { "unknown".to_owned() } else { name })
    }

    /// Returns the system that overlays configure.
    pub(super) fn system(&self) -> Result<System, BuildError> {
        let os_release = self.text("etc/os-release")?.unwrap_or_default();
        let is_alpine = os_release.lines().any(|line| line.trim() == "ID=alpine");
        let has_openrc = self.content("sbin/openrc").is_some();
        Ok(if is_alpine && has_openrc { System::Alpine } else { System::Systemd })
    }

    /// Returns the installed packages with their versions, from the database of dpkg or apk. Empty
    /// for a root with another package manager.
    pub(super) fn packages(&self) -> Result<BTreeMap<String, String>, BuildError> {
        if let Some(status) = self.text("var/lib/dpkg/status")? {
            return Ok(dpkg_packages(&status));
        }
        let mut database = None;
        for path in APK_DATABASES {
            database = database.or(self.text(path)?);
        }
        let Some(database) = database else { return Ok(BTreeMap::new()) };
        let packages = installed::parse(&database)?;
        let versions = packages.iter().map(|one| (one.name().to_owned(), one.version().to_owned()));
        Ok(versions.collect())
    }

    /// Returns the services of the root and the modules of its kernel.
    pub(super) fn contents(&self, release: &str) -> Result<Contents, BuildError> {
        let mut services = BTreeSet::new();
        for (folder, ending) in SERVICES {
            let names = self.tree.names_in(folder).into_iter();
            services.extend(names.filter_map(|name| name.strip_suffix(ending)).map(str::to_owned));
        }
        let mut modules = BTreeSet::new();
        for list in ["modules.dep", "modules.builtin"] {
            let text = self.text(&format!("lib/modules/{release}/{list}"))?.unwrap_or_default();
            modules.extend(module_names(&text));
        }
        Ok(Contents { services, modules })
    }
}

/// Parses the installed packages of dpkg's database.
fn dpkg_packages(status: &str) -> BTreeMap<String, String> {
    let package = |record: &str| {
        let field =
            |key: &str| record.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        field("Status")?.ends_with(" installed").then_some(())?;
        Some((field("Package")?.to_owned(), field("Version")?.to_owned()))
    };
    status.split("\n\n").filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_package_is_not_in_the_list_of_dpkg() {
        let status = "Package: a\nStatus: install ok installed\nVersion: 1:2-3\n\n\
                      Package: b\nStatus: deinstall ok config-files\nVersion: 1\n";
        assert_eq!(dpkg_packages(status), BTreeMap::from([("a".into(), "1:2-3".into())]));
    }
}
