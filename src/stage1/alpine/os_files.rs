//! Files that OpenRC, shells and the kernel read. Paths are below a root, which is `/` on a node.

use meshd_proto::mesh_init::BUNDLES_FOLDER;
use meshd_types::BundleName;
use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Where the modloop is mounted.
pub const MODLOOP: &str = "/.modloop";
const MODULES: &str = "/.modloop/modules";
/// Firmware that the modloop has.
const FIRMWARE: &str = "/lib/modules/firmware";
/// On the path of shells and services.
const PROGRAMS: &str = "/usr/local/bin";
/// Services of Alpine's initramfs that would set the clock back to that of the board.
const CLOCK_SERVICES: [&str; 2] = ["/etc/runlevels/boot/hwclock", "/etc/runlevels/boot/swclock"];
/// Of the overlay `base` for Alpine.
const DHCP_SCRIPT: &str = "/usr/share/meshd/udhcpc";
/// Options of OpenRC's service that ends all processes at shutdown.
const KILLPROCS: &str = "/etc/conf.d/killprocs";
const INTERFACES: &str = "/etc/network/interfaces.d";

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("write {path}: {cause}")]
pub struct OsFileError {
    path: String,
    cause: io::Error,
}

/// Returns the place of an absolute path of a node.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Names the path in an error.
fn at<T>(path: &str, result: io::Result<T>) -> Result<T, OsFileError> {
    result.map_err(|cause| OsFileError { path: path.to_owned(), cause })
}

/// Ignores that a file is absent.
fn if_present(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes modules and firmware of the mounted modloop those of the node.
pub fn use_modules(root: &Path) -> Result<(), OsFileError> {
    let modules = below(root, "/lib/modules");
    let replaced = fs::create_dir_all(below(root, "/lib"))
        .and_then(|()| if_present(fs::remove_dir_all(&modules)))
        .and_then(|()| symlink(MODULES, &modules));
    at("/lib/modules", replaced)?;
    let firmware = below(root, "/lib/firmware");
    let has_firmware = below(root, MODULES).join("firmware").is_dir();
    // Firmware of packages stays.
    let is_free = || if_present(fs::remove_dir(&firmware)).is_ok();
    if !has_firmware || !is_free() {
        return Ok(());
    }
    at("/lib/firmware", symlink(FIRMWARE, &firmware))
}

/// Links the programs of a mounted bundle to a folder where everybody finds them.
pub fn link_programs(root: &Path, bundle: &BundleName) -> Result<(), OsFileError> {
    let from = format!("{BUNDLES_FOLDER}/{bundle}/bin");
    at(PROGRAMS, fs::create_dir_all(below(root, PROGRAMS)))?;
    let programs = match fs::read_dir(below(root, &from)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        programs => at(&from, programs)?,
    };
    for program in programs {
        let name = at(&from, program)?.file_name();
        let link = below(root, PROGRAMS).join(&name);
        let linked = if_present(fs::remove_file(&link))
            .and_then(|()| symlink(Path::new(&from).join(name), link));
        at(PROGRAMS, linked)?;
    }
    Ok(())
}

/// Configures the interface that the machine boots from: only its name was unknown to the overlay.
pub fn write_boot_interface(root: &Path, interface: &str) -> Result<(), OsFileError> {
    let folder = below(root, INTERFACES);
    let text =
        format!("auto {interface}\niface {interface} inet dhcp\n\tdhcp-script {DHCP_SCRIPT}\n");
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("boot"), text));
    at("/etc/network/interfaces.d/boot", written)
}

/// Returns whether a root has the overlay `base` for Alpine.
pub fn has_alpine_overlay(root: &Path) -> bool {
    below(root, DHCP_SCRIPT).is_file()
}

/// Configures what stage 1 knows of a root with Alpine: the boot interface, and the process that
/// serves a tethered root, which has to outlive all others at shutdown.
pub fn configure_root(
    root: &Path,
    interface: &str,
    served_by: Option<u32>,
) -> Result<(), OsFileError> {
    write_boot_interface(root, interface)?;
    remove_clock_services(root)?;
    let Some(process) = served_by else { return Ok(()) };
    let path = below(root, KILLPROCS);
    let file = fs::OpenOptions::new().append(true).create(true).open(path);
    let spared = format!("\nkillall5_opts=\"$killall5_opts -o {process}\"\n");
    at(KILLPROCS, file.and_then(|mut file| file.write_all(spared.as_bytes())))
}

