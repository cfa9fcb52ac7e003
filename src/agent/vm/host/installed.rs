//! Paths of QEMU, its helper programs and UEFI firmware, as the bundle or a distribution installs
//! them.

use crate::system::Tree;
use meshd_types::Architecture;
use std::path::PathBuf;

/// Folder of the bundle `qemu` on a node.
const BUNDLE: &str = "/opt/bundles/qemu";
/// Folders with programs; the first folder that has a program wins.
const PROGRAM_FOLDERS: [&str; 6] =
    ["/opt/bundles/qemu/bin", "/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"];

#[derive(Clone, Debug, Default)]
pub struct Programs {
    pub qemu: Option<PathBuf>,
    pub qemu_img: Option<PathBuf>,
    pub swtpm: Option<PathBuf>,
    /// The agent, which runs programs confined (`vm-enter`).
    pub agent: Option<PathBuf>,
}

/// The two flash images of a UEFI firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uefi {
    pub code: PathBuf,
    /// Template of the variables.
    pub vars: PathBuf,
    /// True if built for Secure Boot, with the usual keys enrolled.
    pub secure: bool,
}

impl Programs {
    pub fn find(tree: &Tree) -> Self {
        let find = |name: &str| program(tree, name);
        Programs {
            qemu: qemu(tree),
            qemu_img: find("qemu-img"),
            swtpm: find("swtpm"),
            agent: find("mesh-agent"),
        }
    }
}

/// Returns the name of QEMU for virtual machines of this machine's architecture.
pub fn qemu_name() -> &'static str {
    Architecture::host().unwrap_or(Architecture::X86_64).facts().qemu
}

/// Returns the path of QEMU, if nodes of this architecture run VMs.
pub fn qemu(tree: &Tree) -> Option<PathBuf> {
    let runs_vms = Architecture::host().is_some_and(|architecture| architecture.facts().runs_vms);
    if runs_vms { program(tree, qemu_name()) } else { None }
}

pub fn program(tree: &Tree, name: &str) -> Option<PathBuf> {
    let mut paths = PROGRAM_FOLDERS.iter().map(|folder| tree.path(&format!("{folder}/{name}")));
    paths.find(|path| path.is_file())
}

/// Returns the installed UEFI firmware, that of the bundle first.
pub fn uefi(tree: &Tree) -> Vec<Uefi> {
    let Some(facts) = Architecture::host().map(Architecture::facts) else { return Vec::new() };
    let bundled = facts.bundled_uefi.iter().map(|firmware| (BUNDLE, "/", firmware));
    let installed = facts.installed_uefi.iter().map(|firmware| ("", "", firmware));
    let found = bundled.chain(installed).filter_map(|(folder, separator, firmware)| {
        let path = |file: &str| tree.path(&format!("{folder}{separator}{file}"));
        let code = path(firmware.code);
        let vars = path(firmware.vars);
        (code.is_file() && vars.is_file()).then_some(Uefi {
            code,
            vars,
            secure: firmware.secure_boot,
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_firmware_of_the_bundle_are_found() {
        let recipe = include_str!("../../../../images/bundles/qemu/bundle.toml");
        let folder = meshd_proto::mesh_init::BUNDLES_FOLDER;
        assert!(BUNDLE.starts_with(folder), "bundles are mounted at another path");
        let fake = crate::fake::FakeMachine::new("", &[]);
        for line in recipe.lines() {
            let (target, key) = match (line.strip_prefix("to = "), line.strip_prefix("path = ")) {
                (Some(to), None) => (to.trim_matches('"').to_owned(), "file"),
                (None, Some(path)) => (
                    format!("bin/{}", path.trim_matches('"').rsplit('/').next().expect("a name")),
                    "program",
                ),
                _ => continue,
            };
            fake.file(&format!("opt/bundles/qemu/{target}"), key);
        }
        let found: Vec<bool> = uefi(&fake.tree).iter().map(|uefi| uefi.secure).collect();
        assert_eq!(found, [false, true], "without and with Secure Boot");
        let programs = Programs::find(&fake.tree);
        assert!(
            programs.qemu.is_some() && programs.qemu_img.is_some() && programs.swtpm.is_some(),
            "{programs:?}"
        );
    }
}
