//! Paths of QEMU, its helper programs and UEFI firmware, as the bundle or a distribution installs them.

use crate::system::Tree;
use std::path::PathBuf;

/// The path of a file of the bundle `qemu` on a node.
macro_rules! bundled {
    ($path:literal) => {
        concat!("/opt/bundles/qemu/", $path)
    };
}

/// Folders with programs; the first folder that has a program wins.
const PROGRAM_FOLDERS: [&str; 6] = [bundled!("bin"), "/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"];
/// UEFI firmware as the bundle, Debian, Alpine and Arch install it: code, variables, and whether Secure Boot keys are enrolled.
const UEFI: [(&str, &str, bool); 8] = [
    (bundled!("share/qemu/OVMF_CODE_4M.fd"), bundled!("share/qemu/OVMF_VARS_4M.fd"), false),
    (bundled!("share/qemu/OVMF_CODE_4M.ms.fd"), bundled!("share/qemu/OVMF_VARS_4M.ms.fd"), true),
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd", false),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd", false),
    ("/usr/share/edk2/x64/OVMF_CODE.fd", "/usr/share/edk2/x64/OVMF_VARS.fd", false),
    ("/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd", true),
    ("/usr/share/OVMF/OVMF_CODE.secboot.fd", "/usr/share/OVMF/OVMF_VARS.ms.fd", true),
    ("/usr/share/edk2/x64/OVMF_CODE.secure.fd", "/usr/share/edk2/x64/OVMF_VARS.secure.fd", true),
];

#[derive(Clone, Debug, Default)]
pub struct Programs {
    pub qemu: Option<PathBuf>,
    pub qemu_img: Option<PathBuf>,
    pub swtpm: Option<PathBuf>,
    /// `ip`, of iproute2 or busybox.
    pub ip: Option<PathBuf>,
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
            qemu: find("qemu-system-x86_64"),
            qemu_img: find("qemu-img"),
            swtpm: find("swtpm"),
            ip: find("ip"),
            agent: find("mesh-agent"),
        }
    }
}

pub fn program(tree: &Tree, name: &str) -> Option<PathBuf> {
    let mut paths = PROGRAM_FOLDERS.iter().map(|folder| tree.path(&format!("{folder}/{name}")));
    paths.find(|path| path.is_file())
}

pub fn uefi(tree: &Tree) -> Vec<Uefi> {
    let installed = |(code, vars, secure): &(&str, &str, bool)| {
        let (code, vars) = (tree.path(code), tree.path(vars));
        (code.is_file() && vars.is_file()).then_some(Uefi { code, vars, secure: *secure })
    };
    UEFI.iter().filter_map(installed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_firmware_of_the_bundle_are_found() {
        let recipe = include_str!("../../../../images/bundles/qemu/bundle.toml");
        let mounts = include_str!("../../../../overlays/agent/rootfs/sbin/mesh-init");
        assert!(mounts.contains("/opt/bundles/"), "bundles are mounted at another path");
        let fake = crate::fake::FakeMachine::new("", &[]);
        for line in recipe.lines() {
            let (target, key) = match (line.strip_prefix("to = "), line.strip_prefix("path = ")) {
                (Some(to), None) => (to.trim_matches('"').to_owned(), "file"),
                (None, Some(path)) => {
                    (format!("bin/{}", path.trim_matches('"').rsplit('/').next().expect("a name")), "program")
                }
                _ => continue,
            };
            fake.file(&format!("opt/bundles/qemu/{target}"), key);
        }
        let found: Vec<bool> = uefi(&fake.tree).iter().map(|uefi| uefi.secure).collect();
        assert_eq!(found, [false, true], "without and with Secure Boot");
        let programs = Programs::find(&fake.tree);
        assert!(programs.qemu.is_some() && programs.qemu_img.is_some() && programs.swtpm.is_some(), "{programs:?}");
    }
}
