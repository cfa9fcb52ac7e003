//! `meshd overlay`: what nodes are given on top of their image.

use super::{
    Context, Failure,
    client::segment,
    print::{Output, table},
    profile,
    render::{Renderer, overlays, write_whole},
    wait,
};
use crate::catalog;
use crate::config::{Fault, Faults, Site};
use crate::id::{Basis, OverlayName, SystemUuid};
use crate::serve::admin::view::GENERATION_HEADER;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::{collections::BTreeMap, path::PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum Overlay {
    /// All overlays
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Write the public part of an overlay as an archive, to look at
    Render(Render),
    /// Read all overlays and render every profile; needs no running meshd
    Check,
}

/// A node's overlay is asked from meshd; a profile's is rendered here, for a node that does not exist.
#[derive(Debug, Args)]
pub(super) struct Render {
    /// ID or name of a node
    #[arg(required_unless_present = "profile", conflicts_with = "profile")]
    node: Option<String>,
    /// Name of a profile; needs no running meshd
    #[arg(long, value_name = "P")]
    profile: Option<String>,
    /// Render for the node with this SMBIOS UUID
    #[arg(long, value_name = "U", requires = "profile")]
    uuid: Option<SystemUuid>,
    /// Where to write the archive, a gzip-compressed tar
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl Overlay {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Overlay::List { output } => output.print(&views(&context.site()?)?, |views| list(views)),
            Overlay::Render(render) => render.run(context),
            Overlay::Check => {
                let site = context.site()?;
                let found = faults(&site);
                if found.is_empty() {
                    eprintln!("every profile's overlays render");
                    return Ok(());
                }
                Err(Faults(found).into())
            }
        }
    }
}

impl Render {
    fn run(self, context: &Context) -> Result<(), Failure> {
        if let Some(node) = &self.node {
            let client = context.client()?;
            let path = format!("/v1/overlay/{}", segment(node));
            let (bytes, generation) = wait(client.fetch(&path, GENERATION_HEADER))?;
            write_whole(&self.out, &bytes)?;
            eprintln!("wrote {}: the overlay of {node}, generation {generation}", self.out.display());
            return Ok(());
        }
        let site = context.site()?;
        let profile = profile::find(&site, self.profile.as_deref().unwrap_or_default())?;
        let mut renderer = Renderer::new(&site, overlays(&site).map_err(Faults)?).with_agent();
        let node = self.uuid.map(|uuid| Basis::Uuid(uuid).node_id());
        let rendered = renderer.render(profile, node).map_err(Faults)?;
        write_whole(&self.out, &rendered.to_targz())?;
        for note in &renderer.notes {
            eprintln!("note: {note}");
        }
        let (files, digest) = (rendered.files.len(), rendered.digest);
        eprintln!("wrote {}: {files} files of profile {}, digest {digest}", self.out.display(), profile.name);
        Ok(())
    }
}

/// Everything that is wrong with the overlays of a site, and with what its profiles make of them.
pub(super) fn faults(site: &Site) -> Vec<Fault> {
    let overlays = match overlays(site) {
        Ok(overlays) => overlays,
        Err(faults) => return faults,
    };
    let mut renderer = Renderer::new(site, overlays);
    let mut all: Vec<Fault> = Vec::new();
    for profile in site.profiles.values() {
        let found = renderer.render(profile, None).err().unwrap_or_default();
        // A template that two profiles share has one fault.
        let new: Vec<Fault> = found.into_iter().filter(|fault| !all.contains(fault)).collect();
        all.extend(new);
    }
    all
}

/// One overlay in a listing.
#[derive(Debug, Serialize)]
struct OverlayView {
    name: OverlayName,
    description: String,
    digest: crate::id::Digest,
    files: usize,
    packages: Vec<String>,
    services: BTreeMap<String, Vec<String>>,
    profiles: Vec<crate::id::ProfileName>,
}

fn views(site: &Site) -> Result<Vec<OverlayView>, Failure> {
    let overlays = overlays(site).map_err(Faults)?;
    let view = |overlay: catalog::Overlay| OverlayView {
        description: overlay.description,
        digest: overlay.digest,
        files: overlay.entries.len(),
        packages: overlay.packages.into_iter().collect(),
        services: overlay
            .services
            .into_iter()
            .map(|(level, services)| (level.as_str().to_owned(), services.into_iter().collect()))
            .collect(),
        profiles: site
            .profiles
            .values()
            .filter(|profile| profile.overlays.contains(&overlay.name))
            .map(|profile| profile.name.clone())
            .collect(),
        name: overlay.name,
    };
    Ok(overlays.into_values().map(view).collect())
}

fn list(views: &[OverlayView]) -> String {
    table(
        ["name", "files", "digest", "profiles", "description"],
        views.iter().map(|view| {
            let profiles: Vec<&str> = view.profiles.iter().map(crate::id::ProfileName::as_str).collect();
            let files = view.files.to_string();
            [view.name.to_string(), files, view.digest.short(), profiles.join(" "), view.description.clone()]
        }),
    )
}
