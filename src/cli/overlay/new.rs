//! `meshd overlay new`: creates an overlay that renders and has golden files.

use super::golden::update;
use crate::cli::{Context, Failure, output::print::write};
use clap::Args;
use meshd_image::{
    catalog::overlay::{Layer, NODES, read_all},
    overlay::sample::golden,
};
use meshd_types::OverlayName;
use std::{fs, io, path::Path};

#[derive(Debug, Args)]
pub(in crate::cli) struct New {
    /// Name, also of its folder
    name: OverlayName,
}

const MANIFEST: &str = r#"# What NAME brings. Every key is explained in docs/overlays.md; `meshd overlay check` says what is wrong.
description = "say in a line what NAME is for"

# Systems that the overlay supports: "alpine", and "systemd" for images of kind root.
#systems = ["alpine", "systemd"]

# Alpine packages that must be installed, and kernel modules to load.
#packages = ["htop"]
#modules = ["tun"]

# Services to start, by runlevel: sysinit, boot, default, shutdown.
#[services]
#default = ["NAME"]

# Kernel parameters.
#[sysctl]
#"vm.swappiness" = 10

# Mode and owner of a file in rootfs/, where 0644 (or 0755 for a script) and root are wrong.
#[files."/etc/NAME.conf"]
#mode = "0600"

# What profiles, groups and nodes may set. Templates name it vars.greeting.
[variables.greeting]
type = "text"
default = "hello"
description = "what /etc/NAME.conf says"
"#;

const TEMPLATE: &str = "\
# Rendered for {{ node.hostname }} of {{ site.name }}: a file that ends in .j2 is a template of the file without it.
greeting = {{ vars.greeting }}
";

impl New {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let site = context.site()?;
        let name = self.name.as_str();
        if name == NODES {
            return Err(Failure::new(
                "`nodes` holds the overlays of single nodes",
                "choose another name",
            ));
        }
        let folder = site.overlays_dir.join(name);
        write_all(&folder, name).map_err(|error| {
            let hint = if error.kind() == io::ErrorKind::AlreadyExists {
                format!(
                    "choose another name, or edit it: {}",
                    folder.join("overlay.toml").display()
                )
            } else {
                "check the permissions of [site].overlays_dir".to_owned()
            };
            Failure::new(format!("cannot make {}: {error}", folder.display()), hint)
        })?;
        let reading = read_all(&site.overlays_dir);
        if let Some(overlay) =
            reading.overlays.named.values().find(|one| one.name == Layer::Named(self.name.clone()))
        {
            for system in overlay.systems.iter().copied() {
                update(&folder, system, &golden(&reading.overlays, overlay, system)?)?;
            }
        }
        message!(
            "next: edit it, name it in a profile of {}, and run `meshd overlay check`",
            site.file.display()
        );
        write(&format!("{}\n", folder.display()))
    }
}

fn write_all(folder: &Path, name: &str) -> io::Result<()> {
    fs::create_dir(folder)?;
    fs::create_dir_all(folder.join("rootfs/etc"))?;
    fs::write(folder.join("overlay.toml"), MANIFEST.replace("NAME", name))?;
    fs::write(folder.join(format!("rootfs/etc/{name}.conf.j2")), TEMPLATE)
}
