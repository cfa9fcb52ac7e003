//! An overlay that permits root to log in without a password on a single trial node. Alpine starts
//! a login on the serial port.

use super::{Identity, LabError, Options};
use meshd_config::load;
use std::{fs, path::Path};

/// Name of the overlay, and of the group that applies it to one node.
const NAME: &str = "lab-login";
const MANIFEST: &str = r#"description = "root logs in without a password at the serial port of a node in a box"
[services]
default = ["lab-login"]
[files."/etc/init.d/lab-login"]
mode = "0755"
"#;
const SERVICE: &str = r#"#!/sbin/openrc-run
description="root logs in without a password"

start() {
	ebegin "Taking away the password of root"
	passwd -d root >/dev/null
	eend $?
}
"#;

/// Derives options of a rack whose first node permits root to log in without a password. Copies the
/// overlays into the rack's folder.
pub fn with_login(options: Options) -> Result<Options, LabError> {
    let site = load(&options.site)?;
    let overlays = options.dir.join("overlays");
    copy(&site.overlays_dir, &overlays)?;
    write(&overlays.join(NAME).join("overlay.toml"), MANIFEST)?;
    write(&overlays.join(NAME).join("rootfs/etc/init.d").join(NAME), SERVICE)?;
    let overlays = overlays.display().to_string();
    Ok(options
        .set("site.overlays_dir", &overlays)
        .set(&format!("groups.{NAME}.nodes"), &format!("[\"{}\"]", Identity::at(1).node_id()))
        .set(&format!("groups.{NAME}.overlays"), &format!("[\"{NAME}\"]")))
}

fn write(path: &Path, text: &str) -> Result<(), LabError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(LabError::file("make", folder))?;
    fs::write(path, text).map_err(LabError::file("write", path))
}

/// Copies files with their modes, folders and links. Reading the overlays validates them.
fn copy(from: &Path, to: &Path) -> Result<(), LabError> {
    fs::create_dir_all(to).map_err(LabError::file("make", to))?;
    for entry in fs::read_dir(from).map_err(LabError::file("read", from))? {
        let entry = entry.map_err(LabError::file("read", from))?;
        let source = entry.path();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().map_err(LabError::file("read", &source))?;
        if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            let points_at = fs::read_link(&source).map_err(LabError::file("read", &source))?;
            std::os::unix::fs::symlink(points_at, &target)
                .map_err(LabError::file("write", &target))?;
        } else if kind.is_file() {
            fs::copy(&source, &target).map_err(LabError::file("copy", &source))?;
        } else {
            let fault =
                format!("{} is neither a file, a folder nor a link: remove it", source.display());
            return Err(LabError::Options(fault));
        }
    }
    Ok(())
}
