//! `meshd check`: validates site, overlays and images without a running meshd.

use crate::cli::{
    Context, Failure,
    output::print::{Format, Output, write},
    overlay,
};
use clap::Args;
use meshd_builder::recipes_dir;
use meshd_central::password_faults;
use meshd_config::{Fault, Faults, Site};
use meshd_image::catalog::{
    ImageError, agent_path,
    bundle::{BundleError, load_bundle},
    image, load_agent, load_stage1,
    overlay::read_all,
    read_secrets,
};
use meshd_types::Hint;
use serde::Serialize;
use std::{collections::BTreeSet, path::Path};

/// Exit code 1 when there is a fault. Warnings are no faults.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    faults: Vec<Fault>,
    warnings: Vec<Fault>,
}

impl Check {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let file = context.site_file()?;
        let mut report = Report::default();
        let summary = match meshd_config::load(&file) {
            Ok(site) => {
                report.faults.extend(overlay::faults(&site));
                report.warnings.extend(overlay::warnings(&site));
                programs(&site, &mut report);
                secrets(&site, &mut report);
                images(&site, &mut report);
                bundles(&site, &mut report);
                let profiles = site.profiles.len();
                let name = &site.name;
                format!("{}: site {name} with {profiles} profiles is valid\n", file.display())
            }
            Err(faults) => {
                report.faults = with_overlays(&file, faults).0;
                String::new()
            }
        };
        if self.output.format() != Format::Table {
            self.output.print(&report, |_| String::new())?;
            return if report.faults.is_empty() { Ok(()) } else { Err(summary_failure(&report)) };
        }
        for warning in &report.warnings {
            message!("warning: {warning}");
        }
        if report.faults.is_empty() { write(&summary) } else { Err(Faults(report.faults).into()) }
    }
}

/// Adds the faults of the overlays to those of the site file, so that the user sees all faults at
/// once.
pub(crate) fn with_overlays(file: &Path, mut faults: Faults) -> Faults {
    let folder = meshd_config::overlays_dir(file).filter(|folder| folder.is_dir());
    faults.0.extend(folder.into_iter().flat_map(|folder| read_all(&folder).faults));
    faults
}

fn summary_failure(report: &Report) -> Failure {
    Failure::new(format!("{} faults", report.faults.len()), "")
}

/// Checks the secrets and the passwords of BMCs. Only meshd can read their files: for another user, the report states that
/// they were not checked.
fn secrets(site: &Site, report: &mut Report) {
    let faults = read_secrets(&site.secrets).err().map(|faults| faults.0).unwrap_or_default();
    for fault in faults.into_iter().chain(password_faults(site)) {
        let denied = fault.message.contains("Permission denied");
        if denied { report.warnings.push(fault) } else { report.faults.push(fault) }
    }
}

/// Checks the agent and stage 1. Missing programs are a warning; one that nodes cannot run is a
/// fault.
fn programs(site: &Site, report: &mut Report) {
    let error = load_agent(site).map(drop).and_then(|()| load_stage1(site).map(drop)).err();
    let is_missing = site.agent.binary.is_none() && !agent_path(site).exists();
    let found = if is_missing { &mut report.warnings } else { &mut report.faults };
    found.extend(error.map(Fault::from));
}

/// Checks the images. A missing image is a warning, because `image build` creates it. A damaged
/// image is a fault.
fn images(site: &Site, report: &mut Report) {
    let names: BTreeSet<_> = site.profiles.values().map(|profile| &profile.image).collect();
    for name in names {
        let recipe = site.images_dir.join(name.as_str()).join("image.toml");
        match image::load_image(&site.blobs_dir, name) {
            Ok(_) => {}
            Err(ImageError::NotBuilt { .. }) if recipe.exists() => {
                let hint =
                    format!("build it: meshd image build {name} --site {}", site.file.display());
                report.warnings.push(Fault::of_file(
                    recipe,
                    format!("image `{name}` is not built"),
                    hint,
                ));
            }
            Err(ImageError::NotBuilt { .. }) => {
                let message = format!(
                    "image `{name}` has no recipe and is not built, but a profile names it"
                );
                report.faults.push(Fault::of_file(
                    recipe,
                    message,
                    "write the recipe, or name another image",
                ));
            }
            Err(error) => report.faults.push(fault(&site.blobs_dir, &error)),
        }
    }
}

/// Converts an error of a file below a folder.
fn fault(folder: &Path, error: &impl Hint) -> Fault {
    Fault::of_file(folder, error.message(), error.hint().unwrap_or_default())
}

/// Checks the bundles. A missing bundle with a recipe is a warning. A damaged bundle or one without
/// a recipe is a fault.
fn bundles(site: &Site, report: &mut Report) {
    let names: BTreeSet<_> = site.profiles.values().flat_map(|profile| &profile.bundles).collect();
    for name in names {
        let recipe = recipes_dir(&site.images_dir).join(name.as_str()).join("bundle.toml");
        match load_bundle(&site.blobs_dir, name) {
            Ok(_) => {}
            Err(BundleError::NotBuilt { .. }) if recipe.exists() => {
                let hint =
                    format!("build it: meshd bundle build {name} --site {}", site.file.display());
                report.warnings.push(Fault::of_file(
                    recipe,
                    format!("bundle `{name}` is not built"),
                    hint,
                ));
            }
            Err(BundleError::NotBuilt { .. }) => {
                let message = format!(
                    "bundle `{name}` has no recipe and is not built, but a profile names it"
                );
                report.faults.push(Fault::of_file(
                    recipe,
                    message,
                    "write the recipe, or name another bundle",
                ));
            }
            Err(error) => report.faults.push(fault(&site.blobs_dir, &error)),
        }
    }
}
