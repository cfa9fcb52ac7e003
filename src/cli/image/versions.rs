//! `meshd image promote|rollback|prune` and `meshd bundle prune`: versions of images and bundles. A
//! running meshd notices changes.

use crate::cli::{
    Failure,
    output::{
        print::{Output, bytes, confirm, table, write},
        writer::write_message,
    },
    overlay::fits_profiles,
};
use clap::Args;
use meshd_builder::{ArtifactKind, KEEP, Pruned};
use meshd_config::Site;
use meshd_image::catalog::{ImageManifest, versions::read_list};
use meshd_types::ImageName;
use std::{collections::BTreeSet, path::PathBuf};

#[derive(Debug, Args)]
pub(crate) struct Prune {
    /// Name [default: all]
    pub(super) name: Option<String>,
    /// Number of newest builds to keep
    #[arg(long, value_name = "N", default_value_t = KEEP)]
    keep: usize,
    /// Extra list of digests in use, one per line
    #[arg(long, value_name = "FILE")]
    in_use: Vec<PathBuf>,
    /// Print the deletions without making any
    #[arg(long)]
    dry_run: bool,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn promote(site: &Site, name: &ImageName, version: &str) -> Result<(), Failure> {
    let next = meshd_builder::find_version(&site.blobs_dir, name, version)
        .map_err(|error| Failure::of(&error))?;
    fits_profiles(site, &next)?;
    let manifest = meshd_builder::promote(&site.blobs_dir, name, version)
        .map_err(|error| Failure::of(&error))?;
    print_version(&manifest)
}

pub(crate) fn rollback(site: &Site, name: &ImageName) -> Result<(), Failure> {
    let next = meshd_builder::previous_version(&site.blobs_dir, name)
        .map_err(|error| Failure::of(&error))?;
    fits_profiles(site, &next)?;
    let manifest =
        meshd_builder::rollback(&site.blobs_dir, name).map_err(|error| Failure::of(&error))?;
    print_version(&manifest)
}

fn print_version(manifest: &ImageManifest) -> Result<(), Failure> {
    let name = &manifest.name;
    let version = manifest.version().short();
    let kernel = &manifest.kernel_release;
    let built = manifest.built_at;
    write(&format!("{name}: nodes boot version {version} next: kernel {kernel}, built {built}\n"))
}

impl Prune {
    /// Deletes versions of all images or bundles, or of the one with this name.
    pub(super) fn run(
        self,
        site: &Site,
        kind: ArtifactKind,
        name: Option<String>,
    ) -> Result<(), Failure> {
        let mut in_use = BTreeSet::new();
        for list in &self.in_use {
            in_use.extend(read_list(list).map_err(|error| Failure::of(&error))?);
        }
        let go = |dry_run| {
            let name = name.clone();
            let in_use = in_use.clone();
            let request = meshd_builder::Prune { kind, name, keep: self.keep, in_use, dry_run };
            meshd_builder::prune(&site.blobs_dir, &request).map_err(|error| Failure::of(&error))
        };
        let mut pruned = go(true)?;
        if !self.dry_run && pruned.blobs + pruned.versions.len() > 0 {
            if !self.yes {
                write_message(&render(&pruned));
                confirm("Remove these versions?")?;
            }
            pruned = go(false)?;
        }
        self.output.print(&pruned, render)
    }
}

fn render(pruned: &Pruned) -> String {
    let rows = pruned.versions.iter().map(|gone| [gone.name.clone(), gone.version.short()]);
    let versions =
        if pruned.versions.is_empty() { String::new() } else { table(["name", "version"], rows) };
    let count = pruned.versions.len();
    format!("{versions}{count} versions, {} blobs, {}\n", pruned.blobs, bytes(pruned.bytes))
}