/// Removes services that would undo a correction of the clock.
pub fn remove_clock_services(root: &Path) -> Result<(), OsFileError> {
    CLOCK_SERVICES
        .iter()
        .try_for_each(|path| at(path, if_present(fs::remove_file(below(root, path)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for path in files {
            let path = below(root.path(), path);
            fs::create_dir_all(path.parent().expect("has one")).expect("made");
            fs::write(path, "x").expect("written");
        }
        root
    }

    fn target(root: &tempfile::TempDir, path: &str) -> Option<String> {
        let target = fs::read_link(below(root.path(), path)).ok()?;
        target.into_os_string().into_string().ok()
    }

    #[test]
    fn modules_and_firmware_are_those_of_the_modloop() {
        let modloop = "/.modloop/modules/firmware/a";
        let root_with = |files: &[&str]| {
            let root = root(files);
            use_modules(root.path()).expect("linked");
            [target(&root, "/lib/modules"), target(&root, "/lib/firmware")]
        };
        let modules = Some(MODULES.to_owned());
        let firmware = Some(FIRMWARE.to_owned());
        let both = [modules.clone(), firmware];
        assert_eq!(root_with(&[modloop, "/lib/modules/6.1/old"]), both);
        assert_eq!(root_with(&[modloop]), both);
        let own = [modloop, "/lib/firmware/own"];
        assert_eq!(root_with(&own), [modules.clone(), None], "firmware of packages stays");
        assert_eq!(root_with(&["/.modloop/modules/6.1/a"]), [modules, None]);
    }

    #[test]
    fn programs_of_bundles_are_on_the_path_and_replace_others() {
        let root = root(&["/opt/bundles/qemu/bin/qemu", "/usr/local/bin/qemu"]);
        for bundle in ["qemu", "empty"] {
            link_programs(root.path(), &bundle.parse().expect("a name")).expect("linked");
        }
        let expected = Some("/opt/bundles/qemu/bin/qemu".to_owned());
        assert_eq!(target(&root, "/usr/local/bin/qemu"), expected);
    }

    #[test]
    fn process_of_a_tethered_root_outlives_all_others() {
        assert!(!has_alpine_overlay(root(&["/etc/conf.d/x"]).path()));
        let alpine = root(&[DHCP_SCRIPT, KILLPROCS, CLOCK_SERVICES[0]]);
        assert!(has_alpine_overlay(alpine.path()));
        configure_root(alpine.path(), "eth3", None).expect("written");
        let killprocs = || fs::read_to_string(below(alpine.path(), KILLPROCS)).expect("is there");
        assert_eq!(killprocs(), "x", "all processes end");
        configure_root(alpine.path(), "eth3", Some(7)).expect("written");
        assert_eq!(killprocs(), "x\nkillall5_opts=\"$killall5_opts -o 7\"\n", "the site's stay");
        assert!(!below(alpine.path(), CLOCK_SERVICES[0]).exists());
        assert!(below(alpine.path(), INTERFACES).join("boot").is_file());
    }

    #[test]
    fn boot_interface_is_configured_and_a_file_in_its_way_is_named() {
        let free = root(&["/etc/runlevels/boot/hwclock", "/etc/runlevels/boot/sysctl"]);
        write_boot_interface(free.path(), "eth3").expect("written");
        let text = fs::read_to_string(below(free.path(), "/etc/network/interfaces.d/boot"));
        assert!(
            text.expect("is there").starts_with("auto eth3\niface eth3 inet dhcp\n\tdhcp-script ")
        );
        remove_clock_services(free.path()).expect("removed");
        let services = fs::read_dir(below(free.path(), "/etc/runlevels/boot")).expect("is there");
        assert_eq!(services.count(), 1);
        let blocked = root(&[INTERFACES]);
        let error = write_boot_interface(blocked.path(), "eth3").expect_err("a file").to_string();
        assert!(error.starts_with("write /etc/network/interfaces.d/boot: "), "{error}");
    }
}
