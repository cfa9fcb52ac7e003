//! `meshd volume`: adds, lists and removes volume files. `add` copies a file and needs no running
//! meshd.

use crate::cli::{
    Context, Failure,
    output::{
        list::ListOutput,
        print::{Output, bytes, confirm, now, table},
        writer::{write_message, write_over},
    },
    wait,
};
use clap::Subcommand;
use meshd_api::{VolumeView, routes as api};
use meshd_builder::Volumes;
use meshd_types::VolumeFileName;
use std::{io::IsTerminal as _, path::PathBuf};

/// Number of bytes between two lines of progress.
const STEP: u64 = 64 << 20;

/// A volume is named by its name or its digest; a vm.toml names it by its digest. VMs use qcow2 and
/// ISO images, containers squashfs files.
#[derive(Debug, Subcommand)]
pub(crate) enum Volume {
    /// Add a qcow2, ISO or squashfs file and print its digest
    Add {
        /// File
        file: PathBuf,
        /// Name of the volume [default: file name]
        #[arg(long)]
        name: Option<VolumeFileName>,
        #[command(flatten)]
        output: Output,
    },
    /// List volumes with their VMs and containers
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Remove an unused volume
    Remove {
        /// Volume name or digest
        volume: String,
        /// Skip the confirmation
        #[arg(long, short)]
        yes: bool,
    },
}

impl Volume {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Volume::Add { file, name, output } => add(context, &file, name, output),
            Volume::List { output } => {
                let client = context.client()?;
                let all = wait(client.get(api::LIST_VOLUMES.path([])))?;
                output.print(&all, |all| list(all))
            }
            Volume::Remove { volume, yes } => {
                if !yes {
                    confirm(&format!("Remove the volume {volume}?"))?;
                }
                let client = context.client()?;
                let gone = wait(client.post(api::REMOVE_VOLUME.path([&volume]), &()))?;
                message!("volume {} ({}) is gone", gone.name, gone.digest.short());
                Ok(())
            }
        }
    }
}

fn add(
    context: &Context,
    file: &std::path::Path,
    name: Option<VolumeFileName>,
    output: Output,
) -> Result<(), Failure> {
    let site = context.site()?;
    let stem = file.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
    let name = match name {
        Some(name) => name,
        None => stem
            .parse()
            .map_err(|error| Failure::new(format!("{error}"), "give it a name with --name"))?,
    };
    let shows = std::io::stderr().is_terminal();
    let mut reported = 0;
    let added = Volumes::new(&site.blobs_dir).add(file, name, now(), |copied| {
        if shows && copied >= reported + STEP {
            reported = copied;
            write_over(&format!("{} copied", bytes(copied)));
        }
    });
    if reported > 0 {
        write_message("\n");
    }
    let added = added.map_err(|error| Failure::of(&error))?;
    let view = VolumeView::new(added, Vec::new(), Vec::new());
    output.print(&view, |view| format!("{}\n", view.digest))
}

fn list(all: &[VolumeView]) -> String {
    let rows = all.iter().map(|volume| {
        let vms: Vec<&str> = volume.vms.iter().map(meshd_types::VmName::as_str).collect();
        let containers: Vec<&str> =
            volume.containers.iter().map(meshd_types::ContainerName::as_str).collect();
        let kind = volume.kind.as_str().to_owned();
        let size = bytes(volume.size);
        let seen = bytes(volume.virtual_size);
        [
            volume.name.to_string(),
            kind,
            size,
            seen,
            volume.digest.to_string(),
            volume.added_at.to_string(),
            vms.join(" "),
            containers.join(" "),
        ]
    });
    table(["name", "kind", "size", "guest sees", "digest", "added at", "vms", "containers"], rows)
}
