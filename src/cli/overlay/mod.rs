//! `meshd overlay`: creates, checks, renders and compares overlays.
//!
//! | module | content |
//! | --- | --- |
//! | `render` | renders overlays offline, for `overlay render --profile`, `overlay check` and `check` |
//! | `cat` | `meshd overlay cat`: prints one rendered file, with placeholders for secrets |
//! | `check` | `meshd overlay check`: validates overlays, alone and in combination with profiles and images |
//! | `diff` | `meshd overlay diff`: prints the difference of two renderings as unified diffs |
//! | `golden` | `meshd overlay golden`: compares `golden/` with a rendering on a sample node, or updates it |
//! | `new` | `meshd overlay new`: creates an overlay that renders and has golden files |
//! | `show` | `meshd overlay show`: files and variables of an overlay, and the images it fits |
//! | `comparison_side` | one side of a comparison: a node, a profile, or a profile rendered with other overlays |
//! | `unused` | finds variables of profiles and groups that no overlay uses, such as misspelt names |

pub(crate) mod render;

mod cat;
mod check;
mod diff;
mod golden;
mod new;
mod show;
mod comparison_side;
mod unused;

pub(super) use check::{faults, fits_profiles};
pub(super) use unused::warnings;

use super::{Context, Failure, output::list::ListOutput, output::print::table, profile, wait};
use clap::{Args, Subcommand};
use meshd_api::{GENERATION_HEADER, OverlayView, routes as api};
use meshd_config::Site;
use meshd_image::catalog;
use meshd_types::{Basis, OverlayName, ProfileName, SystemUuid};
use render::{Renderer, overlays, write_whole};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(super) enum OverlayCommand {
    /// Create a new overlay from a working template
    New(new::New),
    /// List overlays
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Show the files and variables of an overlay
    Show(show::Show),
    /// Write a rendered overlay as an archive, without secrets
    Render(Render),
    /// Print one rendered file
    Cat(cat::Cat),
    /// Compare two renderings
    Diff(diff::Diff),
    /// Check overlays and render every profile, offline
    Check(check::CheckOverlays),
    /// Compare overlays with their golden files
    Golden(golden::Golden),
}

/// Write a rendered overlay of a node or a profile
#[derive(Debug, Args)]
pub(super) struct Render {
    /// Node ID or name
    #[arg(required_unless_present = "profile", conflicts_with = "profile")]
    node: Option<String>,
    /// Profile to render, offline
    #[arg(long, value_name = "P")]
    profile: Option<String>,
    /// SMBIOS UUID of the node to render for
    #[arg(long, value_name = "U", requires = "profile")]
    uuid: Option<SystemUuid>,
    /// Archive to write, .tar.gz
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl OverlayCommand {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            OverlayCommand::New(new) => new.run(context),
            OverlayCommand::List { output } => {
                output.print(&list_overlays(context)?, |views| list(views))
            }
            OverlayCommand::Show(show) => show.run(context),
            OverlayCommand::Render(render) => render.run(context),
            OverlayCommand::Cat(cat) => cat.run(context),
            OverlayCommand::Diff(diff) => diff.run(context),
            OverlayCommand::Check(check) => check.run(context),
            OverlayCommand::Golden(golden) => golden.run(context),
        }
    }
}

/// Returns the public part of a node's overlay and its generation. `profile` replaces the profile
/// of the node.
fn of_node(
    context: &Context,
    node: &str,
    profile: Option<&str>,
) -> Result<(Vec<u8>, String), Failure> {
    let client = context.client()?;
    let path = api::RENDER_NODE_OVERLAY.path([&node]).with_optional("profile", profile);
    let (bytes, generation) = wait(client.fetch(path, GENERATION_HEADER))?;
    Ok((bytes.to_vec(), generation))
}

impl Render {
    fn run(self, context: &Context) -> Result<(), Failure> {
        if let Some(node) = &self.node {
            let (bytes, generation) = of_node(context, node, None)?;
            write_whole(&self.out, &bytes)?;
            message!(
                "wrote {}: the overlay of {node}, generation {generation}",
                self.out.display()
            );
            return Ok(());
        }
        let site = context.site()?;
        let profile = profile::find(&site, self.profile.as_deref().unwrap_or_default())?;
        let mut renderer = Renderer::new(&site, overlays(&site)?).with_programs();
        let node = self.uuid.map(|uuid| Basis::Uuid(uuid).node_id());
        let rendered = renderer.render(profile, node)?;
        write_whole(&self.out, &rendered.to_targz())?;
        for note in &renderer.notes {
            message!("note: {note}");
        }
        let files = rendered.files.len();
        let digest = rendered.digest;
        message!(
            "wrote {}: {files} files of profile {}, digest {digest}",
            self.out.display(),
            profile.name
        );
        Ok(())
    }
}

/// Finds an overlay by name.
fn find<'o>(
    site: &Site,
    overlays: &'o catalog::Overlays,
    name: &str,
) -> Result<&'o catalog::Overlay, Failure> {
    overlays
        .named
        .iter()
        .find(|(known, _)| known.as_str() == name)
        .map(|(_, overlay)| overlay)
        .ok_or_else(|| {
            let hint = meshd_config::suggest(name, overlays.named.keys().map(OverlayName::as_str));
            Failure::new(
                format!("there is no overlay `{name}` in {}", site.overlays_dir.display()),
                hint,
            )
        })
}

fn list_overlays(context: &Context) -> Result<Vec<OverlayView>, Failure> {
    if context.is_remote() {
        let client = context.client()?;
        return wait(client.get(api::LIST_OVERLAYS.path([])));
    }
    let site = context.site()?;
    Ok(OverlayView::all(&overlays(&site)?, &site))
}

fn list(views: &[OverlayView]) -> String {
    table(
        ["name", "files", "digest", "profiles", "description"],
        views.iter().map(|view| {
            let profiles: Vec<&str> = view.profiles.iter().map(ProfileName::as_str).collect();
            let files = view.files.to_string();
            [
                view.name.clone(),
                files,
                view.digest.short(),
                profiles.join(" "),
                view.description.clone(),
            ]
        }),
    )
}
