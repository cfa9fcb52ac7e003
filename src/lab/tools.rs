//! Finds the external programs and files that the lab needs.

use crate::{
    LabError,
    qemu::firmware::{NODE_ARCHITECTURE, Ovmf},
};
use std::{
    env,
    path::{Path, PathBuf},
};

#[derive(Clone, Debug)]
pub struct Tools {
    pub ip: PathBuf,
    /// QEMU for the architecture of the nodes.
    pub qemu: PathBuf,
    /// UEFI firmware.
    pub ovmf: Ovmf,
}

/// Folders of the administrator's PATH that a user's PATH may lack.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];
/// Network boot ROMs that QEMU gives to its NICs: the first program of a BIOS node.
const ROMS: [&str; 2] = ["/usr/lib/ipxe/qemu/efi-virtio.rom", "/usr/share/qemu/efi-virtio.rom"];
/// The loader that UEFI nodes fetch.
const UEFI_LOADER: &str = "snponly.efi";

/// Returns the path of a program, as a shell would find it.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

impl Tools {
    /// Locates all tools. The error lists everything that is missing, with its Debian packages.
    pub fn locate(loaders_dir: &Path) -> Result<Self, LabError> {
        let facts = NODE_ARCHITECTURE.facts();
        let uefi = &facts.installed_uefi[0];
        let ip = find("ip");
        let qemu = find(facts.qemu);
        let ovmf = Ovmf::locate();
        let rom = ROMS.iter().any(|rom| Path::new(rom).exists());
        let loader = loaders_dir.join(UEFI_LOADER);
        let needs = [
            (ip.is_some(), "ip".to_owned(), "iproute2"),
            (qemu.is_some(), facts.qemu.to_owned(), facts.qemu_package),
            (ovmf.is_some(), uefi.code.to_owned(), facts.uefi_package),
            (rom, ROMS[0].to_owned(), "ipxe-qemu"),
            (loader.exists(), loader.display().to_string(), "ipxe"),
        ];
        match (ip, qemu, ovmf) {
            (Some(ip), Some(qemu), Some(ovmf)) if needs.iter().all(|(found, ..)| *found) => {
                Ok(Tools { ip, qemu, ovmf })
            }
            _ => Err(missing_tools(&needs)),
        }
    }
}

fn missing_tools(needs: &[(bool, String, &str)]) -> LabError {
    let absent = || needs.iter().filter(|(found, ..)| !found);
    let missing: Vec<&str> = absent().map(|(_, name, _)| name.as_str()).collect();
    let packages: Vec<&str> = absent().map(|(.., package)| *package).collect();
    LabError::MissingTools { missing: missing.join(", "), packages: packages.join(" ") }
}

/// Requires root, or a process with the same capabilities, because the lab creates networks.
pub fn check_privilege() -> Result<(), LabError> {
    use rustix::thread::{CapabilitySet, capabilities};
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    let has_capabilities = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    if has_capabilities { Ok(()) } else { Err(LabError::NotRoot) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Hint as _;

    #[test]
    fn missing_tools_are_listed_with_their_packages() {
        let needs = [
            (false, "ip".to_owned(), "iproute2"),
            (true, "qemu-system-x86_64".to_owned(), "qemu-system-x86"),
            (false, "OVMF_CODE_4M.fd".to_owned(), "ovmf"),
        ];
        let error = missing_tools(&needs);
        let text = format!("{error}: {}", error.hint().unwrap_or_default());
        assert!(
            text.contains("ip, OVMF_CODE_4M.fd")
                && text.contains("`apt-get install iproute2 ovmf`"),
            "{text}"
        );
        assert!(!text.contains("qemu"), "{text}");
    }

    #[test]
    fn programs_are_found_in_path() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-program-at-all"), None);
    }
}
